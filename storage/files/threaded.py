"""`Files` on a real folder: `RealFiles`, with a thread of its own, for a running node; `InlineFiles` for start-up,
tools and tests.

On a fast disk a node waits for a sync, instead of handling its completion in another turn of the loop.
`SyncLatencyTracker` decides when a disk is fast enough.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from storage.files.disk import Disk
from storage.files.interface import Done, Operation, SyncFile, Write
from storage.layout import log_folder

QUICK_NS_MAX = 1_000_000
"""The node waits for a sync that takes less than this. A completion through the loop takes 100 to 300 µs, nearly all of
it CPU time. Nothing else happens during the wait, so the wait must also be short in comparison with a heartbeat
interval."""

WAIT_NS_MAX = 5_000_000
"""The longest wait, a tenth of the heartbeat interval: a disk may stall, and no heartbeat is sent during the wait. With
a lower bound, the node would stop waiting for syncs that are late only because the cores are busy."""

STEPS = 32
"""A wait longer than the estimate raises the estimate by 1/STEPS of itself; any other wait lowers it by 3/STEPS. So the
estimate settles where a quarter of the waits are shorter than it."""

SKIPS = 256
"""How many syncs complete through the loop before the node tries to wait again."""


class SyncLatencyTracker:
    """Estimates the first quartile of the node's waits for a sync. No wait is longer than WAIT_NS_MAX.

    Syncs for which the node did not wait are ignored: their durations depend on the CPU more than on the disk.

    The estimate is a low quartile because of machines where many processes share few cores. There, most of a wait may
    be for a free core, and a turn of the loop would wait for a core as well.

    While the estimate is above QUICK_NS_MAX, the node waits for one sync after every `SKIPS` others. A histogram would
    not do, because it forgets nothing: the longer it ran, the later it would show that the disk has changed.
    """

    def __init__(self) -> None:
        self._typical_ns = QUICK_NS_MAX // 2
        self._skips_left = 0

    def should_wait(self) -> bool:
        """True if the node should wait for the next short append."""
        if self._skips_left > 0:
            self._skips_left -= 1
            return False
        return True

    def record(self, duration_ns: int) -> None:
        """Update the estimate with the duration of one wait."""
        if duration_ns > self._typical_ns:
            self._typical_ns += self._typical_ns // STEPS
        else:
            self._typical_ns -= 3 * self._typical_ns // STEPS
        if self._typical_ns > QUICK_NS_MAX:
            self._skips_left = SKIPS


CLOSE_SECONDS_MAX = 2.0
"""How long `close` waits for the thread. A disk may hang for any length of time."""

SHORT_BYTES_MAX = 32 * 1024
"""The largest append (bytes) that the node waits for. Writing a larger append takes as long as its sync."""


class _Task:
    """Some operations and their callback `done`.

    If the node waits for the task, the thread acquires the lock `end` when the operations are carried out, and the node
    acquires it when it stops waiting. If the thread was first, the node calls `done`; otherwise the thread posts
    `done`.
    """

    __slots__ = ("done", "end", "error", "operations")

    def __init__(self, operations: Sequence[Operation], done: Done) -> None:
        self.operations, self.done = operations, done
        self.end: threading.Lock | None = None  # Set only if the node waits for this task; never released.
        self.error: OSError | None = None  # Set by the thread before it acquires `end`.


class RealFiles:
    """A folder whose operations run in one dedicated thread, in the order of submission.

    `post(callback)` is called from that thread and must arrange for `callback()` to run on the node's own thread; it
    must not raise. The owner calls `close()`. An owner that has called `hold` calls `start` after each event; `start`
    waits for the thread for at most `wait_ns_max`.
    """

    def __init__(
        self, folder: Path, post: Callable[[Callable[[], None]], None], *, wait_ns_max: int = WAIT_NS_MAX
    ) -> None:
        self._disk = Disk(folder)
        self._carry_out = self._disk.carry_out
        self._post = post
        self._is_closed = False
        self._held: list[_Task] | None = None  # The tasks that wait for `start`; None before `hold`.
        self._in_flight = 0  # Tasks that were handed to the thread and whose `done` was not called yet.
        self._sync_latency = SyncLatencyTracker()
        self._wait_seconds_max = wait_ns_max / 1e9
        self._submissions: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._answered = threading.Lock()  # Released by the thread when it has done the task that the node waits for.
        self._answered.acquire()
        self._thread = threading.Thread(target=self._run, name=f"files of {folder}", daemon=True)
        self._thread.start()

    @property
    def folder(self) -> Path:
        """The folder that all paths are relative to."""
        return self._disk.folder

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Start `operations`; `done(None)` when all are carried out, `done(OSError)` at the first that failed."""
        assert not self._is_closed, "closed"
        submission = _Task(operations, done)
        if self._held is None:
            self._hand_over(submission)
        else:
            self._held.append(submission)

    def measure_log_syncs(self, group_id: int, took: Callable[[int], None]) -> None:
        """Call `took` with the duration (ns) of each further append to this group's log, its sync included.

        `took` is called in the thread, and must not raise. Without this call nothing is measured, at no cost.
        """
        carry_out, clock, prefix = self._disk.carry_out, time.perf_counter_ns, f"{log_folder(group_id)}/"

        def measured(operations: Sequence[Operation]) -> OSError | None:
            began = clock()
            error = carry_out(operations)
            ended = clock()
            if error is None and any(type(each) is SyncFile and each.path.startswith(prefix) for each in operations):
                took(ended - began)
            return error

        self._carry_out = measured

    def log_segments(self, group_id: int) -> int:
        """How many segments this group's log has in its folder. Raises OSError."""
        return sum(name.endswith(".wal") for name in self.names(log_folder(group_id)))

    def hold(self) -> None:
        """From now on, submitted operations begin with the next `start`."""
        self._held = []

    def start(self) -> bool:
        """Begin the operations submitted since the last `start`; True if their `done` was called already.

        The node waits briefly for a short append to a fast disk, because a completion in another turn of the loop takes
        more time than such a disk. Call this when no other work is left.
        """
        if not self._held:
            return False
        held, self._held = self._held, []
        if len(held) == 1 and not self._in_flight and is_short(held[0].operations) and self._sync_latency.should_wait():
            return self._wait_for(held[0])
        for submission in held:
            self._hand_over(submission)
        return False

    def _wait_for(self, submission: _Task) -> bool:
        """Hand the task to the thread and wait for it. If the task ends in time, call its `done` and return True;
        otherwise the thread posts the completion.

        The thread carries out the task, not the caller, because a disk may hang: then the node stops waiting and goes
        on with its other work.
        """
        end = submission.end = threading.Lock()  # Set before the thread has the task.
        began = time.perf_counter_ns()
        self._submissions.put(submission)
        if not self._answered.acquire(timeout=self._wait_seconds_max):
            if end.acquire(blocking=False):  # The thread will post the completion.
                self._in_flight += 1
                self._sync_latency.record(time.perf_counter_ns() - began)
                return False
            self._answered.acquire()  # The task ended at the last moment.
        if submission.error is None:  # A failure is often immediate, which tells nothing of the disk's speed.
            self._sync_latency.record(time.perf_counter_ns() - began)
        submission.done(submission.error)
        assert self._held is not None
        held, self._held = self._held, []  # `done` submitted these, and the next `start` may be far away.
        for each in held:
            self._hand_over(each)
        return True

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes from `offset`, shorter only at the end of the file. Raises FileNotFoundError, OSError."""
        return self._disk.read(path, offset, length)

    def size_bytes(self, path: str) -> int:
        """The size of a file. Raises FileNotFoundError."""
        return self._disk.size_bytes(path)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty if there is no such folder."""
        return self._disk.names(folder)

    def close(self, *, wait_seconds_max: float = CLOSE_SECONDS_MAX) -> bool:
        """Carry out all submitted operations, stop the thread, close the files. No `done` is called from now on.

        Return False if the disk hangs. The thread may still write later, so nobody else may use the folder until this
        process has ended.
        """
        if not self._is_closed:
            self._is_closed = True
            for submission in self._held or ():
                self._submissions.put(submission)
            self._submissions.put(None)
        self._thread.join(wait_seconds_max)
        if self._thread.is_alive():
            return False
        self._disk.close()
        return True

    def _hand_over(self, submission: _Task) -> None:
        self._in_flight += 1
        self._submissions.put(submission)

    def _run(self) -> None:
        while (submission := self._submissions.get()) is not None:
            submission.error = self._carry_out(submission.operations)
            if submission.end is not None and submission.end.acquire(blocking=False):
                self._answered.release()
            elif not self._is_closed:
                self._post(partial(self._complete, submission))

    def _complete(self, submission: _Task) -> None:
        self._in_flight -= 1
        if not self._is_closed:  # `close` may have been called after this was posted.
            submission.done(submission.error)


def is_short(operations: Sequence[Operation]) -> bool:
    """True for an append of at most SHORT_BYTES_MAX with its sync: nearly every submission of a log."""
    if len(operations) != 2 or type(operations[0]) is not Write or type(operations[1]) is not SyncFile:
        return False
    buffers = operations[0].buffers
    return (len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))) <= SHORT_BYTES_MAX


class InlineFiles:
    """A folder whose operations run at once; their `done` is called by `run()`. It is used at start-up, by tools and by
    tests."""

    def __init__(self, folder: Path) -> None:
        self._disk = Disk(folder)
        self._completions: deque[tuple[Done, OSError | None]] = deque()

    @property
    def folder(self) -> Path:
        """The folder that all paths are relative to."""
        return self._disk.folder

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Carry out `operations` now; `run()` calls `done`."""
        self._completions.append((done, self._disk.carry_out(operations)))

    def run(self) -> None:
        """Call every outstanding `done`, and those of the operations that they submit."""
        while self._completions:
            done, error = self._completions.popleft()
            done(error)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes from `offset`, shorter only at the end of the file. Raises FileNotFoundError, OSError."""
        return self._disk.read(path, offset, length)

    def size_bytes(self, path: str) -> int:
        """The size of a file. Raises FileNotFoundError."""
        return self._disk.size_bytes(path)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty if there is no such folder."""
        return self._disk.names(folder)

    def close(self) -> None:
        """Close the files."""
        self._disk.close()
