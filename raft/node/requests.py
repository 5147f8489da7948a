"""The open requests of one node: commands that wait to be proposed, proposed commands, and reads.

Commands that gather while a log write is under way are proposed together as one entry. A proposed command ends in one
of three ways: it is applied here, it certainly has no effect, or its outcome is unknown.

See docs/reference/specification.md#96-end-of-a-proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raft.config import RaftConfig
from raft.core.ready import Certainty, ProposalEnded
from raft.effects import Applied, AppliedBatch, Completion, Refused, Unknown
from raft.encoding.command_batch import BATCH_OVERHEAD_BYTES
from raft.errors import Busy, RaftError, TooLarge
from raft.membership.configuration import Configuration
from raft.types import ENTRY_PAYLOAD_BYTES_MAX, Entry, LogPosition

COMMAND_BYTES_MAX = ENTRY_PAYLOAD_BYTES_MAX - BATCH_OVERHEAD_BYTES
"""The maximum size of a command. If a command of this size is the only command of its batch, the batch just fits into
an entry."""


class PendingCommands:
    """Commands that wait to be proposed: a queue bounded in bytes."""

    def __init__(self, config: RaftConfig) -> None:
        self._batch_bytes_max = min(config.batch_bytes_max, COMMAND_BYTES_MAX)
        self._bytes_max = config.pending_bytes_max
        self._commands: list[bytes] = []
        self._tickets: list[int] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._commands)

    def add(self, command: bytes, ticket: int) -> None:
        """Add one command. Raises TooLarge if the command does not fit into an entry, and Busy if the queue is full."""
        size_bytes = self.size_bytes + len(command)
        if len(command) > COMMAND_BYTES_MAX:
            raise TooLarge("a command", len(command), COMMAND_BYTES_MAX)
        if size_bytes > self._bytes_max and self._commands:
            raise Busy("pending_bytes_max", self._bytes_max)
        self._commands.append(command)
        self._tickets.append(ticket)
        self.size_bytes = size_bytes

    def add_all(self, commands: Sequence[bytes], tickets: Sequence[int]) -> None:
        """Add all of these commands. If this method raises an error, it has added no command.

        Raises TooLarge if one of the commands does not fit into an entry, and Busy if the queue has no room for all
        commands.
        """
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
        """The commands of the next entry (at least one) and their tickets. The commands stay in the queue until
        `drop_first`."""
        assert self._commands
        if self.size_bytes <= self._batch_bytes_max:
            return self._commands, self._tickets
        count, size_bytes = 1, len(self._commands[0])
        while count < len(self) and size_bytes + len(self._commands[count]) <= self._batch_bytes_max:
            size_bytes += len(self._commands[count])
            count += 1
        return self._commands[:count], self._tickets[:count]

    def drop_first(self, count: int) -> None:
        """Forget the first `count` commands, which were proposed."""
        if count == len(self._commands):
            self._commands, self._tickets, self.size_bytes = [], [], 0
            return
        self.size_bytes -= sum(map(len, self._commands[:count]))
        del self._commands[:count]
        del self._tickets[:count]

    def drain(self) -> list[int]:
        """Forget all commands, and return their tickets."""
        tickets = self._tickets
        self._commands, self._tickets, self.size_bytes = [], [], 0
        return tickets


class OpenReads:
    """The open reads of all modes, in groups of reads that were requested together.

    The core treats each group as one read, with the first ticket of the group. `count` is the number of all tickets.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._groups: dict[int, Sequence[int]] = {}  # First ticket → all tickets of the group, in the order of request.
        self.count = 0

    def check_room(self, count: int) -> None:
        """Raise Busy if there is no room for `count` more reads."""
        if self.count + count > self._count_max:
            raise Busy("reads_pending_max", self._count_max)

    def add(self, tickets: Sequence[int]) -> None:
        """Add a group of at least one ticket."""
        self._groups[tickets[0]] = tickets
        self.count += len(tickets)

    def close(self, first_ticket: int) -> Sequence[int]:
        """Remove and return a group that has ended."""
        tickets = self._groups.pop(first_ticket)
        self.count -= len(tickets)
        return tickets

    def close_all(self) -> list[int]:
        """Remove all groups, and return their tickets."""
        tickets = [ticket for group in self._groups.values() for ticket in group]
        self._groups.clear()
        self.count = 0
        return tickets


@dataclass(slots=True)
class _OpenBatch:
    tickets: list[int]
    # True for a membership change whose first configuration is applied here, so that the change will be completed.
    is_decided: bool = False
    deadline: int | None = None  # In monotonic ns; set when this node ceases to lead in the term of the batch.


class OpenCommands:
    """The batches that this node has proposed and that have no outcome yet, oldest first.

    There is one record per entry, not per command, because the commands of a batch share one position and one outcome.
    `count` is the number of commands.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], _OpenBatch] = {}  # (index, term) → batch, in the order of proposal.
        self.count = 0
        # True if there may be a batch of a term that is over. This is an attribute, not a property, because each put
        # reads it often.
        self.has_stale_terms = False

    @property
    def next_deadline(self) -> int | None:
        """The time (monotonic ns) at which the oldest batch ends as unknown, if this node no longer leads in the term
        of that batch. Otherwise None."""
        if not self.has_stale_terms:
            return None
        first = next(iter(self._open.values()), None)
        # If the oldest batch is of the present term, all later batches are, too.
        self.has_stale_terms = first is not None and first.deadline is not None
        return None if first is None else first.deadline

    def opened(self, position: LogPosition, tickets: list[int]) -> None:
        """Add a batch, which was appended at `position`."""
        self._open[position.index, position.term] = _OpenBatch(tickets)
        self.count += len(tickets)

    def applied(self, entry: Entry, results: Sequence[Any]) -> AppliedBatch | None:
        """`entry` was applied. Return `results` with their tickets, or None if no open batch belongs to the entry."""
        batch = self._pop(entry.index, entry.term)
        if batch is None:
            return None
        assert len(results) == len(batch.tickets), (entry.index, len(results), len(batch.tickets))
        return AppliedBatch(batch.tickets, entry.index, results)

    def configured(self, entry: Entry, configuration: Configuration) -> list[Completion]:
        """Note that `entry`, which contains `configuration`, was applied. Return the completions of the membership
        changes that are complete now. A joint configuration completes no change."""
        batch = self._open.get((entry.index, entry.term))
        if batch is not None:
            batch.is_decided = True
        if configuration.is_joint:
            return []
        done = [self._pop(*key) for key, each in list(self._open.items()) if each.is_decided]
        return [Applied(each.tickets[0], entry.index, configuration) for each in done if each is not None]

    def ended(self, end: ProposalEnded, refusal: RaftError) -> list[Completion]:
        """End the batch of a proposed entry that has ended without being applied here. `refusal`: the error to report
        if the entry certainly has no effect."""
        batch = self._pop(end.index, end.term)
        if batch is None:
            return []
        if end.certainty is Certainty.NOT_APPLIED:
            return [Refused(ticket, refusal) for ticket in batch.tickets]
        return [Unknown(ticket, "a snapshot went past its index") for ticket in batch.tickets]

    def stepped_down(self, deadline: int) -> None:
        """Give `deadline` to each open batch that has no deadline yet, because this node has ceased to lead."""
        self.has_stale_terms = True
        for batch in self._open.values():
            if batch.deadline is None:
                batch.deadline = deadline

    def expire(self, now: int) -> list[Completion]:
        """End the batches whose deadline has passed. The outcome of their commands is unknown."""
        completions: list[Completion] = []
        for key, batch in list(self._open.items()):
            if batch.deadline is None or batch.deadline > now:
                break  # Later batches have later deadlines, because their terms ended later.
            del self._open[key]
            self.count -= len(batch.tickets)
            completions += [Unknown(ticket, "the leader changed before it was committed") for ticket in batch.tickets]
        return completions

    def give_up(self, reason: str) -> list[Completion]:
        """End all open batches. The outcome of their commands is unknown."""
        completions: list[Completion] = [
            Unknown(ticket, reason) for batch in self._open.values() for ticket in batch.tickets
        ]
        self._open.clear()
        self.count = 0
        return completions

    def _pop(self, index: int, term: int) -> _OpenBatch | None:
        batch = self._open.pop((index, term), None)
        if batch is not None:
            self.count -= len(batch.tickets)
        return batch
