"""`Files` on a real folder: `RealFiles` with a thread of its own for a running node, `InlineFiles` for the rest."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from storage.disk import Disk
from storage.files import Done, Operation, SyncFile, Write
from storage.layout import log_folder
from storage.pace import Pace

_Submission = tuple[Sequence[Operation], Done]

SHORT_BYTES_MAX = 32 * 1024
"""Beyond it writing takes as long as syncing, and a thread may well do that."""


class RealFiles:
    """A folder whose operations run in one dedicated thread, in the order of submission.

    `post(callback)` is called from that thread and must arrange for `callback()` to run on the node's own; it must
    not raise. The owner calls `close()`. An owner that has called `hold` calls `start` after each event.
    """

    def __init__(self, folder: Path, post: Callable[[Callable[[], None]], None]) -> None:
        self._disk = Disk(folder)
        self._carry_out = self._disk.carry_out
        self._post = post
        self._is_closed = False
        self._held: list[_Submission] | None = None  # Since `hold`: what waits for `start`.
        self._untold = 0  # Handed over to the thread, and their end was not told yet.
        self._pace = Pace()
        self._submissions: queue.SimpleQueue[_Submission | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"files of {folder}", daemon=True)
        self._thread.start()

    @property
    def folder(self) -> Path:
        """The folder that all paths are relative to."""
        return self._disk.folder

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Start `operations`; `done(None)` when all are carried out, `done(OSError)` at the first that failed."""
        assert not self._is_closed, "closed"
        if self._held is None:
            self._hand_over((operations, done))
        else:
            self._held.append((operations, done))

    def measure_log_syncs(self, group_id: int, took: Callable[[int], None]) -> None:
        """From now on `took` is told how many ns each append to this group's log has needed, its sync included.

        It is called by the thread that did it, never by two at a time, and must not raise. What nobody measures costs
        nothing.
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
        """How many files this group's log has. Looks into the folder. Raises OSError."""
        return sum(name.endswith(".wal") for name in self.names(log_folder(group_id)))

    def hold(self) -> None:
        """From now on what is submitted begins with the next `start`."""
        self._held = []

    def start(self) -> bool:
        """Begin what was submitted since the last time; True if its end was told already, by a call of `done`.

        A short append to a disk that is quick is waited for: the way to the thread and back costs more than the disk
        itself, for a lone put about as much as all the rest. Call it when there is nothing better to do.
        """
        if not self._held:
            return False
        held, self._held = self._held, []
        began = time.perf_counter_ns()
        if len(held) == 1 and not self._untold and is_short(held[0][0]) and self._pace.is_quick(began):
            operations, done = held[0]
            error = self._carry_out(operations)
            if error is None:  # What fails often fails at once.
                ended = time.perf_counter_ns()
                self._pace.took(ended - began, ended)
            done(error)
            held, self._held = self._held, []  # What that end has led to: nobody may come back for it soon.
            for submission in held:
                self._hand_over(submission)
            return True
        for submission in held:
            self._hand_over(submission)
        return False

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
        """Carry out what was submitted, stop the thread, close the files. No `done` is called from now on."""
        if self._is_closed:
            return
        self._is_closed = True
        for submission in self._held or ():
            self._submissions.put(submission)
        self._submissions.put(None)
        self._thread.join()
        self._disk.close()

    def _hand_over(self, submission: _Submission) -> None:
        self._untold += 1
        self._submissions.put(submission)

    def _run(self) -> None:
        while (submission := self._submissions.get()) is not None:
            operations, done = submission
            error = self._carry_out(operations)
            if not self._is_closed:
                self._post(lambda done=done, error=error: self._tell(done, error))  # type: ignore[misc]

    def _tell(self, done: Done, error: OSError | None) -> None:
        self._untold -= 1
        if not self._is_closed:  # It may have been closed after this was posted.
            done(error)


def is_short(operations: Sequence[Operation]) -> bool:
    """True for an append of at most SHORT_BYTES_MAX with its sync, which is nearly all that a log asks for."""
    if len(operations) != 2 or type(operations[0]) is not Write or type(operations[1]) is not SyncFile:
        return False
    return sum(map(len, operations[0].buffers)) <= SHORT_BYTES_MAX


class InlineFiles:
    """A folder whose operations run at once; their `done` is called by `run()`. For start-up, tools and tests."""

    def __init__(self, folder: Path) -> None:
        self._disk = Disk(folder)
        self._told: deque[tuple[Done, OSError | None]] = deque()

    @property
    def folder(self) -> Path:
        """The folder that all paths are relative to."""
        return self._disk.folder

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Carry out `operations` now; `run()` calls `done`."""
        self._told.append((done, self._disk.carry_out(operations)))

    def run(self) -> None:
        """Call every outstanding `done`, and those of what they submit."""
        while self._told:
            done, error = self._told.popleft()
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
