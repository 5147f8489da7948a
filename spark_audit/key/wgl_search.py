"""Searches for an order of the operations of one key by just-in-time linearization (Wing & Gong, Lowe).

The search processes the calls and the returns of all operations in the order of time. A configuration is a state and
the set of open operations that have already taken effect in it. An operation must have taken effect by the time it
returns. So if the returning operation has not taken effect in a configuration, open operations are added to the
configuration until the returning one has taken effect. If this is impossible, the configuration is dropped. If no
configuration is left, no order explains the history up to this return. The number of concurrent operations bounds the
memory; the length of the history does not matter.

- An operation of unknown outcome never returns: it may take effect at any time after its call, or never. Equal
  operations of unknown outcome form one *sort*, and only their number is kept. Of two configurations with the same
  state and the same completed operations, the first dominates the second if it has used at most as many operations of
  every sort. A dominated configuration is dropped.
- A read that agrees with the state and changes nothing takes effect at once: this excludes no order.
- Parts of the state that no response depends on are dropped, such as a number that is never reported or a value that is
  never read (`key/observable_state.py`).
- If a future call must find a value, and no remaining operation can write this value again, the value is not
  overwritten.
- Each change has a revision of its own, so the revision that a response reports for an unknown write belongs to no
  other write (`key/revision_uniqueness.py`).
- When a put takes effect, all open puts whose values are never read take effect directly before it. The put overwrites
  them at once, so they restrict no other operation. This rule is not used if `ordered` is true, if some response
  depends on a version or a creation revision, or if some response (such as that of a deletion that found a record)
  depends on a record but does not name its value.
- If `ordered` is true, acknowledged writes take effect in the order of their revisions. An order that is found in this
  way is a proof like any other. If no order is found, nothing is proven, and a search without `ordered` must decide.
- A first pass keeps only the BEAM most promising configurations at each return. For most linearizable histories, this
  pass finds an order, which is a valid proof. If it finds no order, a second pass keeps all configurations.
- `configurations_max` bounds the work. If this bound is reached, the search ends undecided (`linearizable` is None).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from spark_audit.history.operation import FOREVER, Operation
from spark_audit.key.observable_state import UNREAD, Observability, PendingReads
from spark_audit.key.revision_uniqueness import NamedRevisions
from spark_audit.model.key import ABSENT, State, advance

# For each sort of unknown operations of which at least one took effect: the sort, and how many took effect. In order of
# the sorts.
Spent: TypeAlias = tuple[tuple[int, int], ...]
# (state, bits of the open operations of known outcome that took effect, unknown operations used).
Configuration: TypeAlias = tuple[State, int, Spent]


# The number of configurations that the first pass keeps. In measurements, a wider beam cost more time and found hardly
# more orders.
BEAM = 24


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    `linearizable`: None if `configurations_max` was reached. `at`: the operation at whose return no configuration was
    left.
    """

    linearizable: bool | None
    configurations: int
    at: Operation | None = None


class _CapReached(Exception):
    pass


def search(
    operations: Sequence[Operation], *, configurations_max: int, ordered: bool = False, initial: State = ABSENT
) -> SearchResult:
    """Decide one key. All stamps must be of one clock; `Clocks.widened` moves stamps of several clocks to one axis."""
    made = 0
    for beam in (BEAM, None):
        linearizer = _Linearizer(operations, configurations_max - made, ordered, beam)
        try:
            at = linearizer.run(initial)
        except _CapReached:
            return SearchResult(None, made + linearizer.made)
        made += linearizer.made
        if at is None or not linearizer.narrowed:
            return SearchResult(at is None, made, at)
    raise AssertionError("a walk without a beam is never narrowed")


def _events(operations: Sequence[Operation]) -> Iterator[tuple[int, int, int]]:
    """Yield the events as (time, 0 for a call or 1 for a return, position of the operation).

    At equal stamps, calls sort before returns, because two operations are concurrent if one returns at the stamp at
    which the other is called.
    """
    for position, op in enumerate(operations):
        yield (op.call_ns, 0, position)
        if op.return_ns != FOREVER:
            yield (op.return_ns, 1, position)


class _Linearizer:
    def __init__(
        self, operations: Sequence[Operation], configurations_max: int, ordered: bool, beam: int | None
    ) -> None:
        self.made = 0
        self.narrowed = False  # Whether the beam dropped configurations. If it did, a failed search proves nothing.
        self._beam = beam
        self._max = configurations_max
        self._observability = Observability.of(operations)
        self._given = [op for op in operations if op.weak is None]
        self._operations = [self._observability.simplified(op) for op in self._given]
        # Position of an open operation of known outcome → its bit in the mask of a configuration.
        self._open: dict[int, int] = {}
        self._open_reads: dict[int, int] = {}  # Like `_open`, but only operations that change nothing.
        self._open_idle: dict[int, int] = {}  # Like `_open`, but only puts whose values are never read.
        self._free_bits: list[int] = []
        self._sorts: dict[object, int] = {}
        self._sort_samples: list[Operation] = []
        self._sort_position: dict[int, int] = {}
        self._available: list[int] = []  # For each sort, the number of its operations that have been called.
        self._pending_reads = PendingReads(self._operations)
        self._named = NamedRevisions(self._operations)
        counting = self._observability.version or self._observability.create or _depends_on_any_record(self._operations)
        self._idle = {p for p, op in enumerate(self._operations) if not ordered and not counting and _is_idle(op)}
        self._rank = _write_ranks(self._operations) if ordered else {}
        self._ranks_closed = 0

    def run(self, initial: State) -> Operation | None:
        """Return None if there is an order; otherwise the operation at whose return no configuration is left."""
        configurations: set[Configuration] = {(self._observability.of_state(initial), 0, ())}
        for _, is_return, position in sorted(_events(self._operations)):
            op = self._operations[position]
            if not is_return:
                self._call(position, op)
                continue
            bit = self._open[position]
            configurations = self._survivors(configurations, bit)
            if not configurations:
                return self._given[position]
            configurations = self._promising(configurations)
            del self._open[position]
            self._open_reads.pop(position, None)
            self._open_idle.pop(position, None)
            self._free_bits.append(bit)
            self._ranks_closed += position in self._rank
        return None

    def _call(self, position: int, op: Operation) -> None:
        self._pending_reads.called(position)
        self._named.called(position)
        if op.return_ns == FOREVER and op.unknown:
            sort = self._sorts.setdefault((op.steps, op.guards, op.guards_hold, self._twin(op)), len(self._available))
            if sort == len(self._available):
                self._available.append(0)
                self._sort_samples.append(op)
            self._available[sort] += 1
            self._sort_position[sort] = position
            return
        bit = self._open[position] = self._free_bits.pop() if self._free_bits else 1 << len(self._open)
        if not op.writes:
            self._open_reads[position] = bit
        if position in self._idle:
            self._open_idle[position] = bit

    def _promising(self, configurations: set[Configuration]) -> set[Configuration]:
        """Return the configurations that leave the most choices open.

        These are the configurations in which the fewest open and unknown operations have taken effect.
        """
        if self._beam is None or len(configurations) <= self._beam:
            return configurations
        self.narrowed = True
        by_cost = sorted(configurations, key=lambda c: (c[1].bit_count() + sum(n for _, n in c[2]), repr(c)))
        return set(by_cost[: self._beam])

    def _twin(self, op: Operation) -> int | None:
        """For a transaction, return its op_id, so that it forms no sort with other operations; otherwise return None.

        Both branches of the transaction are operations with this op_id, and at most one of them may take effect.
        """
        return op.op_id if op.name == "txn" else None

    def _survivors(self, configurations: set[Configuration], bit: int) -> set[Configuration]:
        done: set[Configuration] = set()
        seen: set[Configuration] = set()
        stack: list[Configuration] = []
        for configuration in configurations:
            if configuration[1] & bit:
                done.add((configuration[0], configuration[1] & ~bit, configuration[2]))
            else:
                stack.append(configuration)
        while stack:
            configuration = self._eager(stack.pop())
            if configuration[1] & bit:
                done.add((configuration[0], configuration[1] & ~bit, configuration[2]))
                continue
            if configuration in seen:
                continue
            seen.add(configuration)
            self._count()
            stack.extend(self._extensions(configuration))
        return _undominated(done)

    def _count(self) -> None:
        self.made += 1
        if self.made > self._max:
            raise _CapReached

    def _eager(self, configuration: Configuration) -> Configuration:
        state, mask, spent = configuration
        for position, bit in self._open_reads.items():
            if not mask & bit and self._advance(state, position) == state:
                mask |= bit
        return (state, mask, spent)

    def _extensions(self, configuration: Configuration) -> Iterator[Configuration]:
        state, mask, spent = configuration
        counts = dict(spent)
        kept = self._must_be_kept(state, mask, counts)
        due = self._ranks_closed + sum(1 for p, bit in self._open.items() if mask & bit and p in self._rank)
        idle = sum(bit for bit in self._open_idle.values() if not mask & bit)
        for position, bit in self._open.items():
            if mask & bit or self._rank.get(position, due) != due:
                continue
            after = self._advance(state, position)
            if after is None or (kept and after[0] != state[0]) or self._parts(state, after, position, mask | bit):
                continue
            yield (after, mask | bit | (idle if _is_put(self._operations[position]) else 0), spent)
        for sort, available in enumerate(self._available):
            if counts.get(sort, 0) < available and not self._branch_taken(sort, counts):
                position = self._sort_position[sort]
                after = self._advance(state, position)
                if after is None or (kept and after[0] != state[0]) or self._parts(state, after, position, mask):
                    continue
                yield (after, mask, tuple(sorted({**counts, sort: counts.get(sort, 0) + 1}.items())))

    def _must_be_kept(self, state: State, mask: int, counts: dict[int, int]) -> bool:
        """Return whether a future call must find the current value, and no remaining operation can write it again."""
        token = state[0]
        if not self._pending_reads.is_awaited(token):
            return False
        if any(not mask & bit and self._pending_reads.may_write(p, token) for p, bit in self._open.items()):
            return False
        return not any(
            counts.get(sort, 0) < available and self._pending_reads.may_write(self._sort_position[sort], token)
            for sort, available in enumerate(self._available)
        )

    def _advance(self, state: State, position: int) -> State | None:
        op = self._operations[position]
        after = advance(state, op, op.revision)
        return None if after is None or not self._named.fits(state, position) else self._observability.of_state(after)

    def _parts(self, state: State, after: State, position: int, mask: int) -> bool:
        return self._named.parts(state, after, position, (p for p, bit in self._open.items() if not mask & bit))

    def _branch_taken(self, sort: int, counts: dict[int, int]) -> bool:
        op = self._sort_samples[sort]
        return op.name == "txn" and any(self._sort_samples[other].op_id == op.op_id for other in counts)


def _depends_on_any_record(operations: Sequence[Operation]) -> bool:
    """Return whether some response depends on the revision or existence of a record, but does not name its value."""
    return any(
        op.guards
        or step.expected_mod_revision is not None
        or (step.kind == "delete" and step.flag)
        or (step.seen is not None and step.seen.found and step.seen.value is None)
        for op in operations
        for step in op.steps
    )


def _is_put(op: Operation) -> bool:
    return not op.guards and len(op.steps) == 1 and op.steps[0].kind == "put"


def _is_idle(op: Operation) -> bool:
    return _is_put(op) and not op.unknown and op.steps[0].value == UNREAD


def _write_ranks(operations: Sequence[Operation]) -> dict[int, int]:
    """Return position → rank of each acknowledged write with a revision. Ranks (0, 1, 2…) ascend with revisions."""
    revisions = [(op.revision, p) for p, op in enumerate(operations) if op.writes and op.revision is not None]
    return {position: rank for rank, (_, position) in enumerate(sorted(revisions))}


def _undominated(configurations: set[Configuration]) -> set[Configuration]:
    groups: dict[tuple[State, int], list[Spent]] = {}
    for state, mask, spent in configurations:
        groups.setdefault((state, mask), []).append(spent)
    kept: set[Configuration] = set()
    for (state, mask), bills in groups.items():
        bills.sort(key=lambda spent: sum(count for _, count in spent))
        cheap: list[dict[int, int]] = []
        for spent in bills:
            counts = dict(spent)
            if not any(all(counts.get(s, 0) >= n for s, n in other.items()) for other in cheap):
                cheap.append(counts)
                kept.add((state, mask, spent))
    return kept


def widened(operations: Sequence[Operation], axis: Sequence[tuple[int, int]]) -> list[Operation]:
    """Return the operations with the (call, return) stamps of `axis`, which `Clocks.widened` computes."""
    return [replace(op, call_ns=call, return_ns=end) for op, (call, end) in zip(operations, axis, strict=True)]
