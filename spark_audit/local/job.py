"""Audits files in this process, without a JVM: reads all rows into memory, refuses malformed ones, decides the keys.

Arrow and numpy hold the rows. A million operations on single keys take about 0.6 GiB of memory;
docs/reference/audit.md ("Engines") has more figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from spark_audit.errors import FAULTS_SHOWN_MAX, Fault, MalformedHistory, NothingToCheck
from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import WEAK
from spark_audit.history.paths import HistoryFile, folders_of_runs, history_files, min_in_sync_of, read_run_file
from spark_audit.key.decide import CONFIGURATIONS_MAX
from spark_audit.local.keys import decided_keys
from spark_audit.report.faults import RunAbout
from spark_audit.report.keys_file import KEY_COLUMNS, write_key_file
from spark_audit.report.material import Material
from spark_audit.services.check import ServiceResult, check_services, note_services
from spark_audit.services.key_facts import Interest
from spark_audit.store.replay import contradictions, hint_of, left_open, no_order, worth_replaying
from spark_audit.store.revision_claims import RevisionClaim, Traces, UnplacedWrite
from spark_audit.tables.clashes import clashes
from spark_audit.tables.effects import changes_of_one_key, taking_part
from spark_audit.tables.frame import Bools, Frame, Int64s, Row
from spark_audit.tables.multi_key import MultiKeyRows, inspect_multi_key, single_rows
from spark_audit.tables.order import check_order, ranked
from spark_audit.tables.read import Read, read
from spark_audit.tables.revisions import RowsOfFrame
from spark_audit.tables.row_rules import broken_rows
from spark_audit.tables.services import bad_services, fact_rows, judged_rows, plain, summary_rows
from spark_audit.verdict.cross_key import RevisionQuery, check_across_keys
from spark_audit.verdict.findings import KeyFindings, note_key, store_finding
from spark_audit.verdict.verdict import LINEARIZABLE, VIOLATION, Undecided, Verdict

Say = Callable[[str], None]
Show = Callable[[Material], None]
_REPLAYED = (
    "op_id", "client", "op", "key", "value", "expected", "expected_mod_revision", "request", "output", "status",
    "call_ns", "return_ns", "clock_id", "revision", "consistency",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Job:
    """The complete, well-formed input.

    `recorded`: all rows as they were read. `services`: the results about services. `frame`: the plain rows
    (`plain_rows`), which stand for the recorded rows. `changed`, `taking`: for each plain row, whether it changed the
    store, and whether it takes part in the order of revisions. `runs`: run_id → the plain rows of the run. `single`,
    `order`: see `single_rows`.
    """

    recorded: Frame
    services: Sequence[ServiceResult]
    frame: Frame
    multi_key: MultiKeyRows
    single: Any
    order: Int64s
    changed: Bools
    taking: Bools
    runs: Mapping[str, Int64s]
    clocks: Mapping[str, Clocks]
    folders: Mapping[str, Path]


@dataclass(slots=True)
class _KeyResults:
    """The results of the keys of one run.

    `wrong`: keys that are a violation by themselves. `needs_replay`: keys for which `Decision.needs_replay` is true.
    """

    wrong: set[str] = field(default_factory=set)
    claims: list[RevisionClaim] = field(default_factory=list)
    unplaced: list[UnplacedWrite] = field(default_factory=list)
    needs_replay: list[str] = field(default_factory=list)

    def add(self, traces: Traces) -> None:
        self.claims += traces.claims
        self.unplaced += traces.unplaced


def audit(
    paths: Iterable[str],
    *,
    configurations_max: int = CONFIGURATIONS_MAX,
    say: Say = lambda _: None,
    show: Show | None = None,
    keys_to: Path | None = None,
) -> Verdict:
    """Audit the histories at these paths.

    `say` is called with each progress message, `show` with the material of the page. `keys_to`: a Parquet file to which
    `write_key_file` writes a row per key.

    Raises UnreadablePath, MalformedHistory, NothingToCheck.
    """
    started = time.perf_counter()
    given = list(paths)
    files = history_files(given)
    headers = {folder: read_run_file(folder) for folder in {file.folder for file in files}}
    say(f"reading {len(files)} file{'s' if len(files) != 1 else ''}")
    found = read(files, shown=show is not None)
    verdict = Verdict(engine="local")
    job = _prepared(found, files, headers, verdict, ", ".join(given))
    say(f"deciding {verdict.operations} operations of {verdict.runs} run{'s' if verdict.runs != 1 else ''}")
    key_rows: list[Mapping[str, Any]] | None = None if keys_to is None else []
    results = _decide(job, configurations_max, verdict, key_rows)
    if keys_to is not None and key_rows is not None:
        write_key_file(sorted(key_rows, key=lambda key: (key["run_id"], key["key"])), keys_to)
    for run_id in job.runs:
        _check_store(job, run_id, results.get(run_id, _KeyResults()), verdict)
    say("checking revisions over all keys")
    for run_id, rows in job.runs.items():
        ordered = ranked(job.frame, rows[job.taking[rows]], job.frame.numbers("revision", 0), job.changed)
        check_order(job.frame, run_id, ordered, job.changed, job.clocks[run_id], verdict)
    for services in job.services:
        note_services(verdict, services)
    if show is not None:
        from spark_audit.local.page_material import gather

        say("gathering what the page shows")
        about = {run_id: RunAbout.of(folder, headers[folder]) for run_id, folder in job.folders.items()}
        parts = job.single
        if job.recorded is not job.frame:
            parts, _ = single_rows(job.recorded, inspect_multi_key(job.recorded))
        show(gather(job.recorded, parts, verdict, about))
    verdict.seconds = time.perf_counter() - started
    return verdict


def _prepared(
    found: Read, files: Sequence[HistoryFile], headers: Mapping[Path, Mapping[str, Any]], verdict: Verdict, where: str
) -> _Job:
    """Check the rows, count them, and return the job.

    The errors are raised in this order: malformed rows, mixed runs, nothing to check, rows that contradict other rows.
    """
    frame = found.frame
    _refuse(found, broken_rows(frame))
    folders = folders_of_runs(_run_folders(found, files), headers)
    status = frame.codes("status")
    unknown, failed = status.among("unknown"), status.among("fail")
    verdict.operations, verdict.runs = frame.rows, len(folders)
    verdict.unknown, verdict.failed = int(unknown.sum()), int(failed.sum())
    if verdict.operations == verdict.unknown + verdict.failed:
        raise NothingToCheck(where, verdict.operations)
    multi_key = inspect_multi_key(frame)
    _refuse(found, (*clashes(frame), *multi_key.bad, *bad_services(frame)))
    clocks = {run_id: Clocks.from_run(headers[folder].get("clocks") or ()) for run_id, folder in folders.items()}
    limits = {run_id: min_in_sync_of(headers[folder]) for run_id, folder in folders.items()}
    recorded, services = frame, _services(frame, clocks, limits) if len(judged_rows(frame)) else []
    if services:
        frame = plain(recorded, {result.run_id: result.settled for result in services})
        multi_key = inspect_multi_key(frame)
    changed = changes_of_one_key(frame) | multi_key.changed
    single = single_rows(frame, multi_key)
    return _Job(
        recorded,
        services,
        frame,
        multi_key,
        *single,
        changed,
        taking_part(frame),
        _rows_by_run(frame),
        clocks,
        folders,
    )


def _services(frame: Frame, clocks: Mapping[str, Clocks], limits: Mapping[str, int | None]) -> list[ServiceResult]:
    """Judge the services of all runs. `limits`: run_id → `min_in_sync`."""
    found: list[ServiceResult] = []
    summarized = summary_rows(frame)
    for run_id, rows in _rows_by_run(frame).items():
        few = frame.dicts(rows[summarized[rows]])
        facts = partial(_with_facts, frame, rows)
        found.append(check_services(run_id, few, facts, clocks[run_id], limits[run_id]))
    return found


def _with_facts(frame: Frame, rows: Int64s, interest: Interest) -> Iterator[Row]:
    return frame.dicts(rows[fact_rows(frame, [interest])[rows]])


def _refuse(found: Read, bad: Iterable[tuple[int, str]]) -> None:
    faults, count = list(found.bad), found.bad_count
    least = nsmallest(FAULTS_SHOWN_MAX, counted := list(bad))
    faults += [Fault(*found.locations.of(row), reason) for row, reason in least]
    if faults:
        faults.sort(key=lambda fault: (fault.file, fault.line))
        raise MalformedHistory(tuple(faults[:FAULTS_SHOWN_MAX]), count + len(counted))


def _run_folders(found: Read, files: Sequence[HistoryFile]) -> Iterator[tuple[str, Path]]:
    """Yield (run_id, folder) for each file and each run in it, in the order of the files."""
    folder_of = {str(file.path.resolve()): file.folder for file in files}
    run = found.frame.codes("run_id")
    for file, start, end in found.locations.pieces():
        for code in np.unique(run.ids[start:end]).tolist():
            yield run.texts[code], folder_of[file]


def _rows_by_run(frame: Frame) -> dict[str, Int64s]:
    run = frame.codes("run_id")
    used = sorted((text, code) for code, text in enumerate(run.texts))
    if len(used) == 1:
        return {used[0][0]: np.arange(frame.rows)}
    order = np.argsort(run.ids, kind="stable")
    edges = np.searchsorted(run.ids[order], np.arange(len(run.texts) + 1))
    return {text: order[edges[code] : edges[code + 1]] for text, code in used if edges[code] < edges[code + 1]}


def _decide(
    job: _Job, configurations_max: int, verdict: Verdict, key_rows: list[Mapping[str, Any]] | None
) -> dict[str, _KeyResults]:
    """Decide all keys, and record their findings. For each run, return the results that must still be compared across
    its keys.

    If `key_rows` is a list, a row for each key is appended to it.
    """
    results: dict[str, _KeyResults] = {}
    others: list[KeyFindings] = []
    for some in decided_keys(
        job.single, job.order, job.clocks, configurations_max, multi_key=len(job.multi_key.rows) > 0
    ):
        _note_proven(some.proven, verdict)
        open_: Any = some.proven.filter(
            pc.or_(some.proven.column("needs_replay"), pc.is_valid(some.proven.column("traces")))
        )
        for key in open_.select(["run_id", "key", "needs_replay", "traces"]).to_pylist():
            mine = results.setdefault(key["run_id"], _KeyResults())
            mine.needs_replay += [key["key"]] if key["needs_replay"] else []
            mine.add(Traces.from_json(key["key"], key["traces"]))
        others += some.others
        if key_rows is not None:
            proven = some.proven.drop_columns(["needs_replay", "traces"]).to_pylist()
            key_rows += [{**key, "status": LINEARIZABLE, "configurations": 0} for key in proven]
            key_rows += [{name: getattr(key, name) for name in KEY_COLUMNS} for key in some.others]
    for found in sorted(others, key=_name):
        note_key(verdict, found)
        mine = results.setdefault(found.run_id, _KeyResults())
        mine.needs_replay += [found.key] if found.needs_replay else []
        mine.add(found.traces)
        if found.status == VIOLATION:
            mine.wrong.add(found.key)
    return results


def _note_proven(proven: Any, verdict: Verdict) -> None:
    verdict.properties["keys"].checked += proven.num_rows
    verdict.properties["weak"].checked += pc.sum(proven.column("weak")).as_py() or 0
    for method in proven.column("method").value_counts().to_pylist():
        verdict.methods[method["values"]] = verdict.methods.get(method["values"], 0) + method["counts"]


def _name(key: KeyFindings) -> tuple[str, str]:
    return key.run_id, key.key


def _check_store(job: _Job, run_id: str, results: _KeyResults, verdict: Verdict) -> None:
    """Check what no single key can decide: the listings and transactions, and the unknown writes of all keys together.

    The run is replayed if this is necessary.
    """
    frame, rows = job.frame, job.runs[run_id]
    status = frame.codes("status")
    multi_key = int(job.multi_key.concerns[rows].sum())
    verdict.properties["store"].checked += multi_key
    obstacle = no_order(int((status.among("ok") & frame.null("revision"))[rows].sum()))
    if multi_key and obstacle:
        verdict.record(Undecided("store", run_id, None, obstacle), count=multi_key)
        return
    left = results.needs_replay if not obstacle else []
    traces = Traces(tuple(results.claims), tuple(results.unplaced))
    if (traces or left) and not multi_key:  # If the run has listings or transactions, its replay includes this check.
        taking = rows[job.taking[rows]]
        mine = RowsOfFrame(frame, rows, taking, taking[job.changed[taking]], job.clocks[run_id])
        left = check_across_keys(run_id, traces, mine.facts(RevisionQuery.about(traces, left)), mine, verdict, left)
    if obstacle or not (multi_key or left):
        return
    if not worth_replaying(multi_key, len(rows), bool(left)):
        verdict.record(Undecided("store", run_id, None, left_open(len(rows), left)))
        return
    unknown = frame.dicts(rows[status.among("unknown")[rows]], _REPLAYED)
    weak = frame.codes("consistency").among(*WEAK) & status.among("ok") & frame.codes("op").among("get")
    hints = (hint for row in frame.dicts(rows[weak[rows]], _REPLAYED) for hint in hint_of(row))
    clocks = job.clocks[run_id]
    for found in contradictions(unknown, hints, _in_order(job, rows), clocks=clocks, wrong=results.wrong):
        verdict.record(store_finding(run_id, found))


def _in_order(job: _Job, rows: Int64s) -> Iterator[Row]:
    """Yield the rows that take part, in the order of a replay (`position`)."""
    pinned = job.multi_key.pinned
    revision = np.where(pinned > 0, pinned, job.frame.numbers("revision", 0))
    order = ranked(job.frame, rows[job.taking[rows]], revision, job.changed & (pinned == 0))
    return job.frame.dicts(order, _REPLAYED)
