"""Sending snapshots to members that need entries which the log no longer has (Raft §7).

A transfer has an id and a window of chunks. The receiver answers with its progress. If an answer shows a gap, the
missing chunks are sent again at once; without an answer they are sent again after `election_timeout_min_ns`. An answer
that reports less than an earlier answer has usually arrived late. Such an answer is ignored, because duplicates would
multiply if each of them caused chunks to be sent again. There is one exception: after chunks were sent again for lack
of an answer, an answer that reports less is used. Then the receiver may really have lost a part. The first chunk is
sent alone, because its answer states how much the receiver already has from an earlier connection. All transfers
together send at most `snapshot_bytes_per_second`. A file is kept while it is being sent, and for a while after its
transfer ended with a lost connection.

See docs/reference/specification.md#57-transfer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from raft.config import RaftConfig
from raft.interfaces import SnapshotInfo, SnapshotStore
from raft.protocol.messages import InstallSnapshot, InstallSnapshotProgress
from raft.snapshots.rate_limit import RateLimiter

WINDOW_CHUNKS_MAX = 4
"""The maximum number of unanswered chunks of one transfer. It is large enough to hide a round trip, and small enough
that appends do not have to wait behind the chunks."""

SILENCES_MAX = 20
"""If the chunks of a transfer were sent again this many times without any answer, the transfer is given up. After a
transfer has lost its connection, its file is kept for the time that this many repetitions take."""


@dataclass(slots=True)
class _OutgoingTransfer:
    transfer_id: int
    info: SnapshotInfo
    deadline: int  # The time (monotonic ns) at which unanswered chunks are sent again.
    acked: int = 0  # The receiver has the bytes before this offset.
    sent: int = 0
    # The offset of the last gap from which chunks were sent again. Further answers with this offset are ignored.
    rewound_at: int = -1
    silences: int = 0
    is_overdue: bool = False  # True after chunks were sent again without an answer, until the receiver has more.
    is_answered: bool = False
    # The time (monotonic ns) until which the file of an earlier transfer, which lost its connection, is kept.
    kept_until: int = 0
    # True if the peer has refused the last transfer (its disk may be full). Nothing is sent before `deadline`.
    held: bool = False


class SnapshotSender:
    """Sends at most one snapshot at a time to each peer. All transfers belong to one term of leadership."""

    def __init__(self, snapshots: SnapshotStore, config: RaftConfig, random: Random) -> None:
        self._snapshots = snapshots
        self._chunk_bytes = config.snapshot_chunk_bytes
        self._resend_ns = config.election_timeout_min_ns
        self._random = random
        self._rate = RateLimiter(config.snapshot_bytes_per_second)
        self._transfers: dict[str, _OutgoingTransfer] = {}
        # Peer id → (file, time in monotonic ns until which to keep it).
        self._broken_off: dict[str, tuple[SnapshotInfo, int]] = {}
        self._refused_by: set[str] = set()
        # File name → transfer id. A peer that reconnects can resume the transfer of the same file.
        self._ids: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._transfers)

    @property
    def next_deadline(self) -> int | None:
        """The time (monotonic ns) at which `tick` has something to do; None if there is none."""
        return min((transfer.deadline for transfer in self._transfers.values()), default=None)

    @property
    def next_chunk_at(self) -> int | None:
        """The time (monotonic ns) from which the rate allows the next chunk; None if no window has room for one."""
        return self._rate.due_at if any(map(self._may_send, self._transfers.values())) else None

    def names_in_use(self, now: int) -> frozenset[str]:
        """The names of the files that are being sent, or may soon be sent again."""
        broken_off = {info.name for info, until in self._broken_off.values() if now < until}
        return frozenset(broken_off.union(transfer.info.name for transfer in self._transfers.values()))

    def start(self, peer_id: str, now: int, log_first_index: int) -> None:
        """Begin to send the newest snapshot to `peer_id`, unless a transfer to this peer is under way.

        If an earlier transfer to the peer lost its connection, the same snapshot is sent again. This requires that its
        file still exists and that the log still has the entries right after the snapshot.
        """
        if peer_id in self._transfers:
            return
        info, kept_until = self._broken_off.pop(peer_id, (self._snapshots.latest(), 0))
        if now >= kept_until or info.header.index < log_first_index - 1:
            info, kept_until = self._snapshots.latest(), 0
        held = peer_id in self._refused_by
        self._transfers[peer_id] = _OutgoingTransfer(
            self._id_of(info), info, now + self._resend_ns, held=held, kept_until=kept_until
        )
        self._refused_by.discard(peer_id)

    def progress(self, peer_id: str, message: InstallSnapshotProgress, now: int) -> bool:
        """Process the receiver's answer. Return False if the receiver cannot take this transfer, which then ends."""
        transfer = self._transfers.get(peer_id)
        if transfer is None or message.transfer_id != transfer.transfer_id:
            return True  # The answer belongs to a transfer that is over.
        if not 0 <= message.next_offset <= transfer.info.size_bytes:
            self.cancel(peer_id)
            self._refused_by.add(peer_id)
            return False
        transfer.silences = 0
        transfer.is_answered = True
        if message.next_offset > transfer.acked:
            transfer.acked, transfer.is_overdue = message.next_offset, False
            transfer.sent = max(transfer.sent, transfer.acked)
            transfer.deadline = now + self._resend_ns
        elif message.next_offset < transfer.acked:
            if transfer.is_overdue:
                transfer.acked = transfer.sent = transfer.rewound_at = message.next_offset
        elif transfer.rewound_at != transfer.acked:
            transfer.sent = transfer.rewound_at = transfer.acked
        return True

    def is_installed(self, peer_id: str, match_index: int) -> bool:
        """True if `match_index` shows that the peer has installed the snapshot that is being sent to it."""
        transfer = self._transfers.get(peer_id)
        return transfer is not None and match_index >= transfer.info.header.index

    def cancel(self, peer_id: str) -> bool:
        """End the transfer to this peer. Return False if no transfer was under way."""
        return self._transfers.pop(peer_id, None) is not None

    def break_off(self, peer_id: str, now: int) -> bool:
        """End the transfer because its connection was lost, but keep the file for a while. Return False if no transfer
        was under way.

        A transfer that got no answer does not extend the time for which the file is kept.
        """
        transfer = self._transfers.pop(peer_id, None)
        if transfer is not None:
            was_heard = transfer.is_answered or not transfer.kept_until
            until = now + SILENCES_MAX * self._resend_ns if was_heard else transfer.kept_until
            self._broken_off[peer_id] = (transfer.info, until)
        return transfer is not None

    def cancel_all(self) -> None:
        """End all transfers, because this node has begun or ceased to lead."""
        self._transfers.clear()
        self._broken_off.clear()
        self._refused_by.clear()
        self._ids.clear()

    def tick(self, now: int) -> list[str]:
        """Repeat the chunks that were not answered in time. Return the peers whose transfer was given up."""
        given_up = []
        for peer_id, transfer in list(self._transfers.items()):
            if transfer.deadline > now:
                continue
            transfer.deadline = now + self._resend_ns
            if transfer.acked == transfer.sent < transfer.info.size_bytes and not transfer.held:
                continue  # No chunk is in flight: this transfer only waits for the rate limit.
            transfer.held, transfer.is_overdue = False, True
            transfer.silences += 1
            # If the receiver has all bytes and is installing the snapshot, the last chunk is sent again to get an
            # answer.
            transfer.sent = min(transfer.acked, max(0, transfer.info.size_bytes - self._chunk_bytes))
            transfer.rewound_at = -1
            if transfer.silences > SILENCES_MAX:
                del self._transfers[peer_id]
                given_up.append(peer_id)
        return given_up

    def chunks(self, term: int, now: int) -> Iterator[tuple[str, InstallSnapshot]]:
        """The chunks that the windows and the rate limit allow now. Peers take turns."""
        for peer_id, transfer in list(self._transfers.items()):
            while self._rate.is_due(now) and self._may_send(transfer):
                self._transfers[peer_id] = self._transfers.pop(peer_id)
                if not transfer.is_answered and now >= transfer.kept_until:
                    self._take_newest(transfer)
                message = self._chunk(transfer, term)
                self._rate.spend(len(message.data), now)
                yield peer_id, message

    def _take_newest(self, transfer: _OutgoingTransfer) -> None:
        """Switch to the newest file, because the peer has nothing of the present one yet. If the peer received an older
        file, it might need the newer file as well."""
        transfer.info = self._snapshots.latest()
        transfer.transfer_id = self._id_of(transfer.info)

    def _id_of(self, info: SnapshotInfo) -> int:
        return self._ids.setdefault(info.name, self._random.getrandbits(62))

    def _may_send(self, transfer: _OutgoingTransfer) -> bool:
        window = WINDOW_CHUNKS_MAX if transfer.is_answered else 1
        window_end = min(transfer.info.size_bytes, transfer.acked + window * self._chunk_bytes)
        return not transfer.held and transfer.sent < window_end

    def _chunk(self, transfer: _OutgoingTransfer, term: int) -> InstallSnapshot:
        data = self._snapshots.read(transfer.info, transfer.sent, self._chunk_bytes)
        assert data, (transfer.info.name, transfer.sent)
        message = InstallSnapshot(
            term=term,
            transfer_id=transfer.transfer_id,
            snapshot_index=transfer.info.header.index,
            snapshot_term=transfer.info.header.term,
            total_bytes=transfer.info.size_bytes,
            offset=transfer.sent,
            data=data,
        )
        transfer.sent += len(data)
        return message
