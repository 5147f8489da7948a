"""Audits files in Spark: loads the rows, refuses malformed ones, decides, and gathers counts and a few examples.

The driver receives only aggregates (such as one row per run and file) and examples, never all rows.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as f

from spark_audit.errors import FAULTS_SHOWN_MAX, Fault, JobFailed, MalformedHistory, NothingToCheck
from spark_audit.history.clocks import Clocks
from spark_audit.history.paths import HistoryFile, folders_of_runs, history_files, min_in_sync_of, read_run_file
from spark_audit.history.rows import after_unknown, overlapping, twice
from spark_audit.key.decide import CONFIGURATIONS_MAX
from spark_audit.report.faults import RunAbout
from spark_audit.report.material import Material
from spark_audit.services.check import ServiceResult, note_services
from spark_audit.spark.keys import COUNTS, bad_requests, store_findings, write_keys
from spark_audit.spark.load import Loaded, load, refuse
from spark_audit.spark.order import block_from, check_order
from spark_audit.spark.page_material import gather
from spark_audit.spark.revisions import open_keys_of, revision_facts, traces_of
from spark_audit.spark.rows import RowsOfSpark, plain_rows_of
from spark_audit.spark.scan import ERROR, SUMMARY, Scan
from spark_audit.spark.services import check_services
from spark_audit.store.replay import left_open, no_order, worth_replaying
from spark_audit.store.revision_claims import Traces
from spark_audit.tables.order_blocks import BlockSummary, Latest
from spark_audit.tables.parquet import check_footers
from spark_audit.tables.services import Settled
from spark_audit.tables.shuffle import BAD, CLASH, ORDER, TOTALS
from spark_audit.verdict.cross_key import RevisionQuery, check_across_keys
from spark_audit.verdict.verdict import SHOWN_MAX, Undecided, Verdict, violation_from

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import Row as SparkRow

Say = Callable[[str], None]
Show = Callable[[Material], None]
_COUNTED = ("rows", "unknown", "failed", "multi_key_requests", "multi_key", "without_revision", "services")


@dataclass(slots=True)
class _RunTotals:
    """The totals of one run, over all its files."""

    folder: Path
    rows: int = 0
    unknown: int = 0
    failed: int = 0
    multi_key_requests: int = 0  # Listings and transactions that did not fail.
    multi_key: int = 0  # Listings and transactions that the history of one key cannot decide.
    without_revision: int = 0  # Completed operations without a revision.
    services: int = 0  # Rows of services, and writes with an acknowledgement level.


class _LazyRows:
    """All rows as a DataFrame, which is loaded and cached when it is first used. Many audits never need the DataFrame.

    `loaded` has the rows as they were read. Calling the object returns the plain rows (`plain_rows`). `settled`: None
    if there are no rows of services.
    """

    def __init__(self, session: SparkSession, files: Sequence[HistoryFile]) -> None:
        self._session, self._files = session, files
        self.settled: Settled | None = None

    @cached_property
    def loaded(self) -> Loaded:
        found = load(self._session, self._files)
        return Loaded(found.rows.persist(StorageLevel.MEMORY_AND_DISK), found.scans)

    def __call__(self) -> DataFrame:
        return self.loaded.rows if self.settled is None else plain_rows_of(self.loaded.rows, self.settled)

    def forget(self) -> None:
        if "loaded" in vars(self):
            self.loaded.rows.unpersist()


def audit(
    session: SparkSession,
    paths: Iterable[str],
    *,
    configurations_max: int = CONFIGURATIONS_MAX,
    say: Say = lambda _: None,
    show: Show | None = None,
    keys_to: Path | None = None,
) -> Verdict:
    """Audit the histories at these paths.

    `say` is called with each progress message, `show` with the material of the page. `keys_to`: a Parquet file to which
    `write_keys` writes a row per key.

    Raises UnreadablePath, MalformedHistory or NothingToCheck, or an error of Spark if the job itself fails.
    """
    started = time.perf_counter()
    given = list(paths)
    files = history_files(given)
    headers = {folder: read_run_file(folder) for folder in {file.folder for file in files}}
    say(f"reading {len(files)} file{'s' if len(files) != 1 else ''}")
    check_footers(str(file.path.resolve()) for file in files if file.parquet)
    rows = _LazyRows(session, files)
    clocks_of = {str(file.path.resolve()): Clocks.from_run(headers[file.folder].get("clocks") or ()) for file in files}
    scan = Scan.of(session, files, clocks_of, configurations_max)
    results = scan.results().persist(StorageLevel.MEMORY_AND_DISK)
    try:
        say(f"deciding about {sum(source.rows for source in scan.sources)} operations")
        gathered = _gathered(scan, results)
        notes = [row for row in gathered if row["kind"] is not None]
        verdict = Verdict(engine="spark")
        runs, clocks = _totals(rows, notes, files, headers, verdict)
        if verdict.operations == verdict.unknown + verdict.failed:
            raise NothingToCheck(", ".join(given), verdict.operations)
        _refuse(rows, notes, any(run.multi_key_requests or run.services for run in runs.values()))
        limits = {run_id: min_in_sync_of(headers[run.folder]) for run_id, run in runs.items()}
        services = _services(scan, runs, clocks, limits, say)
        if services:
            rows.settled = {one.run_id: one.settled for one in services if one.settled}
        if rows.settled:  # Keys are decided again, because events show the revisions of unknown writes.
            results.unpersist()
            scan = replace(scan, settled=rows.settled)
            results = scan.results().persist(StorageLevel.MEMORY_AND_DISK)
            gathered = _gathered(scan, results)
            notes = [row for row in gathered if row["kind"] is not None]
            verdict = Verdict(engine="spark")
            runs, clocks = _totals(rows, notes, files, headers, verdict)
            _refuse(rows, notes, multi_key=True)
        keys = results.where("kind is null").drop("kind", "file", "payload")
        needs_replay = _note_keys(notes, keys, verdict)
        if keys_to is not None:
            write_keys(keys, keys_to)
        traced = [row for row in gathered if row["kind"] is None]
        _check_store(scan, rows, keys, traced, needs_replay, runs, clocks, verdict)
        say("checking revisions over all keys")
        _check_order(scan, notes, rows, clocks, verdict)
        for one in services:
            note_services(verdict, one)
        if show is not None:
            say("gathering what the page shows")
            about = {run_id: RunAbout.of(run.folder, headers[run.folder]) for run_id, run in runs.items()}
            show(gather(rows.loaded.rows, verdict, about))
    finally:
        results.unpersist()
        rows.forget()
    verdict.seconds = time.perf_counter() - started
    return verdict


def _gathered(scan: Scan, results: DataFrame) -> list[SparkRow]:
    """Return the few results that the driver needs: the notes of tasks, and the keys with traces."""
    with scan.handing_over_few():
        few = results.where("kind is not null or traces is not null")
        return few.select("kind", "file", "payload", "run_id", "key", "traces").collect()


def _services(
    scan: Scan,
    runs: Mapping[str, _RunTotals],
    clocks: Mapping[str, Clocks],
    limits: Mapping[str, int | None],
    say: Say,
) -> list[ServiceResult]:
    """Judge the services of the runs that have rows of services, or writes with an acknowledgement level."""
    wanted = [run_id for run_id, run in runs.items() if run.services]
    if not wanted:
        return []
    say("judging watches, leases and locks")
    return check_services(scan, wanted, clocks, limits)


def _totals(
    rows: _LazyRows,
    notes: Sequence[Any],
    files: Sequence[HistoryFile],
    headers: Mapping[Path, Mapping[str, Any]],
    verdict: Verdict,
) -> tuple[dict[str, _RunTotals], dict[str, Clocks]]:
    """Add up the totals of all runs. Refuse malformed rows, and a run_id that two run folders share."""
    if any(note["kind"] == BAD for note in notes):
        _refuse_malformed(rows.loaded, notes)
    folder_of = {str(file.path.resolve()): file.folder for file in files}
    totals = [(note["file"], json.loads(note["payload"])) for note in notes if note["kind"] == TOTALS]
    totals.sort(key=lambda pair: pair[0])
    folders = folders_of_runs(((counts["run_id"], folder_of[file]) for file, counts in totals), headers)
    runs: dict[str, _RunTotals] = {}
    for _, counts in totals:
        run = runs.setdefault(counts["run_id"], _RunTotals(folders[counts["run_id"]]))
        for name in _COUNTED:
            setattr(run, name, getattr(run, name) + counts[name])
        verdict.properties["order"].checked += counts["taking"]
    verdict.runs, verdict.operations = len(runs), sum(run.rows for run in runs.values())
    verdict.unknown, verdict.failed = (sum(getattr(run, n) for run in runs.values()) for n in ("unknown", "failed"))
    return runs, {run_id: Clocks.from_run(headers[folder].get("clocks") or ()) for run_id, folder in folders.items()}


def _refuse_malformed(loaded: Loaded, notes: Sequence[Any]) -> NoReturn:
    """Find out, in a second pass, which rows are malformed and why, and raise the error."""
    bad = loaded.rows.where("_problem is not null")
    shown = [(r["_at"], r["_problem"], r["_raw"]) for r in bad.orderBy("_at").limit(FAULTS_SHOWN_MAX).collect()]
    if shown:
        raise refuse(loaded, shown, bad.count() if len(shown) == FAULTS_SHOWN_MAX else len(shown))
    _refuse_clashes(loaded, multi_key=True)
    unreadable = [(note["file"], json.loads(note["payload"])) for note in notes if note["kind"] == BAD]
    raise MalformedHistory(
        tuple(Fault(file, 0, f"malformed: {what}") for file, what in unreadable[:FAULTS_SHOWN_MAX]), len(unreadable)
    )


def _refuse(rows: _LazyRows, notes: Sequence[Any], multi_key: bool) -> None:
    """Raise the errors that tasks reported.

    A note of kind CLASH is only a suspicion that rows contradict each other. If there is such a note, all rows are
    checked.
    """
    if any(note["kind"] == CLASH for note in notes):
        _refuse_clashes(rows.loaded, multi_key)
    for note in notes:
        if note["kind"] == ERROR:
            raise JobFailed(f"deciding keys failed\n{json.loads(note['payload'])}")


def _refuse_clashes(loaded: Loaded, multi_key: bool) -> None:
    """Refuse malformed requests (if `multi_key`), and rows that contradict each other, such as two rows with the same
    op_id."""
    by_client = Window.partitionBy("run_id", "client").orderBy("call_ns", f.col("return_ns").asc_nulls_last(), "op_id")
    by_id = Window.partitionBy("run_id", "op_id").orderBy("_file", "_at")
    clients = (
        loaded.rows.select("_at", "client", "op_id", "run_id", "call_ns", "return_ns", "status")
        .withColumn("before", f.lag(f.struct("op_id", "return_ns", "status")).over(by_client))
        .where("before is not null and (before.status = 'unknown' or before.return_ns > call_ns)")
        .select("_at", f.when(f.expr("before.status = 'unknown'"), "unknown").otherwise("overlap").alias("why"),
                "client", f.col("before.op_id").alias("op_id"), "run_id")
    )  # fmt: skip
    repeated = (
        loaded.rows.select("_at", "_file", "client", "op_id", "run_id")
        .withColumn("number", f.row_number().over(by_id))
        .where("number > 1")
        .select("_at", f.lit("twice").alias("why"), "client", "op_id", "run_id")
    )
    clashes = clients.unionByName(repeated)
    if multi_key:
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


def _clash_words(row: Any) -> str:
    match row["why"]:
        case "twice":
            return twice(row["op_id"], row["run_id"])
        case "overlap":
            return overlapping(row["client"], row["op_id"])
        case "unknown":
            return after_unknown(row["client"], row["op_id"])
    return str(row["why"])


def _check_order(
    scan: Scan, notes: Sequence[Any], rows: _LazyRows, clocks: Mapping[str, Clocks], verdict: Verdict
) -> None:
    def again(carries: Mapping[tuple[str, int], Latest]) -> list[BlockSummary]:
        results = scan.block_results(carries).where(f.col("kind") == ORDER).select("payload")
        with scan.handing_over_few():
            return [block_from(row["payload"]) for row in results.collect()]

    blocks = [block_from(note["payload"]) for note in notes if note["kind"] == ORDER]
    check_order(blocks, again, rows, clocks, verdict)


def _note_keys(notes: Sequence[Any], keys: DataFrame, verdict: Verdict) -> set[str]:
    """Count the results of keys, and record the first examples. Return the runs with a key that needs a replay."""
    total: Counter[str] = Counter()
    needs_replay: set[str] = set()
    for note in notes:
        for run_id, method, name, number in json.loads(note["payload"]) if note["kind"] == SUMMARY else ():
            total[name] += number
            if name == "keys":
                verdict.methods[method] = verdict.methods.get(method, 0) + number
            elif name == "needs_replay":
                needs_replay.add(run_id)
    verdict.properties["keys"].checked += total["keys"]
    verdict.properties["weak"].checked += total["weak"]
    counts = {name: total[name] for name in COUNTS}
    if not any(counts.values()):
        return needs_replay
    for row in keys.where("found != '[]'").orderBy("run_id", "key").limit(4 * SHOWN_MAX).select("found").collect():
        for kind, fields in json.loads(row["found"]):
            verdict.record(violation_from(fields) if kind == "Violation" else Undecided(**fields), count=0)
    for name, count in counts.items():
        outcome, prop = name.split("_")
        setattr(verdict.properties[prop], outcome, getattr(verdict.properties[prop], outcome) + count)
    return needs_replay


def _check_store(
    scan: Scan,
    rows: _LazyRows,
    keys: DataFrame,
    traced: Sequence[Any],
    needs_replay: set[str],
    runs: Mapping[str, _RunTotals],
    clocks: Mapping[str, Clocks],
    verdict: Verdict,
) -> None:
    replayed: list[str] = []
    traces = traces_of(traced, {run_id for run_id, run in runs.items() if not run.multi_key})
    open_keys = open_keys_of(
        keys, [run for run in needs_replay if not (runs[run].multi_key or runs[run].without_revision)]
    )
    queried = {run_id: (traces.get(run_id, Traces()), open_keys.get(run_id, [])) for run_id in {*traces, *open_keys}}
    facts = revision_facts(scan, {run_id: RevisionQuery.about(*mine) for run_id, mine in queried.items()}, clocks)
    for run_id, run in sorted(runs.items()):
        verdict.properties["store"].checked += run.multi_key
        obstacle = no_order(run.without_revision)
        if run.multi_key and obstacle:
            verdict.record(Undecided("store", run_id, None, obstacle), count=run.multi_key)
            continue
        left = list[str]()
        if run_id in queried:
            mine = RowsOfSpark(rows, run_id, clocks[run_id], scan)
            left = check_across_keys(run_id, queried[run_id][0], facts[run_id], mine, verdict, queried[run_id][1])
        if obstacle or not (run.multi_key or left):
            continue
        if worth_replaying(run.multi_key, run.rows, bool(left)):
            replayed.append(run_id)
        else:
            verdict.record(Undecided("store", run_id, None, left_open(run.rows, left)))
    if not replayed:
        return
    found = store_findings(rows(), keys, replayed, clocks).persist(StorageLevel.MEMORY_AND_DISK)
    for row in found.groupBy("kind").count().collect():
        outcome = "violated" if row["kind"] == "Violation" else "undecided"
        prop = verdict.properties["store"]
        setattr(prop, outcome, getattr(prop, outcome) + row["count"])
        for example in found.where(f.col("kind") == row["kind"]).limit(SHOWN_MAX).collect():
            fields = json.loads(example["found"])
            kept = violation_from(fields) if row["kind"] == "Violation" else Undecided(**fields)
            verdict.record(kept, count=0)
    found.unpersist()
