"""What `held.py` asks of the rows of all runs, answered by Spark in one more pass: tasks read the files once again as
Arrow, chunks answer in numpy (`local/revisions.py`), and the driver puts that together. It holds a number for each call
asked about, and the revisions of changes as far as slots reach.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f

from spark_audit.clocks import Clocks
from spark_audit.held import Answer, Question
from spark_audit.local.columns import conform
from spark_audit.local.frame import Frame, Int64s, Row
from spark_audit.local.many import look_at_many
from spark_audit.local.revisions import SHOWN, RowsOfFrame, changes_of_one_key, stretches_of, taking_part
from spark_audit.spark_scan import Scan, Source, chunks
from spark_audit.traces import Slot, Told, Traces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TAKES_PART = "status = 'ok' and revision is not null and not (consistency <=> 'local')"
_CHANGES = (
    "op in ('put', 'append') or (op = 'delete' and output.found) or (op = 'cas' and output.succeeded) or (op = 'txn' "
    "and exists(output.results, r -> r.op = 'put' or (r.op = 'delete' and coalesce(r.found, false))))"
)


_ANSWERED = ("run_id", "reached", "taken")


def traces_of(keys: "DataFrame", runs: Sequence[str]) -> dict[str, Traces]:
    """The traces of these runs that have any; `keys`: KEY_RESULT."""
    told: dict[str, list[Told]] = {}
    slots: dict[str, list[Slot]] = {}
    some = keys.where(f.col("traces").isNotNull() & f.col("run_id").isin(list(runs))).select("run_id", "key", "traces")
    for row in sorted(some.collect()) if runs else ():
        mine = Traces.from_json(row["key"], row["traces"])
        told.setdefault(row["run_id"], []).extend(mine.told)
        slots.setdefault(row["run_id"], []).extend(mine.slots)
    return {run_id: Traces(tuple(told[run_id]), tuple(slots[run_id])) for run_id in told}


def answers(scan: Scan, questions: Mapping[str, Question], clocks: Mapping[str, Clocks]) -> dict[str, Answer]:
    """By run. Nothing is read if nothing is asked."""
    if not questions:
        return {}
    tasks = scan.session.range(0, len(scan.sources), 1, len(scan.sources))
    stage = _Stage(scan.sources, dict(questions), {run_id: clocks[run_id] for run_id in questions})
    reached = {run_id: np.ones(len(question.calls), np.int64) for run_id, question in questions.items()}
    taken: dict[str, list[Int64s]] = {run_id: [] for run_id in questions}
    for row in tasks.mapInArrow(stage, "run_id string, reached binary, taken binary").toLocalIterator():
        run_id = row["run_id"]
        np.maximum(reached[run_id], _unpacked(row["reached"]), out=reached[run_id])
        taken[run_id].append(_unpacked(row["taken"]))
    return {
        run_id: Answer(reached[run_id].tolist(), stretches_of(np.unique(np.concatenate(taken[run_id]))))
        for run_id in questions
    }


class _Stage:
    """Of each source, for each run: what is reached, by call; the revisions of changes, ascending. Both `_packed`."""

    def __init__(
        self, sources: Sequence[Source], questions: Mapping[str, Question], clocks: Mapping[str, Clocks]
    ) -> None:
        self._sources, self._questions, self._clocks = sources, questions, clocks

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from self._answered(self._sources[row["id"]])

    def _answered(self, source: Source) -> Iterator[pa.RecordBatch]:
        reached: dict[str, Int64s] = {}
        taken: dict[str, list[Int64s]] = {}
        for table in chunks(source, order_only=True):
            assert table is not None, "malformed rows were refused before"
            for run_id, rows in self._runs(Frame(conform(table))):
                question = self._questions[run_id]
                told = rows.reached(question.calls)
                reached[run_id] = np.maximum(reached.get(run_id, told), told)
                taken.setdefault(run_id, []).append(rows.taken(question.low, question.high))
        for run_id, revisions in taken.items():
            packed = [_packed(reached[run_id]), _packed(np.unique(np.concatenate(revisions)))]
            arrays: list[pa.Array[Any]] = [pa.array([one], pa.binary()) for one in packed]
            yield pa.RecordBatch.from_arrays([pa.array([run_id], pa.string()), *arrays], names=list(_ANSWERED))

    def _runs(self, frame: Frame) -> Iterator[tuple[str, RowsOfFrame]]:
        run = frame.codes("run_id")
        taking, changed = taking_part(frame), changes_of_one_key(frame) | look_at_many(frame).changed
        for code, run_id in enumerate(run.texts):
            if run_id in self._questions:
                rows = np.flatnonzero(run.ids == code)
                mine = rows[taking[rows]]
                yield run_id, RowsOfFrame(frame, rows, mine, mine[changed[mine]], self._clocks[run_id])


def _packed(numbers: Int64s) -> bytes:
    """As steps: those of revisions are mostly small, so that they take little room."""
    return zlib.compress(np.diff(numbers, prepend=0).tobytes(), 1)


def _unpacked(packed: bytes) -> Int64s:
    numbers: Int64s = np.cumsum(np.frombuffer(zlib.decompress(packed), np.int64))
    return numbers


class RowsOfSpark:
    """`held.Rows` of one run. `rows`: those of `load`, of all runs."""

    def __init__(self, rows: "DataFrame", run_id: str, clocks: Clocks) -> None:
        self._rows = rows.where(f.col("run_id") == run_id)
        self._taking = self._rows.where(_TAKES_PART)
        self._clocks = clocks

    def by_id(self, op_ids: Sequence[int]) -> Mapping[int, Row]:
        some = self._rows.where(f.col("op_id").isin(list(op_ids))).select(*SHOWN)
        return {row["op_id"]: row.asDict() for row in some.collect()}

    def changes(self, revisions: Sequence[int]) -> Sequence[Row]:
        some = self._taking.where(_CHANGES).where(f.col("revision").isin(list(revisions))).select(*SHOWN, "output")
        return [row.asDict(recursive=True) for row in some.collect()]

    def returned_before(self, told: Told) -> Row:
        assert told.by is not None
        _, call, name = told.by
        late = f.lit(False)
        for other in sorted(row["clock_id"] for row in self._taking.select("clock_id").distinct().collect()):
            margin = self._clocks.margin_ns(other, name)
            if margin is not None:
                late = late | ((f.col("clock_id") == other) & (f.col("return_ns") < max(-(2**63), call - margin)))
        first = self._taking.where(late & (f.col("revision") >= told.revision)).select(*SHOWN)
        (row,) = first.orderBy("revision", "call_ns", "op_id").limit(1).collect()
        return dict(row.asDict())
