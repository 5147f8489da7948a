"""`Files` on a real folder: `RealFiles` with a thread of its own for a running node, `InlineFiles` for the rest."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from storage.disk import Disk
from storage.files import Done, Operation


class RealFiles:
    """A folder whose operations run in one dedicated thread, in the order of submission.

    `post(callback)` is called from that thread and must arrange for `callback()` to run on the node's own; it must
    not raise. The owner calls `close()`.
    """

    def __init__(self, folder: Path, post: Callable[[Callable[[], None]], None]) -> None:
        self._disk = Disk(folder)
        self._post = post
        self._is_closed = False
        self._submissions: queue.SimpleQueue[tuple[Sequence[Operation], Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"files of {folder}", daemon=True)
        self._thread.start()

    @property
    def folder(self) -> Path:
        """The folder that all paths are relative to."""
        return self._disk.folder

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Start `operations`; `done(None)` when all are carried out, `done(OSError)` at the first that failed."""
        assert not self._is_closed, "closed"
        self._submissions.put((operations, done))

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
        self._submissions.put(None)
        self._thread.join()
        self._disk.close()

    def _run(self) -> None:
        while (submission := self._submissions.get()) is not None:
            operations, done = submission
            error = self._disk.carry_out(operations)
            if not self._is_closed:
                self._post(lambda done=done, error=error: self._tell(done, error))  # type: ignore[misc]

    def _tell(self, done: Done, error: OSError | None) -> None:
        if not self._is_closed:  # It may have been closed after this was posted.
            done(error)


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
