"""A node's data folder on a real disk (FORMATS §1): made once, explicitly; held by one process; known by its `meta`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from raft import Configuration, Identity, LogPosition, Member
from storage.disk import sync_folder
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
from storage.initialize import BEGINNING, initialize
from storage.layout import INITIALIZING_NAME, LOCK_NAME
from storage.meta import META_PATH, read_identity, read_joins_as
from storage.real_files import InlineFiles, RealFiles

logger = logging.getLogger("storage")

DISK_ERRORS = frozenset({errno.EIO, errno.EUCLEAN})
"""What the system says of a disk that fails, and of a file system that has found itself damaged."""


class DataFolder:
    """A data folder that this process holds until `close()`."""

    def __init__(self, folder: Path, identity: Identity, lock: int, joins_as: Member | None = None) -> None:
        """`joins_as`: of a member that joined a cluster, itself with the addresses that it was made with."""
        self.folder, self.identity, self.joins_as = folder, identity, joins_as
        self._lock: int | None = lock
        self._files: RealFiles | None = None

    def files(self, post: Callable[[Callable[[], None]], None]) -> RealFiles:
        """Its files, with an I/O thread of their own. Closed with this folder."""
        self._files = RealFiles(self.folder, post)
        return self._files

    def close(self) -> None:
        """Close its files and let go of the lock: not of the lock where the disk hangs, for its thread still writes."""
        if self._files is not None and not self._files.close():
            logger.error("%s: its disk hangs; it stays locked until this process ends", self.folder)
            return
        if self._lock is not None:
            os.close(self._lock)
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
    """The explicit first start: make `folder` (if it is not there) the data folder of a new member, durably.

    The arguments are those of `initialize`. Raises NotEmpty if anything but an interrupted first start is in it,
    FolderLocked, NotWritable, DiskFailing, OSError.
    """
    _make(folder)
    _refuse_unless_new(folder)
    lock = _lock(folder)
    files = InlineFiles(folder)
    outcome: list[BaseException | None] = []
    try:
        _refuse_unless_new(folder)  # Another process may have been faster.
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
        os.close(lock)
    if outcome[0] is not None:
        raise outcome[0]


def open_data_folder(
    folder: Path, *, expect_cluster_id: bytes | None = None, expect_node_id: str | None = None
) -> DataFolder:
    """Take hold of an existing member's folder. Nothing is changed but the process id in `LOCK`.

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
        os.close(lock)
        raise
    return DataFolder(folder, identity, lock, joins_as)


def holder_of(folder: Path) -> FolderLocked | None:
    """What a process that wanted to open the folder just now would be told; None if it is free. Nothing is changed."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # For a moment only.
    except OSError:
        return FolderLocked(str(folder), _pid_in(descriptor))
    finally:
        os.close(descriptor)
    return None


def _pid_in(descriptor: int) -> int | None:
    with contextlib.suppress(ValueError):
        return int(os.pread(descriptor, 32, 0))
    return None


def _refusal(folder: Path, error: OSError) -> StorageError:
    """Whoever is told to look after the owner of a folder should not have to find out that its disk is broken."""
    kind = DiskFailing if error.errno in DISK_ERRORS else NotWritable
    return kind(str(folder), error.strerror or str(error))


def _make(folder: Path) -> None:
    """Make the folder and its parents, each new name durable."""
    try:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            sync_folder(path.parent)
    except OSError as error:
        raise _refusal(folder, error) from error


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
    """Tell "there never was a member" from "there is one": only the first may ever be initialised."""
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
    raise NotInitialized(str(folder), f"this is no data folder (it holds {', '.join(sorted(names)[:3])})")


def _lock(folder: Path) -> int:
    """An exclusive lock for as long as the descriptor is open, with our process id for whoever comes second."""
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise NotWritable(str(folder), "permission denied")
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _refusal(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        pid = _pid_in(descriptor)
        os.close(descriptor)
        raise FolderLocked(str(folder), pid) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
