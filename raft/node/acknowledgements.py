"""The acknowledgement levels other than MAJORITY. A proposal of level LEADER may be answered before a majority has it
on disk. A proposal of level IN_SYNC is answered after all members in sync have it on disk. A proposal of level NONE is
never answered.

While no such proposal is open, the node calls nothing in this module.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raft.core.in_sync import Copies
from raft.core.raft import RaftCore
from raft.effects import Accepted, Applied, AppliedBatch, AppliedInSync, CompletionBatch, Refused, Unknown
from raft.types import Acknowledge, LogPosition


@dataclass(frozen=True, slots=True)
class _Applied:
    """An applied proposal of level IN_SYNC that waits for the members in sync."""

    ticket: int
    index: int
    result: object


class Acknowledgements:
    """The open proposals whose level is not MAJORITY. Until such a proposal is applied, it is also one of the open
    commands."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        # Ticket → level. The level LEADER becomes NONE when the proposal is answered.
        self._levels: dict[int, Acknowledge] = {}
        self._undurable: dict[int, LogPosition] = {}  # The unanswered proposals of level LEADER, in the log's order.
        # The unanswered proposals of level LEADER from an earlier leadership.
        self._deposed: dict[int, LogPosition] = {}
        self._former: set[int] = set()  # The proposals of level IN_SYNC of an earlier leadership.
        self._applied: deque[_Applied] = deque()
        # The last result of `core.copies()` while this node leads; None at first, and again once it no longer leads.
        self._copies: Copies | None = None
        self._is_voter = True  # False while a leader that is not a voter is being removed.
        # `is_open` is an attribute and not a property, because it is read at every turn.
        self.is_open = False  # True if a proposal whose level is not MAJORITY is open.

    @property
    def applied_count(self) -> int:
        """The number of proposals that are applied but not answered yet."""
        return len(self._applied)

    def take(self, tickets: Iterable[int], level: Acknowledge) -> None:
        """Note the level of proposals that the node has accepted."""
        if level is not Acknowledge.MAJORITY:
            self._levels.update(dict.fromkeys(tickets, level))
            self.is_open = True

    def proposed(self, position: LogPosition, tickets: Sequence[int]) -> None:
        """Note that a batch of proposals was appended at `position`."""
        for ticket in tickets:
            if self._levels.get(ticket) is Acknowledge.LEADER:
                self._undurable[ticket] = position

    def is_due(self, core: RaftCore) -> bool:
        """True if `filtered` would now answer a proposal that has waited for this node's disk or for the members in
        sync."""
        if self._undurable and next(iter(self._undurable.values())).index <= core.durable_index:
            return True
        if not self._applied:
            return False
        copies = core.copies()
        return copies is None or copies.is_held(self._applied[0].index)

    def stepped_down(self) -> None:
        """Note that this node has ceased to lead, or leads in another term. Its log may be cut, so proposals of level
        LEADER are no longer answered when they become durable here. Instead, they are answered when they are applied or
        end. Proposals of level IN_SYNC are answered as soon as they are applied, without waiting for the members in
        sync, because their outcomes are due soon."""
        self._deposed.update(self._undurable)
        self._undurable.clear()
        self._former.update(ticket for ticket, level in self._levels.items() if level is Acknowledge.IN_SYNC)

    def filtered(
        self, completions: Iterable[CompletionBatch], core: RaftCore, *, has_ended: bool = False
    ) -> list[CompletionBatch]:
        """Return the completions to report now. Completions of proposals of level MAJORITY, and of reads, stay as they
        are in `completions`. All other proposals are reported as their level requires: earlier, later or not at all.
        `has_ended`: the node has stopped or failed, so nothing waits any longer."""
        self._copies = core.copies() or self._copies
        self._is_voter = core.configuration.is_voter(self._node_id)
        found: list[CompletionBatch] = [*self._accepted(core)]
        for each in completions:
            match each:
                case AppliedBatch():
                    found += self._split(each)
                case Applied() | Refused() | Unknown():
                    level = self._levels.pop(each.ticket, Acknowledge.MAJORITY)
                    self._position_of(each.ticket)
                    self._former.discard(each.ticket)
                    if level is not Acknowledge.NONE:
                        found.append(each)
                case _:
                    found.append(each)
        awaited = None if core.leading_term is None or has_ended else self._copies
        while self._applied and (awaited is None or awaited.is_held(self._applied[0].index)):
            found.append(self._acknowledged(self._applied.popleft()))
        if core.leading_term is None:
            self._copies = None
        self.is_open = bool(self._levels or self._applied)
        return found

    def _accepted(self, core: RaftCore) -> Iterable[Accepted]:
        while self._undurable:
            ticket, position = next(iter(self._undurable.items()))
            if position.index > core.durable_index:
                return
            del self._undurable[ticket]
            self._levels[ticket] = Acknowledge.NONE  # The proposal is answered now; later outcomes are not reported.
            yield Accepted(ticket, position.index, position.term)

    def _split(self, batch: AppliedBatch) -> list[CompletionBatch]:
        """Separate the proposals of these levels from the rest of a batch."""
        if self._levels.keys().isdisjoint(batch.tickets):
            return [batch]
        found: list[CompletionBatch] = []
        tickets, results = list[int](), list[object]()
        for ticket, result in zip(batch.tickets, batch.results, strict=True):
            match self._levels.pop(ticket, Acknowledge.MAJORITY):
                case Acknowledge.IN_SYNC if ticket in self._former:
                    self._former.discard(ticket)
                    found.append(self._acknowledged(_Applied(ticket, batch.index, result)))
                case Acknowledge.IN_SYNC:
                    self._applied.append(_Applied(ticket, batch.index, result))
                case Acknowledge.NONE:
                    pass
                case Acknowledge.LEADER:  # An applied entry is durable here.
                    position = self._position_of(ticket)
                    assert position is not None, ticket
                    found.append(Accepted(ticket, position.index, position.term))
                case Acknowledge.MAJORITY:
                    tickets.append(ticket)
                    results.append(result)
        return [*found, AppliedBatch(tickets, batch.index, results)] if tickets else found

    def _position_of(self, ticket: int) -> LogPosition | None:
        """Forget and return the position of a proposal of level LEADER."""
        return self._undurable.pop(ticket, None) or self._deposed.pop(ticket, None)

    def _acknowledged(self, applied: _Applied) -> AppliedInSync:
        """The answer, which names the voters that certainly have the entry on disk. This node is one of them, because
        it has applied the entry."""
        holders = () if self._copies is None else self._copies.holders(applied.index)
        known = {*holders, self._node_id} if self._is_voter else {*holders}
        return AppliedInSync(applied.ticket, applied.index, applied.result, tuple(sorted(known)))
