"""The revisions of the unknown writes of each key, as far as the key determines them. They must fit all other rows of
the run.

A *claim* is a revision that no acknowledged write of the key carries, but that a linearizable response reported for a
record of the key. So an unknown write has this revision. No other write of the run may have it. No operation that
returned before the call of the unknown write may carry this revision or a higher one.

An *unplaced write* is an unknown write, in the order that proves the key, whose revision no response named. Its
revision must be between the revisions of its neighbours in this order, and above the revisions of all operations that
returned before its call. No other write may have the same revision. If every unplaced write of a run can be given such
a revision, the orders of all keys are parts of one order of the whole store. This order explains every response except
the responses of listings and of transactions over several keys. Only these responses still need a replay of the store
(`replay.py`). See docs/internals/audit-proofs.md, section 9.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import TypeAlias

from spark_audit.history.operation import Operation

CallStamp: TypeAlias = tuple[int, str]  # (time stamp of a call in ns, name of its clock)
RevisionRange: TypeAlias = tuple[int, int]  # (first, last)


@dataclass(frozen=True, slots=True)
class RevisionClaim:
    """A claim: responses show that a write of unknown outcome took this revision.

    `by`: (op_id, call, clock) of that write. If several writes can have the revision, the write that was called first
    is chosen. `by` is None if the responses do not report the value, if the calls are stamps of several clocks, or if
    there are fewer possible writes than claims.
    """

    key: str
    revision: int
    by: tuple[int, int, str] | None = None


@dataclass(frozen=True, slots=True)
class UnplacedWrite:
    """An unplaced write, called at `call_ns`. Its revision lies in [`low`, `high`], or in a range of `also`.

    The unplaced writes of a key are listed in the order that proves the key. `also`: alternative ranges, to which the
    write can be moved without a change to any response (`key/unplaced_writes.py`). `op_id`: -1 if it is not known.
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
    """The claims and the unplaced writes of one key or of several keys."""

    claims: tuple[RevisionClaim, ...] = ()
    unplaced: tuple[UnplacedWrite, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.claims or self.unplaced)

    def to_json(self) -> str | None:
        """Return the traces of one key as JSON; None if there are none."""
        if not self:
            return None
        claims = [[one.revision, one.by] for one in self.claims]
        unplaced = [
            [write.low, write.high, write.call_ns, write.clock, write.also, write.op_id] for write in self.unplaced
        ]
        return json.dumps([claims, unplaced])

    @classmethod
    def from_json(cls, key: str, text: str | None) -> Traces:
        """Return the traces that `to_json` wrote."""
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
    """Return the claims of `key`, sorted by revision. `operations`: all operations of this key."""
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
    """Return the unknown writes that may have made this value, sorted by call."""
    found = {
        op.op_id: op
        for op in operations
        for step in op.steps
        if op.unknown
        and (step.value == value if step.kind != "append" else step.value is not None and value.endswith(step.value))
    }
    return sorted(found.values(), key=lambda op: (op.call_ns, op.op_id))


def _matched(writers: Sequence[Operation], revisions: int) -> list[tuple[int, int, str] | None]:
    """Return the `by` of each revision: for the i-th revision, the write that was called i-th.

    If a call is too late for its revision in this matching, every other matching also has a call that is too late.
    """
    if len({op.clock for op in writers}) > 1:
        return [None] * revisions
    if any(step.kind == "append" for op in writers for step in op.steps):
        writers = [*writers[:1]] * revisions  # An append may have made any of these records, so the first call is used.
    by = [(op.op_id, op.call_ns, op.clock) for op in writers[:revisions]]
    return [*by, *[None] * (revisions - len(by))]


def to_ranges(revisions: Iterable[int]) -> list[RevisionRange]:
    """Return ascending revisions as ranges."""
    found: list[RevisionRange] = []
    for revision in revisions:
        if found and revision <= found[-1][1] + 1:
            found[-1] = (found[-1][0], revision)
        else:
            found.append((revision, revision))
    return found


def merge_ranges(some: Iterable[RevisionRange], others: Iterable[RevisionRange]) -> list[RevisionRange]:
    """Return the union of two ascending sequences of ranges."""
    found: list[RevisionRange] = []
    for first, last in merge(some, others):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def is_taken(taken: Sequence[RevisionRange], revision: int) -> bool:
    """Return whether one of these ascending ranges holds the revision."""
    at = bisect_left(taken, (revision + 1, 0)) - 1
    return at >= 0 and revision <= taken[at][1]
