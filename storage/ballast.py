"""The ballast: a file that is deleted when the disk is full, so that there is room for hard states and compaction."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from storage.errors import is_disk_full, is_shortage
from storage.files.interface import CreateFile, Delete, Done, Files, Operation, SyncFile, SyncFolder, Write

BALLAST_PATH = "ballast"
_BLOCK = bytes(64 * 1024)


class _Submission(NamedTuple):
    """The arguments of one call of `Ballast.submit`. Each callback passes the arguments to the next one.

    Callbacks that were closures over the arguments would refer to each other in a cycle. The cycle would keep the
    written buffers (100 MiB and more under load) in memory until a garbage collection."""

    operations: Sequence[Operation]
    done: Done
    again: Callable[[], Sequence[Operation]] | None
    had_spare_room: bool


class Ballast:
    """The spare room of one data folder. The ballast is released when the disk is full, and made again once there is
    room.

    Making the file may itself fill the disk. So operations that fail during `restore` are tried again afterwards.
    """

    def __init__(self, files: Files, size_bytes: int) -> None:
        self._files = files
        self._size_bytes = size_bytes
        self._is_released = False
        self._lacks_descriptors = ""
        self.on_shortage: Callable[[bool], None] = _nobody
        """This function is called with True when room or descriptors run out, and with False when both are available
        again. Between these two calls, only data on which something already depends should be written."""
        self._is_restoring = False
        self._retries = (
            0  # The number of retries under way, plus the number of deletions of the file that belong to no retry.
        )
        # Submissions that found no room. `look_for_room` tries these submissions again.
        self._waiting: list[_Submission] = []
        self.may_wait = False  # True once the owner has begun to call `look_for_room`.
        self._file_too_large: OSError | None = None  # Set if a limit on file sizes forbids the file.

    @property
    def is_released(self) -> bool:
        """True while the disk is full. This time begins when the ballast is released and ends when the file is made
        again."""
        return self._is_released

    @is_released.setter
    def is_released(self, is_released: bool) -> None:
        self._is_released = is_released
        self.on_shortage(self._is_short)

    @property
    def lacks_descriptors(self) -> str:
        """The system's message while an operation waits for a file descriptor; otherwise empty."""
        return self._lacks_descriptors

    @lacks_descriptors.setter
    def lacks_descriptors(self, words: str) -> None:
        self._lacks_descriptors = words
        self.on_shortage(self._is_short)

    @property
    def _is_short(self) -> bool:
        return self._is_released or bool(self._lacks_descriptors)

    @property
    def snapshot_bytes_max(self) -> int:
        """The maximum size of a snapshot on a full disk. Two snapshots of this size leave half of the ballast's room
        for votes."""
        return self._size_bytes // 4

    def is_present(self) -> bool:
        """True if the file exists and has its full size."""
        try:
            return self._files.size_bytes(BALLAST_PATH) == self._size_bytes
        except FileNotFoundError:
            return self._size_bytes == 0

    def restore(self, done: Done) -> None:
        """Make the file, unless it exists and has its full size. If the disk has no room for it, set `is_released` and
        report no error."""
        assert not self._is_restoring, "one search for room at a time"
        if self.is_present():
            self.is_released = False
            self._files.submit([], done)
            return
        blocks, rest = divmod(self._size_bytes, len(_BLOCK))
        buffers = (_BLOCK,) * blocks + ((_BLOCK[:rest],) if rest else ())
        operations: list[Operation] = [Delete(BALLAST_PATH)]
        if buffers:
            operations += [CreateFile(BALLAST_PATH), Write(BALLAST_PATH, 0, buffers), SyncFile(BALLAST_PATH)]

        def restored(error: BaseException | None) -> None:
            self._is_restoring = False
            if error is None:
                self.is_released = bool(self._waiting)
                done(None)
                return
            self.is_released = True
            # The deletion below counts as a retry, so that `look_for_room` does nothing until the deletion is done. The
            # deletion is needed because the file may have its full size although the disk has no room for its bytes.
            # `look_for_room` would not notice this.
            self._retries += 1
            ended_with = None if is_disk_full(error) else error
            self._files.submit([Delete(BALLAST_PATH)], lambda failed: self._given_back(done, ended_with or failed))

        self._is_restoring = True
        self._files.submit(operations, restored)

    def look_for_room(self) -> None:
        """Try the waiting operations again. If no operations wait, try to make the file again. Do nothing while an
        earlier attempt is under way.

        Raises OSError (EFBIG) if a limit on file sizes forbids the file, because waiting for room would not help.
        """
        if self._file_too_large is not None:
            raise self._file_too_large
        if not self._is_short or self._is_restoring or self._retries:
            return
        waiting, self._waiting = self._waiting, []
        for submission in waiting:
            self._retry(submission)
        if not waiting and self.is_released:
            self.restore(self._restored)

    def _restored(self, error: BaseException | None) -> None:
        """If a limit on file sizes forbids the file, remember this error, because waiting for room would not help.

        After any other error `is_released` is True, so `look_for_room` will call `restore` again.
        """
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            self._file_too_large = OSError(errno.EFBIG, error.strerror, BALLAST_PATH)

    def submit(
        self, operations: Sequence[Operation], done: Done, again: Callable[[], Sequence[Operation]] | None = None
    ) -> None:
        """Submit operations as `Files.submit` does. If the disk is full, release the ballast and try the operations
        once more.

        `again` returns the operations of a further attempt. These operations must work in spite of anything that a
        failed attempt has left on the disk. If `again` is given and there is still no room in the second attempt, the
        operations wait for `look_for_room`. Operations that find no file descriptor wait as well. They do not release
        the ballast, because more room would not help them. While the folder is being opened (`may_wait` is False),
        nothing waits.
        """
        # A failure is retried if there was spare room when the operations were submitted. So if several submissions
        # under way find no room, the first failure releases the ballast, and all these submissions are tried again.
        submission = _Submission(operations, done, again, not self.is_released or self._is_restoring)
        self._files.submit(operations, partial(self._tried, submission))

    def rescue(
        self,
        operations: Sequence[Operation],
        error: BaseException,
        done: Done,
        again: Callable[[], Sequence[Operation]],
    ) -> None:
        """Continue like `submit` after its first attempt has failed. The caller has made that attempt directly, while
        there was spare room."""
        self._tried(_Submission(operations, done, again, had_spare_room=True), error)

    def _tried(self, submission: _Submission, error: BaseException | None) -> None:
        if error is None:
            submission.done(None)
            return
        if is_disk_full(error) and submission.had_spare_room:
            self.is_released = True
            self._retry(submission)
        else:
            self._ended(submission, error)

    def _retry(self, submission: _Submission) -> None:
        self._retries += 1
        further = submission.operations if submission.again is None else submission.again()
        giving_back: list[Operation] = [Delete(BALLAST_PATH), SyncFolder("")] if self.is_released else []
        self._files.submit([*giving_back, *further], partial(self._retried, submission))

    def _retried(self, submission: _Submission, error: BaseException | None) -> None:
        self._retries -= 1
        if self.lacks_descriptors and not self._waiting and not self._retries:
            self.lacks_descriptors = ""  # Nothing waits now. `_ended` may make this operation wait again.
        self._ended(submission, error)

    def _ended(self, submission: _Submission, error: BaseException | None) -> None:
        if not is_shortage(error) or submission.again is None or not self.may_wait:
            submission.done(error)
            return
        self._waiting.append(submission)
        if is_disk_full(error):
            # Another callback may have set `is_released` to False, and then `look_for_room` would do nothing.
            self.is_released = True
        else:
            assert isinstance(error, OSError), error
            self.lacks_descriptors = (error.strerror or str(error)).lower()

    def submit_snapshot(self, operations: Sequence[Operation], done: Done, size_bytes: int) -> None:
        """Submit operations of a snapshot. The snapshot's file has `size_bytes` after these operations.

        A snapshot above `snapshot_bytes_max` must not use the ballast's room: on a full disk its operations end with an
        OSError. The room is kept for votes, because the cluster depends on votes and does not depend on an unfinished
        snapshot.

        Operations with a sync are never tried again, because some file systems detect the lack of room only at a sync,
        drop the written bytes, and let the next sync succeed. The ballast is still released, and the next snapshot may
        use its room.
        """
        if size_bytes <= self.snapshot_bytes_max and any(isinstance(each, SyncFile) for each in operations):
            self._files.submit(operations, partial(self._snapshot_synced, done))
        elif size_bytes <= self.snapshot_bytes_max:
            self.submit(operations, done)
        elif self.is_released:
            kept = OSError(errno.ENOSPC, "the disk is full; what is left is kept for votes")
            self._files.submit([], lambda error: done(error or kept))
        else:
            self._files.submit(operations, done)

    def _snapshot_synced(self, done: Done, error: BaseException | None) -> None:
        if is_disk_full(error) and not self.is_released and not self._is_restoring:
            self.is_released = True
            # Count the deletion below as a retry, so that `look_for_room` does nothing until the deletion is done.
            self._retries += 1
            self._files.submit([Delete(BALLAST_PATH), SyncFolder("")], lambda _: self._given_back(done, error))
        else:
            done(error)

    def _given_back(self, done: Done, error: BaseException | None) -> None:
        self._retries -= 1
        done(error)


def _nobody(_: bool) -> None:
    """Do nothing. This is the default of `on_shortage`, for a ballast without a log."""
