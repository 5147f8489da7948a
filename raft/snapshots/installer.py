"""Installing a received snapshot into the state machine, slice by slice, so that the member keeps hearing its leader.

The machine keeps its old state until the whole snapshot has been read. Then the machine switches to the new state in
one step. A crash before that step loses nothing, because the file is durable under its final name and the next start
restores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from raft.interfaces import SnapshotInfo, SnapshotStore, StateMachine, StateRestore
from raft.snapshots.rate_limit import RateLimiter


class IncrementalStateMachine(StateMachine, Protocol):
    """An optional extension of `StateMachine`, for a machine that can restore a snapshot in small steps."""

    def begin_restore(self, header: Mapping[str, Any], chunks: Iterable[bytes]) -> StateRestore:
        """Begin to read a new state, while the machine keeps its current one. Raises an error if the header is invalid.
        The steps of the returned restore raise an error if chunks are invalid."""
        ...


class SnapshotInstaller:
    """Installs at most one snapshot at a time. Each `step` does one slice of the work."""

    def __init__(
        self, machine: StateMachine | IncrementalStateMachine, snapshots: SnapshotStore, bytes_per_second: int
    ) -> None:
        self._machine = machine
        self._snapshots = snapshots
        self._rate = RateLimiter(bytes_per_second)
        self._info: SnapshotInfo | None = None
        self._restore: StateRestore | None = None
        self._tidying: list[StateRestore] = []  # Restores that have ended and whose memory is being freed in slices.
        self._read_bytes = 0  # The number of bytes read since the last step.
        self._stepped_at = -1

    @property
    def snapshot_index(self) -> int | None:
        """The index of the snapshot that is being installed, or None."""
        return self._info.header.index if self._info else None

    @property
    def due_at(self) -> int | None:
        """The time (monotonic ns) from which the next slice may be done; None if there is nothing to do."""
        if self._restore is None and not self._tidying:
            return None
        return max(self._rate.due_at, self._stepped_at + 1)

    def begin(self, info: SnapshotInfo) -> None:
        """Start to install a snapshot, which must be durable."""
        assert self._info is None, self._info
        begin = getattr(self._machine, "begin_restore", None)
        chunks = self._counted(self._snapshots.chunks(info))
        self._restore = (
            _BlockingInstaller(self._machine, info.header.machine, chunks)
            if begin is None
            else begin(info.header.machine, chunks)
        )
        self._info = info

    def step(self, now: int) -> SnapshotInfo | None:
        """Process one slice if it is due. If the machine has switched to the new state in this slice, return the
        snapshot.

        Raises the machine's error if the chunks are invalid, and the store's error if the file is damaged.
        """
        if now <= self._stepped_at or not self._rate.is_due(now):
            return None
        self._stepped_at = now
        became = None
        if self._restore is not None:
            has_more = self._restore.step()
            if self._restore.is_restored:
                became, self._info = self._info, None
                self._tidying += [self._restore] if has_more else []
                self._restore = None
        elif self._tidying and not self._tidying[0].step():
            del self._tidying[0]
        self._rate.spend(self._read_bytes, now)
        self._read_bytes = 0
        return became

    def give_up(self) -> None:
        """Give up the installation, because the log reaches beyond the snapshot. The machine keeps its current
        state."""
        if self._restore is not None:
            self._restore.give_up()
            self._tidying.append(self._restore)
            self._info = self._restore = None

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._read_bytes += len(chunk)
            yield chunk


class _BlockingInstaller:
    """Restores, in a single step, a machine that has no `begin_restore`."""

    def __init__(self, machine: StateMachine, header: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        self._machine, self._header, self._chunks = machine, header, chunks
        self.is_restored = False

    def step(self) -> bool:
        if not self.is_restored:
            self._machine.restore(self._header, self._chunks)
            self.is_restored = True
        return False

    def give_up(self) -> None:
        """Give up the restore. There is nothing to undo, because it has not begun."""
        self.is_restored = True
