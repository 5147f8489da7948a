"""Turns the results of keys into rows of Spark, and runs the replay of the whole store as a Spark stage.

`tables/decide_keys.py` and `store/replay.py` make the decisions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as f

from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import takes_part
from spark_audit.history.rows import REQUEST_OPS, detail_problem
from spark_audit.report.keys_file import KEY_COLUMNS, write_key_file
from spark_audit.store.replay import Contradiction, Hint, contradictions, hint_of, position
from spark_audit.tables.decide_keys import DecidedTable, decide_table
from spark_audit.verdict.findings import KeyFindings, store_finding
from spark_audit.verdict.verdict import LINEARIZABLE, VIOLATION, Violation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Row = dict[str, Any]

SINGLE = "op not in ('range', 'txn')"
NEEDED = (
    "run_id", "op_id", "client", "op", "key", "value", "expected", "expected_mod_revision", "request", "output",
    "status", "call_ns", "return_ns", "clock_id", "revision", "consistency",
)  # fmt: skip
KEY_RESULT = (
    "run_id string, key string, status string, method string, operations long, weak long, configurations long, "
    "needs_replay boolean, violated_keys long, undecided_keys long, violated_order long, violated_weak long, "
    "found string, traces string"
)
RESULTS_PER_BATCH = 1_000  # A task passes the results of this many keys to Spark at once.
STORE_RESULT = "run_id string, kind string, found string"
# The kinds of input of a replay, in the order in which the replay reads them.
_UNKNOWN, _WRONG, _HINT, _ORDERED = range(4)
_REPLAY_INPUT = "run_id string, phase int, revision long, reads int, call long, op_id long, payload string"


def key_batches(table: pa.Table, clocks: Mapping[str, Clocks], configurations_max: int) -> Iterator[pa.RecordBatch]:
    """Decide this table (`decide_table`), and yield one row (KEY_RESULT) per run and key."""
    yield from batches_of(decide_table(table, clocks, configurations_max))


def batches_of(decided: DecidedTable) -> Iterator[pa.RecordBatch]:
    """Yield one row (KEY_RESULT) per decided key."""
    yield from _proven(decided.proven).to_batches()
    results = (_packed(result) for result in decided.others)
    while some := list(islice(results, RESULTS_PER_BATCH)):
        yield _batch(some, key_schema())


def summed(batch: pa.RecordBatch) -> Counter[tuple[str, str, str]]:
    """Return the sums over a batch of KEY_RESULT: (run_id, method, name) → sum.

    The names are `keys` (the number of keys), `weak`, `needs_replay`, and those in COUNTS.
    """
    by = pa.Table.from_batches([batch]).append_column("keys", pa.repeat(pa.scalar(1), batch.num_rows))
    by = by.set_column(
        by.column_names.index("needs_replay"), "needs_replay", by.column("needs_replay").cast(pa.int64())
    )
    names = ("keys", "weak", "needs_replay", *COUNTS)
    found: Counter[tuple[str, str, str]] = Counter()
    for row in by.group_by(["run_id", "method"]).aggregate([(name, "sum") for name in names]).to_pylist():
        for name in names:
            if row[f"{name}_sum"]:
                found[row["run_id"], row["method"], name] += row[f"{name}_sum"]
    return found


def write_keys(keys: DataFrame, path: Path) -> None:
    """Write one row per run and key, sorted by run and key, to this file (`write_key_file`).

    The driver holds only one partition of these rows at a time.
    """
    results = keys.select(*KEY_COLUMNS).orderBy("run_id", "key").toLocalIterator()
    write_key_file((row.asDict() for row in results), path)


def _proven(keys: pa.Table) -> pa.Table:
    rows = keys.num_rows
    made: dict[str, Any] = {name: keys.column(name) for name in keys.column_names}
    made["status"], made["found"] = (pa.repeat(pa.scalar(text), rows) for text in (LINEARIZABLE, "[]"))
    for name in ("configurations", *COUNTS):
        made[name] = pa.repeat(pa.scalar(0, pa.int64()), rows)
    return pa.table([made[field.name] for field in key_schema()], schema=key_schema())


def bad_requests(rows: DataFrame) -> DataFrame:
    """Return (`_at`, reason) for each row whose request or answer is malformed (`detail_problem`)."""
    requests = rows.where(f.col("op").isin(*REQUEST_OPS) | f.col("request").isNotNull()).select("_at", *NEEDED)
    return requests.mapInArrow(_request_checker, "_at long, reason string")


def store_findings(rows: DataFrame, keys: DataFrame, runs: Sequence[str], clocks: Mapping[str, Clocks]) -> DataFrame:
    """Replay the whole store for each of these runs. Return the findings, as rows of STORE_RESULT.

    `keys`: the rows of KEY_RESULT for all keys. If a key is a violation by itself, the replay ignores contradictions
    that depend on it. Each run is replayed in one task, in the order of revisions. The rows are streamed, so only the
    live store is in memory. But if a run has writes of unknown outcome, all of its rows are in memory.
    """
    mine = rows.where(f.col("run_id").isin(list(runs))).select(*NEEDED)
    wrong = keys.where(f.col("run_id").isin(list(runs)) & (f.col("status") == VIOLATION)).select(
        "run_id",
        f.lit(_WRONG).alias("phase"),
        f.lit(0).cast("long").alias("revision"),
        f.lit(0).alias("reads"),
        f.lit(0).cast("long").alias("call"),
        f.lit(0).cast("long").alias("op_id"),
        f.col("key").alias("payload"),
    )
    ordered = mine.mapInArrow(_to_replay, _REPLAY_INPUT).unionByName(wrong)
    sorted_rows = ordered.repartition("run_id").sortWithinPartitions(
        "run_id", "phase", "revision", "reads", "call", "op_id"
    )
    return sorted_rows.mapInArrow(_replayer(dict(clocks)), STORE_RESULT)


def _stream(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        yield from batch.to_pylist()


def _batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)


def _request_checker(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    fields: list[pa.Field[Any]] = [pa.field("_at", pa.int64()), pa.field("reason", pa.string())]
    schema = pa.schema(fields)
    for batch in batches:
        bad = [
            {"_at": row["_at"], "reason": reason} for row in batch.to_pylist() if (reason := detail_problem(row))
        ]  # fmt: skip
        yield _batch(bad, schema)


@cache
def key_schema() -> pa.Schema:
    """Return KEY_RESULT as an Arrow schema."""
    kinds: dict[str, pa.DataType] = {"string": pa.string(), "long": pa.int64(), "boolean": pa.bool_()}
    fields: list[pa.Field[Any]] = []
    for column in KEY_RESULT.split(", "):
        name, kind = column.split()
        fields.append(pa.field(name, kinds[kind]))
    return pa.schema(fields)


COUNTS = ("violated_keys", "undecided_keys", "violated_order", "violated_weak")
_RESULT_FIELDS = ("run_id", "key", "status", "method", "operations", "weak", "configurations", "needs_replay")


def _packed(result: KeyFindings) -> Row:
    counts = dict.fromkeys(COUNTS, 0)
    for found in result.found:
        counts[f"{'violated' if isinstance(found, Violation) else 'undecided'}_{found.property}"] += 1
    return {
        **{name: getattr(result, name) for name in _RESULT_FIELDS},
        **counts,
        "found": json.dumps([[type(found).__name__, asdict(found)] for found in result.found[:8]]),
        "traces": result.traces.to_json(),
    }


def _to_replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = ("run_id", "phase", "revision", "reads", "call", "op_id", "payload")
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int32(), pa.int64(), pa.int64(), pa.string())
    for batch in batches:
        made = [(row["run_id"], *input_row) for row in batch.to_pylist() for input_row in _replay_input(row)]
        arrays = [pa.array([row[i] for row in made], kind) for i, kind in enumerate(kinds)]
        yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def _replay_input(row: Row) -> Iterator[tuple[int, int, int, int, int, str]]:
    """Yield the inputs of the replay that this row gives: (phase, revision, reads, call, op_id, payload)."""
    if row["status"] == "unknown":
        yield _UNKNOWN, 0, 0, 0, row["op_id"], json.dumps(row)
    elif takes_part(row):
        yield _ORDERED, *position(row), json.dumps(row)
    for hint in hint_of(row):
        yield _HINT, hint.revision, 0, 0, row["op_id"], json.dumps([hint.key, hint.revision, hint.value])


def _replayer(clocks: Mapping[str, Clocks]) -> Stage:
    schema = pa.schema({"run_id": pa.string(), "kind": pa.string(), "found": pa.string()})

    def replay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for run_id, rows in groupby(_stream(batches), key=lambda row: row["run_id"]):
            found = [store_finding(run_id, item) for item in _replayed(rows, clocks[run_id])]
            packed = [{"run_id": run_id, "kind": type(f).__name__, "found": json.dumps(asdict(f))} for f in found]
            yield _batch(packed, schema)

    return replay


def _replayed(rows: Iterable[Row], clocks: Clocks) -> Iterator[Contradiction]:
    unknown: list[Row] = []
    wrong: list[str] = []
    hints: list[Hint] = []
    for phase, members in groupby(rows, key=lambda row: row["phase"]):
        payloads = (row["payload"] for row in members)
        if phase == _UNKNOWN:
            unknown.extend(json.loads(payload) for payload in payloads)
        elif phase == _WRONG:
            wrong.extend(payloads)
        elif phase == _HINT:
            hints.extend(Hint(*json.loads(payload)) for payload in payloads if unknown)
        else:
            ordered = (json.loads(payload) for payload in payloads)
            yield from contradictions(unknown, hints, ordered, clocks=clocks, wrong=wrong)
