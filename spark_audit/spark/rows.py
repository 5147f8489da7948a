"""Implements `RunRows` on Spark: searches the files again for rows that findings show or that new decisions need.

Most requests are for rows near unknown writes. Tasks find the rows for all windows of such a request in Arrow tables,
in one pass over the files. The driver holds the rows that were found. Mostly there are few such rows; at most, there
are about ROWS_MAX per window and source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from spark_audit.history.clocks import Clocks
from spark_audit.spark.load import row_schema
from spark_audit.spark.revisions import revision_facts, rows_by_run
from spark_audit.spark.scan import Scan, Source, plain_frames
from spark_audit.store.gap_reassignment import RevisionWindow
from spark_audit.store.revision_claims import CallStamp, RevisionClaim
from spark_audit.tables.conform import conform, joined
from spark_audit.tables.frame import Frame, Row, distinct, schema
from spark_audit.tables.revisions import SHOWN, TO_DECIDE, RowsOfFrame
from spark_audit.tables.services import Settled, plain
from spark_audit.tables.shuffle import piece_of, read_piece
from spark_audit.verdict.cross_key import RevisionQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TAKES_PART = (
    "status = 'ok' and revision is not null and not (consistency <=> 'local') and not (consistency <=> 'bounded')"
)
_CHANGES = (
    "op in ('put', 'append') or (op = 'delete' and output.found) or (op = 'cas' and output.succeeded) or (op = 'txn' "
    "and exists(output.results, r -> r.op = 'put' or (r.op = 'delete' and coalesce(r.found, false))))"
)

_SENT = ["run_id", *TO_DECIDE]
Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class _RowRequest:
    """A request for the rows in `windows`, and for the writes of unknown outcome of the keys in `unknown_of`."""

    windows: tuple[RevisionWindow, ...]
    unknown_of: frozenset[str]


def _gatherer(sources: Sequence[Source], settled: Settled, run_id: str, request: _RowRequest) -> Stage:
    def gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                for piece in _pieces(sources[row["id"]], settled, run_id, request):
                    yield pa.RecordBatch.from_arrays([pa.array([piece], pa.binary())], names=["rows"])

    return gather


def _pieces(source: Source, settled: Settled, run_id: str, request: _RowRequest) -> Iterator[bytes]:
    keys = sorted(request.unknown_of)
    for frame in plain_frames(source, settled):
        for _, mine in rows_by_run(frame, {run_id: Clocks({})}):
            rows = distinct(np.concatenate((mine.numbers_in(request.windows), mine.numbers_of_unknown(keys))))
            if len(rows):
                yield piece_of(frame.table.take(rows).cast(schema(names_coded=False)).select(_SENT))


def plain_rows_of(rows: DataFrame, settled: Settled) -> DataFrame:
    """Return the plain rows of these well-formed rows (`plain` in tables/services.py), with the fields of a row."""
    fields = row_schema()
    sent = to_arrow_schema(fields)

    def replaced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            frame = plain(Frame(conform(pa.Table.from_batches([batch]))), settled)
            yield from pa.Table.from_pylist(frame.table.to_pylist(), schema=sent).to_batches()

    return rows.select(*fields.names).mapInArrow(replaced, fields)


class RowsOfSpark:
    """An implementation of `RunRows` for one run.

    `rows`: returns the plain rows of all runs. `scan`: the scan of the files with these rows.
    """

    def __init__(self, rows: Callable[[], DataFrame], run_id: str, clocks: Clocks, scan: Scan) -> None:
        self._of_all, self._run_id, self._clocks, self._scan = rows, run_id, clocks, scan
        # Key → its unknown writes. These writes are collected in the same pass as the rows of a window, because they
        # are requested next.
        self._unknown: dict[str, Sequence[Row]] = {}

    @property
    def _rows(self) -> DataFrame:
        return self._of_all().where(f.col("run_id") == self._run_id)

    @property
    def _taking(self) -> DataFrame:
        return self._rows.where(_TAKES_PART)

    def reached(self, calls: Sequence[CallStamp]) -> Sequence[int]:
        """Find, in one pass over the files, the highest revision among the rows that returned before each call."""
        query = {self._run_id: RevisionQuery(tuple(calls), 1, 0)}
        return revision_facts(self._scan, query, {self._run_id: self._clocks})[self._run_id].reached

    def rows_in(self, windows: Sequence[RevisionWindow]) -> Iterator[Sequence[Row] | None]:
        """Find the rows of all windows and the unknown writes of their keys, in one pass over the files."""
        found = self._gathered(
            _RowRequest(tuple(windows), frozenset(one.key for one in windows) - self._unknown.keys())
        )
        self._unknown |= found.unknown_writes(sorted({one.key for one in windows} - self._unknown.keys()))
        return found.rows_in(windows)

    def unknown_writes(self, keys: Sequence[str]) -> Mapping[str, Sequence[Row]]:
        """Return the unknown writes of these keys. If some of these keys have not been requested before, a pass over
        the files finds their writes.
        """
        if fresh := frozenset(keys) - self._unknown.keys():
            self._unknown |= self._gathered(_RowRequest((), fresh)).unknown_writes(sorted(fresh))
        return {key: self._unknown[key] for key in keys}

    def _gathered(self, request: _RowRequest) -> RowsOfFrame:
        """Return the rows of this request, possibly with some others."""
        scan = self._scan
        tasks = scan.session.range(0, len(scan.sources), 1, len(scan.sources))
        stage = _gatherer(scan.sources, scan.settled, self._run_id, request)
        with scan.handing_over_few():
            pieces = [row["rows"] for row in tasks.mapInArrow(stage, "rows binary").collect()]
        frame = Frame(
            joined([schema(names_coded=True).empty_table(), *(conform(read_piece(piece)) for piece in pieces)])
        )
        every = dict(rows_by_run(frame, {self._run_id: self._clocks}))
        nothing = np.zeros(0, np.int64)
        return every.get(self._run_id, RowsOfFrame(frame, nothing, nothing, nothing, self._clocks))

    def by_id(self, op_ids: Sequence[int]) -> Mapping[int, Row]:
        """Collect the rows with these op_ids."""
        some = self._rows.where(f.col("op_id").isin(list(op_ids))).select(*SHOWN)
        return {row["op_id"]: row.asDict() for row in some.collect()}

    def changes(self, revisions: Sequence[int]) -> Sequence[Row]:
        """Collect the changes at these revisions."""
        some = self._taking.where(_CHANGES).where(f.col("revision").isin(list(revisions))).select(*SHOWN, "output")
        return [row.asDict(recursive=True) for row in some.collect()]

    def returned_before(self, claim: RevisionClaim) -> Row:
        """Find the first row that contradicts the claim."""
        assert claim.by is not None
        _, call, name = claim.by
        late = f.lit(False)
        for other in sorted(row["clock_id"] for row in self._taking.select("clock_id").distinct().collect()):
            margin = self._clocks.margin_ns(other, name)
            if margin is not None:
                late = late | ((f.col("clock_id") == other) & (f.col("return_ns") < max(-(2**63), call - margin)))
        first = self._taking.where(late & (f.col("revision") >= claim.revision)).select(*SHOWN)
        (row,) = first.orderBy("revision", "call_ns", "op_id").limit(1).collect()
        return dict(row.asDict())
