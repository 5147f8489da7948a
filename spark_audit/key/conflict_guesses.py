"""Guesses violations: small sets of operations that are probably impossible together.

`key/decide.py` completes each guess to a sound excerpt, and `search` must confirm that the excerpt has no valid order.
So a wrong guess costs time, but is never reported as a violation.

If each write has a value of its own, the write and the reads of a value form a block. Let f be the block's least return
and s its greatest call. Two blocks A and B are impossible together if and only if f(A) < s(B) and f(B) < s(A) (Gibbons
and Korach 1997). So six operations are enough to show the violation: the four operations that determine f and s of the
two blocks, and the two writes. A value is overwritten only once. So it is also a violation if two operations both found
the same value and replaced it. A read of absence does not show which deletion it read from, so each read of absence and
each deletion is a block of its own. A read of absence is also paired with two writes before it: the writes that were
called last among those that had returned before the call of the read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

from spark_audit.history.operation import Operation
from spark_audit.key.counterexample import ANYTHING, NOTHING, Excerpt, tokens_observed

# The maximum number of guesses tried for one key. If there is a violation, an early guess nearly always finds it.
CORES_MAX = 200


@dataclass(slots=True)
class _Block:
    writes: list[Operation]
    readers: list[Operation] = field(default_factory=list)
    first: Operation | None = None  # The operation that returned first. The return of this operation is f.
    last: Operation | None = None  # The operation that was called last. The call of this operation is s.

    def close(self) -> None:
        members = [op for op in (*self.writes, *self.readers) if not op.unknown]
        if members:
            self.first = min(members, key=lambda op: op.return_ns)
            self.last = (
                max((*self.writes, *self.readers), key=lambda op: op.call_ns)
                if self.readers
                else max(members, key=lambda op: op.call_ns)
            )


def cores(excerpt: Excerpt, hint: Operation | None = None) -> Iterator[list[Operation]]:
    """Yield small sets of operations that may be impossible together.

    `hint`: the operation at which a witness failed. Sets with this operation come first.
    """
    blocks, absent, odd = _blocks(excerpt)
    if hint is not None:
        yield from _around(excerpt, hint)
    yield from ([op] for op in odd)
    for block in blocks.values():
        for reader in block.readers:
            for write in block.writes[:2]:
                revision = _seen_revision(reader)
                if reader.return_ns < write.call_ns or (revision and write.revision and revision != write.revision):
                    yield [write, reader]
        if len(block.writes) == 1 and len(overwriting := [op for op in block.readers if op.writes]) > 1:
            yield [*block.writes, *overwriting[:2]]
    yield from _same_revision(excerpt)
    absences = [_Block([], [], op, op) for op in (*absent, *_deletions(excerpt))]
    yield from _pairs([*(block for block in blocks.values() if block.first is not None), *absences])
    for reader in absent:
        yield from _around(excerpt, reader)


def _same_revision(excerpt: Excerpt) -> Iterator[list[Operation]]:
    """Yield pairs of compare-and-sets that both replaced the record of the same revision."""
    first: dict[int, Operation] = {}
    for op in excerpt.operations:
        step = op.steps[0] if len(op.steps) == 1 else None
        if step is not None and step.kind == "cas" and step.flag and step.expected_mod_revision:
            other = first.setdefault(step.expected_mod_revision, op)
            if other is not op:
                yield [other, op]


def _deletions(excerpt: Excerpt) -> Iterator[Operation]:
    for op in excerpt.writers.get(NOTHING, ()):
        if not op.unknown:
            yield op


def _seen_revision(reader: Operation) -> int | None:
    seen = reader.steps[0].seen
    return seen.mod_revision if seen is not None else None


def _blocks(excerpt: Excerpt) -> tuple[dict[str, _Block], list[Operation], list[Operation]]:
    """Return the blocks by value, the operations that found absence, and the operations that found an unwritten
    value."""
    blocks = {t: _Block(list(ws)) for t, ws in excerpt.writers.items() if t != NOTHING and len(ws) <= 2}
    absent: list[Operation] = []
    odd: list[Operation] = []
    for op in excerpt.operations:
        if op.unknown:
            continue
        for token in tokens_observed(op, excerpt.value_at) - {ANYTHING}:
            if token == NOTHING:
                absent.append(op)
            elif token in blocks:
                if op not in blocks[token].writes:  # A transaction may read what it has just written.
                    blocks[token].readers.append(op)
            elif token not in excerpt.writers:
                odd.append(op)
    for block in blocks.values():
        block.close()
    return blocks, absent, odd


def _around(excerpt: Excerpt, reader: Operation) -> Iterator[list[Operation]]:
    """Of the writes that returned before `reader` was called, take the two called last. Yield [write, reader] for
    each."""
    before = (w for w in excerpt.operations if w.writes and not w.unknown and w.return_ns < reader.call_ns)
    for write in nsmallest(2, before, key=lambda w: -w.call_ns):
        yield [write, reader]


def _pairs(blocks: Sequence[_Block]) -> Iterator[list[Operation]]:
    """Yield pairs of blocks A, B with f(A) < s(B) and f(B) < s(A).

    A block is forward if f < s, otherwise backward. A and B are either two forward blocks that overlap, or a forward
    block and a backward block inside it.
    """
    spans = [(b.first.return_ns, b.last.call_ns, b) for b in blocks if b.first is not None and b.last is not None]
    forward = sorted(((f, s, i) for i, (f, s, _) in enumerate(spans) if f < s))
    widest: tuple[int, int] | None = None  # (s, position) of the forward block with the greatest s so far
    pairs: list[tuple[int, int]] = []
    reach: list[tuple[int, int]] = []
    for f, s, i in forward:
        if widest is not None and f < widest[0]:
            pairs.append((widest[1], i))
        if widest is None or s > widest[0]:
            widest = (s, i)
        reach.append(widest)
    starts = [f for f, _, _ in forward]
    for i, (f, s, _) in enumerate(spans):
        if f >= s:  # A backward block conflicts with a forward block A that contains it: f(A) < s and f < s(A).
            position = bisect_left(starts, s)
            if position and f < reach[position - 1][0]:
                pairs.append((reach[position - 1][1], i))
    for one, other in pairs[:CORES_MAX]:
        yield _members(spans[one][2], spans[other][2])


def _members(*blocks: _Block) -> list[Operation]:
    chosen: dict[int, Operation] = {}
    for block in blocks:
        for op in (*block.writes, block.first, block.last):
            if op is not None:
                chosen[op.op_id] = op
    return list(chosen.values())
