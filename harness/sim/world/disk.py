"""`SimFiles`: `storage.Files` on a disk image, in virtual time. One event carries out a whole submission.

No part of a submission is visible until the whole submission is done. If the process crashes before this event, a draw
determines how many operations of the submission, from the first on, are carried out. So a sync in progress may or may
not happen.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from harness.sim.engine.errors import require
from harness.sim.plan.plan import MICROSECOND_NS, DiskPlan
from harness.sim.world.disk_image import DiskImage, parent
from storage import CreateFile, Done, Operation, Rename, SetSize, SyncFile, SyncFolder, Write, read_all

BALLAST_PATH = "ballast"

Schedule = Callable[[int, Callable[[], None]], None]
"""Call back after a delay in ns, unless the process that requested this has ended."""


class SimFiles:
    """The files of one process on one disk image.

    After `crash`, no operation is carried out and no callback is called.
    """

    def __init__(self, image: DiskImage, plan: DiskPlan, random: Random, schedule: Schedule) -> None:
        self._image, self._plan, self._random, self._schedule = image, plan, random, schedule
        self._queue: deque[tuple[tuple[Operation, ...], Done]] = deque()
        self._dead = False
        self.slow_factor = 1
        self.hangs = False  # True while the disk hangs and no submission ends, until `answer`.
        self._is_due = False  # True if the present submission was due during the hang.
        self.accepted: set[str] = set()
        self.lies_about: str | None = None  # The folder in which the disk lies about the next sync of a written file.
        self.may_lie: Callable[[], bool] = lambda: True  # Called just before a lie. The result False prevents the lie.
        self.on_lie: Callable[[str], None] = lambda _: None  # Called with a description after the lie.
        self.has_failed = False  # True once a sync on which something relies has failed.
        self.has_erred = False  # True once a sync or a read has failed.
        self.has_read_short = False  # True once a read has returned fewer bytes than requested.
        # Called once, at the beginning of the next submission, with its duration in ns.
        self.on_start: Callable[[int], None] | None = None
        self.has_lacked_room = False  # True if an operation has found no space since the process last reported space.
        # Folders in which an operation has found no space, and to which nothing was written since then.
        self._owed: set[str] = set()

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """See storage.Files."""
        assert not self._dead, "a dead process submits nothing"
        self._queue.append((tuple(operations), done))
        if len(self._queue) == 1:
            self._start()

    def read(self, path: str, offset: int, length: int) -> bytes:
        """See storage.Files."""
        start = self._image.fails_read_of
        if start is not None and path.startswith(start):
            self._image.fails_read_of, self.has_erred = None, True
            raise OSError(errno.EIO, "Input/output error", path)
        content = self._image.file(path).current
        if not self._image.reads_are_short:
            return bytes(content[offset : offset + length])
        self.has_read_short = self.has_read_short or length > 1
        return read_all(lambda wanted, at: bytes(content[at : at + (wanted + 1) // 2]), length, offset)

    def size_bytes(self, path: str) -> int:
        """See storage.Files."""
        return len(self._image.file(path).current)

    def names(self, folder: str) -> list[str]:
        """See storage.Files."""
        return self._image.children(folder)

    def is_synced(self, folder: str) -> bool:
        """Return True if every operation so far that writes bytes or names into `folder` is carried out and synced.

        Files in `accepted` are ignored, because they are unneeded files of an earlier process, or of operations that
        found no space. After an operation has found no space, the result is False until a later submission to the
        folder succeeds. A process reports its data as written only after it has repeated the operation.
        """
        start = f"{folder}/"
        waiting = any(adds_to(operation, start) for operations, _ in self._queue for operation in operations)
        return not waiting and folder not in self._owed and self._image.unsynced(folder) <= self.accepted

    @property
    def is_busy(self) -> bool:
        """True while a submission has not ended."""
        return bool(self._queue)

    def owes(self, folder: str) -> bool:
        """Return True if an operation has found no space in `folder`, and nothing was written to it since then."""
        return folder in self._owed

    def crash(self, random: Random) -> None:
        """Kill the process. The present submission is carried out in part, and later submissions are dropped."""
        self._dead = True
        if self._queue:
            operations, _ = self._queue[0]
            for operation in operations[: steps_done(operations, random)]:
                try:
                    self._image.carry_out(operation)
                except OSError:
                    break
        self._queue.clear()

    def _start(self) -> None:
        operations, _ = self._queue[0]
        duration_ns = self._duration_ns(operations)
        self._schedule(duration_ns, self._finish)
        if self.on_start is not None:
            told, self.on_start = self.on_start, None
            told(duration_ns)

    def _duration_ns(self, operations: tuple[Operation, ...]) -> int:
        plan, random = self._plan, self._random
        syncs = sum(isinstance(operation, SyncFile | SyncFolder) for operation in operations)
        base_ns = 5 * MICROSECOND_NS * (len(operations) - syncs) + int(plan.sync_ns * syncs * (1 + random.random()))
        stalled = random.random() < plan.stall_rate
        # The factor of a slow disk does not apply to stalls.
        return self.slow_factor * base_ns + (plan.stall_ns if stalled else 0)

    def answer(self) -> None:
        """End the hang. A submission that was due during the hang ends now."""
        self.hangs = False
        if self._is_due:
            self._is_due = False
            self._schedule(0, self._finish)

    def _finish(self) -> None:
        if self._dead:
            return
        self._is_due = self.hangs
        if self.hangs:
            return
        operations, done = self._queue.popleft()
        error: OSError | None = None
        try:
            for place, operation in enumerate(operations):
                self._carry_out(operation, operations[:place])
        except OSError as failed:
            error = failed
        if error is not None or self._owed:
            self._note_room(operations, error)
        if self._queue:
            self._start()
        done(error)

    def _note_room(self, operations: Sequence[Operation], error: OSError | None) -> None:
        folders = {parent(path) for operation in operations if (path := put_at(operation)) is not None}
        if error is None:
            self._owed -= folders
        elif error.errno == errno.ENOSPC:
            self._owed |= folders
            self.has_lacked_room = True

    def _carry_out(self, operation: Operation, before: Sequence[Operation]) -> None:
        if isinstance(operation, SyncFile | SyncFolder) and self._fails(operation):
            self._image.fails_sync, self.has_erred = None, True
            self.has_failed = self.has_failed or any(map(is_relied_on, before))
            self._image.fail_sync(operation, self._random)
            raise OSError(errno.EIO, "Input/output error", operation.path)
        if isinstance(operation, SyncFile) and self._lies(operation.path):
            self.lies_about = None
            self.on_lie(self._image.lie(operation.path, self._random))
            return
        if isinstance(operation, Rename):
            check_rename(self._image, operation)
        try:
            self._image.carry_out(operation)
        except OSError as error:
            if error.errno == errno.ENOSPC and isinstance(operation, Write):
                self.accepted.add(
                    operation.path
                )  # A part of the data may have been written. `is_synced` ignores the file until a later write to it.
            if error.errno == errno.ENOSPC and isinstance(operation, Rename):
                self.accepted.add(operation.old_path)
            raise
        if isinstance(operation, Write):
            self.accepted.discard(operation.path)
        if isinstance(operation, Rename):
            self.accepted.discard(operation.new_path)

    def _fails(self, operation: SyncFile | SyncFolder) -> bool:
        match self._image.fails_sync, operation:
            case SyncFolder(path=folder), SyncFolder(path=path):
                return path == folder
            case SyncFile(path=folder), SyncFile(path=path):
                return parent(path) == folder and path != BALLAST_PATH
        return False

    def _lies(self, path: str) -> bool:
        writes = any(isinstance(change, tuple) for change in self._image.file(path).pending)
        return self.lies_about == parent(path) and writes and self.may_lie()


def is_relied_on(operation: Operation) -> bool:
    """Return True if something may rely on the durability of this operation. Nothing relies on the durability of
    deletions or of the ballast.
    """
    path = put_at(operation)
    return path is not None and path != BALLAST_PATH


def steps_done(operations: Sequence[Operation], random: Random) -> int:
    """Draw how many operations of a submission were carried out before a crash.

    The crash most often interrupts a sync, because syncs take the most time. Then exactly the operations before this
    sync have been carried out.
    """
    syncs = [place for place, operation in enumerate(operations) if isinstance(operation, SyncFile | SyncFolder)]
    if syncs and random.random() < 0.6:
        return random.choice(syncs)
    return random.randrange(len(operations) + 1)


def put_at(operation: Operation) -> str | None:
    """Return the path at which this operation writes bytes or a name; None if it writes neither."""
    match operation:
        case Write(path=path) | SetSize(path=path) | CreateFile(path=path) | Rename(new_path=path):
            return path
        case _:
            return None


def adds_to(operation: Operation, start: str) -> bool:
    """Return True if this operation writes bytes or a name into a folder.

    `start`: the folder's path, followed by "/".
    """
    path = put_at(operation)
    return path is not None and path.startswith(start)


class Immediately:
    """A schedule without delays, for work on an image outside the run. `run` calls all scheduled callbacks."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def __call__(self, _delay_ns: int, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)

    def run(self) -> None:
        """Call all waiting callbacks, and those that they schedule."""
        while self._waiting:
            self._waiting.popleft()()


LOG_FOLDER_NAME = "log"


def check_rename(image: DiskImage, rename: Rename) -> None:
    """Check that a segment gets its name only when the names of all segments before it are durable.

    Otherwise a crash could lose the older of two unsynced names, and leave a gap between the segments. Because a gap
    looks like damage, the member would refuse every later start.

    See docs/reference/specification.md#413-names.
    """
    folder = parent(rename.new_path)
    if folder.rpartition("/")[2] == LOG_FOLDER_NAME:
        loose = [path for path in image.loose_names(folder) if path != rename.old_path]
        require(not loose, "segments get their names one after the other", rename.new_path, loose)
