"""How proposals end: applied here, certainly not applied, or unknown.

One record per *entry*, not per command: the tickets of a batch share its position and its fate.

See docs/reference/specification.md#96-end-of-a-proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raft.core.ready import Certainty, ProposalEnded
from raft.effects import Applied, AppliedBatch, Completion, Refused, Unknown
from raft.errors import RaftError
from raft.membership.configuration import Configuration
from raft.types import Entry, LogPosition


@dataclass(slots=True)
class _OpenBatch:
    tickets: list[int]
    is_decided: bool = False  # A change of the members whose first configuration is applied: it will be finished.
    deadline: int | None = None  # Monotonic ns; set when this node is no longer the leader that proposed it.


class Outcomes:
    """The batches that this node proposed and whose end is open, oldest first."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], _OpenBatch] = {}  # By (index, term), in the order of proposal.
        self.commands = 0
        self.left_behind = False  # Some of these may be of a term that is over. Asked many times per put.

    @property
    def next_deadline(self) -> int | None:
        """When the oldest batch left behind by a step-down becomes unknown, in monotonic ns."""
        if not self.left_behind:
            return None
        first = next(iter(self._open.values()), None)
        self.left_behind = first is not None and first.deadline is not None  # All later ones are of a later term.
        return None if first is None else first.deadline

    def opened(self, position: LogPosition, tickets: list[int]) -> None:
        """A batch was appended at `position`."""
        self._open[position.index, position.term] = _OpenBatch(tickets)
        self.commands += len(tickets)

    def applied(self, entry: Entry, results: Sequence[Any]) -> AppliedBatch | None:
        """`entry` was applied with one result per command; None if it was not ours."""
        batch = self._pop(entry.index, entry.term)
        if batch is None:
            return None
        assert len(results) == len(batch.tickets), (entry.index, len(results), len(batch.tickets))
        return AppliedBatch(batch.tickets, entry.index, results)

    def configured(self, entry: Entry, configuration: Configuration) -> list[Completion]:
        """`entry` was applied, and the members are these. A change ends when no second half of voters is left."""
        batch = self._open.get((entry.index, entry.term))
        if batch is not None:
            batch.is_decided = True
        if configuration.is_joint:
            return []
        done = [self._pop(*key) for key, each in list(self._open.items()) if each.is_decided]
        return [Applied(each.tickets[0], entry.index, configuration) for each in done if each is not None]

    def ended(self, end: ProposalEnded, refusal: RaftError) -> list[Completion]:
        """The core knows how this entry ended without being applied by us; `refusal` is said where that is certain."""
        batch = self._pop(end.index, end.term)
        if batch is None:
            return []
        if end.certainty is Certainty.NOT_APPLIED:
            return [Refused(ticket, refusal) for ticket in batch.tickets]
        return [Unknown(ticket, "a snapshot went past its index") for ticket in batch.tickets]

    def stepped_down(self, deadline: int) -> None:
        """This node is no longer the leader of the term in which the open batches were proposed."""
        self.left_behind = True
        for batch in self._open.values():
            if batch.deadline is None:
                batch.deadline = deadline

    def expire(self, now: int) -> list[Completion]:
        """Give up on the batches whose time to become certain is over."""
        completions: list[Completion] = []
        for key, batch in list(self._open.items()):
            if batch.deadline is None or batch.deadline > now:
                break  # Deadlines rise in this order: what a later term proposed was left behind later.
            del self._open[key]
            self.commands -= len(batch.tickets)
            completions += [Unknown(ticket, "the leader changed before it was committed") for ticket in batch.tickets]
        return completions

    def give_up(self, reason: str) -> list[Completion]:
        """Everything open is unknown from now on."""
        completions: list[Completion] = [
            Unknown(ticket, reason) for batch in self._open.values() for ticket in batch.tickets
        ]
        self._open.clear()
        self.commands = 0
        return completions

    def _pop(self, index: int, term: int) -> _OpenBatch | None:
        batch = self._open.pop((index, term), None)
        if batch is not None:
            self.commands -= len(batch.tickets)
        return batch
