"""Ghost state: the facts about the past of a path that the checked rules (invariants) need.

In addition to the present state of the cluster, a ghost state records which members led, how they voted, and which
entries were committed. It also records how many more events of each bounded kind may happen. Ghost states have numbers,
like local states and messages. Each step from one ghost state to the next is computed only once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.model_check.bounds import Bounds
from harness.model_check.local_states import CRASH, HEARTBEAT, LOSE_LEADER, PROPOSE, READ, Notes
from harness.model_check.symmetry import Renamings
from harness.sim.engine.errors import Violation, require


@dataclass(frozen=True, slots=True)
class GhostState:
    """One ghost state. `leaders` and `votes` contain places of members (`symmetry`), or -1 for no member."""

    crashes_left: int
    entries_left: int
    reads_left: int
    duplicates_left: int
    heartbeats_left: int
    hints_left: int
    leaders: tuple[int, ...]  # The leader of each term, from term 1.
    votes: tuple[int, ...]  # The candidate that got the vote, for each voter and term.
    # For each index, from 1: (term of the entry, term in which it was committed).
    committed: tuple[tuple[int, int], ...] = ()
    reads: tuple[tuple[int, int], ...] = ()  # For each open read: (ticket, number of entries committed when it began).

    def renamed(self, places: tuple[int, ...]) -> GhostState:
        """Return this ghost state with members renamed."""
        terms = len(self.leaders)
        votes = list(self.votes)
        for voter, place in enumerate(places):
            for term in range(terms):
                vote = self.votes[voter * terms + term]
                votes[place * terms + term] = vote if vote < 0 else places[vote]
        leaders = tuple(place if place < 0 else places[place] for place in self.leaders)
        return replace(self, leaders=leaders, votes=tuple(votes))

    def after(self, place: int, kind: int, notes: Notes) -> GhostState:
        """Return the ghost state after one event of the member in `place`. Raises Violation if a rule is broken."""
        history = self._with_budget_used(kind)
        for what, number, value in notes:
            if what == "leader":
                history = history._led(place, number)
            elif what == "vote":
                assert isinstance(value, int)
                history = history._voted(place, number, value)
            elif what == "commit":
                assert isinstance(value, tuple)
                history = history._committed(number, value, as_leader=("as leader", 1, None) in notes)
            elif what == "read":
                assert isinstance(value, int)
                history = history._read(number, value)
            elif what == "read failed":
                history = history._forget_read(number)
        return history

    def _with_budget_used(self, kind: int) -> GhostState:
        if kind == CRASH:
            return replace(self, crashes_left=self.crashes_left - 1)
        if kind == PROPOSE:
            return replace(self, entries_left=self.entries_left - 1)
        if kind == HEARTBEAT:
            return replace(self, heartbeats_left=max(0, self.heartbeats_left - 1))
        if kind == LOSE_LEADER:
            return replace(self, hints_left=self.hints_left - 1)
        if kind == READ:
            reads = (*self.reads, (self.reads_left, len(self.committed)))
            return replace(self, reads_left=self.reads_left - 1, reads=reads)
        return self

    def _led(self, place: int, term: int) -> GhostState:
        before = self.leaders[term - 1]
        require(before in (-1, place), "one leader per term", f"s{before + 1} and s{place + 1} both led term {term}")
        return replace(self, leaders=_set(self.leaders, term - 1, place))

    def _voted(self, place: int, term: int, candidate: int) -> GhostState:
        at = place * len(self.leaders) + term - 1
        before = self.votes[at]
        text = f"in term {term} s{place + 1} told s{before + 1} and s{candidate + 1} that they have its vote"
        require(before in (-1, candidate), "one vote per term, across crashes", text)
        return replace(self, votes=_set(self.votes, at, candidate))

    def _committed(self, term: int, terms: tuple[int, ...], *, as_leader: bool) -> GhostState:
        for index, (held, (known, _)) in enumerate(zip(terms, self.committed, strict=False), start=1):
            text = f"entry {index} of term {known} was committed, now one of term {held} is"
            require(held == known, "a committed entry never changes", text)
        if len(terms) <= len(self.committed):
            return self
        text = f"the leader of term {term} committed entry {len(terms)} of term {terms[-1]} without one of its own"
        require(not as_leader or terms[-1] == term, "a leader commits only behind an entry of its own term", text)
        new = tuple((entry_term, term) for entry_term in terms[len(self.committed) :])
        return replace(self, committed=self.committed + new)

    def _read(self, ticket: int, applied_index: int) -> GhostState:
        needed = dict(self.reads)[ticket]
        text = f"{needed} entries were committed when it was asked for, and it sees {applied_index}"
        require(applied_index >= needed, "a read sees what was committed before it", text)
        return self._forget_read(ticket)

    def _forget_read(self, ticket: int) -> GhostState:
        return replace(self, reads=tuple(read for read in self.reads if read[0] != ticket))


class GhostStates:
    """Numbers the ghost states, and keeps a table of the steps between them."""

    def __init__(self, bounds: Bounds, renamings: Renamings) -> None:
        self.all: list[GhostState] = []
        self._renamings = renamings
        self._numbers: dict[GhostState, int] = {}
        self._images: dict[tuple[int, int], int] = {}
        self._steps: dict[tuple[int, int, int, Notes], int | Violation] = {}
        self.first = self._number_of(
            GhostState(
                crashes_left=bounds.crashes,
                entries_left=bounds.entries,
                reads_left=bounds.reads,
                duplicates_left=bounds.duplicates,
                heartbeats_left=bounds.heartbeats,
                hints_left=bounds.hints,
                leaders=(-1,) * bounds.terms,
                votes=(-1,) * (bounds.terms * bounds.members),
            )
        )

    def after(self, number: int, place: int, kind: int, notes: Notes) -> int:
        """Return the number of the ghost state after one event. Raises Violation if a rule is broken."""
        key = (number, place, kind if kind in (PROPOSE, READ, CRASH, HEARTBEAT, LOSE_LEADER) else -1, notes)
        found = self._steps.get(key)
        if found is None:
            try:
                found = self._number_of(self.all[number].after(place, kind, notes))
            except Violation as violation:
                found = violation
            self._steps[key] = found
        if isinstance(found, Violation):
            raise found
        return found

    def duplicated(self, number: int) -> int:
        """Return the number of the ghost state that allows one duplicate fewer, and is otherwise equal to this one."""
        history = self.all[number]
        return self._number_of(replace(history, duplicates_left=history.duplicates_left - 1))

    def image(self, number: int, renaming: int) -> int:
        """Return the number of this ghost state with members renamed."""
        found = self._images.get((number, renaming))
        if found is None:
            found = self._number_of(self.all[number].renamed(self._renamings.all[renaming]))
            self._images[number, renaming] = found
        return found

    def _number_of(self, history: GhostState) -> int:
        number = self._numbers.setdefault(history, len(self.all))
        if number == len(self.all):
            self.all.append(history)
        return number


def _set(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])
