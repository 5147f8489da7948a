"""`Files` on a real folder. `RealFiles` has its own thread and is for a running node; `InlineFiles` is for start-up,
tools and tests.

If the disk is fast, the node's thread blocks until a sync is done. Otherwise the completion of the sync is handled in
another turn of the event loop. `SyncLatencyTracker` decides whether the disk is fast enough.
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
"""The node waits for syncs if they usually take less than this time. Without the wait, the completion goes through the
event loop. This takes 100 to 300 µs, nearly all of it CPU time. During the wait nothing else happens, so the wait must
also be short in comparison with a heartbeat interval."""

WAIT_NS_MAX = 5_000_000
"""The longest wait, a tenth of the heartbeat interval. There must be a limit because a disk may stall, and no heartbeat
is sent during the wait. With a lower limit, the node would stop waiting for syncs that are late only because the cores
are busy."""

STEPS = 32
"""A wait that is longer than the estimate raises the estimate by 1/STEPS of itself. Any other wait lowers it by
3/STEPS. So a quarter of the waits are shorter than the estimate once it has settled."""

SKIPS = 256
"""How many syncs complete through the event loop before the node tries to wait again."""


class SyncLatencyTracker:
    """Estimates the first quartile of the node's waits for a sync. No wait is longer than WAIT_NS_MAX.

    A sync for which the node did not wait is ignored, because its duration depends more on the CPU than on the disk.

    The estimate is the first quartile and not the median, because many processes may share few cores on a machine. On
    such a machine the node may spend most of a wait waiting for a free core. A turn of the event loop would have to
    wait for a core as well.

    While the estimate is above QUICK_NS_MAX, the node waits for one sync and then skips the wait for the next SKIPS
    syncs. A histogram would not work, because it never forgets old durations. So the older the histogram, the later it
    would show a change of the disk.
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
"""How long `close` waits for the thread. There is a limit because a hanging disk may never respond."""

SHORT_BYTES_MAX = 32 * 1024
"""The largest append (bytes) for which the node waits. For a larger append, the write takes as long as the sync."""


class _Task:
    """A task: some operations and their callback `done`.

    If the node waits for the task, the lock `end` decides whether the node or the thread handles the completion. The
    thread tries to acquire the lock after it has carried out the operations; the node tries to acquire the lock when it
    stops waiting. If the thread gets the lock, the node calls `done`. If the node gets the lock, the thread posts
    `done`.
    """

    __slots__ = ("done", "end", "error", "operations")

    def __init__(self, operations: Sequence[Operation], done: Done) -> None:
        self.operations, self.done = operations, done
        self.end: threading.Lock | None = None  # Set only if the node waits for this task. The lock is never released.
        self.error: OSError | None = None  # Set by the thread before it acquires `end`.


class RealFiles:
    """A folder whose operations run in one dedicated thread, in the order of submission.

    The dedicated thread calls `post(callback)`, which must make `callback()` run on the node's own thread, and must not
    raise an error. The owner must call `close()`. An owner that has called `hold` must call `start` after each event.
    `start` waits at most `wait_ns_max` for the dedicated thread.
    """

    def __init__(
        self, folder: Path, post: Callable[[Callable[[], None]], None], *, wait_ns_max: int = WAIT_NS_MAX
    ) -> None:
        self._disk = Disk(folder)
        self._carry_out = self._disk.carry_out
        self._post = post
        self._is_closed = False
        self._held: list[_Task] | None = None  # The tasks that wait for `start`; None until `hold` is called.
        self.has_waiting = False  # True if a task waits for `start`.
        self._in_flight = 0  # The number of tasks that were passed to the thread and whose `done` was not called yet.
        self._sync_latency = SyncLatencyTracker()
        self._wait_seconds_max = wait_ns_max / 1e9
        self._submissions: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        # The thread releases this lock after it has carried out the task for which the node waits.
        self._answered = threading.Lock()
        self._answered.acquire()
        self._thread = threading.Thread(target=self._run, name=f"files of {folder}", daemon=True)
        self._thread.start()

    @property
    def folder(self) -> Path:
        """The folder to which all paths are relative."""
        return self._disk.folder

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Start `operations`. `done(None)` is called when all are carried out, `done(OSError)` when one has failed."""
        assert not self._is_closed, "closed"
        submission = _Task(operations, done)
        if self._held is None:
            self._hand_over(submission)
        else:
            self._held.append(submission)
            self.has_waiting = True

    def measure_log_syncs(self, group_id: int, took: Callable[[int], None]) -> None:
        """From now on, call `took` with the duration (ns) of each append to this group's log, including its sync.

        `took` is called in the I/O thread, and must not raise. Until this method is called, measuring costs nothing.
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
        """The number of segments in the folder of this group's log. Raises OSError."""
        return sum(name.endswith(".wal") for name in self.names(log_folder(group_id)))

    def hold(self) -> None:
        """From now on, submitted operations begin only at the next `start`."""
        self._held = []

    def start(self) -> bool:
        """Begin the operations submitted since the last `start`. Return True if all `done` callbacks of these
        operations were called already.

        If the disk is fast, this method waits for a short append, because the append takes less time than another turn
        of the event loop. So the caller should do all other work first.
        """
        if not self._held:
            return False
        held = self._take_held()
        if len(held) == 1 and not self._in_flight and is_short(held[0].operations) and self._sync_latency.should_wait():
            return self._wait_for(held[0])
        for submission in held:
            self._hand_over(submission)
        return False

    def _wait_for(self, submission: _Task) -> bool:
        """Pass the task to the thread and wait for its end. If the task ends in time, call its `done` and return True.
        Otherwise return False; the thread will post the completion.

        The thread, not the caller, carries out the task, so that the node can stop waiting for a disk that hangs and
        continue with its other work.
        """
        end = submission.end = threading.Lock()  # The lock must be set before the thread gets the task.
        began = time.perf_counter_ns()
        self._submissions.put(submission)
        if not self._answered.acquire(timeout=self._wait_seconds_max):
            if end.acquire(blocking=False):  # The node got the lock, so the thread will post the completion.
                self._in_flight += 1
                self._sync_latency.record(time.perf_counter_ns() - began)
                return False
            self._answered.acquire()  # The task has ended at the last moment.
        if submission.error is None:  # A failure is often immediate, so its duration is not a measure of the disk.
            self._sync_latency.record(time.perf_counter_ns() - began)
        submission.done(submission.error)
        for each in self._take_held():  # `done` may have submitted these, and the next `start` may come much later.
            self._hand_over(each)
        return True

    def _take_held(self) -> list[_Task]:
        assert self._held is not None
        held, self._held, self.has_waiting = self._held, [], False
        return held

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`, or fewer at the end of the file. Raises FileNotFoundError, OSError."""
        return self._disk.read(path, offset, length)

    def size_bytes(self, path: str) -> int:
        """The size of a file. Raises FileNotFoundError."""
        return self._disk.size_bytes(path)

    def names(self, folder: str) -> list[str]:
        """The sorted names in a folder. The list is empty if the folder does not exist."""
        return self._disk.names(folder)

    def close(self, *, wait_seconds_max: float = CLOSE_SECONDS_MAX) -> bool:
        """Carry out all submitted operations, stop the thread, and close the files. No further `done` is called.

        Return False if the disk hangs. In this case the thread may write later, so no other process may use the folder
        until this process has ended.
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
        if not self._is_closed:  # `close` may have been called after this task was posted.
            submission.done(submission.error)


def is_short(operations: Sequence[Operation]) -> bool:
    """True for the write and the sync of an append of at most SHORT_BYTES_MAX. Nearly all submissions of a log are of
    this kind."""
    if len(operations) != 2 or type(operations[0]) is not Write or type(operations[1]) is not SyncFile:
        return False
    buffers = operations[0].buffers
    return (len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))) <= SHORT_BYTES_MAX


class InlineFiles:
    """A folder whose operations run inside `submit`. `run()` calls the `done` callbacks of the submissions. Start-up,
    tools and tests use this class."""

    def __init__(self, folder: Path) -> None:
        self._disk = Disk(folder)
        self._completions: deque[tuple[Done, OSError | None]] = deque()

    @property
    def folder(self) -> Path:
        """The folder to which all paths are relative."""
        return self._disk.folder

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Carry out `operations` now. `run()` calls `done`."""
        self._completions.append((done, self._disk.carry_out(operations)))

    def run(self) -> None:
        """Call `done` for all submissions so far. Also call `done` for submissions that are made during these calls."""
        while self._completions:
            done, error = self._completions.popleft()
            done(error)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`, or fewer at the end of the file. Raises FileNotFoundError, OSError."""
        return self._disk.read(path, offset, length)

    def size_bytes(self, path: str) -> int:
        """The size of a file. Raises FileNotFoundError."""
        return self._disk.size_bytes(path)

    def names(self, folder: str) -> list[str]:
        """The sorted names in a folder. The list is empty if the folder does not exist."""
        return self._disk.names(folder)

    def close(self) -> None:
        """Close the files."""
        self._disk.close()
