"""Finds the cheapest choice of unknown writes, at the offered revisions, that explains a segment of one key.

The acknowledged operations are in the order of their revisions. Each unknown write is placed at the revision that is
assigned to it. So every state is completely known. One pass over the revisions finds the cheapest solution: at each
revision, it keeps all possible states. No response distinguishes between unknown puts whose values no operation names,
or between unknown deletions. These writes are used in the order of their floors, the lowest first. The floor of a write
is the highest revision among the operations that returned before its call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import TypeAlias

from spark_audit.history.operation import Operation, Step
from spark_audit.model.key import State, advance

PlacedWrite: TypeAlias = tuple[Operation, int]  # A write and its revision.

# At most this many states, the cheapest ones, are kept at one revision. Histories of real runs need tens of states.
STATES_MAX = 2_000
STEPS_MAX = 200_000  # In a segment, operations are applied to states at most this often: about a second.
# Replaces every revision that no response names, so that states which differ only in such revisions are merged.
_UNNAMED = -1
# Replaces every value that no operation names, so that states which differ only in such values are merged.
_ANY = "\ud800 of unknown outcome"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of one key, from the state `initial` on.

    `operations`: the completed operations, sorted by rank; the state after the last one does not matter. `offered`: the
    cost of each offered revision. `unknown`: the writes that may take effect in the segment, each with its floor.
    """

    initial: State
    operations: Sequence[Operation]
    offered: Mapping[int, int]
    unknown: Sequence[tuple[Operation, int]]


def solve(segment: Segment) -> tuple[PlacedWrite, ...] | None:
    """Return the unknown writes of a cheapest valid order, with their revisions; None if no order is found."""
    made = _Solver(segment).run()
    return made if made is not None and verifies(segment, made) else None


def verifies(segment: Segment, placed: Sequence[PlacedWrite]) -> bool:
    """Return whether every response follows if these writes take effect at their revisions.

    Each write must be used at most once. Its revision must be offered, be above its floor, and belong to no other
    write.
    """
    floors = {op.op_id: floor for op, floor in segment.unknown}
    if len({op.op_id for op, _ in placed}) < len(placed) or len({revision for _, revision in placed}) < len(placed):
        return False
    if any(floors[op.op_id] >= revision or revision not in segment.offered for op, revision in placed):
        return False
    order = [((revision, -1, 0, 0), op, revision) for op, revision in placed]
    order += [(op.rank, op, op.revision or 0) for op in segment.operations]
    state: State | None = segment.initial
    for _, op, revision in sorted(order, key=lambda one: one[0]):
        state = None if state is None else advance(state, op, revision)
    return state is not None


@dataclass(frozen=True, slots=True)
class _Trail:
    """A linked list of the unknown writes placed so far, the last first."""

    placed: PlacedWrite
    before: _Trail | None


# (state, indices in `_Solver._others` of the distinguishable writes that are used)
_StateKey: TypeAlias = tuple[State, frozenset[int]]
# (cost, number of indistinguishable puts used, number of indistinguishable deletions used, writes placed)
_Path: TypeAlias = tuple[int, int, int, _Trail | None]
# For each state, the paths to it. A path is left out if another one has no higher cost, no more puts and no more
# deletions.
_States: TypeAlias = dict[_StateKey, list[_Path]]


class _Solver:
    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        named = _names(segment)
        self._revisions, self._seen = named.revisions, named.seen
        alike: tuple[list[tuple[Operation, int]], list[tuple[Operation, int]]] = ([], [])
        self._others: list[tuple[Operation, int]] = []
        for op, floor in sorted(segment.unknown, key=lambda one: (one[1], one[0].call_ns, one[0].op_id)):
            kind = op.steps[0].kind if len(op.steps) == 1 and not op.guards else ""
            if kind == "put" and not named.appends and op.steps[0].value not in named.values:
                alike[0].append((op, floor))
            elif kind == "delete":
                alike[1].append((op, floor))
            else:
                self._others.append((op, floor))
        self._puts, self._deletes = alike
        self._steps = 0

    def run(self) -> tuple[PlacedWrite, ...] | None:
        states: _States = {(self._segment.initial, frozenset()): [(0, 0, 0, None)]}
        for revision, op in self._places():
            states = self._offer(states, revision) if op is None else self._meet(states, op)
            if not states or self._steps > STEPS_MAX:
                return None
            if len(states) > STATES_MAX:
                states = dict(nsmallest(STATES_MAX, states.items(), key=_least))
        *_, trail = min((way for ways in states.values() for way in ways), key=lambda way: way[0])
        placed: list[PlacedWrite] = []
        while trail is not None:
            placed.append(trail.placed)
            trail = trail.before
        return tuple(reversed(placed))

    def _places(self) -> Iterator[tuple[int, Operation | None]]:
        """Yield the operations and the offered revisions in ascending order, up to the last operation."""
        left = sorted(self._segment.offered, reverse=True)
        for op in self._segment.operations:
            while left and left[-1] <= (op.revision or 0):
                yield left.pop(), None
            yield op.revision or 0, op

    def _meet(self, states: _States, op: Operation) -> _States:
        met: _States = {}
        for (state, used), ways in states.items():
            after = self._after(state, op, op.revision)
            if after is not None:
                for way in ways:
                    _keep(met, (after, used), way)
        return met

    def _offer(self, states: _States, revision: int) -> _States:
        """Return the states after an unknown write at this revision, together with the states without such a write.

        If a response reports a record of this revision, only the states after a write are returned.
        """
        must = revision in self._seen
        met: _States = {} if must else {key: list(ways) for key, ways in states.items()}
        for key, ways in states.items():
            self._offer_others(met, key, ways, revision)
            if not must or self._seen[revision] is None:
                self._offer_alike(met, key, ways, revision)
        return met

    def _offer_others(self, met: _States, key: _StateKey, ways: Sequence[_Path], revision: int) -> None:
        """Add the states after each of the distinguishable writes."""
        (state, used), seen = key, self._seen.get(revision)
        for number, (op, floor) in enumerate(self._others):
            if floor >= revision:
                break
            if number in used or (seen is not None and op.name != "append" and op.steps[0].value != seen):
                continue
            after = self._after(state, op, self._name(revision))
            if after is not None:
                for cost, puts, deletes, trail in ways:
                    way = cost + self._price(revision), puts, deletes, _Trail((op, revision), trail)
                    _keep(met, (after, used | {number}), way)

    def _offer_alike(self, met: _States, key: _StateKey, ways: Sequence[_Path], revision: int) -> None:
        """Add the states after the next indistinguishable put, and those after the next indistinguishable deletion."""
        state, used = key
        name, price = self._name(revision), self._price(revision)
        with_put = self._after(state, _HIDDEN, name) if self._puts else None
        deleted = self._after(state, self._deletes[0][0], name) if self._deletes else None
        for cost, puts, deletes, trail in ways:
            if with_put is not None and puts < len(self._puts) and self._puts[puts][1] < revision:
                placed = _Trail((self._puts[puts][0], revision), trail)
                _keep(met, (with_put, used), (cost + price, puts + 1, deletes, placed))
            if deleted is not None and deletes < len(self._deletes) and self._deletes[deletes][1] < revision:
                placed = _Trail((self._deletes[deletes][0], revision), trail)
                _keep(met, (deleted, used), (cost + price, puts, deletes + 1, placed))

    def _price(self, revision: int) -> int:
        return 1 + self._segment.offered[revision]

    def _name(self, revision: int) -> int:
        return revision if revision in self._revisions else _UNNAMED

    def _after(self, state: State, op: Operation, revision: int | None) -> State | None:
        self._steps += 1
        return advance(state, op, revision)


def _keep(met: _States, key: _StateKey, way: _Path) -> None:
    ways = met.setdefault(key, [])
    if any(have[0] <= way[0] and have[1] <= way[1] and have[2] <= way[2] for have in ways):
        return
    ways[:] = [have for have in ways if not (way[0] <= have[0] and way[1] <= have[1] and way[2] <= have[2])]
    ways.append(way)


def _least(item: tuple[_StateKey, list[_Path]]) -> int:
    return min(way[0] for way in item[1])


@dataclass(frozen=True, slots=True)
class _Names:
    """The revisions and values that the operations of a segment name.

    `seen`: revision of a reported record → the record's value, or None if no response reports the value. `seen` has
    only revisions that no completed write of the segment carries.
    """

    revisions: frozenset[int]
    values: frozenset[str | None]
    seen: Mapping[int, str | None]
    appends: bool


def _names(segment: Segment) -> _Names:
    revisions: set[int] = set()
    values: set[str | None] = set()
    seen: dict[int, str | None] = {}
    everything = [*segment.operations, *(op for op, _ in segment.unknown)]
    for op in everything:
        for step in op.steps:
            values.add(step.expected)
            revisions.add(step.expected_mod_revision or 0)
            if step.seen is not None and step.seen.found:
                values.add(step.seen.value)
                revisions.update((step.seen.mod_revision or 0, step.seen.create_revision or 0))
                if step.seen.mod_revision:
                    seen[step.seen.mod_revision] = seen.get(step.seen.mod_revision) or step.seen.value
    carried = {op.revision for op in segment.operations if op.writes}
    seen = {revision: value for revision, value in seen.items() if revision not in carried}
    appends = any(step.kind == "append" for op in everything for step in op.steps)
    return _Names(frozenset(revisions), frozenset(values), seen, appends)


_HIDDEN = Operation(-1, "", "put", 0, 0, "", None, True, (Step("put", _ANY),))
