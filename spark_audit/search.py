"""Search: is there any order at all? Just-in-time linearization (Wing–Gong, Lowe), for one key.

Time is walked from event to event. A configuration is a state and the set of open operations that have taken effect in
it already. When an operation returns, each configuration in which it has not yet taken effect is extended by open
operations until it has; a configuration that cannot be is dropped. None left: no order explains the history up to this
return. Memory is bounded by the concurrency, not by the length.

- An operation of unknown outcome never returns: it may take effect at any time after its call, or never. Equal ones are
  one sort with a count. Of two configurations with the same state and the same completed operations, one which has spent
  fewer of every sort dominates the other.
- A read that agrees with the state and changes nothing takes effect at once: it can only help.
- What no response shows is forgotten: a number of the state that nobody reports, a value that nobody reads.
- `ordered`: acknowledged writes take effect in the order of their revisions. What is found so is an order like any other;
  only if nothing is found does it prove nothing, and the search without it decides.
- `configurations_max` bounds the work; beyond it the answer is None, never a verdict.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from spark_audit.model import ABSENT, State, advance
from spark_audit.operation import FOREVER, Operation

Spent: TypeAlias = tuple[tuple[int, int], ...]  # (sort, how many), ordered by sort, counts ≥ 1
Configuration: TypeAlias = tuple[State, int, Spent]  # state, bits of open completed operations that took effect, spent


UNREAD = "\0unread"  # Stands for every value that nobody reads.


@dataclass(frozen=True, slots=True)
class Found:
    """`linearizable` None: the cap was reached. `at`: the operation at whose return no configuration was left."""

    linearizable: bool | None
    configurations: int
    at: Operation | None = None


class _CapReached(Exception):
    pass


def search(
    operations: Sequence[Operation], *, configurations_max: int, ordered: bool = False, initial: State = ABSENT
) -> Found:
    """Decide one key. All stamps must be of one clock (`Clocks.widened` brings others onto one axis)."""
    walk = _Walk(operations, configurations_max, ordered)
    try:
        at = walk.run(initial)
    except _CapReached:
        return Found(None, walk.made)
    return Found(at is None, walk.made, at)


def _events(operations: Sequence[Operation]) -> Iterator[tuple[int, int, int]]:
    """(time, 0 call or 1 return, position): at equal stamps calls come first, for these are concurrent."""
    for position, op in enumerate(operations):
        yield (op.call_ns, 0, position)
        if op.return_ns != FOREVER:
            yield (op.return_ns, 1, position)


class _Walk:
    def __init__(self, operations: Sequence[Operation], configurations_max: int, ordered: bool) -> None:
        self.made = 0
        self._max = configurations_max
        self._shown = Shown.of(operations)
        self._given = [op for op in operations if op.weak is None]
        self._operations = [self._shown.simplified(op) for op in self._given]
        self._open: dict[int, int] = {}  # Position of an open completed operation → its bit.
        self._free_bits: list[int] = []
        self._sorts: dict[object, int] = {}
        self._sort_samples: list[Operation] = []
        self._available: list[int] = []  # Per sort: how many have been called.
        self._rank = _write_ranks(self._operations) if ordered else {}
        self._ranks_closed = 0

    def run(self, initial: State) -> Operation | None:
        """None if there is an order; else the operation whose return no configuration survives."""
        configurations: set[Configuration] = {(self._shown.of_state(initial), 0, ())}
        for _, is_return, position in sorted(_events(self._operations)):
            op = self._operations[position]
            if not is_return:
                self._call(position, op)
                continue
            bit = self._open[position]
            configurations = self._survivors(configurations, position, bit)
            if not configurations:
                return self._given[position]
            del self._open[position]
            self._free_bits.append(bit)
            self._ranks_closed += position in self._rank
        return None

    def _call(self, position: int, op: Operation) -> None:
        if op.return_ns == FOREVER and op.unknown:
            sort = self._sorts.setdefault((op.steps, op.guards, op.guards_hold, self._twin(op)), len(self._available))
            if sort == len(self._available):
                self._available.append(0)
                self._sort_samples.append(op)
            self._available[sort] += 1
            return
        self._open[position] = self._free_bits.pop() if self._free_bits else 1 << len(self._open)

    def _twin(self, op: Operation) -> int | None:
        """An unknown transaction which may have run either branch is a sort of its own, known by its op_id."""
        return op.op_id if op.name == "txn" else None

    def _survivors(self, configurations: set[Configuration], position: int, bit: int) -> set[Configuration]:
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
        for position, bit in self._open.items():
            if not mask & bit:
                op = self._operations[position]
                if not op.writes and self._advance(state, op) == state:
                    mask |= bit
        return (state, mask, spent)

    def _extensions(self, configuration: Configuration) -> Iterator[Configuration]:
        state, mask, spent = configuration
        due = self._ranks_closed + sum(1 for p, bit in self._open.items() if mask & bit and p in self._rank)
        for position, bit in self._open.items():
            if mask & bit or self._rank.get(position, due) != due:
                continue
            op = self._operations[position]
            after = self._advance(state, op)
            if after is not None:
                yield (after, mask | bit, spent)
        counts = dict(spent)
        for sort, available in enumerate(self._available):
            if counts.get(sort, 0) < available and not self._branch_taken(sort, counts):
                after = self._advance(state, self._sort_samples[sort])
                if after is not None:
                    yield (after, mask, tuple(sorted({**counts, sort: counts.get(sort, 0) + 1}.items())))

    def _advance(self, state: State, op: Operation) -> State | None:
        after = advance(state, op, op.revision)
        return None if after is None else self._shown.of_state(after)

    def _branch_taken(self, sort: int, counts: dict[int, int]) -> bool:
        op = self._sort_samples[sort]
        return op.name == "txn" and any(self._sort_samples[other].op_id == op.op_id for other in counts)


@dataclass(frozen=True, slots=True)
class Shown:
    """What the responses of a history can tell apart; all else may be forgotten, and so many states become one.

    `values` None: all of them (appends and comparisons of values look inside).
    """

    mod: bool
    create: bool
    version: bool
    values: frozenset[str] | None

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> "Shown":
        steps = [step for op in operations for step in op.steps]
        targets = {guard.target for op in operations for guard in op.guards}
        seen = [step.seen for step in steps if step.seen is not None and step.seen.found]
        whole = "value" in targets or any(step.kind == "append" for step in steps)
        names = {s.value for s in seen} | {step.expected for step in steps}
        return cls(
            mod="mod_revision" in targets
            or any(s.mod_revision is not None for s in seen)
            or any(step.expected_mod_revision is not None for step in steps),
            create="create_revision" in targets or any(s.create_revision is not None for s in seen),
            version="version" in targets or any(s.version is not None for s in seen),
            values=None if whole else frozenset(name for name in names if name is not None),
        )

    def of_state(self, state: State) -> State:
        value, mod, create, version = state
        return (value, mod if self.mod else None, create if self.create else None, version if self.version else 0)

    def simplified(self, op: Operation) -> Operation:
        if self.values is None or not any(
            step.value is not None and step.value not in self.values for step in op.steps
        ):
            return op
        steps = (s if s.value is None or s.value in self.values else replace(s, value=UNREAD) for s in op.steps)
        return replace(op, steps=tuple(steps))


def _write_ranks(operations: Sequence[Operation]) -> dict[int, int]:
    """Positions of acknowledged writes with a revision → 0, 1, 2… by revision."""
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
    """The operations with other (call, return) stamps: see `Clocks.widened`."""
    return [replace(op, call_ns=call, return_ns=end) for op, (call, end) in zip(operations, axis, strict=True)]
