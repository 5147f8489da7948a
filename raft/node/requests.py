"""Commands that wait for the next log write: all that gathers becomes one entry (the data path is batches)."""

from __future__ import annotations

from collections.abc import Sequence

from raft.config import RaftConfig
from raft.encoding.command_batch import BATCH_OVERHEAD_BYTES
from raft.errors import Busy, TooLarge
from raft.types import ENTRY_PAYLOAD_BYTES_MAX

COMMAND_BYTES_MAX = ENTRY_PAYLOAD_BYTES_MAX - BATCH_OVERHEAD_BYTES
"""A command alone in its batch just fits into an entry."""


class PendingCommands:
    """A queue bounded in bytes; it costs a few list operations per command and nothing else."""

    def __init__(self, config: RaftConfig) -> None:
        self._batch_bytes_max = min(config.batch_bytes_max, COMMAND_BYTES_MAX)
        self._bytes_max = config.pending_bytes_max
        self._commands: list[bytes] = []
        self._tickets: list[int] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._commands)

    def add(self, command: bytes, ticket: int) -> None:
        """Put one command in. Raises TooLarge if it fits into no entry, Busy if the queue is full."""
        size_bytes = self.size_bytes + len(command)
        if len(command) > COMMAND_BYTES_MAX:
            raise TooLarge("a command", len(command), COMMAND_BYTES_MAX)
        if size_bytes > self._bytes_max and self._commands:
            raise Busy("pending_bytes_max", self._bytes_max)
        self._commands.append(command)
        self._tickets.append(ticket)
        self.size_bytes = size_bytes

    def add_all(self, commands: Sequence[bytes], tickets: Sequence[int]) -> None:
        """`add` each, all or none: raises as the first that `add` would refuse, and then nothing was put in."""
        sizes = list(map(len, commands))
        size_bytes = self.size_bytes + sum(sizes)
        if max(sizes) > COMMAND_BYTES_MAX:
            raise TooLarge("a command", max(sizes), COMMAND_BYTES_MAX)
        if size_bytes > self._bytes_max:
            raise Busy("pending_bytes_max", self._bytes_max)
        self._commands += commands
        self._tickets += tickets
        self.size_bytes = size_bytes

    def next_batch(self) -> tuple[list[bytes], list[int]]:
        """The commands and tickets of the next entry, at least one. They stay until `drop_first`."""
        assert self._commands
        if self.size_bytes <= self._batch_bytes_max:
            return self._commands, self._tickets
        count, size_bytes = 1, len(self._commands[0])
        while count < len(self) and size_bytes + len(self._commands[count]) <= self._batch_bytes_max:
            size_bytes += len(self._commands[count])
            count += 1
        return self._commands[:count], self._tickets[:count]

    def drop_first(self, count: int) -> None:
        """Forget the first `count` commands: they were proposed."""
        if count == len(self._commands):
            self._commands, self._tickets, self.size_bytes = [], [], 0
            return
        self.size_bytes -= sum(map(len, self._commands[:count]))
        del self._commands[:count]
        del self._tickets[:count]

    def drain(self) -> list[int]:
        """Forget all commands; return their tickets."""
        tickets = self._tickets
        self._commands, self._tickets, self.size_bytes = [], [], 0
        return tickets
