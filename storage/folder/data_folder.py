"""The data folder of a node on a real disk. A data folder is created once, by an explicit first start. At most one
process at a time has a data folder open, under a lock. The file `meta` in the folder names the member that owns it.

See docs/reference/specification.md#15-data-folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from raft import Configuration, Identity, LogPosition, Member
from storage.errors import (
    CorruptMeta,
    DiskFailing,
    FolderLocked,
    NewerFormat,
    NotEmpty,
    NotInitialized,
    NotWritable,
    StorageError,
    WrongCluster,
    WrongNode,
    in_folder,
)
from storage.files.disk import FOLDER_MODE, open_file, sync_folder
from storage.files.threaded import InlineFiles, RealFiles
from storage.folder.initialize import BEGINNING, initialize
from storage.folder.metadata import META_PATH, read_identity, read_joins_as
from storage.layout import INITIALIZING_NAME, LOCK_NAME

logger = logging.getLogger("storage")

DISK_ERRORS = frozenset({errno.EIO, errno.EUCLEAN})
"""The system's errors for a failing disk and for a damaged file system."""

_NO_FOLDER_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
"""The errors of a file system that cannot lock a folder."""


class DataFolder:
    """A data folder that this process has locked. `close()` releases it."""

    def __init__(self, folder: Path, identity: Identity, lock: FolderLock, joins_as: Member | None = None) -> None:
        """`joins_as`: this member with its first addresses, if it was created to join a running cluster; otherwise
        None."""
        self.folder, self.identity, self.joins_as = folder, identity, joins_as
        self._lock: FolderLock | None = lock
        self._files: RealFiles | None = None

    def files(self, post: Callable[[Callable[[], None]], None]) -> RealFiles:
        """Open the files of this folder, with their own I/O thread. `close` closes them."""
        self._files = RealFiles(self.folder, post)
        return self._files

    def close(self) -> None:
        """Close the files and release the lock. If the disk hangs, keep the lock, because the I/O thread may still
        write."""
        if self._files is not None and not self._files.close():
            logger.error("%s: its disk hangs; it stays locked until this process ends", self.folder)
            return
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def create_data_folder(
    folder: Path,
    *,
    identity: Identity,
    configuration: Configuration,
    machine_header: Mapping[str, Any],
    machine_chunks: Iterable[bytes] = (),
    position: LogPosition = BEGINNING,
    joins_as: Member | None = None,
) -> None:
    """The explicit first start: make `folder` the data folder of a new member, durably. A missing folder is created.

    The arguments are those of `storage.folder.initialize.initialize`. Raises NotEmpty if the folder contains anything
    except the files of an interrupted first start. Raises FolderLocked, NotWritable, DiskFailing, OSError.
    """
    _make(folder)
    _refuse_unless_new(folder)
    lock = _lock(folder)
    files = InlineFiles(folder)
    outcome: list[BaseException | None] = []
    try:
        _refuse_unless_new(folder)  # Another process may have initialised the folder before this lock.
        initialize(
            files,
            identity=identity,
            configuration=configuration,
            machine_header=machine_header,
            machine_chunks=machine_chunks,
            position=position,
            joins_as=joins_as,
            done=outcome.append,
        )
        files.run()
    finally:
        files.close()
        lock.release()
    if outcome[0] is not None:
        raise outcome[0]


def open_data_folder(
    folder: Path, *, expect_cluster_id: bytes | None = None, expect_node_id: str | None = None
) -> DataFolder:
    """Open and lock the folder of an existing member. This changes only the process id in `LOCK`.

    Raises NotInitialized, FolderLocked, NotWritable, DiskFailing, WrongCluster, WrongNode, NewerFormat, CorruptMeta.
    """
    _refuse_unless_member(folder)
    lock = _lock(folder)
    try:
        _refuse_unless_member(folder)
        identity, joins_as = _read_meta(folder)
        if expect_cluster_id is not None and identity.cluster_id != expect_cluster_id:
            raise WrongCluster(str(folder), identity.cluster_id, expect_cluster_id)
        if expect_node_id is not None and identity.node_id != expect_node_id:
            raise WrongNode(str(folder), identity.node_id, expect_node_id)
    except BaseException:
        lock.release()
        raise
    _warn_if_open_to_all(folder)
    return DataFolder(folder, identity, lock, joins_as)


def holder_of(folder: Path) -> FolderLocked | None:
    """The error that `open_data_folder` would raise now because another process has the folder open. None if no other
    process has it open. This function changes nothing."""
    with contextlib.ExitStack() as opened:
        for path, flags in ((folder, os.O_DIRECTORY), (folder / LOCK_NAME, os.O_NONBLOCK)):
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
                opened.callback(os.close, descriptor)
                if not _try_lock(descriptor, fcntl.LOCK_SH):  # A lock that was taken here is released on return.
                    return FolderLocked(str(folder), _pid_of(folder))
    return None


def _pid_of(folder: Path) -> int | None:
    """The process id in `LOCK`; None if it cannot be read."""
    try:
        descriptor = open_file(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _pid_in(descriptor)
    finally:
        os.close(descriptor)


def _pid_in(descriptor: int) -> int | None:
    with contextlib.suppress(ValueError):
        return int(os.pread(descriptor, 32, 0))
    return None


def _refusal(folder: Path, error: OSError) -> StorageError:
    """The error to report for `error`: DiskFailing if the disk is broken, NotWritable for any other cause (such as
    missing permission)."""
    kind = DiskFailing if error.errno in DISK_ERRORS else NotWritable
    reason = error.strerror or str(error)
    if error.filename is not None and Path(error.filename) != folder:
        reason = f"{error.filename}: {reason}"
    return kind(str(folder), reason)


def _make(folder: Path) -> None:
    """Create the folder and its missing parents, and make each new name durable."""
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(FOLDER_MODE, exist_ok=True)
        for path in missing:
            sync_folder(path.parent)
    except OSError as error:
        raise _refusal(folder, error) from error


def _warn_if_open_to_all(folder: Path) -> None:
    """Warn if every user can access the folder. The mode is not changed, because the operator may want it."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & stat.S_IRWXO:
            words = "%s: every user of this machine can look into it (mode %04o): `chmod 700` it, unless that is wanted"
            logger.warning(words, folder, mode)


def _read_meta(folder: Path) -> tuple[Identity, Member | None]:
    files = InlineFiles(folder)
    try:
        return read_identity(files), read_joins_as(files)
    except (CorruptMeta, NewerFormat) as error:
        raise in_folder(error, str(folder)) from error
    finally:
        files.close()


def _names(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()} - {LOCK_NAME}
    except OSError as error:
        raise _refusal(folder, error) from error


def _refuse_unless_new(folder: Path) -> None:
    names = _names(folder)
    if names and (INITIALIZING_NAME not in names or META_PATH in names):
        raise NotEmpty(str(folder), tuple(sorted(names)))


def _refuse_unless_member(folder: Path) -> None:
    """Raise NotInitialized if no member has ever run in the folder, and CorruptMeta if a member's `meta` is missing.

    These errors must not be confused: only a folder in which no member has ever run may be initialised.
    """
    try:
        if not folder.exists():
            raise NotInitialized(str(folder), "there is no such folder")
        if not folder.is_dir():
            raise NotInitialized(str(folder), "this is not a folder")
    except OSError as error:
        raise _refusal(folder, error) from error
    names = _names(folder)
    if META_PATH in names:
        return
    if not names:
        raise NotInitialized(str(folder), "the folder is empty")
    if INITIALIZING_NAME in names:
        raise NotInitialized(str(folder), "its first start was interrupted before anything ran, and can be repeated")
    if "groups" in names:
        raise CorruptMeta(str(folder / META_PATH), "it is missing, and there is a log")
    raise NotInitialized(str(folder), f"this is not a data folder (it holds {', '.join(sorted(names)[:3])})")


def _lock(folder: Path) -> FolderLock:
    """Take an exclusive lock. Write the id of this process to `LOCK`, so that other processes can report the id when
    they find the folder locked.

    The lock lasts as long as its descriptors are open. The folder itself is locked first, because nobody can remove the
    lock of a folder by deleting a file. `LOCK` is locked as well, for two reasons. Older builds use only the lock on
    this file, and on a network file system other hosts see only this lock.
    """
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise NotWritable(str(folder), "permission denied")
    with contextlib.ExitStack() as opened:
        try:
            on_folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, on_folder)
            if not _try_lock(on_folder, fcntl.LOCK_EX):
                raise FolderLocked(str(folder), _pid_of(folder))
            on_file = open_file(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
            opened.callback(os.close, on_file)
            if not _try_lock(on_file, fcntl.LOCK_EX):
                raise FolderLocked(str(folder), _pid_in(on_file))
            os.ftruncate(on_file, 0)
            os.pwrite(on_file, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise _refusal(folder, error) from error
        opened.pop_all()
    return FolderLock(on_folder, on_file)


class FolderLock(NamedTuple):
    """The descriptors by which a folder is locked. The lock lasts until both are closed."""

    on_folder: int
    on_file: int

    def release(self) -> None:
        """Release the lock. Called at most once."""
        os.close(self.on_file)
        os.close(self.on_folder)


def _try_lock(descriptor: int, how: int) -> bool:
    """Return True if the lock was taken, False if another process has it. Raises OSError for any other failure.

    On a file system that cannot lock a folder, the result is True, and only the lock on `LOCK` protects the folder.
    """
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in _NO_FOLDER_LOCKS and stat.S_ISDIR(os.fstat(descriptor).st_mode):
            logger.warning("this file system locks no folders: do not delete %s while a member runs", LOCK_NAME)
            return True
        raise
    return True
