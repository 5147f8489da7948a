"""A few operations of a key which are impossible by themselves, so that a person can see it.

Leaving operations out must not make a violation that was not there. These are safe, for a history H of one key:

- to drop an operation that only read, and to forget what a write observed (fewer things to explain);
- to forget versions and creation revisions (always done as soon as a write is left out: they count the others);
- to drop a write u, if no kept operation can have read from it. r cannot have read from u if they name different
  values, if r returned before u was called, or if some kept write was called after u returned and returned before r
  was called.

Proof: take an order that explains H and strike out what was dropped. A kept r read from the last write before it. That
write was not dropped: it would precede a kept w which precedes r, and so not be the last. So r still reads from it.

So an excerpt that passes `is_sound` and that `search` cannot order shows that H has no order either.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from spark_audit.operation import FOREVER, Operation, Step

ANYTHING = "\0anything"  # An observation that depends on more than one value: such an operation keeps all writes.
NOTHING = "\0nothing"  # The token of absence.


def tokens_written(op: Operation) -> set[str]:
    """The values that it writes; NOTHING for a deletion."""
    written: set[str] = set()
    for step in op.steps:
        if step.kind in ("put", "append") or (step.kind == "cas" and step.flag is not False):
            written.add(step.value or "")
        elif step.kind == "delete" and step.flag is not False:
            written.add(NOTHING)
    return written


def tokens_observed(op: Operation, value_at: dict[int, str]) -> set[str]:
    """The values that its answer depends on. `value_at`: what the acknowledged write of a revision wrote."""
    if op.guards:
        return {ANYTHING}
    return {token for step in op.steps for token in _observed(step, value_at)}


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


class Excerpt:
    """What may be left out of one key's history. All stamps are of one clock. Excerpts are lists of its operations."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = [op for op in operations if op.weak is None]
        self.value_at = {
            op.revision: step.value
            for op in self.operations
            if op.revision is not None and op.writes
            for step in op.steps
            if step.value is not None
        }
        self.writers: dict[str, list[Operation]] = {}
        for op in self.operations:
            for token in tokens_written(op):
                self.writers.setdefault(token, []).append(op)
        self.appends = any(step.kind == "append" for op in self.operations for step in op.steps)

    def sound(self, kept: Iterable[Operation]) -> list[Operation]:
        """The nearest sound excerpt: what may have observed a write that was left out forgets it, or is dropped."""
        now = list(kept)
        barrier = _Barrier(now)
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
            barrier = _Barrier(now)

    def completed(self, core: Iterable[Operation], operations_max: int) -> list[Operation]:
        """The core with every write that its readers may have read from, made sound where these are too many."""
        now = list(core)
        while len(now) <= operations_max:
            barrier = _Barrier(now)
            needed = {(w.op_id, w.alternative): w for op in now for w in self._missing(barrier, op)}
            if not needed:
                break
            now.extend(w.without_reads() or w for w in needed.values())
        return self.sound(now)

    def _missing(self, barrier: "_Barrier", reader: Operation) -> list[Operation]:
        """Writes that `reader` may have read from and which the excerpt behind `barrier` lacks."""
        tokens = tokens_observed(reader, self.value_at)
        if tokens and (ANYTHING in tokens or self.appends):
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
    """The kept writes, asked for the one called last among those that had returned by some time."""

    def __init__(self, kept: Sequence[Operation]) -> None:
        self._have = {(op.op_id, op.alternative) for op in kept}
        writes = sorted((op.return_ns, op.call_ns) for op in kept if op.writes and not op.unknown)
        self._returns = [end for end, _ in writes]
        self._last_calls = list(accumulate((call for _, call in writes), max))

    def has(self, op: Operation) -> bool:
        return (op.op_id, op.alternative) in self._have

    def last_call_before(self, time_ns: int) -> int:
        position = bisect_left(self._returns, time_ns)
        return self._last_calls[position - 1] if position else -FOREVER


def _without_counts(op: Operation) -> Operation:
    """Forget versions and creation revisions, which depend on every other write."""
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
    """Delta debugging: drop ever smaller chunks while what is left is sound and impossible. `start` is both."""
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
