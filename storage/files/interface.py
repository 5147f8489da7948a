"""The interface of file operations that the log and the snapshots need, in submit/complete form.

`Files` is a small protocol for a folder, so that the same log runs on a real disk (`RealFiles`) and in the simulator.
Paths are relative, with `/`. One submission is a list of operations, carried out in order; if one fails, the rest are
not tried and `done(error)` is called. Submissions are carried out in the order in which they were made, one at a time.
`done` is never called from inside `submit`.

Durability: the bytes of a file are durable after `SyncFile`; the creation, renaming or deletion of its name is durable
after `SyncFolder` of the folder that contains it. Before that, a crash may keep any part of a change, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Done = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """Create a folder and its parents; no error if it exists already."""

    path: str


@dataclass(frozen=True, slots=True)
class CreateFile:
    """Create an empty file; an error if the name is taken."""

    path: str


@dataclass(frozen=True, slots=True)
class Write:
    """Put `buffers`, one after the other, at byte `offset`."""

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
    """Make the names in a folder durable. The path "" is the top folder."""

    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Give a file another name. A file that has that name already is replaced."""

    old_path: str
    new_path: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a file; no error if it does not exist."""

    path: str


Operation = MakeFolder | CreateFile | Write | SetSize | SyncFile | SyncFolder | Rename | Delete


class Files(Protocol):
    """A folder. Reads are synchronous and show the effect of every operation whose `done` was called."""

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        """Start `operations`; `done(None)` when all are carried out, `done(OSError)` at the first that failed."""
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Bytes from `offset`, shorter only at the end of the file. Raises FileNotFoundError, OSError."""
        ...

    def size_bytes(self, path: str) -> int:
        """The size of a file. Raises FileNotFoundError."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty if there is no such folder."""
        ...
