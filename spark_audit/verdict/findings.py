"""Builds findings, with their texts, from decisions. All engines use this module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import FOREVER, Operation, operation_of
from spark_audit.key.decide import Decision, decide
from spark_audit.key.weak_reads import misfits
from spark_audit.store.order import OutOfOrder
from spark_audit.store.replay import Contradiction
from spark_audit.store.revision_claims import RevisionClaim, Traces, claims_of
from spark_audit.verdict.verdict import UNDECIDED, VIOLATION, ShownOperation, Undecided, Verdict, Violation
from spark_audit.verdict.words import describe, row_words, sentence, short, span

Row = Mapping[str, Any]


@dataclass(slots=True)
class KeyFindings:
    """The findings about one key of one run.

    `weak`: the number of reads that are checked only against the revision that they carry. `operations`: the number of
    rows that report on the key. This number includes weak reads, but no failed operations and no reads of unknown
    outcome.
    """

    run_id: str
    key: str
    status: str
    method: str
    weak: int
    configurations: int
    found: list[Violation | Undecided] = field(default_factory=list)
    needs_replay: bool = False  # See `Decision.needs_replay`.
    operations: int = 0
    # The revision claims and the unplaced writes of this key, for the checks over all keys. Empty if the key is a
    # violation by itself, because one finding about the key is enough.
    traces: Traces = field(default_factory=Traces)


@dataclass(slots=True)
class KeyHistory:
    """The operations of one key. `failed`: value → op_id of the operation that failed to write it."""

    operations: list[Operation] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    rows: int = 0  # See `KeyFindings.operations`.
    weak: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> KeyHistory:
        """Return the history of one key. `rows`: its projected rows (`history/projection.py`), in any order."""
        made = cls()
        for row in sorted(rows, key=lambda row: (row["call_ns"], row["op_id"])):
            before = len(made.operations)
            made.operations.extend(operation_of(row))
            made.rows += len(made.operations) > before
            if row["status"] == "fail" and row.get("value") is not None:
                made.failed[row["value"]] = row["op_id"]
        made.weak = sum(1 for op in made.operations if op.weak is not None)
        return made


def findings_of_key(run_id: str, key: str, rows: Iterable[Row], clocks: Clocks, configurations_max: int) -> KeyFindings:
    """Decide one key. `rows`: the projected rows of the key (`history/projection.py`)."""
    history = KeyHistory.of(rows)
    decision = decide(history.operations, clocks, configurations_max=configurations_max, key=key)
    result = findings_from(run_id, key, history, decision, clocks)
    if decision.status != VIOLATION:
        result.traces = Traces(claims_of(key, history.operations), decision.unplaced)
    return result


def findings_from(run_id: str, key: str, history: KeyHistory, decision: Decision, clocks: Clocks) -> KeyFindings:
    """Return the findings of a decision, and the findings about reads that contradict the revision that they carry."""
    proven_wrong = {op.op_id for op in decision.counterexample}
    result = KeyFindings(run_id, key, decision.status, decision.method, history.weak, decision.configurations)
    result.needs_replay, result.operations = decision.needs_replay, history.rows
    if history.weak == history.rows:
        result.method = "nothing to decide"
    if decision.status == VIOLATION:
        shown = tuple(_shown(op) for op in decision.counterexample)
        text = sentence(decision.counterexample, history.failed, clocks)
        result.found.append(Violation("keys", run_id, key, text, shown, decision.method))
    elif decision.status == UNDECIDED:
        reason = (
            f"no order was found or excluded within {decision.configurations} configurations ({decision.suspicion})"
        )
        result.found.append(Undecided("keys", run_id, key, reason))
    for misfit in misfits(history.operations, clocks):
        if misfit.read.op_id in proven_wrong:
            continue  # The counterexample already shows this read.
        prop = "order" if misfit.read.weak is None else "weak"
        pair = [misfit.write, misfit.read] if misfit.write is not None else [misfit.read]
        other = f", although {describe(misfit.write)}" if misfit.write is not None else ""
        text = f"{describe(misfit.read)}{other}: {misfit.reason}"
        result.found.append(Violation(prop, run_id, key, text, tuple(_shown(op) for op in pair)))
    return result


def note_key(verdict: Verdict, key: KeyFindings) -> None:
    """Add one key to the verdict."""
    verdict.properties["keys"].checked += 1
    verdict.properties["weak"].checked += key.weak
    verdict.methods[key.method] = verdict.methods.get(key.method, 0) + 1
    for found in key.found:
        verdict.record(found)


def _shown(op: Operation) -> ShownOperation:
    end = None if op.return_ns == FOREVER else op.return_ns
    return ShownOperation(op.op_id, op.client, op.name, op.call_ns, end, op.revision, describe(op))


def shown_row(row: Row) -> ShownOperation:
    """Return a row as an operation of a store-wide counterexample."""
    return ShownOperation(
        row["op_id"], row["client"], row["op"], row["call_ns"], row["return_ns"], row["revision"], row_words(row)
    )


def order_violation(run_id: str, pair: OutOfOrder) -> Violation:
    """Return the violation for a pair of operations that breaks the order of revisions."""
    gap = span(max(0, pair.early["call_ns"] - pair.late["return_ns"]))
    late = f"{row_words(pair.late)}, which had returned {gap} before it was called"
    text = f"{row_words(pair.early)} carries no higher revision than {late}"
    return Violation("order", run_id, pair.early["key"], text, (shown_row(pair.late), shown_row(pair.early)))


def repeated_violation(run_id: str, revision: int, rows: Sequence[Row]) -> Violation:
    """Return the violation for several acknowledged writes that carry the same revision."""
    names = " and ".join(f"{row['op']} #{row['op_id']}" for row in rows[:4])
    text = f"{len(rows)} acknowledged writes carry revision {revision}: {names}"
    return Violation("unique", run_id, None, text, tuple(shown_row(row) for row in rows[:4]))


def repeated_claim(
    run_id: str, revision: int, claims: Sequence[RevisionClaim], rows: Sequence[Row], changes: Sequence[Row]
) -> Violation:
    """Return the violation for several changes that have the same revision, at least one of them an unknown write.

    `claims`: the claims of unknown writes on the revision. `rows`: the rows of these writes, as far as they are known.
    `changes`: the acknowledged changes that carry the revision.
    """
    names = [f"a write of {short(one.key)} of unknown outcome, as responses show" for one in claims[:4]]
    names += [row_words(row) for row in changes[:4]]
    text = f"revision {revision} is that of more than one change: {' and '.join(names)}"
    return Violation("unique", run_id, None, text, tuple(shown_row(row) for row in (*rows[:4], *changes[:4])))


def early_claim(run_id: str, claim: RevisionClaim, unknown: Row, late: Row) -> Violation:
    """Return the violation for an unknown write with too low a revision: `late` returned before its call."""
    gap = span(max(0, unknown["call_ns"] - late["return_ns"]))
    text = (
        f"{unknown['op']} #{unknown['op_id']} of {short(claim.key)}, its outcome unknown, has revision "
        f"{claim.revision}, as responses show, yet {row_words(late)} had returned {gap} before it was called"
    )
    return Violation("order", run_id, claim.key, text, (shown_row(late), shown_row(unknown)))


def store_finding(run_id: str, found: Contradiction) -> Violation | Undecided:
    """Return the finding for a response that does not follow from the whole store."""
    text = f"{row_words(found.row)}: {found.reason}"
    if not found.certain:
        return Undecided("store", run_id, None, f"{text}; a write of unknown outcome might explain it")
    return Violation("store", run_id, None, text, (shown_row(found.row),))
