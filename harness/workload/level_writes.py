"""Carries out and records the writes of a run with an acknowledgement level, and asks for their outcomes.

See docs/reference/specification.md#1011-acknowledgement-levels.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import cast

from harness.recording.history import Row, RunWriter, canonical_json
from harness.workload.row_fields import answered
from harness.workload.tally import Worker
from kvstore import (
    Accepted,
    Acknowledge,
    Client,
    Command,
    CompareAndSet,
    CompareAndSetResult,
    Delete,
    DeleteResult,
    EntryFate,
    Operation,
    OperationFailed,
    OutcomeUnknown,
    Put,
    PutResult,
    Txn,
    TxnResult,
    UnderReplicated,
)

WriteResult = PutResult | DeleteResult | CompareAndSetResult | TxnResult
EndedWrite = WriteResult | Accepted | UnderReplicated | OutcomeUnknown | OperationFailed | None
"""The result of a write at a level other than MAJORITY. None: the write had the level NONE, and was sent."""

ACCEPTED_KEPT_MAX = 256
"""The greatest number of accepted writes whose outcome is asked for at the end of the run. A newer accepted write
replaces the oldest."""

# The share of the accepted writes whose outcome is asked for directly after the answer.
ASKED_AT_ONCE_SHARE = 0.5
# The times for which the leader may wait before it answers such a question. One of these times is drawn.
_WAIT_SECONDS = (0.0, 0.0, 0.3, 1.0)
SETTLE_SECONDS = 5.0  # The time limit of a question, in addition to the leader's wait.


@dataclass(slots=True)
class AcceptedWrites:
    """The log entries of the newest accepted writes whose outcome is still open. Several writes may be in one entry."""

    open: deque[Accepted] = field(default_factory=lambda: deque(maxlen=ACCEPTED_KEPT_MAX))

    def decided(self, entry: Accepted) -> None:
        """Record that the outcome of the writes in this entry is known."""
        left = [one for one in self.open if one != entry]
        self.open.clear()
        self.open.extend(left)


def level_of(command: Command, drawn: Acknowledge) -> Acknowledge:
    """Return the level of a command of the load. `drawn`: the level that was drawn for the next write.

    A command that may delete a key never has a level with an early answer. An audit could not distinguish several
    unknown deletions of a key, because a deletion writes no unique value.
    """
    if not isinstance(command, Put | Delete | CompareAndSet | Txn):
        return Acknowledge.MAJORITY
    deletes = isinstance(command, Delete) or (isinstance(command, Txn) and any(map(_is_delete, command.success)))
    return Acknowledge.MAJORITY if deletes and drawn in (Acknowledge.NONE, Acknowledge.LEADER) else drawn


def _is_delete(operation: Operation) -> bool:
    return isinstance(operation, Delete)


async def write_at(
    store: Client, command: Command, level: Acknowledge, deadline_seconds: float
) -> WriteResult | Accepted | None:
    """Carry out a write of the load at this level. Raises StoreError."""
    match command:
        case Put(key, value):
            return await store.put(key, value, acknowledge=level, deadline_seconds=deadline_seconds)
        case Delete(key):
            return await store.delete(key, acknowledge=level, deadline_seconds=deadline_seconds)
        case CompareAndSet(key, value, expected):
            return await store.compare_and_set(
                key, value, expected=expected, acknowledge=level, deadline_seconds=deadline_seconds
            )
        case Txn(compares, success, failure):
            return await store.txn(compares, success, failure, acknowledge=level, deadline_seconds=deadline_seconds)
    raise AssertionError(f"{command!r} has no level")


async def record_write(
    writer: RunWriter,
    worker: Worker,
    command: Command,
    level: Acknowledge,
    row: Row,
    deadline_seconds: float,
    accepted: AcceptedWrites,
) -> Row:
    """Carry out one write at a level, and record it with its outcome. `row`: all fields that are known before the call.

    A write with an early answer, or without an answer, is recorded as unknown.
    """
    op_id = writer.call({**row, "acknowledge": level.name.lower(), "call_ns": writer.clock.now_ns()})
    ended: EndedWrite
    try:
        ended = await write_at(worker.store, command, level, deadline_seconds)
    except (UnderReplicated, OutcomeUnknown, OperationFailed) as error:
        ended = error
    return end_write(writer, op_id, ended, command, accepted, writer.clock.now_ns())


def end_write(
    writer: RunWriter, op_id: int, ended: EndedWrite, command: Command, accepted: AcceptedWrites, return_ns: int
) -> Row:
    """Record the outcome of a write at a level other than MAJORITY."""
    match ended:
        case None:
            return writer.end(op_id, status="unknown")
        case Accepted(index, term):
            accepted.open.append(ended)
            return writer.end(op_id, status="unknown", accepted_index=index, accepted_term=term)
        case OutcomeUnknown():
            return writer.end(op_id, status="unknown", error=ended.word)
        case OperationFailed():
            return writer.end(op_id, status="fail", error=ended.word, return_ns=return_ns)
    is_short = isinstance(ended, UnderReplicated)
    result = cast(WriteResult, ended.result) if isinstance(ended, UnderReplicated) else ended
    return writer.end(
        op_id,
        status="ok",
        return_ns=return_ns,
        output=answered(result, command),
        revision=result.revision,
        acknowledged_by=list(result.acknowledged_by),
        under_replicated=is_short or None,
    )


async def ask_outcome(
    writer: RunWriter, worker: Worker, entry: Accepted, accepted: AcceptedWrites, wait_seconds: float
) -> Row:
    """Ask for the outcome of an accepted write, and record the answer as a row.

    A write with a final outcome is no longer open.
    """
    request = canonical_json({"index": entry.index, "term": entry.term})
    row: Row = {"client": worker.client, "op": "outcome", "request": request, "call_ns": writer.clock.now_ns()}
    op_id = writer.call(row)
    try:
        fate = await worker.store.outcome_of(
            entry.index, entry.term, wait_seconds=wait_seconds, deadline_seconds=SETTLE_SECONDS
        )
    # A question without an answer is recorded as failed, because a question has no effect.
    except (OperationFailed, OutcomeUnknown) as error:
        return writer.end(op_id, status="fail", error=error.word, return_ns=writer.clock.now_ns())
    if fate is not EntryFate.OPEN:
        accepted.decided(entry)
    answer = canonical_json({"outcome": fate.name.lower()})
    return writer.end(op_id, status="ok", return_ns=writer.clock.now_ns(), output={"answer": answer})


def drawn_question(random: Random) -> float | None:
    """Draw the leader's wait, in seconds, for a question directly after an early answer; None: ask no question."""
    wait_seconds = random.choice(_WAIT_SECONDS)
    return wait_seconds if random.random() < ASKED_AT_ONCE_SHARE else None
