"""Receiving a snapshot from the leader (Raft §7): at most one transfer and one write are under way at a time.

A transfer is identified by (leader, term, transfer id), so chunks of two transfers never mix. If a chunk does not
continue the file, the answer is the number of bytes written so far. So the answers within one transfer only rise, and
repeated chunks are harmless. A transfer ends when the state machine has the received state. After the last chunk, the
answer to each chunk of the transfer is the full length, until the transfer ends.

See docs/reference/specification.md#57-transfer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from raft.errors import NewerBuildNeeded
from raft.interfaces import SnapshotInfo, SnapshotStore, SnapshotWriter
from raft.protocol.messages import InstallSnapshot
from raft.snapshots.sender import WINDOW_CHUNKS_MAX
from raft.types import LogPosition

CHUNKS_WAITING_MAX = 2 * WINDOW_CHUNKS_MAX
"""The maximum number of chunks that may wait in memory for the disk: more than the window of a sender. Further chunks
are dropped."""

CANNOT_TAKE = -1
"""The `next_offset` that asks the leader to give up the transfer and start another one."""


@dataclass(slots=True)
class _IncomingTransfer:
    key: tuple[str, int, int]
    snapshot_index: int
    snapshot_term: int
    total_bytes: int
    writer: SnapshotWriter
    received: int = 0  # All bytes before this offset have arrived.
    written: int = 0  # All bytes before this offset are written.
    waiting: deque[bytes] = field(default_factory=deque)
    busy: bool = False  # True while a submission is under way.
    finishing: bool = False


class SnapshotReceiver:
    """Writes the chunks to a file. `take_answers`, `take_finished` and `take_failure` return the results."""

    def __init__(self, snapshots: SnapshotStore) -> None:
        self._snapshots = snapshots
        self._transfer: _IncomingTransfer | None = None
        self._answers: list[tuple[str, int, int]] = []
        self._finished: SnapshotInfo | None = None
        self._failure: BaseException | None = None

    @property
    def snapshot_index(self) -> int | None:
        """The index of the snapshot that is being received or installed, or None."""
        return self._transfer.snapshot_index if self._transfer else None

    @property
    def is_finishing(self) -> bool:
        """True after all bytes of a file are written, while the file is verified, made durable and installed."""
        return self._transfer is not None and self._transfer.finishing

    @property
    def buffered_bytes(self) -> int:
        """The size (bytes) of the chunks that wait for the disk."""
        return sum(map(len, self._transfer.waiting)) if self._transfer else 0

    def chunk(self, peer_id: str, message: InstallSnapshot) -> None:
        """Add a chunk. The core has checked that the chunk comes from the leader of the current term."""
        key = (peer_id, message.term, message.transfer_id)
        transfer = self._transfer
        if transfer is not None and transfer.key != key:
            if transfer.finishing:
                return  # The earlier transfer is nearly complete. The leader will send this chunk again.
            if message.offset == 0:
                self.abandon()
                transfer = None
        if transfer is None and message.offset == 0:
            transfer = self._begin(key, message)
        if transfer is None or transfer.key != key:
            self._answers.append((peer_id, message.transfer_id, 0))
        elif message.offset != transfer.received or len(transfer.waiting) >= CHUNKS_WAITING_MAX:
            self._answers.append((peer_id, message.transfer_id, transfer.written))
        elif message.total_bytes != transfer.total_bytes:
            self._give_up(transfer)
        else:
            transfer.waiting.append(message.data)
            transfer.received += len(message.data)

    def advance(self) -> None:
        """If no submission is under way, submit the next write, or finish the file after the last write."""
        transfer = self._transfer
        if transfer is None or transfer.busy:
            return
        if transfer.waiting:
            data = transfer.waiting.popleft()
            transfer.busy = True
            transfer.writer.write(data, lambda error: self._written(transfer, len(data), error))
        elif transfer.written == transfer.total_bytes:
            transfer.busy = transfer.finishing = True
            transfer.writer.finish(lambda result: self._done(transfer, result))

    def abandon(self) -> None:
        """Give up the transfer, unless its file is being finished."""
        if self._transfer is not None and not self._transfer.finishing:
            self._transfer.writer.abandon()
            self._transfer = None

    def installed(self) -> None:
        """End the transfer, because the snapshot that `take_finished` returned is installed or is no longer needed."""
        self._transfer = None

    def take_answers(self) -> list[tuple[str, int, int]]:
        """The answers to send to the leader, as (peer_id, transfer_id, next_offset)."""
        answers, self._answers = self._answers, []
        return answers

    def take_finished(self) -> SnapshotInfo | None:
        """The snapshot that has become durable since the last call, or None. Once the snapshot is installed, the caller
        must call `installed`."""
        finished, self._finished = self._finished, None
        return finished

    def take_failure(self) -> BaseException | None:
        """An error that ends this node, or None: the disk has failed, or only newer builds know the snapshot's form.

        See docs/reference/specification.md#37-failed-sync.
        """
        failure, self._failure = self._failure, None
        return failure

    def _begin(self, key: tuple[str, int, int], message: InstallSnapshot) -> _IncomingTransfer:
        self._transfer = _IncomingTransfer(
            key=key,
            snapshot_index=message.snapshot_index,
            snapshot_term=message.snapshot_term,
            total_bytes=message.total_bytes,
            writer=self._snapshots.receive(
                message.total_bytes, LogPosition(message.snapshot_index, message.snapshot_term)
            ),
        )
        return self._transfer

    def _written(self, transfer: _IncomingTransfer, size_bytes: int, error: BaseException | None) -> None:
        transfer.busy = False
        if transfer is not self._transfer:
            return  # This transfer was abandoned.
        if isinstance(error, OSError | NewerBuildNeeded):
            self._failure = error
            self.abandon()
            return
        if error is not None:
            self._give_up(transfer)  # For example, the disk is full. The leader will start another transfer.
            return
        transfer.written += size_bytes
        self._answers.append((transfer.key[0], transfer.key[2], transfer.written))

    def _done(self, transfer: _IncomingTransfer, result: SnapshotInfo | BaseException) -> None:
        assert transfer is self._transfer
        if isinstance(result, BaseException):
            self._transfer = None
        if isinstance(result, OSError | NewerBuildNeeded):
            self._failure = result
        elif isinstance(result, BaseException):
            self._answers.append((transfer.key[0], transfer.key[2], CANNOT_TAKE))
        else:
            announced = (transfer.snapshot_index, transfer.snapshot_term)
            assert (result.header.index, result.header.term) == announced, (result.header, announced)
            self._finished = result

    def _give_up(self, transfer: _IncomingTransfer) -> None:
        self._answers.append((transfer.key[0], transfer.key[2], CANNOT_TAKE))
        self.abandon()
