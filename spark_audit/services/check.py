"""Judges the services (watches, leases, locks, reads at a revision) of one run, and adds the result to a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_audit.history.clocks import Clocks
from spark_audit.services.control import Plan, Summary
from spark_audit.services.key_check import KeyResult
from spark_audit.services.key_facts import Fact, Interest, Subject, facts_of
from spark_audit.services.naming import Finding, first_findings
from spark_audit.services.settle import settled_rows_of, with_run
from spark_audit.verdict.verdict import LEVEL_PROPERTIES, SERVICE_PROPERTIES, Verdict

Row = Mapping[str, Any]


@dataclass(slots=True)
class ServiceResult:
    """The findings and the counts of the services of one run.

    `rows`: the number of rows of services. `levels`: the number of writes with an acknowledgement level, and of queries
    of outcomes. `findings`: the first findings of each property. `counts`: property → the number of all its findings.
    `checked`: property → the number of judgements. `lags`: lag (ns, rounded) → the number of events with this lag. The
    lag of an event is the time from the return of the write to the arrival of the event. `settled`: op_id → the rows
    that replace the plain row with this op_id. `lost`: the number of accepted writes that were lost.
    `in_sync_unjudged`: the number of writes of level IN_SYNC, if the run does not state `min_in_sync`.
    """

    run_id: str
    rows: int = 0
    watches: int = 0
    events: int = 0
    findings: Sequence[Finding] = ()
    counts: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    lags: Counter[int] = field(default_factory=Counter)
    settled: Mapping[int, Sequence[dict[str, Any]]] = field(default_factory=dict)
    levels: int = 0
    lost: int = 0
    in_sync_unjudged: int = 0


def all_of(rows: Iterable[Row]) -> Callable[[Interest], Iterable[Row]]:
    """Return a function that returns all these rows for every `Interest`."""
    return lambda _: rows


def check_services(
    run_id: str,
    summarized: Iterable[Row],
    rows: Callable[[Interest], Iterable[Row]],
    clocks: Clocks,
    min_in_sync: int | None = None,
) -> ServiceResult:
    """Judge the services of one run. All rows must be well-formed.

    `summarized`: at least the rows of services, the writes with a level, and the unknown transactions. `rows`: returns
    at least the rows that have facts about the keys of interest. `min_in_sync`: see `Plan`.
    """
    summary = Summary()
    for row in summarized:
        summary.note(row)
    if not (summary.rows or summary.levels):
        return ServiceResult(run_id)
    plan = Plan.of(summary, clocks, min_in_sync)
    facts: dict[Subject, list[Fact]] = {}
    for row in rows(plan.interest):
        for subject, fact in facts_of(row, plan.interest):
            facts.setdefault(subject, []).append(fact)
    return result_of(run_id, plan, plan.judge(facts))


def result_of(run_id: str, plan: Plan, keys: KeyResult) -> ServiceResult:
    """Return the result of a run. `keys`: the joined result of all its keys."""
    found, checked, settled = plan.judge_whole(keys)
    replaced = settled_rows_of([*keys.settled, *settled.settlements])
    replaced |= {op_id: [row] for op_id, row in settled.rows.items()}
    replaced |= plan.fates.rows
    return ServiceResult(
        run_id,
        plan.summary.rows,
        len(plan.segments),
        sum(part.events for part in plan.summary.parts),
        first_findings([*found, *keys.findings]),
        keys.counts + Counter(one.judged for one in found),
        checked + keys.checked,
        keys.lags,
        with_run(replaced, run_id),
        plan.summary.levels,
        len(plan.fates.lost_ids),
        len(plan.summary.held) if plan.min_in_sync is None else 0,
    )


def note_services(verdict: Verdict, result: ServiceResult) -> None:
    """Add the result of a run to the verdict. A run without rows of services and without levels adds nothing."""
    properties = [*(SERVICE_PROPERTIES if result.rows else ()), *(LEVEL_PROPERTIES if result.levels else ())]
    verdict.watches += result.watches
    verdict.events += result.events
    verdict.settled += sum(any(row["status"] == "ok" for row in rows) for rows in result.settled.values())
    verdict.lags.update(result.lags)
    verdict.lost += result.lost
    verdict.in_sync_unjudged += result.in_sync_unjudged
    for name in properties:
        verdict.of(name).checked += result.checked[name]
        verdict.of(name).violated += result.counts[name]
    for one in result.findings:
        verdict.record(one.violation(result.run_id), count=0)
