"""Replaces appends by compare-and-sets. A value that was read shows which appends made it, and in which order.

Assume that each text that was put or appended comes from one operation, and that each value in a response can be made
from these texts in only one way. Then an append whose text is part of such a value must have found the text that comes
before its own text. For example, if the value "abc" was read, the append of "c" found "ab" and replaced it by "abc", so
it is a compare-and-set from "ab" to "abc". If the text of an append is in none of these values, the append is like a
put that is never read.

The resulting history has the same valid orders as the original one. There is one exception: if an operation expected a
value, it may be uncertain which texts would make this value. The observations of such an operation are dropped, which
may allow more orders. Suppose that a set of operations is impossible in the resulting history. If the set includes the
reads that show the texts that its appends found, the set is also impossible in the original history. One such read is
enough for a whole chain of appends, because the last value of the chain contains all values before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from spark_audit.history.operation import Operation, Step

# The maximum number of characters to compare: the length of the values times the number of different text lengths. To
# compare this many characters takes some seconds.
TEXTS_MAX = 20_000_000


@dataclass(frozen=True, slots=True)
class ResolvedAppends:
    """The operations of one key after appends are replaced by compare-and-sets.

    `core`: operations whose responses contradict each other about one append; empty if there are none. `evidence`:
    op_id of an append → the operation whose response shows the text that the append found. `exact`: if it is true,
    these operations have a valid order if and only if the original operations have one. If it is false, only one
    direction is certain: if these operations have no valid order, the original ones have none.
    """

    operations: list[Operation]
    core: tuple[Operation, ...] = ()
    evidence: dict[int, Operation] = field(default_factory=dict)
    exact: bool = True

    def now(self, op: Operation | None) -> Operation | None:
        """Return the operation that replaces `op`; `op` itself if it is not replaced."""
        return next((mine for mine in self.operations if op is not None and mine.op_id == op.op_id), op)

    def with_evidence(self, proof: Sequence[Operation]) -> list[Operation]:
        """Return the operations of a proof, and the reads that show which texts the appends of the proof found."""
        shown = {op.op_id: op for op in proof}
        links = [op for op in proof if op.op_id in self.evidence]
        # Longer values come first, because one read of a long value may show the texts that several appends found.
        for link in sorted(links, key=lambda op: -len(op.steps[0].value or "")):
            made = link.steps[0].value or ""
            if not any(value.startswith(made) for op in shown.values() for value in _named(op)):
                shown[self.evidence[link.op_id].op_id] = self.evidence[link.op_id]
        return list(shown.values())


def resolve_appends(operations: list[Operation]) -> ResolvedAppends:
    """Return the operations of one key with compare-and-sets in place of appends.

    If some value can be made in more than one way, the operations are returned unchanged.
    """
    texts = _Texts(operations)
    if not texts.appends or any(guard.target == "value" for op in operations for guard in op.guards):
        return ResolvedAppends(operations)
    made: dict[int, tuple[str | None, str]] = {}  # op_id of an append → the value before it and the value after it.
    evidence: dict[int, Operation] = {}
    for op in sorted(operations, key=lambda op: op.call_ns):
        for value in _named(op):
            chain = texts.chain(value)
            if chain is None:
                return ResolvedAppends(operations)
            seen: dict[int, Operation] = {}
            before: str | None = None
            for link, end in chain:
                if link.op_id in seen:
                    return ResolvedAppends(operations, (link, op))
                seen[link.op_id] = link
                if link.name == "append" and made.setdefault(link.op_id, (before, value[:end])) != (
                    before,
                    value[:end],
                ):
                    return ResolvedAppends(operations, (link, evidence[link.op_id], op))
                if link.name == "append":
                    evidence.setdefault(link.op_id, op)
                before = value[:end]
    loose = {op.op_id for op in operations if not all(texts.known(value, made) for value in _compared(op))}
    kept = (op.without_reads() if op.op_id in loose else _replaced(op, made) for op in operations)
    return ResolvedAppends([op for op in kept if op is not None], (), evidence, exact=not loose)


def _replaced(op: Operation, made: dict[int, tuple[str | None, str]]) -> Operation:
    if op.name != "append":
        return op
    if op.op_id not in made:
        return replace(op, steps=(Step("put", op.steps[0].value),))
    before, after = made[op.op_id]
    return replace(op, steps=(Step("cas", after, before, flag=None if op.unknown else True),))


def _named(op: Operation) -> Iterator[str]:
    """Yield the values that the operation certainly found."""
    for step in op.steps:
        if step.seen is not None and step.seen.value is not None:
            yield step.seen.value
        if step.kind == "cas" and step.flag and step.expected is not None and op.name != "append":
            yield step.expected


def _compared(op: Operation) -> Iterator[str]:
    """Yield the value that a compare-and-set expected, if the response does not show whether it found this value."""
    for step in op.steps:
        if step.kind == "cas" and not step.flag and step.expected is not None:
            answered = step.seen is not None and (not step.seen.found or step.seen.value not in (None, step.expected))
            if not answered:
                yield step.expected


class _Texts:
    """The texts that operations put and appended, and the ways in which values consist of these texts."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.first: dict[str, list[Operation]] = {}
        self.appends: dict[str, list[Operation]] = {}
        for op in operations:
            for step in op.steps:
                if step.value is not None and (step.kind != "cas" or step.flag is not False):
                    (self.appends if step.kind == "append" else self.first).setdefault(step.value, []).append(op)
        self._first_lengths = sorted({len(text) for text in self.first})
        self._lengths = sorted({len(text) for text in self.appends})
        self._chains: dict[str, list[tuple[Operation, int]] | None] = {}
        self._left = TEXTS_MAX if "" not in self.appends and "" not in self.first else 0

    def chain(self, value: str) -> list[tuple[Operation, int]] | None:
        """Return the operations that made the value, each with the position in the value at which its text ends.

        The list is empty if no operations can have made the value. The result is None if it is not certain which
        operations made it.
        """
        if value not in self._chains:
            self._left -= len(value) * len(self._lengths)
            self._chains[value] = self._made(value) if self._left >= 0 else None
        return self._chains[value]

    def known(self, value: str, made: dict[int, tuple[str | None, str]]) -> bool:
        """Return whether the texts that make this value are certain, and all appends among them are in `made`."""
        chain = self.chain(value)
        return chain is not None and all(op.op_id in made for op, _ in chain if op.name == "append")

    def _made(self, value: str) -> list[tuple[Operation, int]] | None:
        ways = [0] * (len(value) + 1)
        last: list[tuple[int, Operation] | None] = [None] * (len(value) + 1)
        ways[0] = 1

        def step(begin: int, end: int, ops: list[Operation]) -> None:
            ways[end] = min(2, ways[end] + ways[begin] * len(ops))
            last[end] = (begin, ops[0])

        for length in self._first_lengths:
            if length <= len(value) and value[:length] in self.first:
                step(0, length, self.first[value[:length]])
        for begin in range(len(value)):
            for length in self._lengths if ways[begin] else ():
                ops = self.appends.get(value[begin : begin + length], [])
                if ops and begin + length <= len(value):
                    step(begin, begin + length, ops)
        if ways[-1] > 1:
            return None
        chain: list[tuple[Operation, int]] = []
        end = len(value) if ways[-1] else 0
        while (link := last[end]) is not None and end:
            chain.append((link[1], end))
            end = link[0]
        return chain[::-1]
