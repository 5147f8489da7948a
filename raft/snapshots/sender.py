"""Sending snapshots to members that are behind the log (Raft §7).

A transfer has an id and a window of chunks. The receiver answers with its progress. Missing chunks are sent again: at
once after a gap, and after `election_timeout_min_ns` of silence. The first chunk goes alone, because its answer says
how much the receiver has from an earlier connection. All transfers together keep to `snapshot_bytes_per_second`. A file
is kept while it is being sent, and for a while after its connection broke.

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
"""The maximum number of unanswered chunks of one transfer: enough to hide a round trip, few enough that appends do not
queue behind them."""

SILENCES_MAX = 20
"""How often the chunks of a transfer are sent again without any answer, before the transfer is given up. After the loss
of a peer's connection, the file is kept for the same time."""


@dataclass(slots=True)
class _OutgoingTransfer:
    transfer_id: int
    info: SnapshotInfo
    deadline: int  # Monotonic ns: chunks without an answer by then are sent again.
    acked: int = 0  # The receiver has the bytes before this offset.
    sent: int = 0
    rewound_at: int = -1  # The offset of the last gap that was sent again: further answers with it are ignored.
    silences: int = 0
    is_answered: bool = False
    kept_until: int = 0  # Monotonic ns: until when an earlier, broken-off transfer keeps the file.
    held: bool = False  # Wait for `deadline`, because the peer refused the last transfer (a full disk, perhaps).


class SnapshotSender:
    """Sends at most one snapshot to each peer; all transfers belong to one term of leadership."""

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
        self._ids: dict[str, int] = {}  # By file name, so that a peer that reconnects can resume.

    def __len__(self) -> int:
        return len(self._transfers)

    @property
    def next_deadline(self) -> int | None:
        """When `tick` has something to do (monotonic ns)."""
        return min((transfer.deadline for transfer in self._transfers.values()), default=None)

    @property
    def next_chunk_at(self) -> int | None:
        """When the rate allows the next chunk (monotonic ns); None if no window is open."""
        return self._rate.due_at if any(map(self._may_send, self._transfers.values())) else None

    def names_in_use(self, now: int) -> frozenset[str]:
        """The names of the files that are being sent, or may soon be sent again."""
        broken_off = {info.name for info, until in self._broken_off.values() if now < until}
        return frozenset(broken_off.union(transfer.info.name for transfer in self._transfers.values()))

    def start(self, peer_id: str, now: int, log_first_index: int) -> None:
        """Begin to send the newest snapshot to `peer_id`, unless a transfer to it is under way.

        After a broken connection the same snapshot is sent again, if the log still has the entries right after it.
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
        """Take the receiver's answer. False if the receiver cannot take this transfer, which is then over."""
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
            transfer.acked = message.next_offset
            transfer.sent = max(transfer.sent, transfer.acked)
            transfer.deadline = now + self._resend_ns
        elif message.next_offset < transfer.acked or transfer.rewound_at != transfer.acked:
            transfer.acked = transfer.sent = transfer.rewound_at = message.next_offset
        return True

    def is_installed(self, peer_id: str, match_index: int) -> bool:
        """True if the peer, whose log matches up to `match_index`, has the snapshot that is being sent to it."""
        transfer = self._transfers.get(peer_id)
        return transfer is not None and match_index >= transfer.info.header.index

    def cancel(self, peer_id: str) -> bool:
        """End the transfer to this peer; False if there was none."""
        return self._transfers.pop(peer_id, None) is not None

    def break_off(self, peer_id: str, now: int) -> bool:
        """Cancel the transfer after the loss of its connection, but keep the file for a while after the peer's last
        answer."""
        transfer = self._transfers.pop(peer_id, None)
        if transfer is not None:
            was_heard = transfer.is_answered or not transfer.kept_until
            until = now + SILENCES_MAX * self._resend_ns if was_heard else transfer.kept_until
            self._broken_off[peer_id] = (transfer.info, until)
        return transfer is not None

    def cancel_all(self) -> None:
        """End all transfers: this node no longer leads."""
        self._transfers.clear()
        self._broken_off.clear()
        self._refused_by.clear()
        self._ids.clear()

    def tick(self, now: int) -> list[str]:
        """Repeat chunks that were not answered in time; return the peers whose transfer was given up."""
        given_up = []
        for peer_id, transfer in list(self._transfers.items()):
            if transfer.deadline > now:
                continue
            transfer.deadline = now + self._resend_ns
            if transfer.acked == transfer.sent < transfer.info.size_bytes and not transfer.held:
                continue  # Nothing is in flight: this transfer only waits for its turn.
            transfer.held = False
            transfer.silences += 1
            # If the receiver has all bytes and is installing them, the last chunk is repeated to get an answer.
            transfer.sent = min(transfer.acked, max(0, transfer.info.size_bytes - self._chunk_bytes))
            transfer.rewound_at = -1
            if transfer.silences > SILENCES_MAX:
                del self._transfers[peer_id]
                given_up.append(peer_id)
        return given_up

    def chunks(self, term: int, now: int) -> Iterator[tuple[str, InstallSnapshot]]:
        """The chunks that the windows and the rate limit allow now, for the peers in turn."""
        for peer_id, transfer in list(self._transfers.items()):
            while self._rate.is_due(now) and self._may_send(transfer):
                self._transfers[peer_id] = self._transfers.pop(peer_id)
                if not transfer.is_answered and now >= transfer.kept_until:
                    self._take_newest(transfer)
                message = self._chunk(transfer, term)
                self._rate.spend(len(message.data), now)
                yield peer_id, message

    def _take_newest(self, transfer: _OutgoingTransfer) -> None:
        """Switch to the newest file, as long as nothing has arrived: after an older file the peer might need a newer
        one, too."""
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
