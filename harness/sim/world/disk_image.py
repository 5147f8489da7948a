"""A disk that is certain to keep only synced data: current contents, durable contents, and the effect of a crash.

The bytes of a file are durable after `SyncFile`. The name of a file is durable after `SyncFolder` of its folder
(storage/files/interface.py). The end of a process loses nothing that the operating system has accepted. When power is
lost, a seeded draw for each file determines which of its un-synced bytes survive: none, all, a prefix, or some sectors.
Some of these sectors may be torn, or contain garbage. Bytes that were not being written do not change, unless they rot
or a misdirected write overwrites them.

After a failed sync the operating system marks the pages of the file as clean. Programs still see these pages, but no
later sync, even a successful one, writes the pages that did not reach the platter. Names are kept in a journal: a
failed sync of a folder makes the first few of the new names durable, and the next successful sync makes the rest
durable. A disk that *lies* reports a successful sync although it has written the bytes nowhere, or to a wrong place.
The lie has no visible effect until power is lost.
"""

from __future__ import annotations

import errno
from random import Random

from storage import CreateFile, Delete, MakeFolder, Operation, Rename, SetSize, SyncFile, SyncFolder, Write

SECTOR_BYTES = 512

NAME_BYTES = 32
"""The free room that a new name in a folder needs: a disk with less free room refuses the name. A name does not use up
this room.
"""


class Inode:
    """One file: its current content for programs, its durable content, and the changes between the two in order."""

    __slots__ = ("claimed", "current", "durable", "has_failed", "pending")

    def __init__(self) -> None:
        self.current = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes] | int] = []  # Each change: (offset, data) of a write, or a new size.
        # True once a sync of this file has failed, so that its current and durable contents may differ permanently.
        self.has_failed = False
        # The contents that the disk claims to be durable, once it has lied about this file.
        self.claimed: bytearray | None = None

    def change(self, pending: tuple[int, bytes] | int) -> None:
        """Carry out one write or size change. The change is not durable yet."""
        carry_out(self.current, pending)
        self.pending.append(pending)

    @property
    def is_seen_durably(self) -> bool:
        """True if the disk, which may lie, reports all current bytes as durable."""
        if not (self.pending or self.has_failed):
            return True
        said = self.durable if self.claimed is None else self.claimed
        return said[: len(self.current)] == self.current

    @property
    def has_lied(self) -> bool:
        """True if the disk reported a sync as successful although it lost or overwrote bytes of this file."""
        return self.claimed is not None

    def sync(self) -> None:
        """Make the whole file durable."""
        for pending in self.pending:
            self._reach(pending)
        self.pending.clear()
        assert self.has_failed or self.has_lied or len(self.durable) == len(self.current)

    def _reach(self, change: tuple[int, bytes] | int) -> None:
        """Make one change durable, both really and in the reports of the disk."""
        carry_out(self.durable, change)
        if self.claimed is not None:
            carry_out(self.claimed, change)

    def fail_sync(self, random: Random | None = None) -> None:
        """Carry out a sync that fails. The sync writes some sectors if `random` is given, and otherwise no sectors.

        No later sync writes the sectors that this sync did not write.
        """
        if random is not None:
            for start, piece in self._pending_sectors():
                if random.random() < 0.5:
                    self._reach((start, piece))
        self.pending.clear()
        self.has_failed = True

    def lose_sync(self, random: Random) -> None:
        """Carry out a sync that is reported as successful but writes no data. The file may grow by zeroes."""
        claimed = self._claim()
        for pending in self.pending:
            carry_out(claimed, pending)
        self.pending.clear()
        if random.random() < 0.5 and len(self.durable) < len(self.current):
            self.durable.extend(bytes(len(self.current) - len(self.durable)))

    def misdirect_sync(self, victim: Inode, random: Random) -> None:
        """Carry out a sync that is reported as successful but overwrites durable sectors of `victim` instead. The
        victim may be this file.
        """
        victim._claim()
        for start, piece in self._pending_sectors():
            place = start % SECTOR_BYTES + SECTOR_BYTES * random.randrange(len(victim.durable) // SECTOR_BYTES + 1)
            there = piece[: max(0, len(victim.durable) - place)]
            victim.durable[place : place + len(there)] = there
        self.lose_sync(random)

    def _claim(self) -> bytearray:
        """From now on, keep the content that the disk claims to be durable, apart from the really durable content.

        Returns the claimed content.
        """
        if self.claimed is None:
            self.claimed = bytearray(self.durable)
        return self.claimed

    def _pending_sectors(self) -> list[tuple[int, bytes]]:
        writes = [change for change in self.pending if isinstance(change, tuple)]
        return [piece for offset, data in writes for piece in sectors(offset, data)]

    def forget_cache(self) -> None:
        """Drop everything that is not durable, because power is lost."""
        self.pending.clear()
        self.current = bytearray(self.durable)
        self.has_failed, self.claimed = False, None

    def rot(self, offset: int, bit: int) -> None:
        """Change one durable bit."""
        for content in (self.durable, self.current, self.claimed):
            if content is not None and offset < len(content):
                content[offset] ^= 1 << bit


def carry_out(content: bytearray, change: tuple[int, bytes] | int) -> None:
    """Apply one change to `content`; a hole reads as zeroes."""
    if isinstance(change, int):
        if change < len(content):
            del content[change:]
        else:
            content.extend(bytes(change - len(content)))
        return
    offset, data = change
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


Change = tuple[str, Inode | None, bool]
"""A change of one name: (path, file or None for a folder, True if the name exists after the change)."""


class DiskImage:
    """All files of one machine by full path: the files for programs (`names`), and the files with a durable name."""

    def __init__(self) -> None:
        self.names: dict[str, Inode | None] = {}
        self.durable_names: dict[str, Inode | None] = {}
        # For each folder, the atomic changes of names that are not durable yet, in order.
        self.pending_names: dict[str, list[tuple[Change, ...]]] = {}
        self.size_bytes_max: int | None = None  # The bound on the total size of all files; None if there is no bound.
        # The next sync of this folder (SyncFolder), or of a file in this folder (SyncFile), fails.
        self.fails_sync: SyncFile | SyncFolder | None = None
        self.fails_read_of: str | None = None  # The next read of a file whose path begins with this text fails.
        self.reads_are_short = False  # True while each read returns only a part of the requested bytes.

    def file(self, path: str) -> Inode:
        """Return the file at this path, as programs see it. Raises FileNotFoundError."""
        inode = self.names.get(path)
        if inode is None:
            raise FileNotFoundError(2, "No such file", path)
        return inode

    def children(self, folder: str) -> list[str]:
        """Return the names in `folder`, sorted."""
        start = f"{folder}/" if folder else ""
        return sorted(
            path[len(start) :] for path in self.names if path.startswith(start) and "/" not in path[len(start) :]
        )

    def carry_out(self, operation: Operation) -> None:
        """Carry out one operation of a program. Raises OSError like a real disk."""
        match operation:
            case Write(path, offset, buffers):
                self._write(path, offset, b"".join(buffers))
            case SyncFile(path):
                self.file(path).sync()
            case SyncFolder(path):
                for changes in self.pending_names.pop(path, ()):
                    self._make_names_durable(changes)
            case SetSize(path, size_bytes):
                self._need_room(path, size_bytes - len(self.file(path).current))
                self.file(path).change(size_bytes)
            case CreateFile(path):
                self._create(path)
            case MakeFolder(path):
                self._make_folder(path)
            case Rename(old_path, new_path):
                inode = self.file(old_path)
                assert parent(old_path) == parent(new_path), "a rename stays in its folder"
                self._need_room(new_path, 0 if new_path in self.names else NAME_BYTES)
                self._rename(((old_path, inode, False), (new_path, inode, True)))
            case Delete(path):
                if path in self.names:
                    self._rename(((path, self.file(path), False),))

    @property
    def size_bytes(self) -> int:
        """Return the total size of all current files."""
        return sum(len(inode.current) for inode in self.names.values() if inode is not None)

    def _write(self, path: str, offset: int, data: bytes) -> None:
        inode = self.file(path)
        if self.size_bytes_max is not None:
            room = max(0, self.size_bytes_max - self.size_bytes)
            fitting = data[: max(0, len(inode.current) + room - offset)]
            if len(fitting) < len(data):
                if fitting:
                    inode.change((offset, fitting))
                raise OSError(errno.ENOSPC, "No space left on device", path)
        inode.change((offset, data))

    def _need_room(self, path: str, size_bytes: int) -> None:
        if self.size_bytes_max is not None and 0 < size_bytes > self.size_bytes_max - self.size_bytes:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    def _create(self, path: str) -> None:
        if path in self.names:
            raise FileExistsError(17, "File exists", path)
        folder = parent(path)
        if folder and folder not in self.names:
            raise FileNotFoundError(2, "No such folder", folder)
        self._need_room(path, NAME_BYTES)
        self._rename(((path, Inode(), True),))

    def _make_folder(self, path: str) -> None:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            folder = "/".join(parts[:count])
            if folder and folder not in self.names:
                self._need_room(folder, NAME_BYTES)
                self._rename(((folder, None, True),))

    def _rename(self, changes: tuple[Change, ...]) -> None:
        apply_names(self.names, changes)
        self.pending_names.setdefault(parent(changes[0][0]), []).append(changes)

    def fail_sync(self, operation: SyncFile | SyncFolder, random: Random) -> None:
        """Carry out a sync that fails.

        The sync may make a part of the changes durable: see `Inode.fail_sync` and the docstring of this module.
        """
        if isinstance(operation, SyncFile):
            self.file(operation.path).fail_sync(random if random.random() < 0.5 else None)
            return
        pending = self.pending_names.get(operation.path, [])
        for _ in range(random.randrange(len(pending) + 1)):
            self._make_names_durable(pending.pop(0))

    def lie(self, path: str, random: Random) -> str:
        """Carry out a sync that is reported as successful but writes the data nowhere, or to a wrong place.

        Returns a text that describes the lie.

        A misdirected write hits a durable file of the same folder.
        """
        inode, folder = self.file(path), parent(path)
        if random.random() < 0.5:
            inode.lose_sync(random)
            return "a write was lost"
        known = (self.durable_names.get(f"{folder}/{name}") for name in self.children(folder))
        victims = [file for file in known if file is not None and file.durable]
        inode.misdirect_sync(random.choice(victims) if victims else inode, random)
        return "a write was misdirected"

    @property
    def is_lying(self) -> bool:
        """True if the disk has lied about a file that still exists, or whose deletion is not durable yet."""
        inodes = (*self.names.values(), *self.durable_names.values())
        return any(inode.has_lied for inode in inodes if inode is not None)

    def _make_names_durable(self, changes: tuple[Change, ...]) -> None:
        apply_names(self.durable_names, changes)

    def unsynced(self, folder: str) -> set[str]:
        """Return the files of `folder` that may lose their name or current bytes in a crash.

        A crash may also undo a deletion or a truncation. But this alone is no reason to return a file, because the file
        loses no current bytes by such a change.
        """
        start = f"{folder}/"
        return {
            path
            for path, inode in self.names.items()
            if path.startswith(start)
            and inode is not None
            and not (self.durable_names.get(path) is inode and inode.is_seen_durably)
        }

    def loose_names(self, folder: str) -> list[str]:
        """Return the paths in `folder` whose names are not synced.

        After a crash, there may be no file or another file at such a path.
        """
        start = f"{folder}/"
        return [
            path
            for path, inode in self.names.items()
            if path.startswith(start) and self.durable_names.get(path) is not inode
        ]

    def is_durable(self, path: str) -> bool:
        """Return True if the file at `path` would survive any crash unchanged."""
        inode = self.names.get(path)
        is_synced = inode is not None and not inode.pending and inode.is_seen_durably
        return is_synced and self.durable_names.get(path) is inode

    def synced_copy(self) -> DiskImage:
        """Return an image of only the synced files and bytes, which are certain to survive a loss of power now."""
        copy = DiskImage()
        for path, inode in self.durable_names.items():
            if inode is None:
                copy.names[path] = None
            else:
                file = Inode()
                file.current, file.durable = bytearray(inode.durable), bytearray(inode.durable)
                copy.names[path] = file
        copy.durable_names = dict(copy.names)
        copy.drop_orphans()
        return copy

    def lose_power(self, random: Random) -> set[str]:
        """Draw which un-synced changes survive, and drop the others. Returns the coverage points of the result."""
        happened: set[str] = set()
        for folder in sorted(self.pending_names):
            for changes in keep_some(self.pending_names[folder], random):
                self._make_names_durable(changes)
        self.pending_names.clear()
        self.drop_orphans()
        for path in sorted(self.durable_names):
            inode = self.durable_names[path]
            if inode is not None and (inode.pending or inode.has_failed):
                happened.add(settle(inode, random))
            elif inode is not None and inode.has_lied:
                inode.forget_cache()
        self.names = dict(self.durable_names)
        return happened

    def drop_orphans(self) -> None:
        """Drop every durable file whose folder has no durable name."""
        for path in sorted(self.durable_names):
            folder = parent(path)
            if folder and folder not in self.durable_names:
                del self.durable_names[path]
                self.names.pop(path, None)


def parent(path: str) -> str:
    """Return the folder that contains `path`; "" for the top folder."""
    return path.rpartition("/")[0]


def apply_names(names: dict[str, Inode | None], changes: tuple[Change, ...]) -> None:
    """Carry out one atomic change of names."""
    for path, inode, there in changes:
        if there:
            names[path] = inode
        else:
            names.pop(path, None)


def keep_some(changes: list[tuple[Change, ...]], random: Random) -> list[tuple[Change, ...]]:
    """Return the un-synced changes of names that survive: none, all, a prefix or any subset."""
    match random.randrange(4):
        case 0:
            return []
        case 1:
            return changes
        case 2:
            return changes[: random.randrange(len(changes) + 1)]
        case _:
            return [change for change in changes if random.random() < 0.5]


def settle(inode: Inode, random: Random) -> str:
    """Draw which un-synced bytes of a file survive a loss of power. Returns the coverage point of the result."""
    draw = random.randrange(8)
    if draw < 2:
        how = "un-synced bytes lost"
    elif draw < 4:
        how = "un-synced bytes kept"
        inode.sync()
    elif draw < 6:
        how = "un-synced bytes cut short"
        for change in inode.pending[: random.randrange(len(inode.pending) + 1)]:
            last = change
            if isinstance(change, tuple) and random.random() < 0.5:
                last = (change[0], change[1][: random.randrange(len(change[1]) + 1)])
            carry_out(inode.durable, last)
            if last is not change:
                break
    else:
        how = "un-synced sectors mixed"
        settle_sectors(inode, random)
    inode.forget_cache()
    return how


def settle_sectors(inode: Inode, random: Random) -> None:
    """Draw the fate of each written sector (kept, lost, torn or filled with garbage) and of each change of the size."""
    for change in inode.pending:
        if isinstance(change, int):
            if random.random() < 0.5:
                carry_out(inode.durable, change)
            continue
        offset, data = change
        for start, piece in sectors(offset, data):
            fate = random.randrange(8)
            if fate < 4:
                carry_out(inode.durable, (start, piece))
            elif fate == 4:
                carry_out(inode.durable, (start, piece[: random.randrange(len(piece) + 1)]))
            elif fate == 5:
                carry_out(inode.durable, (start, random.randbytes(len(piece))))


def sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    """Split one write at sector borders into (offset, bytes) pieces."""
    pieces = []
    position = 0
    while position < len(data):
        room = SECTOR_BYTES - (offset + position) % SECTOR_BYTES
        pieces.append((offset + position, data[position : position + room]))
        position += room
    return pieces
