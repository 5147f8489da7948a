"""The audit as one Spark job: load, refuse what is malformed, decide, and gather counts and a few examples.

Only aggregates and examples come to the driver: one row per run and file, per method, per partition, never the data.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as f

from spark_audit.clocks import Clocks
from spark_audit.errors import Fault, MalformedHistory, NothingToCheck
from spark_audit.kernel import CONFIGURATIONS_MAX
from spark_audit.load import FAULTS_SHOWN_MAX, Loaded, load, local_path, refuse
from spark_audit.local import after_unknown, overlapping
from spark_audit.page_faults import RunAbout
from spark_audit.page_material import Material
from spark_audit.page_spark import gather
from spark_audit.paths import HistoryFile, history_files, read_run_file
from spark_audit.replay import worth_replaying
from spark_audit.spark_keys import SINGLE, bad_requests, concerning_many, decided_keys, store_findings
from spark_audit.spark_order import TAKES_PART, check_order
from spark_audit.verdict import SHOWN_MAX, Undecided, Verdict, violation_from

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Say = Callable[[str], None]
Show = Callable[[Material], None]


@dataclass(slots=True)
class _Run:
    """Totals of one run, over its files."""

    folder: Path
    rows: int = 0
    unknown: int = 0
    failed: int = 0
    asked: int = 0  # Listings and transactions that did not fail.
    many: int = 0  # Those of them that one key's history cannot decide.
    bare: int = 0  # Completed without a revision.


def audit(
    session: "SparkSession",
    paths: Iterable[str],
    *,
    configurations_max: int = CONFIGURATIONS_MAX,
    say: Say = lambda _: None,
    show: Show | None = None,
) -> Verdict:
    """Audit the histories behind these paths. `say` is told what is being done; `show` gets what a page is made of.

    Raises UnreadablePath, MalformedHistory, NothingToCheck; whatever Spark raises when the job itself breaks.
    """
    started = time.perf_counter()
    given = list(paths)
    files = history_files(given)
    headers = {folder: read_run_file(folder) for folder in {file.folder for file in files}}
    say(f"reading {len(files)} file{'s' if len(files) != 1 else ''}")
    loaded = load(session, files)
    rows = loaded.rows.persist(StorageLevel.MEMORY_AND_DISK)
    loaded = Loaded(rows, loaded.scans)
    try:
        verdict = Verdict(engine="spark")
        runs, clocks = _totals(loaded, files, headers, verdict)
        if verdict.operations == verdict.unknown + verdict.failed:
            raise NothingToCheck(", ".join(given), verdict.operations)
        _refuse_clashes(loaded, any(run.asked for run in runs.values()))
        _count_many(rows, runs)
        say(f"deciding {verdict.operations} operations of {verdict.runs} run{'s' if verdict.runs != 1 else ''}")
        _decide(rows, runs, clocks, configurations_max, verdict)
        say("checking revisions over all keys")
        check_order(rows, clocks, verdict)
        if show is not None:
            say("gathering what the page shows")
            about = {run_id: RunAbout.of(run.folder, headers[run.folder]) for run_id, run in runs.items()}
            show(gather(rows, verdict, about))
    finally:
        rows.unpersist()
    verdict.seconds = time.perf_counter() - started
    return verdict


def _totals(
    loaded: Loaded, files: Sequence[HistoryFile], headers: Mapping[Any, Mapping[str, Any]], verdict: Verdict
) -> tuple[dict[str, _Run], dict[str, Clocks]]:
    """Count everything once; refuse malformed rows, and a run_id that two run folders share."""
    counted = loaded.rows.groupBy("run_id", "_file").agg(
        f.count("*").alias("rows"),
        f.count("_problem").alias("bad"),
        f.count_if(f.expr("status = 'unknown'")).alias("unknown"),
        f.count_if(f.expr("status = 'fail'")).alias("failed"),
        f.count_if(f.expr(f"not ({SINGLE}) and status != 'fail'")).alias("asked"),
        f.count_if(f.expr("status = 'ok' and revision is null")).alias("bare"),
        f.count_if(f.expr(TAKES_PART)).alias("taking"),
    )
    totals = counted.collect()
    bad = sum(row["bad"] for row in totals)
    if bad:
        shown = loaded.rows.where("_problem is not null").orderBy("_at").limit(FAULTS_SHOWN_MAX)
        raise refuse(loaded, [(r["_at"], r["_problem"], r["_raw"]) for r in shown.collect()], bad)
    folder_of = {str(file.path.resolve()): file.folder for file in files}
    folders: dict[str, Any] = {}
    runs: dict[str, _Run] = {}
    for row in totals:
        run_id, folder = row["run_id"], folder_of[local_path(row["_file"])]
        if folders.setdefault(run_id, folder) != folder:
            raise _one_fault(folder, f"run_id {run_id} is also that of {folders[run_id]}; runs are never joined")
        named = headers[folder].get("run_id")
        if named is not None and named != run_id:
            raise _one_fault(folder / "run.json", f"names the run {named}, but its rows are of {run_id}")
        run = runs.setdefault(run_id, _Run(folder))
        for name in ("rows", "unknown", "failed", "asked", "bare"):
            setattr(run, name, getattr(run, name) + row[name])
        verdict.properties["order"].checked += row["taking"]
    verdict.runs, verdict.operations = len(runs), sum(run.rows for run in runs.values())
    verdict.unknown, verdict.failed = (sum(getattr(run, n) for run in runs.values()) for n in ("unknown", "failed"))
    return runs, {run_id: Clocks.from_run(headers[folder].get("clocks") or ()) for run_id, folder in folders.items()}


def _one_fault(where: object, reason: str) -> MalformedHistory:
    return MalformedHistory((Fault(str(where), 0, reason),), 1)


def _refuse_clashes(loaded: Loaded, many: bool) -> None:
    """What is wrong between rows (an op_id twice, a client with two open operations), and in requests."""
    by_client = Window.partitionBy("run_id", "client").orderBy("call_ns", f.col("return_ns").asc_nulls_last(), "op_id")
    by_id = Window.partitionBy("run_id", "op_id").orderBy("_file", "_at")
    clients = (
        loaded.rows.select("_at", "client", "op_id", "run_id", "call_ns", "return_ns", "status")
        .withColumn("before", f.lag(f.struct("op_id", "return_ns", "status")).over(by_client))
        .where("before is not null and (before.status = 'unknown' or before.return_ns > call_ns)")
        .select("_at", f.when(f.expr("before.status = 'unknown'"), "unknown").otherwise("overlap").alias("why"),
                "client", f.col("before.op_id").alias("op_id"), "run_id")
    )  # fmt: skip
    twice = (
        loaded.rows.select("_at", "_file", "client", "op_id", "run_id")
        .withColumn("number", f.row_number().over(by_id))
        .where("number > 1")
        .select("_at", f.lit("twice").alias("why"), "client", "op_id", "run_id")
    )
    clashes = clients.unionByName(twice)
    if many:
        requests = bad_requests(loaded.rows)
        nothing = f.lit(None)
        clashes = clashes.unionByName(
            requests.select("_at", f.col("reason").alias("why"), nothing.cast("string").alias("client"),
                            nothing.cast("long").alias("op_id"), nothing.cast("string").alias("run_id"))
        )  # fmt: skip
    found = clashes.orderBy("_at").limit(FAULTS_SHOWN_MAX).collect()
    if found:
        count = clashes.count() if len(found) == FAULTS_SHOWN_MAX else len(found)
        raise refuse(loaded, [(row["_at"], _clash_words(row), None) for row in found], count)


def _count_many(rows: "DataFrame", runs: Mapping[str, _Run]) -> None:
    if any(run.asked for run in runs.values()):
        for row in concerning_many(rows).groupBy("run_id").count().collect():
            runs[row["run_id"]].many = row["count"]


def _clash_words(row: Any) -> str:
    match row["why"]:
        case "twice":
            return f"op_id {row['op_id']} appears twice in run {row['run_id']}"
        case "overlap":
            return overlapping(row["client"], row["op_id"])
        case "unknown":
            return after_unknown(row["client"], row["op_id"])
    return str(row["why"])


def _decide(
    rows: "DataFrame", runs: Mapping[str, _Run], clocks: Mapping[str, Clocks], configurations_max: int, verdict: Verdict
) -> None:
    many = any(run.asked for run in runs.values())
    keys = decided_keys(rows, clocks, configurations_max, many).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        _note_keys(keys, verdict)
        _check_store(rows, keys, runs, clocks, verdict)
    finally:
        keys.unpersist()


def _note_keys(keys: "DataFrame", verdict: Verdict) -> None:
    counts = ("violated_keys", "undecided_keys", "violated_order", "violated_weak")
    sums = [f.sum(name).alias(name) for name in ("weak", *counts)]
    total = dict.fromkeys(counts, 0)
    for row in keys.groupBy("method").agg(f.count("*").alias("keys"), *sums).collect():
        verdict.properties["keys"].checked += row["keys"]
        verdict.properties["weak"].checked += row["weak"]
        verdict.methods[row["method"]] = verdict.methods.get(row["method"], 0) + row["keys"]
        for name in counts:
            total[name] += row[name]
    if not any(total.values()):
        return
    for row in keys.where("found != '[]'").orderBy("run_id", "key").limit(4 * SHOWN_MAX).select("found").collect():
        for kind, fields in json.loads(row["found"]):
            verdict.record(violation_from(fields) if kind == "Violation" else Undecided(**fields), count=0)
    for name, count in total.items():
        outcome, prop = name.split("_")
        setattr(verdict.properties[prop], outcome, getattr(verdict.properties[prop], outcome) + count)


def _check_store(
    rows: "DataFrame", keys: "DataFrame", runs: Mapping[str, _Run], clocks: Mapping[str, Clocks], verdict: Verdict
) -> None:
    replayed: list[str] = []
    off_revisions = {row["run_id"] for row in keys.where("off_revisions").select("run_id").distinct().collect()}
    for run_id, run in sorted(runs.items()):
        verdict.properties["store"].checked += run.many
        if run.many and run.bare:
            reason = f"{run.bare} operations carry no revision, so there is no order to replay the store in"
            verdict.record(Undecided("store", run_id, None, reason), count=run.many)
        elif not run.bare and worth_replaying(run.many, run.rows, run_id in off_revisions):
            replayed.append(run_id)
    if not replayed:
        return
    found = store_findings(rows, keys, replayed, clocks).persist(StorageLevel.MEMORY_AND_DISK)
    for row in found.groupBy("kind").count().collect():
        outcome = "violated" if row["kind"] == "Violation" else "undecided"
        prop = verdict.properties["store"]
        setattr(prop, outcome, getattr(prop, outcome) + row["count"])
        for example in found.where(f.col("kind") == row["kind"]).limit(SHOWN_MAX).collect():
            fields = json.loads(example["found"])
            kept = violation_from(fields) if row["kind"] == "Violation" else Undecided(**fields)
            verdict.record(kept, count=0)
    found.unpersist()
