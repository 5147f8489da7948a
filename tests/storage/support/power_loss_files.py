"""A folder in memory that records which bytes were synced. The folder can lose power after any operation, and then
loses the bytes that were not synced.

The folder implements all of `Files`, so the storage code under test is the code that runs on a disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from random import Random

from storage import (
    CreateFile,
    Delete,
    Done,
    MakeFolder,
    Operation,
    Rename,
    SetSize,
    SyncFile,
    SyncFolder,
    Write,
)


@dataclass
class Inode:
    """A file: the bytes that a read returns, the durable bytes, and the changes between them."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Operation] = field(default_factory=list)


class PowerLost(Exception):
    """Raised from `submit` at the first operation that is not carried out. No later operation is carried out either."""


class PowerLossFiles:
    """`submit` carries operations out, and `run()` calls their `done`. `operations` lists all operations that were
    carried out."""

    def __init__(self) -> None:
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._folders: set[str] = {""}
        # The changes in order. After a change, the name belongs to this file, or to no file.
        self._name_changes: list[tuple[str, Inode | None]] = []
        self._told: deque[tuple[Done, BaseException | None]] = deque()
        self.operations: list[Operation] = []
        self.power_lost_after: int | None = None  # The number of operations after which the power fails.
        self.refuse: Callable[[Operation], OSError | None] = lambda _: None

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Carry out `operations` now. Later, `run()` calls `done`. Raises PowerLost."""
        error: BaseException | None = None
        for operation in operations:
            if self.power_lost_after is not None and len(self.operations) >= self.power_lost_after:
                raise PowerLost
            error = self.refuse(operation)
            if error is not None:
                break
            self._carry_out(operation)
            self.operations.append(operation)
        self._told.append((done, error))

    def run(self) -> None:
        """Call every waiting `done`. Also call the `done` of every operation that is submitted meanwhile."""
        while self._told:
            done, error = self._told.popleft()
            done(error)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """The bytes from `offset` on. The result is shorter only at the end of the file."""
        return bytes(self._inode(path).live[offset : offset + length])

    def size_bytes(self, path: str) -> int:
        """The size of a file."""
        return len(self._inode(path).live)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
        inside = [path for path in (*self._names, *self._folders) if path and _parent(path) == folder]
        return sorted(PurePosixPath(path).name for path in inside)

    def after_power_loss(
        self, keep: Callable[[], bool], tear: Callable[[int], int] = lambda size: size
    ) -> PowerLossFiles:
        """The files that the next start finds. Everything that was synced is kept. For each other change, `keep()`
        decides whether it is kept.

        If a write is kept, `tear(size)` returns the number of its bytes that are kept.
        """
        found = PowerLossFiles()
        found._folders = set(self._folders)
        names = dict(self._durable_names)
        for path, inode in self._name_changes:
            if keep():
                if inode is None:
                    names.pop(path, None)
                else:
                    names[path] = inode
        for path, inode in names.items():
            content = bytearray(inode.durable)
            for operation in inode.unsynced:
                if keep():
                    _change(content, operation, tear)
            found._names[path] = Inode(content, bytearray(content))
        found._durable_names = dict(found._names)
        return found

    def after_kill(self) -> PowerLossFiles:
        """The files after the process was killed. All changes are in these files. But a later loss of power can take
        away the unsynced changes."""
        found = PowerLossFiles()
        found._folders = set(self._folders)
        inodes = [*self._names.values(), *self._durable_names.values()]
        inodes += [inode for _, inode in self._name_changes if inode is not None]
        copies = {id(inode): _copy(inode) for inode in inodes}
        found._names = {path: copies[id(inode)] for path, inode in self._names.items()}
        found._durable_names = {path: copies[id(inode)] for path, inode in self._durable_names.items()}
        found._name_changes = [(path, inode and copies[id(inode)]) for path, inode in self._name_changes]
        return found

    def edit(self, path: str) -> bytearray:
        """The bytes of a file, which a test may damage. A change that the test makes is durable immediately."""
        inode = self._inode(path)
        inode.durable = inode.live
        inode.unsynced.clear()
        return inode.live

    def forget(self, path: str) -> None:
        """Remove a file, as an operator may do by mistake."""
        del self._names[path]
        self._durable_names.pop(path, None)

    def put(self, path: str, data: bytes) -> None:
        """Put a file in the folder. The file is durable immediately."""
        self._names[path] = self._durable_names[path] = Inode(bytearray(data), bytearray(data))

    def _inode(self, path: str) -> Inode:
        if path not in self._names:
            raise FileNotFoundError(path)
        return self._names[path]

    def _carry_out(self, operation: Operation) -> None:
        match operation:
            case MakeFolder(path):
                while path:
                    self._folders.add(path)
                    path = _parent(path)
            case CreateFile(path):
                assert _parent(path) in self._folders, path
                if path in self._names:
                    raise FileExistsError(path)
                self._name(path, Inode())
            case Write(path, offset, _):
                assert offset <= len(self._inode(path).live), "a hole"
                self._change(path, operation)
            case SetSize(path, _):
                self._change(path, operation)
            case SyncFile(path):
                inode = self._inode(path)
                inode.durable = bytearray(inode.live)
                inode.unsynced.clear()
            case Rename(old_path, new_path):
                inode = self._inode(old_path)
                self._name(old_path, None)
                self._name(new_path, inode)
            case Delete(path):
                if path in self._names:
                    self._name(path, None)
            case SyncFolder(path):
                self._sync_names(path)

    def _change(self, path: str, operation: Operation) -> None:
        inode = self._inode(path)
        _change(inode.live, operation, lambda size: size)
        inode.unsynced.append(operation)

    def _name(self, path: str, inode: Inode | None) -> None:
        if inode is None:
            del self._names[path]
        else:
            self._names[path] = inode
        self._name_changes.append((path, inode))

    def _sync_names(self, folder: str) -> None:
        for path, inode in self._name_changes:
            if _parent(path) == folder:
                if inode is None:
                    self._durable_names.pop(path, None)
                else:
                    self._durable_names[path] = inode
        self._name_changes = [change for change in self._name_changes if _parent(change[0]) != folder]


def keep_nothing() -> bool:
    """The disk has lost all bytes in its cache."""
    return False


def keep_everything() -> bool:
    """The disk has written out all bytes in its cache."""
    return True


def keep_some(random: Random) -> Callable[[], bool]:
    """The disk has written out a part of the bytes in its cache, in any order."""
    return lambda: random.random() < 0.5


def tear_some(random: Random) -> Callable[[int], int]:
    """Half of the kept writes are kept only in part."""
    return lambda size: size if random.random() < 0.5 else random.randrange(size + 1)


def _copy(inode: Inode) -> Inode:
    return Inode(bytearray(inode.live), bytearray(inode.durable), list(inode.unsynced))


def _change(content: bytearray, operation: Operation, tear: Callable[[int], int]) -> None:
    match operation:
        case Write(_, offset, buffers):
            data = b"".join(buffers)
            data = data[: tear(len(data))]
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data
        case SetSize(_, size_bytes):
            content.extend(bytes(max(0, size_bytes - len(content))))
            del content[size_bytes:]
        case _:
            raise AssertionError(operation)


def _parent(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent
