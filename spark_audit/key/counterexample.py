"""Reduces an impossible history of one key to a few operations that a person can check.

If operations are omitted carelessly, the rest may be a violation although the history is not one. These reductions of a
history H are safe:

- to drop an operation that only read, or the observations of a write, because fewer responses must be explained;
- to drop reported versions and creation revisions. They depend on all writes, so they are always dropped once a write
  is dropped;
- to assume that a revision belongs to one write only, because each change of a store has a revision of its own;
- to drop a write u, if no kept operation r can have read from it. This is certain in four cases: u and r name different
  values; r returned before u was called; some kept write was called after u returned, and returned before r was called;
  or r lies inside a block. In the last case, a block consists of a kept write p and the kept readers of its value, and
  no other write wrote this value. Before r was called, p or a reader in the block had returned. After r had returned, a
  reader in the block was called.

Proof: take an order that explains H and remove the dropped operations from it. In the order of H, a kept operation r
read from the last write before it. This write was not dropped. In the third case, a dropped write would precede a kept
write that precedes r, so the dropped write would not be the last one before r. In the fourth case, no write comes
between p and the last reader of its value, so r read from p. So r still reads from the same write.

If `Excerpt.sound` leaves an excerpt unchanged, and `search` finds no valid order of it, then H has no valid order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from spark_audit.history.operation import FOREVER, Guard, Operation, Step

# The token of an observation that may depend on any value. If an operation has this token, all writes from which it may
# have read are kept.
ANYTHING = "\0anything"
NOTHING = "\0nothing"  # The token of absence.


def tokens_written(op: Operation) -> set[str]:
    """Return the values that the operation writes; NOTHING for a deletion."""
    written: set[str] = set()
    for step in op.steps:
        if step.kind in ("put", "append") or (step.kind == "cas" and step.flag is not False):
            written.add(step.value or "")
        elif step.kind == "delete" and step.flag is not False:
            written.add(NOTHING)
    return written


def tokens_observed(op: Operation, value_at: dict[int, str]) -> set[str]:
    """Return the values that the response depends on. `value_at`: revision → the value written at it, if known."""
    observed = {token for step in op.steps for token in _observed(step, value_at)}
    if op.guards:
        return observed | {_guard_token(guard, value_at) if op.guards_hold else ANYTHING for guard in op.guards}
    return observed


def _guard_token(guard: Guard, value_at: dict[int, str]) -> str:
    """Return the token of the state in which this comparison held."""
    if guard.sign != "=":
        return ANYTHING
    if guard.target == "value":
        return str(guard.value)
    if guard.value == 0:
        return NOTHING
    return value_at.get(int(guard.value), ANYTHING) if guard.target == "mod_revision" else ANYTHING


def _observed(step: Step, value_at: dict[int, str]) -> set[str]:
    match step.kind:
        case "get":
            return _seen_tokens(step)
        case "delete" if step.flag is not None:
            return {ANYTHING if step.flag else NOTHING}
        case "cas" if step.flag is False:
            return _seen_tokens(step) if step.seen is not None else {ANYTHING}
        case "cas" if step.expected_mod_revision is None:
            return {NOTHING if step.expected is None else step.expected}
        case "cas":
            return {value_at.get(step.expected_mod_revision or 0, ANYTHING) if step.expected_mod_revision else NOTHING}
    return set()


def _seen_tokens(step: Step) -> set[str]:
    if step.seen is None:
        return set()
    if not step.seen.found:
        return {NOTHING}
    return {ANYTHING if step.seen.value is None else step.seen.value}


def _values_written(operations: Sequence[Operation]) -> Iterator[tuple[int, str]]:
    """Yield pairs (revision, value written at this revision). The pairs that readers reported come first, then the
    pairs of the writes themselves.

    If a revision has several pairs, the caller uses the last one, so the writes come last.
    """
    for op in operations:
        for step in op.steps:
            seen = step.seen
            if seen is not None and seen.mod_revision is not None and seen.value is not None:
                yield seen.mod_revision, seen.value
    for op in operations:
        for step in op.steps:
            if op.revision is not None and op.writes and step.value is not None:
                yield op.revision, step.value


class Excerpt:
    """The history of one key, with the rules for the operations that may be dropped from an excerpt.

    An excerpt is a list of operations of this history. All stamps must be of one clock.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = [op for op in operations if op.weak is None]
        self.value_at = dict(_values_written(self.operations))
        self.writers: dict[str, list[Operation]] = {}
        for op in self.operations:
            for token in tokens_written(op):
                self.writers.setdefault(token, []).append(op)
        self.appends = any(step.kind == "append" for op in self.operations for step in op.steps)

    def sound(self, kept: Iterable[Operation]) -> list[Operation]:
        """Return a sound excerpt of the kept operations.

        If a kept operation may have observed a dropped write, its observations are dropped. If the operation only
        observes, it is dropped as a whole.
        """
        now = list(kept)
        barrier = _Barrier(self, now)
        earliest = min((w.call_ns for w in self.operations if w.writes and not barrier.has(w)), default=None)
        if earliest is None:
            return now
        now = [op if op.return_ns < earliest else _without_counts(op) for op in now]
        while True:
            unsound = {id(op) for op in now if op.return_ns >= earliest and self._missing(barrier, op)}
            if not unsound:
                return now
            masked = ((op.without_reads() if id(op) in unsound else op) for op in now)
            now = [op for op in masked if op is not None]
            barrier = _Barrier(self, now)

    def completed(self, core: Iterable[Operation], operations_max: int) -> list[Operation]:
        """Return the core together with every write that its readers may have read from, as a sound excerpt.

        Once there are more than `operations_max` operations, no more writes are added.
        """
        # Duplicates are removed, because an operation that is in the list twice would take effect twice.
        now = list({(op.op_id, op.alternative): op for op in core}.values())
        while len(now) <= operations_max:
            barrier = _Barrier(self, now)
            needed = {(w.op_id, w.alternative): w for op in now for w in self._missing(barrier, op)}
            if not needed:
                break
            now.extend(w.without_reads() or w for w in needed.values())
        return self.sound(now)

    def blocks(self, kept: Sequence[Operation], have: set[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield (least return, greatest call) of each block. A block consists of the operations on a value whose only
        write is in `have`.

        `kept`: the kept operations. `have`: the (op_id, alternative) of each kept operation.
        """
        spans: dict[str, tuple[int, int]] = {}
        for op in (op for op in kept if not op.unknown):
            for token in tokens_observed(op, self.value_at):
                begin, end = spans.get(token, (FOREVER, -FOREVER))
                spans[token] = (min(begin, op.return_ns), max(end, op.call_ns))
        for token, (begin, end) in spans.items():
            writers = self.writers.get(token, ())
            if len(writers) == 1 and token != NOTHING and (writers[0].op_id, writers[0].alternative) in have:
                begin = min(begin, writers[0].return_ns)
                if begin < end:
                    yield begin, end

    def _missing(self, barrier: _Barrier, reader: Operation) -> list[Operation]:
        """Return the writes that `reader` may have read from, but that are not among the operations of `barrier`."""
        tokens = tokens_observed(reader, self.value_at)
        if not tokens or barrier.within_block(reader):
            return []
        if ANYTHING in tokens or self.appends:
            return [w for w in self.operations if w.writes and not barrier.has(w) and w.call_ns <= reader.return_ns]
        candidates = [w for token in tokens for w in self.writers.get(token, ()) if not barrier.has(w)]
        if not candidates:
            return []
        last_call = barrier.last_call_before(reader.call_ns)
        return [
            w
            for w in candidates
            if w.op_id != reader.op_id and w.call_ns <= reader.return_ns and w.return_ns >= last_call
        ]


class _Barrier:
    """An index of the kept operations: their blocks, and the latest call of the writes that returned before a time."""

    def __init__(self, excerpt: Excerpt, kept: Sequence[Operation]) -> None:
        self._have = {(op.op_id, op.alternative) for op in kept}
        writes = sorted((op.return_ns, op.call_ns) for op in kept if op.writes and not op.unknown)
        self._returns = [end for end, _ in writes]
        self._last_calls = list(accumulate((call for _, call in writes), max))
        blocks = sorted(excerpt.blocks(kept, self._have))
        self._begins = [begin for begin, _ in blocks]
        self._ends = list(accumulate((end for _, end in blocks), max))

    def within_block(self, op: Operation) -> bool:
        position = bisect_left(self._begins, op.call_ns)
        return position > 0 and op.return_ns < self._ends[position - 1]

    def has(self, op: Operation) -> bool:
        return (op.op_id, op.alternative) in self._have

    def last_call_before(self, time_ns: int) -> int:
        position = bisect_left(self._returns, time_ns)
        return self._last_calls[position - 1] if position else -FOREVER


def _without_counts(op: Operation) -> Operation:
    """Drop versions and creation revisions, because they depend on all writes."""
    if any(guard.target in ("version", "create_revision") and guard.value != 0 for guard in op.guards):
        op = replace(op, guards=(), guards_hold=None)
    if not any(step.seen is not None and step.seen.found for step in op.steps):
        return op
    steps = tuple(
        step
        if step.seen is None or not step.seen.found
        else replace(step, seen=replace(step.seen, version=None, create_revision=None))
        for step in op.steps
    )
    return replace(op, steps=steps)


def shrink(
    excerpt: Excerpt, start: Sequence[Operation], impossible: Callable[[Sequence[Operation]], bool]
) -> list[Operation]:
    """Shrink `start` by delta debugging: drop chunks of decreasing size while the rest stays sound and impossible.

    `start` must be sound and impossible.
    """
    now = list(start)
    chunk = max(1, len(now) // 2)
    while True:
        position, dropped = 0, False
        while position < len(now):
            trial = excerpt.sound(now[:position] + now[position + chunk :])
            if len(trial) < len(now) and trial and impossible(trial):
                now, dropped = trial, True
            else:
                position += chunk
        if chunk == 1 and not dropped:
            return now
        chunk = chunk if dropped and chunk == 1 else max(1, chunk // 2)
