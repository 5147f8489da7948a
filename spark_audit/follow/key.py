"""Proves the next part of a key from the carry, which summarizes the parts of the key that are already proven.

The proof shows that the order of revisions, extended by the next part, explains every response. A failed proof is not a
violation: if the proof fails, `findings_of_key` decides the key again from its first row.
docs/internals/audit-proofs.md, section 6, proves that the result equals the result of an audit of all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import Operation, Step, operation_of
from spark_audit.key.unplaced_writes import unplaced_writes
from spark_audit.key.weak_reads import misfits
from spark_audit.key.witness import witness
from spark_audit.model.key import ABSENT, State, advance
from spark_audit.store.revision_claims import UnplacedWrite

Row: TypeAlias = Mapping[str, Any]

BEFORE_ALL = -(2**63)  # A stamp (ns) before every call: if an operation returns at it, it precedes all others.
# For the check of reads of earlier revisions, at most this many of the last acknowledged writes of a key are kept. If a
# read is older than all kept writes, all rows of the key are read again.
TAIL_WRITES_MAX = 4
_CARRIED = -1  # The op_id of the operation that represents the decided part of a key. The op_ids of rows are ≥ 0.


@dataclass(frozen=True, slots=True)
class KeyCarry:
    """The carry of a key: a summary of its earlier parts, all of which are proven.

    `state`: the state after the last operation. `last`: the greatest revision so far. `call`: the greatest call (ns)
    of an operation in the order, including unknown writes that took effect. `pending`: the rows of unknown outcome that
    are not in the order yet. `tail`: the rows of the last acknowledged writes of the key. `complete`: whether `tail`
    has all acknowledged writes of the key. `rows`, `weak`: the number of rows that report on the key, and the number of
    weak reads among them.
    """

    state: State = ABSENT
    last: int = 0
    call: int = BEFORE_ALL
    pending: tuple[Row, ...] = ()
    tail: tuple[Row, ...] = ()
    complete: bool = True
    rows: int = 0
    weak: int = 0


@dataclass(frozen=True, slots=True)
class Closed:
    """The result of a proven part of a key, with the carry after it.

    `claims`: (revision, call) of each unknown write whose revision is known from a reported record. `unplaced`: the
    other unknown writes that took effect in this part. `unproven`: whether `unplaced_writes` returned None, for example
    because a response depends on the revision of an unplaced write.
    """

    carry: KeyCarry
    claims: tuple[tuple[int, int], ...] = ()
    unplaced: tuple[UnplacedWrite, ...] = ()
    unproven: bool = False


@dataclass(slots=True)
class KeyPart:
    """The rows of one key in one part: the answered rows before its cut, and the new rows of unknown outcome."""

    answered: list[Row] = field(default_factory=list)
    unknown: list[Row] = field(default_factory=list)


def close(key: str, carry: KeyCarry, part: KeyPart, clocks: Clocks) -> Closed | None:
    """Prove this part from `carry`; return None if the order of revisions does not explain the part."""
    answered = [op for row in part.answered for op in operation_of(row)]
    pending = [*carry.pending, *part.unknown]
    unknown = [op for row in pending for op in operation_of(row)]
    strict = [op for op in answered if op.weak is None]
    if not _reads_fit(carry, answered, unknown, clocks):
        return None
    spoke = sum(1 for row in part.unknown if operation_of(row))
    counted = replace(
        carry,
        pending=tuple(pending),
        rows=carry.rows + len(answered) + spoke,
        weak=carry.weak + len(answered) - len(strict),
    )
    if not strict:
        return Closed(counted)
    if not _records_are_new(carry, strict):
        return None
    clock = strict[0].clock
    seen = witness([past(carry, clock), *strict, *unknown], clocks, initial=_before(carry.state))
    if not seen.verified or seen.order[0][0].op_id != _CARRIED:
        return None
    state: State | None = _before(carry.state)
    for op, revision in seen.order:
        assert state is not None
        state = advance(state, op, revision)
    assert state is not None
    unplaced = unplaced_writes(key, seen.order[1:], initial=carry.state, after=max(1, carry.last))
    claims = tuple((revision, op.call_ns) for op, revision in seen.order if op.unknown and revision is not None)
    taken = {op.op_id for op, _ in seen.order if op.unknown}
    writes = {op.op_id for op in strict if op.writes}
    acknowledged = [*carry.tail, *(row for row in part.answered if row["op_id"] in writes)]
    tail = sorted(acknowledged, key=lambda row: int(row["revision"]))[-TAIL_WRITES_MAX:]
    after = replace(
        counted,
        state=state,
        last=max(carry.last, *(revision or 0 for _, revision in seen.order)),
        call=max(op.call_ns for op, _ in seen.order),
        pending=tuple(row for row in pending if row["op_id"] not in taken),
        tail=tuple(tail),
        complete=carry.complete and len(tail) == len(acknowledged),
    )
    return Closed(after, claims, unplaced or (), unproven=unplaced is None)


def _before(state: State) -> State:
    """Return a state from which the write of the carried record leads to `state`."""
    value, _, create, version = state
    return ABSENT if value is None or version <= 1 else ("", None, create, version - 1)


def past(carry: KeyCarry, clock: str) -> Operation:
    """Return one operation that represents all earlier parts of the key.

    This operation leads to the carried state. Its call is the greatest call of the earlier parts, and its return is
    before every call.
    """
    value, mod, _, _ = carry.state
    step = Step("get") if value is None else Step("put", value)
    revision = 0 if value is None else mod
    return Operation(_CARRIED, "", step.kind, carry.call, BEFORE_ALL, clock, revision, False, (step,))


def _records_are_new(carry: KeyCarry, strict: Sequence[Operation]) -> bool:
    """Return whether every reported record is the carried record or a later one."""
    value, mod, _, _ = carry.state
    if value is not None and mod is None:
        # The revision of the carried record is not known. So it is not known which reported records are later.
        return False
    written = {op.revision for op in strict if op.writes}
    shown = {
        step.seen.mod_revision
        for op in strict
        for step in op.steps
        if step.seen is not None and step.seen.found and step.seen.mod_revision is not None
    }
    return all(
        revision in written or revision > carry.last or (value is not None and revision == mod) for revision in shown
    )


def _reads_fit(carry: KeyCarry, answered: Sequence[Operation], unknown: Iterable[Operation], clocks: Clocks) -> bool:
    """Return whether each read fits the revision that it carries (`key/weak_reads.py`).

    The result is also False if the tail is incomplete and a read has a lower revision than all writes of the tail.
    """
    tail = [op for row in carry.tail for op in operation_of(row)]
    if not carry.complete:
        oldest = min(op.revision or 0 for op in tail)
        reads = (
            op for op in answered if len(op.steps) == 1 and op.steps[0].seen is not None and op.revision is not None
        )
        if any((op.revision or 0) < oldest for op in reads):
            return False
    return not any(misfits([*tail, *answered, *unknown], clocks))
