"""The data folder of a new member in memory, for tests of programs. It takes the place of `DataFolder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raft import Configuration, Identity, Member
from storage.files.memory import MemoryFiles
from storage.folder.initialize import initialize


class MemoryFolder:
    """A data folder that no other process can see, and that is gone at its end. It is opened once."""

    def __init__(self, identity: Identity, write_first_state: Callable[[MemoryFiles], None]) -> None:
        self.identity = identity
        self.joins_as: Member | None = None
        self._write_first_state = write_first_state

    def files(self, post: Callable[[Callable[[], None]], None]) -> MemoryFiles:
        """Open the files of this folder, which have the first state of the member."""
        files = MemoryFiles(post)
        self._write_first_state(files)
        return files

    def close(self) -> None:
        """Do nothing: there is no lock and no open file."""


def create_memory_folder(
    *, identity: Identity, configuration: Configuration, machine_header: Mapping[str, Any]
) -> MemoryFolder:
    """The explicit first start: a folder in memory for a new member. The arguments are those of `initialize`."""

    def write_first_state(files: MemoryFiles) -> None:
        ends: list[BaseException | None] = []
        initialize(
            files, identity=identity, configuration=configuration, machine_header=machine_header, done=ends.append
        )
        files.run()
        if ends != [None]:
            raise AssertionError(f"an empty folder in memory could not be initialised: {ends}")

    return MemoryFolder(identity, write_first_state)
