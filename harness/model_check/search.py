"""Breadth-first search through all states of the small world.

So no path to a violation is shorter than the path that is found first.

A state of the cluster is a row of numbers: first the local state of each member, then the ghost state, then the
messages in flight in ascending order. The search keeps a single row for all states that differ only by a renaming of
the members.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import NamedTuple

from harness.model_check.bounds import Bounds
from harness.model_check.ghost_state import GhostStates
from harness.model_check.invariants import check_cluster
from harness.model_check.local_states import (
    CRASH,
    DELIVER,
    HEARTBEAT,
    LOSE_LEADER,
    LOSE_QUORUM,
    PROPOSE,
    READ,
    SYNC,
    TIME_OUT,
    Facts,
    LocalStates,
    Outcome,
)
from harness.sim.engine.errors import Violation
from raft import (
    AppendEntries,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    Role,
    VoteRequest,
    VoteResponse,
)

Row = bytes  # array("I")

CHECKED_EVERY = 256
"""How many states are expanded between two checks of the time limit."""


class ModelEvent(NamedTuple):
    """One event of a path. `argument`: the number of a message, a count, or a ticket (`LocalStates.outcome`).

    `kept`: the numbers of the messages that are still in flight after the event.
    """

    place: int
    kind: int
    argument: int
    kept: tuple[int, ...]


@dataclass(slots=True)
class Found:
    """The result of a search. `path`: the events that lead to the violation, if there is one.

    Each element of `path` is (event, the renaming with which the search continued after the event).
    """

    bounds: Bounds
    states: int = 0
    transitions: int = 0
    depth: int = 0
    exhausted: bool = False
    seconds: float = 0.0
    local_states: int = 0
    local_steps: int = 0
    letters: int = 0
    frontier: int = 0
    stopped_by: str | None = None
    levels: list[int] = field(default_factory=list)  # The number of new states at each depth.
    violation: Violation | None = None
    path: list[tuple[ModelEvent, int]] = field(default_factory=list)


class Search:
    """One search. `run` yields at intervals, so that a display can be updated. At its end, `found` is complete."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.states = LocalStates(bounds)
        self.histories = GhostStates(bounds, self.states.renamings)
        self.found = Found(bounds)
        self._numbers: dict[Row, int] = {}
        self._rows: list[Row] = []
        self._parents = array("q")
        self._prelude: list[tuple[ModelEvent, int]] = []  # The events that lead to the first state of the search.
        self._expanded = 0
        self._checked: set[tuple[int, ...]] = set()
        self._signatures: dict[object, int] = {}
        self._signature: list[int] = []
        self._options: list[tuple[tuple[int, int], ...]] = []
        self._dead: dict[tuple[int, int], bool] = {}

    def run(self) -> Iterator[Found]:
        """Search until all states are expanded, a rule is broken, or a bound is reached."""
        began = time.monotonic()
        found = self.found
        self._keep(self._beginning(), -1)
        level_ends = 0
        while level_ends < len(self._rows) and not self._is_over():
            level_begins, level_ends = level_ends, len(self._rows)
            found.levels.append(level_ends - level_begins)
            found.depth = len(found.levels) - 1
            if found.depth == self.bounds.depth:
                found.stopped_by = f"the bound of {self.bounds.depth} events"
            for number in range(level_begins, level_ends):
                if self._is_over():
                    break
                self._expand(number)
                self._expanded += 1
                if number % CHECKED_EVERY == 0:
                    self._count(began)
                    yield found
        self._count(began)
        found.exhausted = not self._is_over()
        yield found

    def _is_over(self) -> bool:
        found, bounds = self.found, self.bounds
        if found.stopped_by is not None or found.violation is not None:
            return True
        if bounds.seconds is not None and found.seconds >= bounds.seconds:
            found.stopped_by = f"the bound of {bounds.seconds:g} s"
        elif bounds.states is not None and found.states >= bounds.states:
            found.stopped_by = f"the bound of {bounds.states:,} states"
        return found.stopped_by is not None

    def _count(self, began: float) -> None:
        found, states = self.found, self.states
        found.seconds = time.monotonic() - began
        found.states, found.frontier = len(self._rows), len(self._rows) - self._expanded
        found.local_states, found.local_steps, found.letters = len(states.place), states.steps_run, len(states.letters)

    # The first state

    def _beginning(self) -> Row:
        """Return the first state: all members at their very first start or, if `elected`, after a first election."""
        members, history, letters = self.states.first_states(), self.histories.first, list[int]()
        if not self.bounds.elected:
            return self._least(members, history, ())[0]
        place, kind, argument = 0, TIME_OUT, 0
        while True:
            outcome = self.states.outcome(members[place], kind, argument)
            history = self.histories.after(history, place, kind, outcome.notes)
            members[place] = outcome.state
            letters += [letter for letter in outcome.sent if letter not in letters]
            self._prelude.append((ModelEvent(place, kind, argument, tuple(letters)), 0))
            busy = [place for place, state in enumerate(members) if self.states.facts[state].unsynced]
            if busy:
                place, kind, argument = busy[0], SYNC, 0
            elif letters:
                argument = letters.pop(0)
                place, kind = self.states.letters[argument].to, DELIVER
            else:
                break
        row, renaming = self._least(members, history, ())
        self._prelude[-1] = self._prelude[-1][0], renaming
        return row

    # One state

    def _expand(self, number: int) -> None:
        row = array("I", self._rows[number])
        for event, outcome in self._events(row):
            self.found.transitions += 1
            try:
                row_after, _ = self._after(row, event, outcome)
            except Violation as violation:
                self.found.violation = violation
                self.found.path = [*self.path_to(number), (event, 0)]
                return
            if row_after not in self._numbers:
                self._keep(row_after, number)

    def _keep(self, row: Row, parent: int) -> None:
        self._numbers[row] = len(self._rows)
        self._rows.append(row)
        self._parents.append(parent)

    def _after(self, row: array[int], event: ModelEvent, outcome: Outcome) -> tuple[Row, int]:
        """Return (the row of the next state, the renaming that leads to this row). Raises Violation."""
        members_count = self.bounds.members
        if outcome.violation is not None:
            raise Violation(*outcome.violation)
        history = row[members_count]
        if outcome.notes or event.kind in (PROPOSE, READ, CRASH, HEARTBEAT, LOSE_LEADER):
            history = self.histories.after(history, event.place, event.kind, outcome.notes)
        if event.kind == DELIVER and event.argument in event.kept and event.argument not in outcome.sent:
            history = self.histories.duplicated(history)
        members = list(row[:members_count])
        members[event.place] = outcome.state
        self._check(members, history)
        return self._least(members, history, event.kept)

    def _events(self, row: array[int]) -> Iterator[tuple[ModelEvent, Outcome]]:
        """Yield each possible next event that changes something, with its outcome."""
        members_count = self.bounds.members
        history = self.histories.all[row[members_count]]
        under_way = tuple(row[members_count + 1 :])
        for place in range(members_count):
            state = row[place]
            for kind, argument in self._options_of(state):
                if kind == CRASH and not history.crashes_left:
                    continue
                if kind == PROPOSE and not history.entries_left:
                    continue
                if kind == LOSE_LEADER and not history.hints_left:
                    continue
                if kind == HEARTBEAT and not history.heartbeats_left:
                    continue
                if kind == READ:
                    if not history.reads_left:
                        continue
                    argument = history.reads_left
                yield from self._with_losses(row, place, kind, argument, under_way)
        for letter in under_way:
            place = self.states.letters[letter].to
            rest = tuple(other for other in under_way if other != letter)
            yield from self._with_losses(row, place, DELIVER, letter, rest)
            if history.duplicates_left:
                yield from self._with_losses(row, place, DELIVER, letter, under_way)

    def _with_losses(
        self, row: array[int], place: int, kind: int, argument: int, under_way: tuple[int, ...]
    ) -> Iterator[tuple[ModelEvent, Outcome]]:
        """Yield the event with its outcome, unless it changes nothing.

        If more messages would then be in flight than the bound allows, yield the event once for each choice of lost
        messages.
        """
        state = row[place]
        outcome = self.states.outcome(state, kind, argument)
        if outcome.state == state and not outcome.notes and not (set(outcome.sent) - set(under_way)):
            if outcome.violation is not None:
                yield ModelEvent(place, kind, argument, under_way), outcome
            return  # The event changes nothing. A delivery that changes nothing is the same as a loss.
        present = list(row[: self.bounds.members])
        present[place] = outcome.state
        letters = sorted({*under_way, *outcome.sent})
        alive = tuple(
            letter for letter in letters if not self._is_dead(letter, present[self.states.letters[letter].to])
        )
        if len(alive) <= self.bounds.in_flight:
            yield ModelEvent(place, kind, argument, alive), outcome
        else:
            for kept in combinations(alive, self.bounds.in_flight):
                yield ModelEvent(place, kind, argument, kept), outcome

    def _options_of(self, state: int) -> tuple[tuple[int, int], ...]:
        """Return all events of a member in this state, except deliveries, as (kind, argument)."""
        while len(self._options) <= state:
            self._options.append(self._find_options(len(self._options)))
        return self._options[state]

    def _find_options(self, state: int) -> tuple[tuple[int, int], ...]:
        facts = self.states.facts[state]
        options = [(CRASH, survived) for survived in range(facts.unsynced + 1)]
        if facts.unsynced:
            options.append((SYNC, 0))
        if facts.role is Role.LEADER:
            options += [(HEARTBEAT, 0), (LOSE_QUORUM, 0), (PROPOSE, 0), (READ, 0)]
        elif facts.term < self.bounds.terms:
            options.append((TIME_OUT, 0))
            if facts.follows and self.bounds.hints:
                options.append((LOSE_LEADER, 0))
        return tuple(options)

    def _is_dead(self, letter: int, state: int) -> bool:
        """Return True if this message is an answer for which no member waits. Such a message can have no effect.

        Whether the receiver may still wait for the answer depends on its *durable* term, because a crash can undo a
        term that is not yet synced. In addition, the result is True only if the core would ignore the message if it
        arrived now.
        """
        known = self._dead.get((letter, state))
        if known is None:
            known = self._dead[letter, state] = self._find_dead(letter, state)
        return known

    def _find_dead(self, letter: int, state: int) -> bool:
        message, facts = self.states.letters[letter].message, self.states.facts[state]
        if isinstance(message, AppendEntries | InstallSnapshot | VoteRequest | PreVoteRequest):
            return False  # This message is a request, and the receiver answers even a request of an older term.
        if message.term > facts.durable_term or (message.term == facts.durable_term and _may_wait_for(message, facts)):
            return False
        outcome = self.states.outcome(state, DELIVER, letter)
        return outcome.state == state and not outcome.sent and not outcome.notes and outcome.violation is None

    # Rows

    def _check(self, members: list[int], history: int) -> None:
        signature = self._signature
        while len(signature) < len(self.states.facts):
            facts = self.states.facts[len(signature)]
            key = (facts.log, facts.durable_log, facts.term if facts.role is Role.LEADER else 0)
            signature.append(self._signatures.setdefault(key, len(self._signatures)))
        key_of_all = (*[signature[member] for member in members], history)
        if key_of_all not in self._checked:
            check_cluster([self.states.facts[member] for member in members], self.histories.all[history])
            self._checked.add(key_of_all)

    def _least(self, members: Sequence[int], history: int, letters: Sequence[int]) -> tuple[Row, int]:
        """Return (the row that represents all renamings of a state, the renaming that leads to this row)."""
        orbits = [self.states.orbit[member] for member in members]
        images = [(self._renamed(members, history, letters, p), p) for p in self.states.renamings.sorting(orbits)]
        best, renaming = min(images) if len(images) > 1 else images[0]
        return array("I", best).tobytes(), renaming

    def _renamed(self, members: Sequence[int], history: int, letters: Sequence[int], renaming: int) -> tuple[int, ...]:
        states = self.states
        if renaming == 0:
            return (*members, history, *sorted(letters))
        row = [0] * len(members)
        for place, member in zip(states.renamings.all[renaming], members, strict=True):
            row[place] = states.images[member][renaming]
        history = self.histories.image(history, renaming)
        return (*row, history, *sorted([states.letter_images[letter][renaming] for letter in letters]))

    def facts_of(self, number: int) -> list[Facts]:
        """Return the facts of each member in state `number`. States are numbered in the order of discovery, from 0."""
        return [self.states.facts[member] for member in array("I", self._rows[number])[: self.bounds.members]]

    def images_of(self, number: int) -> int:
        """Return how many different states result from state `number` by renaming, including the state itself."""
        members_count = self.bounds.members
        row = array("I", self._rows[number])
        members, history, letters = row[:members_count], row[members_count], row[members_count + 1 :]
        return len({self._renamed(members, history, letters, p) for p in range(len(self.states.renamings.all))})

    def path_to(self, number: int) -> list[tuple[ModelEvent, int]]:
        """Return the events from the very first start to this state.

        Each event has the renaming with which the search continued.
        """
        numbers = [number]
        while self._parents[numbers[-1]] >= 0:
            numbers.append(self._parents[numbers[-1]])
        numbers.reverse()
        return [*self._prelude, *(self._step_between(one, other) for one, other in pairwise(numbers))]

    def _step_between(self, number: int, following: int) -> tuple[ModelEvent, int]:
        row = array("I", self._rows[number])
        for event, outcome in self._events(row):
            row_after, renaming = self._after(row, event, outcome)
            if row_after == self._rows[following]:
                return event, renaming
        raise AssertionError(f"no event leads from state {number} to {following}")


def _may_wait_for(message: Message, facts: Facts) -> bool:
    """Return True if the member may still wait for this answer in the term of the answer.

    Within one term, a member that has stopped being a candidate never becomes a candidate again. Similarly, a member
    that has stopped leading never leads again in that term.
    """
    if isinstance(message, VoteResponse):
        return facts.role is Role.CANDIDATE
    return isinstance(message, PreVoteResponse) or facts.role is Role.LEADER
