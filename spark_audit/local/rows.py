"""Audits rows in memory, without Spark, pandas or numpy. This module is for tests, simulators and small histories."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from spark_audit.errors import FAULTS_SHOWN_MAX, Fault, MalformedHistory, NothingToCheck
from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import takes_part
from spark_audit.history.projection import project
from spark_audit.history.rows import FIELDS, after_unknown, overlapping, problem, twice
from spark_audit.key.decide import CONFIGURATIONS_MAX
from spark_audit.services.check import all_of, check_services, note_services
from spark_audit.services.settle import settled_rows
from spark_audit.store.order import out_of_order, uniqueness
from spark_audit.store.replay import contradictions, hint_of, left_open, position, replayable, worth_replaying
from spark_audit.store.revision_claims import RevisionClaim, Traces, UnplacedWrite
from spark_audit.verdict.cross_key import RevisionQuery, RowsInMemory, check_across_keys
from spark_audit.verdict.findings import findings_of_key, note_key, order_violation, repeated_violation, store_finding
from spark_audit.verdict.verdict import VIOLATION, Undecided, Verdict

# Null values for the fields that a row leaves out.
_LEFT_OUT: dict[str, Any] = dict.fromkeys(name for name, _ in FIELDS)


Row = Mapping[str, Any]


def check_rows(
    rows: Iterable[Row],
    *,
    clocks: Sequence[Row] = (),
    min_in_sync: int | None = None,
    configurations_max: int = CONFIGURATIONS_MAX,
    name: str = "rows",
) -> Verdict:
    """Audit rows (docs/reference/specification.md#103-row), of any number of runs, in any order.

    `clocks`, `min_in_sync`: as in run.json; they apply to all runs. Raises NothingToCheck and MalformedHistory. In the
    faults of MalformedHistory, the line is the number of the row, counted from 1.
    """
    started = time.perf_counter()
    history = [{**_LEFT_OUT, **row} if isinstance(row, Mapping) else row for row in rows]
    _refuse_malformed(history, name)
    by_run: dict[str, list[Row]] = {}
    for row in history:
        by_run.setdefault(row["run_id"], []).append(row)
    verdict = Verdict(operations=len(history), runs=len(by_run))
    verdict.unknown = sum(1 for row in history if row["status"] == "unknown")
    verdict.failed = sum(1 for row in history if row["status"] == "fail")
    if verdict.operations == verdict.unknown + verdict.failed:
        raise NothingToCheck(name, verdict.operations)
    for run_id, mine in sorted(by_run.items()):
        known = Clocks.from_run(clocks)
        services = check_services(run_id, mine, all_of(mine), known, min_in_sync)
        plain = (
            [plain for row in mine for plain in settled_rows(row, services.settled)]
            if services.rows or services.levels
            else mine
        )
        _check_run(verdict, run_id, plain, known, configurations_max)
        note_services(verdict, services)
    verdict.seconds = time.perf_counter() - started
    return verdict


def _check_run(verdict: Verdict, run_id: str, rows: Sequence[Row], clocks: Clocks, configurations_max: int) -> None:
    wrong: set[str] = set()
    claims: list[RevisionClaim] = []
    unplaced: list[UnplacedWrite] = []
    left: list[str] = []
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        for key, part in project(row):
            by_key.setdefault(key, []).append(part)
    for key, mine in sorted(by_key.items()):
        findings = findings_of_key(run_id, key, mine, clocks, configurations_max)
        note_key(verdict, findings)
        if findings.status == VIOLATION:
            wrong.add(key)
        left += [key] if findings.needs_replay else []
        claims += findings.traces.claims
        unplaced += findings.traces.unplaced
    ordered = [row for row in rows if takes_part(row)]
    verdict.properties["order"].checked += len(ordered)
    for pair in out_of_order(ordered, clocks):
        verdict.record(order_violation(run_id, pair))
    unique = uniqueness(ordered)
    verdict.properties["unique"].checked += unique.writes
    verdict.revision_gaps += unique.gaps
    for revision, same in unique.repeated.items():
        verdict.record(repeated_violation(run_id, revision, same))
    multi_key, obstacle = replayable(rows)
    verdict.properties["store"].checked += multi_key
    if multi_key and obstacle:
        verdict.record(Undecided("store", run_id, None, obstacle), count=multi_key)
        return
    traces, left = Traces(tuple(claims), tuple(unplaced)), left if not obstacle else []
    if (traces or left) and not multi_key:  # If the run has listings or transactions, its replay includes this check.
        in_memory = RowsInMemory(rows, clocks)
        query = RevisionQuery.about(traces, left)
        left = check_across_keys(run_id, traces, in_memory.facts(query), in_memory, verdict, left)
    if not obstacle:
        _replay(verdict, run_id, rows, clocks, wrong, multi_key, left)


def _replay(
    verdict: Verdict,
    run_id: str,
    rows: Sequence[Row],
    clocks: Clocks,
    wrong: set[str],
    multi_key: int,
    left: Sequence[str],
) -> None:
    """Replay the run if it has listings or transactions, or if some keys need a replay (`left`).

    If the run is too long for a replay, it is recorded as undecided.
    """
    if worth_replaying(multi_key, len(rows), bool(left)):
        unknown = [row for row in rows if row["status"] == "unknown"]
        known = sorted((row for row in rows if takes_part(row)), key=position)
        hints = (hint for row in rows for hint in hint_of(row))
        for found in contradictions(unknown, hints, known, clocks=clocks, wrong=wrong):
            verdict.record(store_finding(run_id, found))
    elif left:
        verdict.record(Undecided("store", run_id, None, left_open(len(rows), left)))


def _refuse_malformed(history: Sequence[Row], name: str) -> None:
    faults = [Fault(name, line, reason) for line, row in enumerate(history, 1) if (reason := problem(row))]
    if not faults:
        faults = _clashes(history, name)
    if faults:
        raise MalformedHistory(tuple(faults[:FAULTS_SHOWN_MAX]), len(faults))


def _clashes(history: Sequence[Row], name: str) -> list[Fault]:
    """Return the faults of rows that contradict other rows of their run.

    Such a row has the op_id of another row, is called while an operation of its client is open, or follows an operation
    of unknown outcome of its client.
    """
    faults: list[Fault] = []
    first_line: dict[tuple[str, int], int] = {}
    by_client: dict[tuple[str, str], list[tuple[int, int, Row]]] = {}
    for line, row in enumerate(history, 1):
        earlier = first_line.setdefault((row["run_id"], row["op_id"]), line)
        if earlier != line:
            faults.append(Fault(name, line, twice(row["op_id"], row["run_id"])))
        by_client.setdefault((row["run_id"], row["client"]), []).append((row["call_ns"], line, row))
    for (_, client), mine in by_client.items():
        mine.sort(key=lambda item: (item[0], item[2]["return_ns"] is None, item[2]["return_ns"], item[2]["op_id"]))
        for (_, _, before), (_, line, row) in pairwise(mine):
            if before["return_ns"] is None:
                faults.append(Fault(name, line, after_unknown(client, before["op_id"])))
            elif before["return_ns"] > row["call_ns"]:
                faults.append(Fault(name, line, overlapping(client, before["op_id"])))
    return sorted(faults, key=lambda fault: fault.line)
