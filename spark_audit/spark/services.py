"""Judges the services of all runs, in two passes of Spark over the files.

The first pass summarizes the rows of services and the unknown transactions of each source. The driver joins the
summaries. A summary has a few fields of each row of a watch, lease or lock, and the changes of unknown transactions,
but no events. The second pass collects the facts about keys and revisions. A shuffle brings all facts about a key, or
about a revision, to one task, which judges this key or revision. The driver makes the checks that need several keys.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from spark_audit.history.clocks import Clocks
from spark_audit.services.check import ServiceResult, result_of
from spark_audit.services.control import Plan, Summary
from spark_audit.services.key_check import KeyResult
from spark_audit.services.key_facts import Fact, Subject, facts_of
from spark_audit.services.naming import first_findings
from spark_audit.spark.scan import Scan, Source, chunks
from spark_audit.tables.conform import conform
from spark_audit.tables.frame import Frame
from spark_audit.tables.services import fact_rows, summary_rows

Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_SUMMARY = "run_id string, payload binary"
_FACTS = "target int, payload binary"
_RunFact = tuple[str, Subject, Fact]  # (run_id, key or revision, fact)


def check_services(
    scan: Scan, runs: Collection[str], clocks: Mapping[str, Clocks], limits: Mapping[str, int | None]
) -> list[ServiceResult]:
    """Judge the services of these runs. Their rows must be well-formed. `limits`: run_id → `min_in_sync`."""
    wanted = frozenset(runs)
    tasks = scan.session.range(0, len(scan.sources), 1, len(scan.sources))
    summaries: dict[str, Summary] = {}
    with scan.handing_over_few():
        for row in tasks.mapInArrow(_summarizer(scan.sources, wanted), _SUMMARY).collect():
            summaries.setdefault(row["run_id"], Summary()).add(_unpacked(row["payload"]))
        plans = {
            run_id: Plan.of(summary, clocks[run_id], limits[run_id]) for run_id, summary in sorted(summaries.items())
        }
        facts = tasks.mapInArrow(_collector(scan.sources, plans, scan.partitions), _FACTS)
        judged = facts.repartition(scan.partitions, "target").mapInArrow(_judge(plans), _SUMMARY)
        keys: dict[str, KeyResult] = {run_id: KeyResult() for run_id in plans}
        for row in judged.collect():
            keys[row["run_id"]].add(_unpacked(row["payload"]))
    return [result_of(run_id, plan, keys[run_id]) for run_id, plan in plans.items()]


def _summarizer(sources: Sequence[Source], runs: frozenset[str]) -> Stage:
    def summarize(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.to_pylist():
                made: dict[str, Summary] = {}
                for frame in _frames(sources[task["id"]]):
                    for row in frame.dicts(np.flatnonzero(summary_rows(frame))):
                        if row["run_id"] in runs:
                            made.setdefault(row["run_id"], Summary()).note(row)
                for run_id, summary in made.items():
                    yield _named(run_id, summary)

    return summarize


def _collector(sources: Sequence[Source], plans: Mapping[str, Plan], partitions: int) -> Stage:
    interests = {run_id: plan.interest for run_id, plan in plans.items()}

    def collect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.to_pylist():
                for frame in _frames(sources[task["id"]]):
                    pieces: dict[int, list[_RunFact]] = {}
                    for row in frame.dicts(np.flatnonzero(fact_rows(frame, interests.values()))):
                        run_id = row["run_id"]
                        for subject, fact in facts_of(row, interests[run_id]) if run_id in interests else ():
                            target = crc32(f"{run_id}\0{subject}".encode("utf-8", "surrogatepass")) % partitions
                            pieces.setdefault(target, []).append((run_id, subject, fact))
                    for target, facts in pieces.items():
                        arrays: list[pa.Array[Any]] = [pa.array([target], pa.int32()), _packed(facts)]
                        yield pa.RecordBatch.from_arrays(arrays, names=["target", "payload"])

    return collect


def _judge(plans: Mapping[str, Plan]) -> Stage:
    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        by_run: dict[str, dict[Subject, list[Fact]]] = {}
        for batch in batches:
            for piece in batch.to_pylist():
                facts: list[_RunFact] = _unpacked(piece["payload"])
                for run_id, subject, fact in facts:
                    by_run.setdefault(run_id, {}).setdefault(subject, []).append(fact)
        for run_id, of_subjects in by_run.items():
            result = plans[run_id].judge(of_subjects)
            result.findings = first_findings(result.findings)
            yield _named(run_id, result)

    return judge


def _frames(source: Source) -> Iterator[Frame]:
    for table in chunks(source):
        assert table is not None, "malformed rows were refused before"
        yield Frame(conform(table))


def _named(run_id: str, value: Summary | KeyResult) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([run_id], pa.string()), _packed(value)], names=["run_id", "payload"])


def _packed(value: object) -> pa.Array[Any]:
    """Return the value as bytes (pickle). Only processes of the same job read these bytes."""
    packed: pa.Array[Any] = pa.array([pickle.dumps(value)], pa.binary())
    return packed


def _unpacked(payload: bytes) -> Any:
    return pickle.loads(payload)
