"""Builds the order that the revisions of a key propose, and verifies it. A verified order proves linearizability.

- The operations are sorted by (revision, writer first, call).
- A write of unknown outcome takes part only if some response shows that it took effect. If a response names its
  revision, the revision determines its place. Otherwise the write is placed immediately before its first observer: the
  write never returns, so the latest possible place is the best one. If an unknown compare-and-set found the value of
  another unknown write, the chain of these writes is placed as a whole.
- The order must respect real time: no operation may return before the call of an operation that precedes it in the
  order.
- Every response must follow from the state at its place, and no revision may be reported for two writes.

Cost: O(n log n) for n operations of a key, plus a bounded search at each gap that unknown writes must fill. A key whose
order fails is suspect, not wrong: `key/decide.py` then looks for a violation, or for another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import FOREVER, Operation, Seen
from spark_audit.key.revision_uniqueness import UsedRevisions, revisions_claimed
from spark_audit.key.unplaced_writes import with_earliest_calls
from spark_audit.model.key import ABSENT, State, advance

Rank: TypeAlias = tuple[int, int, int, int]  # (revision, writer first, call, op_id)

LATE = "it returned before an operation that precedes it in the order was called"

# The maximum number of states that are tried at one place to fill a gap with unknown writes. Most gaps need one or two
# states.
FILL_STATES_MAX = 200
FILL_BACK_MAX = 24  # Unknown writes are placed at most this many places before the response that requires them.


@dataclass(frozen=True, slots=True)
class Witness:
    """The result of verifying the order that the revisions propose.

    `order`: every completed operation, and the unknown writes that took effect, each with its revision if it is known.
    `reason`, `at`: why the verification failed, and at which operation. `guessed`: whether the place of some unknown
    write in the order is a guess. In that case, it is not proven that a free revision exists for this write.
    """

    verified: bool
    order: tuple[tuple[Operation, int | None], ...] = ()
    reason: str = ""
    at: Operation | None = None
    guessed: bool = False


@dataclass(slots=True)
class _Place:
    """An operation at its place. `shows`: the record that this operation wrote, as some response reported it."""

    revision: int
    operation: Operation
    shows: Seen | None = None

    @property
    def rank(self) -> Rank:
        """The sort key of the place. An unknown write ranks before all other operations that carry its revision."""
        if self.operation.unknown:
            return (self.revision, -1, self.operation.call_ns, self.operation.op_id)
        return self.operation.rank


def witness(operations: Sequence[Operation], clocks: Clocks, *, initial: State = ABSENT) -> Witness:
    """Verify the order that the revisions of one key propose.

    Reads that promise less than linearizability are left out.
    """
    completed = [op for op in operations if not op.unknown and op.weak is None]
    if any(op.revision is None for op in completed):
        return Witness(False, reason="an operation has no revision")
    unknown = [op for op in operations if op.unknown]
    places = [_Place(op.revision or 0, op) for op in completed]
    shown = _shown(completed)
    taken = _resolve(places, shown, unknown)
    if taken is None:
        return Witness(False, reason="a record was seen that no write with this revision wrote")
    for place in places:
        if place.operation.writes:
            place.shows = shown.get(place.revision)
    places.sort(key=lambda place: place.rank)
    late = late_operation([place.operation for place in places], clocks)
    if late is not None:
        return Witness(False, reason=LATE, at=late)
    spare = [op for op in unknown if (op.op_id not in taken)]
    found = _replay(places, spare, _values_seen(completed), clocks, initial)
    return _with_first_called(found, operations, clocks, initial)


def _shown(completed: Iterable[Operation]) -> dict[int, Seen]:
    """Return for each reported mod_revision one report of the record that has this revision.

    If two reports of the same record differ, the replay finds the contradiction.
    """
    shown: dict[int, Seen] = {}
    for op in completed:
        for step in op.steps:
            if step.seen is not None and step.seen.found and step.seen.mod_revision is not None:
                have = shown.get(step.seen.mod_revision)
                if have is None or have.version is None or have.value is None:
                    shown[step.seen.mod_revision] = step.seen
    return shown


def _resolve(places: list[_Place], shown: dict[int, Seen], unknown: Sequence[Operation]) -> set[int] | None:
    """Find the unknown writes for which a response reports a revision. Append them to `places`, and return their
    op_ids.

    The result is None if a response reports a record that no operation can have written.
    """
    written = {place.revision for place in places if place.operation.writes}
    by_value: dict[str, list[Operation]] = {}
    for op in sorted(unknown, key=lambda op: op.call_ns, reverse=True):
        for step in op.steps:
            if step.kind in ("put", "cas"):
                by_value.setdefault(step.value or "", []).append(op)
    taken: set[int] = set()
    for revision in sorted(shown.keys() - written):
        value = shown[revision].value
        if value is None:
            # The response is of a request for keys only, so any unknown write may have made the record. The replay
            # chooses one.
            continue
        candidates = by_value.get(value, [])
        while candidates and candidates[-1].op_id in taken:
            candidates.pop()
        if not candidates:
            return None
        op = candidates.pop()
        taken.add(op.op_id)
        places.append(_Place(revision, op))
    return taken


def _values_seen(completed: Iterable[Operation]) -> set[str]:
    """Return the values that completed operations found.

    An unknown write of such a value is needed before the operation that found the value, so it fills no other gap.
    """
    values: set[str] = set()
    for op in completed:
        for step in op.steps:
            if step.seen is not None and step.seen.value is not None:
                values.add(step.seen.value)
            if step.expected is not None and step.flag:
                values.add(step.expected)
    return values


def late_operation(order: Sequence[Operation], clocks: Clocks) -> Operation | None:
    """Return the first operation that returned before the call of an operation that precedes it in the order."""
    latest: dict[str, int] = {}
    for op in order:
        for clock, call in latest.items():
            margin = clocks.margin_ns(op.clock, clock)
            if margin is not None and op.return_ns + margin < call:
                return op
        latest[op.clock] = max(latest.get(op.clock, op.call_ns), op.call_ns)
    return None


def _replay(
    places: Sequence[_Place], spare: list[Operation], values_seen: set[str], clocks: Clocks, initial: State
) -> Witness:
    carried = {place.revision for place in places if place.operation.writes}
    filler = _Filler(spare, values_seen, [place.operation for place in places], carried, clocks)
    states = [initial]  # states[i]: the state before places[i].
    chains: dict[int, list[Operation]] = {}  # chains[i]: the unknown writes inserted immediately before places[i].
    for position, place in enumerate(places):
        after = _accepts(states[position], place, carried)
        if after is not None:
            states.append(after)
            continue
        filled = filler.fill_back(states, places, max(chains, default=0), position)
        if filled is None:
            reason = "its answer does not follow from the order of revisions"
            return Witness(False, reason=reason, at=place.operation)
        start, chain, before, replayed = filled
        chains.setdefault(start, []).extend(chain)
        states[start:] = [before, *replayed]
    order: list[tuple[Operation, int | None]] = []
    for position, place in enumerate(places):
        chain = chains.get(position, [])
        order.extend((op, None) for op in chain)
        order.append((place.operation, place.revision))
    misfit = _misfit(order, clocks, initial)
    if misfit is not None:
        return misfit
    return Witness(True, tuple(order), guessed=bool(chains))


def _with_first_called(found: Witness, operations: Sequence[Operation], clocks: Clocks, initial: State) -> Witness:
    """If several unknown writes fit at a place, use the first one called, because its revision is least restricted."""
    if not found.guessed:
        return found
    order = with_earliest_calls(found.order, operations)
    return replace(found, order=order) if explains(order, clocks, initial=initial) else found


def explains(order: Sequence[tuple[Operation, int | None]], clocks: Clocks, *, initial: State = ABSENT) -> bool:
    """Return whether this order of (operation, its revision) respects real time and explains every response."""
    return _misfit(order, clocks, initial) is None


def _misfit(order: Sequence[tuple[Operation, int | None]], clocks: Clocks, initial: State) -> Witness | None:
    """Return None if this order respects real time and explains every response, otherwise a failed `Witness`."""
    state = initial
    fresh = UsedRevisions(revision for op, revision in order if op.writes and revision is not None)
    for op, revision in order:
        if not fresh.take(state, op):
            return Witness(False, reason="a revision is reported of two writes", at=op)
        after = advance(state, op, revision)
        if after is None:
            return Witness(False, reason="its answer does not follow from the order of revisions", at=op)
        state = after
    late = late_operation([op for op, _ in order], clocks)
    return None if late is None else Witness(False, reason=LATE, at=late)


def _accepts(state: State, place: _Place, carried: set[int]) -> State | None:
    """Return the state after the operation at this place; None if the operation does not fit there.

    The operation fits if the state agrees with its response and with later reports of the record that it writes. A
    revision that the operation reports for an unknown write must not be in `carried`: the revisions in `carried` belong
    to writes of the order.
    """
    if not carried.isdisjoint(revisions_claimed(state, place.operation)):
        return None
    after = advance(state, place.operation, place.revision)
    shows = place.shows
    if after is None or shows is None or not place.operation.writes or after[0] is None:
        return after
    if shows.version is not None and shows.version != after[3]:
        return None
    if shows.create_revision is not None and after[2] is not None and shows.create_revision != after[2]:
        return None
    return after


def _run(state: State, ahead: Sequence[_Place], carried: set[int]) -> list[State] | None:
    """Return the state after each of these places; None if one of their operations does not fit."""
    states: list[State] = []
    now: State | None = state
    for place in ahead:
        assert now is not None
        now = _accepts(now, place, carried)
        if now is None:
            return None
        states.append(now)
    return states


class _Filler:
    """Finds unknown writes that explain a response, and places them before it."""

    def __init__(
        self,
        spare: list[Operation],
        values_seen: set[str],
        order: Sequence[Operation],
        carried: set[int],
        clocks: Clocks,
    ) -> None:
        # Transactions come last, because they must also fit the other keys that they name.
        self._spare = sorted(spare, key=lambda op: (op.name == "txn", op.call_ns))
        self._used: set[int] = set()
        self._values_seen = values_seen
        self._carried = carried
        self._deadlines = _deadlines(order, {op.clock for op in spare}, clocks) if spare else []

    def fill_back(
        self, states: Sequence[State], places: Sequence[_Place], first: int, position: int
    ) -> tuple[int, list[Operation], State, list[State]] | None:
        """Find a place at or after `first` at which unknown writes can be inserted so that all responses up to
        `position` follow.

        Return the place, the writes, the state after them, and the state after each place from there to `position`. The
        latest place is tried first. An earlier place is needed in two cases. In the first, the unknown write must not
        come between another write and the compare-and-set that expects this other write. In the second, only the
        version of a later write shows the unknown write.
        """
        for start in range(position, max(first, position - FILL_BACK_MAX) - 1, -1):
            filled = self._fill(states[start], places[start : position + 1], start)
            if filled is not None:
                return start, *filled
        return None

    def _fill(
        self, state: State, ahead: Sequence[_Place], position: int
    ) -> tuple[list[Operation], State, list[State]] | None:
        """Return a shortest chain of unknown writes that fits, and the states after it.

        The chain is found by breadth-first search. The result is None if FILL_STATES_MAX states yield no chain.
        """
        feasible = [op for op in self._spare if op.op_id not in self._used and self._in_time(op, position)]
        useful = _leading_to({value for place in ahead for value in _values_wanted(place)}, feasible)
        frontier: list[tuple[State, tuple[Operation, ...]]] = [(state, ())]
        visited = 0
        while frontier and visited < FILL_STATES_MAX:
            following: list[tuple[State, tuple[Operation, ...]]] = []
            for before, chain in frontier:
                for op in self._candidates(feasible, chain, useful):
                    after = advance(before, op, None)
                    if after is None or not self._carried.isdisjoint(revisions_claimed(before, op)):
                        continue
                    visited += 1
                    replayed = _run(after, ahead, self._carried)
                    if replayed is not None:
                        self._used.update(used.op_id for used in (*chain, op))
                        return [*chain, op], after, replayed
                    following.append((after, (*chain, op)))
            frontier = following
        return None

    def _in_time(self, op: Operation, position: int) -> bool:
        deadline = self._deadlines[position].get(op.clock)
        return deadline is None or op.call_ns <= deadline

    def _candidates(
        self, feasible: Sequence[Operation], chain: tuple[Operation, ...], useful: set[str | None]
    ) -> Iterator[Operation]:
        """Yield one unknown write of each sort.

        Writes with equal steps and guards are of one sort. All puts of values that are not in `useful` also form one
        sort. Of these puts, those whose value a response names are not yielded, because they are needed elsewhere.
        """
        done = {op.op_id for op in chain}
        offered: set[object] = set()
        for op in feasible:
            if op.op_id in done:
                continue
            step, sort = op.steps[0], (op.steps, op.guards)
            if len(op.steps) == 1 and not op.guards and step.kind == "put" and step.value not in useful:
                if step.value in self._values_seen:
                    continue
                sort = ((), ())
            if sort not in offered:
                offered.add(sort)
                yield op


def _leading_to(wanted: set[str | None], feasible: Sequence[Operation]) -> set[str | None]:
    """Return `wanted`, and the values that unknown compare-and-sets must find so as to write a value of the result."""
    reached = set(wanted)
    while True:
        steps = (step for op in feasible for step in op.steps if step.kind == "cas" and step.value in reached)
        more = {step.expected for step in steps} - reached
        if not more:
            return reached
        reached |= more


def _values_wanted(place: _Place) -> set[str | None]:
    """Return the values that the operation at this place finds or requires."""
    wanted: set[str | None] = set()
    for step in place.operation.steps:
        if step.seen is not None and step.seen.found:
            wanted.add(step.seen.value)
        if step.kind == "cas" and step.flag is not False:
            wanted.add(step.expected)
    wanted.update(str(guard.value) for guard in place.operation.guards if guard.target == "value")
    wanted.discard(None)
    return wanted


def _deadlines(order: Sequence[Operation], names: set[str], clocks: Clocks) -> list[dict[str, int]]:
    """Return for each place the latest stamp, by each clock of `names`, at which a write placed there may have been
    called.
    """
    deadlines: list[dict[str, int]] = []
    now: dict[str, int] = {}
    for op in reversed(order):
        for clock in names:
            margin = clocks.margin_ns(op.clock, clock)
            if margin is not None and op.return_ns < FOREVER:
                now[clock] = min(now.get(clock, FOREVER), op.return_ns + margin)
        deadlines.append(now.copy())
    deadlines.reverse()
    return deadlines
