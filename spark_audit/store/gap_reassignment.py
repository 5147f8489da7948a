"""Decides keys again near unplaced writes (`store/revision_claims.py`) for which there is no free revision.

A key may have several valid orders, and the order that proved the key was chosen without regard to other keys. The free
revisions are known only after all keys have an order. A *segment* of a key lies between two operations that report a
whole record, or absence. The rest of the key affects a segment in only one way: an unknown write that it uses is not
available to the segment. `store/segment_solver.py` decides a segment again, by an exact search. The unknown writes of
the segment may get free revisions and, at a higher cost, the revisions of unplaced writes in other segments. If a write
of another segment loses its revision in this way, the next matching gives the write another revision, or its segment is
decided again, too. Each new order of a segment is verified, and then all writes are matched again. See
docs/internals/audit-proofs.md, section 9.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_audit.history.operation import FOREVER, Operation, operation_of
from spark_audit.model.key import ABSENT, State
from spark_audit.store.gap_matching import Matched, choices_of, match_revisions
from spark_audit.store.revision_claims import CallStamp, RevisionClaim, RevisionRange, UnplacedWrite
from spark_audit.store.segment_solver import PlacedWrite, Segment, solve

ROWS_MAX = 200_000  # A window with more rows than this from `low` to `high` is not read.
# On either side of an unplaced write, this many rows of the key are read: at first 64, and 4096 if these are not
# enough.
AROUND = (64, 4_096)
# A part (`_Part`, a segment to decide again) is extended on either side, up to the n-th next operation that reports a
# whole record. These values of n are tried one after the other.
WIDER = (0, 1, 4, 16, 64)
# The maximum number of rounds of reassignment. Each round decides again the parts around writes without a revision.
ROUNDS_MAX = 12
TRIES_MAX = 4_000  # The maximum number of segments that are decided in total. Most segments take a few milliseconds.
# Between two successive acknowledged operations, at most this many free revisions of each cost are offered, the highest
# ones first.
ALIKE_MAX = 8
_LOOKED_AT_MAX = 256  # Between two acknowledged operations, at most this many free revisions are considered.
# _HELD is the cost of a revision that another write has. _ALONE is the cost if that write can have no other revision.
_HELD, _ALONE = 100, 300


@dataclass(frozen=True, slots=True)
class RevisionWindow:
    """A request for the rows of `key` that take part and have revisions from `low` to `high`.

    `around`: how many more rows of the key are requested on either side.
    """

    key: str
    low: int
    high: int
    around: int


class NearbyRows(Protocol):
    """Access to the rows of one run that are needed to decide keys again."""

    def reached(self, calls: Sequence[CallStamp], /) -> Sequence[int]:
        """Return for each call the highest revision among the operations that returned before it; 1 if none did."""
        ...

    def rows_in(self, windows: Sequence[RevisionWindow], /) -> Iterable[Sequence[Any] | None]:
        """Return the rows of each window, sorted by rank; None for a window with more than ROWS_MAX rows from `low` to
        `high`."""
        ...

    def unknown_writes(self, keys: Sequence[str], /) -> Mapping[str, Sequence[Any]]:
        """Return for each of these keys its rows of unknown outcome, except for reads."""
        ...


@dataclass(frozen=True, slots=True)
class _KeyState:
    """The unknown writes of a key.

    `unknown`: op_id → (write, floor). The *floor* of a write is the highest revision among the operations that returned
    before the call of the write. `claims`: claimed revision → op_id of the write that has it.
    """

    unknown: dict[int, tuple[Operation, int]]
    claims: dict[int, int]


@dataclass(frozen=True, slots=True)
class _Part:
    """A segment: the operations of a key with revisions in (`after`, `until`]. The state at `after` is `initial`."""

    key: str
    after: int
    until: int
    initial: State
    operations: Sequence[Operation]

    def holds(self, key: str, revision: int) -> bool:
        return key == self.key and self.after < revision <= self.until

    def holds_write(self, write: UnplacedWrite) -> bool:
        return (
            write.key == self.key
            and self.after < min(write.low, write.high)
            and max(write.low, write.high) <= self.until
        )

    def cuts(self, write: UnplacedWrite) -> bool:
        """Return whether the write may have a revision inside the part, but also one outside."""
        least, most = min(write.low, write.high), max(write.low, write.high)
        return write.key == self.key and not self.holds_write(write) and self.after < most and least <= self.until


def reassign(
    unplaced: Sequence[UnplacedWrite],
    reached: Sequence[int],
    claims: Sequence[RevisionClaim],
    taken: Sequence[RevisionRange],
    rows: NearbyRows,
    open_keys: Sequence[str] = (),
) -> list[str]:
    """Decide keys again, so that each unplaced write gets a revision; return the keys for which this fails.

    `open_keys`: keys without a known order by revisions. The result has two kinds of keys: the keys with an unplaced
    write that still has no revision, and the keys of `open_keys` for which no such order is found. If the result is
    empty, every unplaced write of the run has a revision of its own, and all of `open_keys` have an order by revisions.

    `reached`: for each unplaced write, the highest revision among the operations that returned before its call.
    `taken`: all revisions of acknowledged changes, and all claimed revisions.
    """
    reassignment = _Reassignment(unplaced, reached, claims, taken, rows)
    still_open = [key for key in sorted(open_keys) if not reassignment.decide(key)]
    left: Sequence[int] = ()
    for around in AROUND:
        left = reassignment.run(around)
        if not left:
            break
    return sorted({*still_open, *(reassignment.unplaced[number].key for number in left)})


class _Reassignment:
    def __init__(
        self,
        unplaced: Sequence[UnplacedWrite],
        reached: Sequence[int],
        claims: Sequence[RevisionClaim],
        taken: Sequence[RevisionRange],
        rows: NearbyRows,
    ) -> None:
        self.unplaced: list[UnplacedWrite] = []  # The unplaced writes of all keys, in the order of the last matching.
        # Key → its unplaced writes, each with its floor (see `_KeyState`).
        self._of: dict[str, list[tuple[UnplacedWrite, int]]] = {}
        for write, floor in zip(unplaced, reached, strict=True):
            self._of.setdefault(write.key, []).append((write, floor))
        self._claims, self._taken, self._rows = claims, taken, rows
        self._firsts = [first for first, _ in taken]
        self._keys: dict[str, _KeyState | None] = {}
        self._times_taken: dict[int, int] = {}  # Revision → how many solutions have used it. Each use raises its cost.
        self._tries = 0

    def run(self, around: int) -> Sequence[int]:
        """Run rounds of reassignment; return the indices of the writes that are left without a revision."""
        for _ in range(ROUNDS_MAX):
            found = self._matched()
            if not found.left or not self._round(found, around):
                return found.left
        return self._matched().left

    def decide(self, key: str) -> bool:
        """Find an order by revisions for a whole key that has none yet; return whether this succeeded.

        The key is decided one segment after the other. A segment that cannot be decided is joined with the segment
        before it.
        """
        self._of[key] = []
        (rows,) = self._rows.rows_in([RevisionWindow(key, 1, FOREVER, 0)])
        self._learn([key])
        if self._keys[key] is None or rows is None:
            return False
        operations = [op for row in rows for op in operation_of(row)]
        found = self._matched()
        done: list[_Part] = []
        for part in _parts(key, operations):
            while (placed := self._solved(part, found)) is None:
                if not done:
                    return False
                part = _joined(done.pop(), part)
            self._commit(part, placed)
            done.append(part)
        return True

    def _solved(self, part: _Part, found: Matched) -> tuple[PlacedWrite, ...] | None:
        about = self._keys[part.key]
        self._tries += 1
        if about is None or self._tries > TRIES_MAX:
            return None
        return solve(self._segment(part, about, found, set()))

    def _matched(self) -> Matched:
        pairs = [pair for mine in self._of.values() for pair in mine]
        self.unplaced = [write for write, _ in pairs]
        return match_revisions(choices_of(self.unplaced, [floor for _, floor in pairs]), self._taken)

    def _round(self, found: Matched, around: int) -> bool:
        """Decide again the parts around the writes without a revision; return whether this succeeded for any part."""
        left = [self.unplaced[number] for number in found.left]
        around_each = self._rows.rows_in([_window(write, around) for write in left])
        self._learn([write.key for write in left])
        done: list[tuple[_Part, tuple[PlacedWrite, ...]]] = []
        claimed: set[int] = set()
        for write, rows in zip(left, around_each, strict=True):
            if rows is None or any(part.holds_write(write) for part, _ in done):
                continue
            again = self._solve_around(write, rows, found, claimed, around)
            if again is not None and not any(_overlap(again[0], part) for part, _ in done):
                done.append(again)
                claimed.update(revision for _, revision in again[1])
        for part, placed in done:
            self._commit(part, placed)
        return bool(done)

    def _learn(self, keys: Sequence[str]) -> None:
        """Fetch the states (`_KeyState`) of these keys, except for the states that are already known.

        A state is None if it is not certain which unknown writes took effect, or if an unknown write would be used
        twice.
        """
        fresh = sorted(set(keys) - self._keys.keys())
        if not fresh:
            return
        rows = self._rows.unknown_writes(fresh)
        writes = {key: [op for row in rows[key] for op in operation_of(row)] for key in fresh}
        reached = self._rows.reached([(op.call_ns, op.clock) for key in fresh for op in writes[key]])
        floors = iter(reached)
        claims: dict[str, dict[int, int]] = {key: {} for key in fresh}
        for one in self._claims:
            if one.key in claims:
                claims[one.key][one.revision] = -1 if one.by is None else one.by[0]
        for key in fresh:
            unknown = {op.op_id: (op, next(floors)) for op in writes[key]}
            used = [write.op_id for write, _ in self._of[key]] + list(claims[key].values())
            known = len(set(used)) == len(used) and unknown.keys() >= set(used) and len(unknown) == len(writes[key])
            self._keys[key] = _KeyState(unknown, claims[key]) if known else None

    def _solve_around(
        self, write: UnplacedWrite, rows: Sequence[Any], found: Matched, claimed: set[int], around: int
    ) -> tuple[_Part, tuple[PlacedWrite, ...]] | None:
        about = self._keys[write.key]
        if about is None:
            return None
        low, high = min(write.low, write.high), max(write.low, write.high)
        operations = [op for row in rows for op in operation_of(row)]
        tried: set[tuple[int, int]] = set()
        for more in WIDER:
            part = _part(write.key, low, high, operations, around, more)
            if part is None or (part.after, part.until) in tried or self._tries >= TRIES_MAX:
                continue
            if any(part.cuts(one) for one, _ in self._of[write.key]):
                continue
            tried.add((part.after, part.until))
            self._tries += 1
            placed = solve(self._segment(part, about, found, claimed))
            if placed is not None:
                return part, placed
        return None

    def _segment(self, part: _Part, about: _KeyState, found: Matched, claimed: set[int]) -> Segment:
        used = {write.op_id for write, _ in self._of[part.key] if not part.holds_write(write)}
        used |= {op_id for revision, op_id in about.claims.items() if not part.holds(part.key, revision)}
        last = max((op.revision or 0 for op in part.operations), default=0)
        unknown = [one for op_id, one in about.unknown.items() if op_id not in used and one[1] < last]
        return Segment(part.initial, part.operations, self._offered(part, about, found, claimed), unknown)

    def _offered(self, part: _Part, about: _KeyState, found: Matched, claimed: set[int]) -> dict[int, int]:
        """Return the revisions that unknown writes in the part may take, each with its cost.

        Between two operations, only two kinds of free revisions are offered: the highest revisions of each cost, and
        the revisions that a response names.
        """
        offered = {revision: 0 for revision in about.claims if part.holds(part.key, revision)}
        before = part.after
        for op in part.operations:
            here = op.revision or 0
            counts: dict[int, int] = {}
            for _, revision in zip(range(_LOOKED_AT_MAX), self._free_down(here, before), strict=False):
                cost = self._cost(revision, part, found, claimed)
                counts[cost] = counts.get(cost, 0) + 1
                if counts[cost] <= ALIKE_MAX:
                    offered[revision] = cost
            before = max(before, here)
        for revision in _named(part.operations):
            if part.holds(part.key, revision) and not self._is_taken(revision):
                offered[revision] = self._cost(revision, part, found, claimed)
        return offered

    def _cost(self, revision: int, part: _Part, found: Matched, claimed: set[int]) -> int:
        cost = _HELD if revision in claimed else 0
        owner = found.owner.get(revision)
        if owner is not None and not part.holds_write(self.unplaced[owner]):
            write = self.unplaced[owner]
            cost += _ALONE if write.low == write.high and not write.also else _HELD
        return cost * (1 + self._times_taken.get(revision, 0))

    def _is_taken(self, revision: int) -> bool:
        at = bisect_right(self._firsts, revision) - 1
        return at >= 0 and revision <= self._taken[at][1]

    def _free_down(self, high: int, above: int) -> Iterator[int]:
        """Yield the revisions that are not taken, from `high` down to `above` (exclusive)."""
        revision = high
        while revision > above:
            at = bisect_right(self._firsts, revision) - 1
            if at >= 0 and revision <= self._taken[at][1]:
                revision = self._taken[at][0] - 1
                continue
            yield revision
            revision -= 1

    def _commit(self, part: _Part, placed: Sequence[PlacedWrite]) -> None:
        """Replace the unplaced writes of this part by `placed`, each with its new revision."""
        about = self._keys[part.key]
        assert about is not None
        mine = [one for one in self._of.pop(part.key) if not part.holds_write(one[0])]
        self._of = {
            part.key: mine,
            **self._of,
        }  # The key is matched first in the next matching, so that its writes keep their revisions.
        for op, revision in placed:
            self._times_taken[revision] = self._times_taken.get(revision, 0) + 1
            if revision not in about.claims:
                write = UnplacedWrite(part.key, revision, revision, op.call_ns, op.clock, (), op.op_id)
                mine.append((write, about.unknown[op.op_id][1]))


def _window(write: UnplacedWrite, around: int) -> RevisionWindow:
    low, high = min(write.low, write.high), max(write.low, write.high)
    return RevisionWindow(write.key, low - 1, low if high == FOREVER else high, around)


def _part(key: str, low: int, high: int, operations: Sequence[Operation], around: int, more: int) -> _Part | None:
    """Return the part around these revisions, extended on either side by `more` operations that report a whole record.

    The result is None if the state of the key at the beginning of the part is not known, or if no operation that
    reports a whole record ends the part.
    """
    shows = [(op.revision or 0, state) for op in operations if (state := _shown(op)) is not None]
    begins = [one for one in shows if one[0] < low]
    ends = sorted({revision for revision, _ in shows if revision >= high})
    first = sum((op.revision or 0) < low - 1 for op in operations) < around
    last = sum((op.revision or 0) > high for op in operations) < around
    distinct = list(dict(begins).items())  # Ascending by revision, with the last state at each revision.
    if len(distinct) > more:
        after, initial = distinct[-1 - more]
    elif first:
        after, initial = 1, ABSENT
    elif distinct:
        after, initial = distinct[0]
    else:
        return None
    if len(ends) > more:
        until = ends[more]
    elif last:
        until = FOREVER
    elif ends:
        until = ends[-1]
    else:
        return None
    mine = [op for op in operations if after < (op.revision or 0) <= until]
    return _Part(key, after, until, initial, mine)


def _parts(key: str, operations: Sequence[Operation]) -> Iterator[_Part]:
    """Yield the parts of a whole key. Each part but the last ends with an operation that reports a whole record."""
    after, initial = 1, ABSENT
    begin = 0
    for number, op in enumerate(operations):
        revision, state = op.revision or 0, _shown(op)
        ends = number + 1 == len(operations) or (operations[number + 1].revision or 0) > revision
        if state is not None and ends:
            yield _Part(key, after, revision, initial, operations[begin : number + 1])
            after, initial, begin = revision, state, number + 1
    yield _Part(key, after, FOREVER, initial, operations[begin:])


def _joined(part: _Part, following: _Part) -> _Part:
    operations = [*part.operations, *following.operations]
    return _Part(part.key, part.after, following.until, part.initial, operations)


def _shown(op: Operation) -> State | None:
    """Return the state after the operation if its response shows this state completely, otherwise None."""
    if len(op.steps) != 1 or op.guards:
        return None
    step = op.steps[0]
    if step.kind == "delete":
        return ABSENT
    if op.writes or step.seen is None:
        return None
    if not step.seen.found:
        return ABSENT
    seen = (step.seen.value, step.seen.mod_revision, step.seen.create_revision, step.seen.version)
    return None if None in seen else (seen[0], seen[1], seen[2], seen[3] or 0)


def _named(operations: Sequence[Operation]) -> set[int]:
    """Return the revisions that responses name."""
    named: set[int | None] = set()
    for step in (step for op in operations for step in op.steps):
        named.add(step.expected_mod_revision)
        if step.seen is not None and step.seen.found:
            named.update((step.seen.mod_revision, step.seen.create_revision))
    return {revision for revision in named if revision}


def _overlap(part: _Part, other: _Part) -> bool:
    return part.key == other.key and part.after < other.until and other.after < part.until
