"""The errors of a data folder. Each error keeps its fields and builds its text on demand, so that it can be pickled.
Each text ends with advice for the operator.
"""

from __future__ import annotations

import errno
from typing import TypeVar

from raft import NewerBuildNeeded, StoreFailed

FEWER_OPEN_FILES = "Close connections, or raise the limit (`ulimit -n`, systemd's `LimitNOFILE=`)"

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class StorageError(Exception):
    """Base of every error of the storage package."""


_Error = TypeVar("_Error", bound=BaseException)


def in_folder(error: _Error, folder: str) -> _Error:
    """Return the error. If the error has a path relative to the data folder, return a copy of the error with the path
    of that folder in front."""
    match error:
        case NewerFormat() | CorruptMeta() | CorruptLog() | CorruptSnapshot():
            where = f"{folder}/{error.path}"
            return type(error)(where, *error.args[1:])
        case WrongCluster() | WrongNode() | NotEmpty():
            return type(error)(folder, *error.args[1:])
    return error


class NotInitialized(StorageError):
    """The folder contains no member. Either the folder is missing or empty, or its first start was interrupted, or it
    is not a data folder."""

    def __init__(self, folder: str, state: str) -> None:
        super().__init__(folder, state)
        self.folder, self.state = folder, state

    def __str__(self) -> str:
        return (
            f"{self.folder}: {self.state}: this node refuses to start. For a new member initialise it explicitly "
            "(`hwm init`, `hwm serve --bootstrap`, or `open_node(..., bootstrap=True)`); if this member had data, its "
            "disk is lost: replace it by a new member"
        )


class NotEmpty(StorageError):
    """The folder for an explicit first start is not empty."""

    def __init__(self, folder: str, names: tuple[str, ...]) -> None:
        super().__init__(folder, names)
        self.folder, self.names = folder, names

    def __str__(self) -> str:
        some = ", ".join(self.names[:3]) + (", …" if len(self.names) > 3 else "")
        return (
            f"{self.folder}: not empty ({some}): nothing was changed. "
            f"Start it without initialising, or name an empty folder"
        )


class WrongCluster(StorageError):
    """The folder belongs to a member of another cluster."""

    def __init__(self, folder: str, found: bytes, expected: bytes) -> None:
        super().__init__(folder, found, expected)
        self.folder, self.found, self.expected = folder, found, expected

    def __str__(self) -> str:
        return (
            f"{self.folder}: belongs to cluster {self.found.hex()}, not to {self.expected.hex()}. "
            f"Check the folder, and the cluster token (--cluster-token) and the member list (--member), which must be "
            f"the same for all members. A folder that was made without --member is a store of one member"
        )


class WrongNode(StorageError):
    """The folder belongs to another member of this cluster."""

    def __init__(self, folder: str, found: str, expected: str) -> None:
        super().__init__(folder, found, expected)
        self.folder, self.found, self.expected = folder, found, expected

    def __str__(self) -> str:
        return (
            f"{self.folder}: holds the data of node {self.found}, not of {self.expected}. "
            f"Name its own folder, or its own node id"
        )


class FolderLocked(StorageError):
    """Another process has the folder open. `pid` is the id of this process, read from `LOCK`; None if `LOCK` cannot be
    read."""

    def __init__(self, folder: str, pid: int | None) -> None:
        super().__init__(folder, pid)
        self.folder, self.pid = folder, pid

    def __str__(self) -> str:
        holder = f"process {self.pid}" if self.pid is not None else "another process"
        return f"{self.folder}: in use by {holder}. Stop it first, or name another folder. Deleting LOCK frees nothing"


class NotWritable(StorageError):
    """This process cannot write to the folder."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return (
            f"{self.folder}: cannot be written: {self.reason}. Make it a folder that this user owns, on a writable disk"
        )


class DiskFailing(StorageError):
    """The system cannot read or write the folder, for a reason other than permission or room."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder, self.reason = folder, reason

    def __str__(self) -> str:
        return (
            f"{self.folder}: its disk fails: {self.reason}. Look at the kernel's log (`dmesg`). Unless the disk proves "
            f"to be sound, replace this node by a new member (docs/operations/guide.md#damage)"
        )


class NotCarriedOut(OSError):
    """A bug in this program has prevented a disk operation. The original exception is the `__cause__`.

    Callers treat this error like a failed disk, so the node stops. But the text of the error names a bug and not the
    disk.
    """

    @classmethod
    def because_of(cls, error: Exception) -> NotCarriedOut:
        """The error for an exception of this program, which becomes the `__cause__`."""
        made = cls(f"it was not carried out: {type(error).__name__}: {error}")
        made.__cause__ = error
        return made


class NewerFormat(StorageError, NewerBuildNeeded):
    """A newer build has written a file. The file is valid, but this build does not know all of its content.

    `what` names a number in the file, for example the format version. `found` is this number, and `supported` is the
    highest number that this build knows.
    """

    def __init__(self, path: str, found: int, supported: int, what: str = "format version") -> None:
        super().__init__(path, found, supported, what)
        self.path, self.found, self.supported, self.what = path, found, supported, what

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.what} {self.found}, this build reads up to {self.supported}. Nothing was changed: "
            "start it with the newer build that wrote it"
        )


class CorruptMeta(StorageError):
    """`meta` or `pins` is damaged, or is missing although the folder has a log."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path}: damaged: {self.reason}. This node can no longer prove who it is. "
            f"Replace it by a new member (docs/operations/guide.md#damage)"
        )


class CorruptLog(StorageError, StoreFailed):
    """Durable bytes of the log differ from the bytes that were written. A member never repairs such damage silently."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path, self.offset, self.reason = path, offset, reason  # offset: in bytes, from the start of the file

    def __str__(self) -> str:
        return (
            f"{self.path}: damaged at byte {self.offset}: {self.reason}. This node can no longer prove what it voted "
            f"for or acknowledged. Replace it by a new member (docs/operations/guide.md#damage)"
        )


class CorruptSnapshot(StorageError, StoreFailed):
    """A snapshot file differs from the bytes that were written, and no older snapshot can replace it."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(path, offset, reason)
        self.path, self.offset, self.reason = path, offset, reason

    def __str__(self) -> str:
        return (
            f"{self.path}: damaged at byte {self.offset}: {self.reason}. No snapshot is left from which the log "
            f"continues. Replace this node by a new member (docs/operations/guide.md#damage)"
        )


class SnapshotRefused(StorageError):
    """A received snapshot is damaged, is not the announced one, or belongs to another cluster. The member has changed
    nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"received snapshot refused: {self.reason}. The leader will send it again"


class DiskFull(StorageError):
    """The disk had no room for `what`, such as a snapshot. The work on `what` was given up, because nothing depends on
    `what` yet.

    `lacks_descriptors` is the system's message if file descriptors, and not room, ran out; otherwise it is empty.
    """

    def __init__(self, what: str, lacks_descriptors: str = "") -> None:
        super().__init__(what, lacks_descriptors)
        self.what, self.lacks_descriptors = what, lacks_descriptors

    def __str__(self) -> str:
        if self.lacks_descriptors:
            return f"{self.lacks_descriptors}: {self.what} was given up, and is tried again later. {FEWER_OPEN_FILES}"
        return f"the disk is full: {self.what} was given up, and is tried again later. Make room on this disk"


class LogFailed(StorageError, StoreFailed):
    """A write or a sync of the log has failed, so the log takes no more writes until the node is restarted.

    See docs/reference/specification.md#37-failed-sync.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the log failed earlier ({self.cause}) and takes no more writes: restart this node once its disk works"


def is_disk_full(error: BaseException | None) -> bool:
    """True if the error means that the disk has no room.

    EFBIG reports a limit on file sizes (`ulimit -f`) and does not count as a full disk. If a node waited for room after
    EFBIG, it would wait forever, and no message would state the cause. So EFBIG ends the member with a message. If
    EFBIG occurs while the ballast is made, the next `look_for_room` ends the member.
    """
    return isinstance(error, OSError) and error.errno in _DISK_FULL


def is_short_of_descriptors(error: BaseException | None) -> bool:
    """True if the error means that too many files are open, in this process (EMFILE) or on this machine (ENFILE)."""
    return isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS


def is_shortage(error: BaseException | None) -> bool:
    """True if room or file descriptors have run out. The log waits for the end of such a shortage."""
    return is_disk_full(error) or is_short_of_descriptors(error)
