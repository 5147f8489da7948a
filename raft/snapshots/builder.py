"""Building a snapshot of this node's own state, chunk by chunk, between other work (Raft §7).

The rate is limited to `snapshot_bytes_per_second`, because the encoding of a chunk takes a few ms, in which the node
does nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.interfaces import SnapshotHeader, SnapshotInfo, SnapshotStore, SnapshotWriter, StateSnapshot
from raft.snapshots.rate_limit import RateLimiter


@dataclass(slots=True)
class _Build:
    index: int
    state: StateSnapshot
    writer: SnapshotWriter
    busy: bool = False  # True while a submission is under way.
    finishing: bool = False


class SnapshotBuilder:
    """Builds at most one snapshot at a time. Each `advance` submits at most one chunk to the disk, and only if no other
    submission is under way."""

    def __init__(self, snapshots: SnapshotStore, bytes_per_second: int) -> None:
        self._snapshots = snapshots
        self._rate = RateLimiter(bytes_per_second)
        self._build: _Build | None = None
        self._finished: SnapshotInfo | None = None
        self._given_up: BaseException | None = None
        self._failure: BaseException | None = None

    @property
    def is_under_way(self) -> bool:
        """True from `begin` until the caller has taken the result."""
        return self._build is not None or self._finished is not None

    @property
    def due_at(self) -> int | None:
        """The time (monotonic ns) from which `advance` may make the next chunk; None while the disk is busy or no build
        is under way."""
        return self._rate.due_at if self._build is not None and not self._build.busy else None

    def begin(self, header: SnapshotHeader, state: StateSnapshot) -> None:
        """Start to write `state`, the machine's state at `header.index`."""
        assert not self.is_under_way
        self._build = _Build(header.index, state, self._snapshots.create(header))

    def advance(self, now: int) -> None:
        """Submit the next chunk, or finish the file after the last chunk. Do nothing while a submission is under way or
        the rate limit forbids it."""
        build = self._build
        if build is None or build.busy or not self._rate.is_due(now):
            return
        build.busy = True
        chunk = next(build.state.chunks, None)
        if chunk is not None:
            self._rate.spend(len(chunk), now)
            build.writer.write(chunk, lambda error: self._written(build, error))
        else:
            build.finishing = True
            build.writer.finish(lambda result: self._done(build, result))

    def abandon(self) -> None:
        """Give up the build, unless its file is being finished."""
        if self._build is not None and not self._build.finishing:
            self._build.writer.abandon()
            self._build.state.close()
            self._build = None

    def take_finished(self) -> SnapshotInfo | None:
        """The snapshot that has become durable since the last call, or None."""
        finished, self._finished = self._finished, None
        return finished

    def take_given_up(self) -> BaseException | None:
        """The error because of which a build was given up, for example of a full disk; or None. The node continues,
        because nothing depends on such a snapshot."""
        given_up, self._given_up = self._given_up, None
        return given_up

    def take_failure(self) -> BaseException | None:
        """The error of a failed disk, or None. After such an error this node must stop.

        See docs/reference/specification.md#37-failed-sync.
        """
        failure, self._failure = self._failure, None
        return failure

    def _written(self, build: _Build, error: BaseException | None) -> None:
        build.busy = False
        if error is None or build is not self._build:
            return
        if isinstance(error, OSError):
            self._failure = error
        else:
            self._given_up = error
        self.abandon()

    def _done(self, build: _Build, result: SnapshotInfo | BaseException) -> None:
        assert build is self._build
        self._build = None
        if isinstance(result, OSError):
            self._failure = result
        elif isinstance(result, BaseException):
            self._given_up = result
        else:
            self._finished = result
