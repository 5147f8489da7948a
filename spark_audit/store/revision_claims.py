"""Revisions of writes of unknown outcome, as far as one key shows them, held against all the others of its run.

*Told*: a response that promises linearizability showed the record of a revision which no acknowledged write of the key
carries; an unknown write has it. It is then a change like any other, whose return is never: no other write may carry
that revision, and nothing that had returned before its call may carry this revision or a higher one.

*Slot*: the order that proves the key holds an unknown write whose revision nobody told. It had some revision between
those of its neighbours, above all that had returned before its call, and of nobody else. If all slots of a run find
one, each their own, then the orders of all keys are parts of one order of the whole store, in which every answer
follows: a replay of the store (`replay.py`) could not show more, but for listings and transactions over several keys.
docs/audit-proofs.md, section 8.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import TypeAlias

from spark_audit.history.operation import Operation

CallStamp: TypeAlias = tuple[int, str]  # A call, in ns of a clock.
RevisionRange: TypeAlias = tuple[int, int]  # (first, last)


@dataclass(frozen=True, slots=True)
class RevisionClaim:
    """`by`: (op_id, call, clock) of the unknown write that has the revision: where several can, the least call.

    None: the responses do not show which value it wrote, or of several clocks none comes first.
    """

    key: str
    revision: int
    by: tuple[int, int, str] | None = None


@dataclass(frozen=True, slots=True)
class UnplacedWrite:
    """An unknown write, called at `call_ns`, that had a revision from `low` to `high`. Those of a key are in order.

    `also`: or one of these instead, which changes nothing that anybody saw (`key/unplaced_writes.py`). `op_id`: -1: not
    known.
    """

    key: str
    low: int
    high: int
    call_ns: int
    clock: str
    also: tuple[RevisionRange, ...] = ()
    op_id: int = -1


@dataclass(frozen=True, slots=True)
class Traces:
    """Of one key, or of several."""

    claims: tuple[RevisionClaim, ...] = ()
    unplaced: tuple[UnplacedWrite, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.claims or self.unplaced)

    def to_json(self) -> str | None:
        """Of one key; None if there are none."""
        if not self:
            return None
        claims = [[one.revision, one.by] for one in self.claims]
        unplaced = [
            [write.low, write.high, write.call_ns, write.clock, write.also, write.op_id] for write in self.unplaced
        ]
        return json.dumps([claims, unplaced])

    @classmethod
    def from_json(cls, key: str, text: str | None) -> Traces:
        """The inverse of `to_json`."""
        if text is None:
            return cls()
        claims, unplaced = json.loads(text)
        return cls(
            tuple(RevisionClaim(key, revision, tuple(by) if by is not None else None) for revision, by in claims),
            tuple(
                UnplacedWrite(key, low, high, call_ns, clock, tuple((first, last) for first, last in also), op_id)
                for low, high, call_ns, clock, also, op_id in unplaced
            ),
        )


def claims_of(key: str, operations: Sequence[Operation]) -> tuple[RevisionClaim, ...]:
    """Of all operations of one key, by revision."""
    own = {op.revision for op in operations if op.writes and not op.unknown}
    value_at: dict[int, str | None] = {}
    for op in operations:
        if op.unknown or op.weak is not None:
            continue
        for seen in (step.seen for step in op.steps if step.seen is not None and step.seen.found):
            revision = seen.mod_revision
            if revision and revision not in own and value_at.get(revision) is None:
                value_at[revision] = seen.value
    by_value: dict[str | None, list[int]] = {}
    for revision, value in sorted(value_at.items()):
        by_value.setdefault(value, []).append(revision)
    found: list[RevisionClaim] = []
    for value, revisions in by_value.items():
        writers = _writers(operations, value) if value is not None else []
        matched = _matched(writers, len(revisions))
        found.extend(RevisionClaim(key, revision, by) for revision, by in zip(revisions, matched, strict=True))
    return tuple(sorted(found, key=lambda claim: claim.revision))


def _writers(operations: Iterable[Operation], value: str) -> list[Operation]:
    """The unknown writes that may have made this value, by call."""
    found = {
        op.op_id: op
        for op in operations
        for step in op.steps
        if op.unknown
        and (step.value == value if step.kind != "append" else step.value is not None and value.endswith(step.value))
    }
    return sorted(found.values(), key=lambda op: (op.call_ns, op.op_id))


def _matched(writers: Sequence[Operation], revisions: int) -> list[tuple[int, int, str] | None]:
    """The i-th call for the i-th revision: if that is too late for one, so is every other choice for some."""
    if len({op.clock for op in writers}) > 1:
        return [None] * revisions
    if any(step.kind == "append" for op in writers for step in op.steps):
        writers = [*writers[:1]] * revisions  # Each of them may have made any of these.
    by = [(op.op_id, op.call_ns, op.clock) for op in writers[:revisions]]
    return [*by, *[None] * (revisions - len(by))]


def to_ranges(revisions: Iterable[int]) -> list[RevisionRange]:
    """Of ascending numbers: those that follow each other, together."""
    found: list[RevisionRange] = []
    for revision in revisions:
        if found and revision <= found[-1][1] + 1:
            found[-1] = (found[-1][0], revision)
        else:
            found.append((revision, revision))
    return found


def merge_ranges(some: Iterable[RevisionRange], others: Iterable[RevisionRange]) -> list[RevisionRange]:
    """The numbers of both."""
    found: list[RevisionRange] = []
    for first, last in merge(some, others):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def is_taken(taken: Sequence[RevisionRange], revision: int) -> bool:
    """Whether one of these ascending stretches holds it."""
    at = bisect_left(taken, (revision + 1, 0)) - 1
    return at >= 0 and revision <= taken[at][1]
