"""The interface of the file operations that the log and the snapshots need. Operations are submitted, and a callback
reports their completion.

`Files` is a small protocol for a folder, so that the same log runs on a real disk (`RealFiles`) and in the simulator.
Paths are relative to this folder and use `/`. One submission is a list of operations, which are carried out in order.
If an operation fails, the later operations of its submission are not tried. Submissions are carried out one at a time,
in the order in which they were made. `done` is never called from inside `submit`.

Durability: the bytes of a file are durable after `SyncFile`. The creation, renaming or deletion of a file is durable
after `SyncFolder` of the folder that contains the file. Before that, a crash may keep all, a part or none of a change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Done = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """Create a folder and its missing parents. It is not an error if the folder exists already."""

    path: str


@dataclass(frozen=True, slots=True)
class CreateFile:
    """Create an empty file. An existing file with this name is an error."""

    path: str


@dataclass(frozen=True, slots=True)
class Write:
    """Write `buffers`, one after the other, starting at byte `offset`."""

    path: str
    offset: int
    buffers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SetSize:
    """Cut or extend (with zeroes) a file to `size_bytes`."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SyncFile:
    """Make the bytes (and the size) of a file durable."""

    path: str


@dataclass(frozen=True, slots=True)
class SyncFolder:
    """Make the names in a folder durable. The path "" means the folder of the `Files` itself."""

    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Give a file another name. If another file already has that name, it is replaced."""

    old_path: str
    new_path: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a file. It is not an error if the file does not exist."""

    path: str


Operation = MakeFolder | CreateFile | Write | SetSize | SyncFile | SyncFolder | Rename | Delete


class Files(Protocol):
    """A folder. Reads are synchronous, and show the effect of every submission whose `done` was called."""

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Start `operations`. `done(None)` is called when all operations are carried out, `done(OSError)` when an
        operation has failed."""
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`, or fewer at the end of the file. Raises FileNotFoundError, OSError."""
        ...

    def size_bytes(self, path: str) -> int:
        """The size of a file. Raises FileNotFoundError."""
        ...

    def names(self, folder: str) -> list[str]:
        """The sorted names in a folder. The list is empty if the folder does not exist."""
        ...
