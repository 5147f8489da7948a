"""Answers the queries of `verdict/cross_key.py` about the rows of all runs, in one more pass of Spark over the files.

Tasks read the files again as Arrow tables, and compute an answer for each chunk in numpy (`tables/revisions.py`). The
driver merges the answers. The driver holds one number for each call of a query, and the revisions of the changes in the
range of the query.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f

from spark_audit.history.clocks import Clocks
from spark_audit.spark.scan import Scan, Source, plain_frames
from spark_audit.store.revision_claims import CallStamp, RevisionClaim, Traces, UnplacedWrite
from spark_audit.tables.effects import changes_of_one_key, taking_part
from spark_audit.tables.frame import Frame, Int64s, distinct
from spark_audit.tables.multi_key import inspect_multi_key
from spark_audit.tables.revisions import RowsOfFrame, highest_before, revision_ranges
from spark_audit.tables.services import Settled
from spark_audit.verdict.cross_key import RevisionFacts, RevisionQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import Row as SparkRow

_EARLIEST, _LATEST = -(2**63), 2**63 - 1
_ANSWERED = ("run_id", "reached", "taken")


def traces_of(keys: Iterable[SparkRow], runs: Collection[str]) -> dict[str, Traces]:
    """Return run_id → traces for each of these runs that has traces. `keys`: rows of (run_id, key, traces)."""
    claims: dict[str, list[RevisionClaim]] = {}
    unplaced: dict[str, list[UnplacedWrite]] = {}
    for row in sorted((row["run_id"], row["key"], row["traces"]) for row in keys if row["run_id"] in runs):
        run_id, key, packed = row
        mine = Traces.from_json(key, packed)
        claims.setdefault(run_id, []).extend(mine.claims)
        unplaced.setdefault(run_id, []).extend(mine.unplaced)
    return {run_id: Traces(tuple(claims[run_id]), tuple(unplaced[run_id])) for run_id in claims}


def open_keys_of(keys: DataFrame, runs: Iterable[str]) -> dict[str, list[str]]:
    """Return for each of these runs the keys that need a replay. `keys`: rows of KEY_RESULT."""
    found: dict[str, list[str]] = {}
    wanted = sorted(runs)
    some = keys.where(f.col("needs_replay") & f.col("run_id").isin(wanted)).select("run_id", "key")
    for row in sorted(some.collect()) if wanted else ():
        found.setdefault(row["run_id"], []).append(row["key"])
    return found


def revision_facts(
    scan: Scan, queries: Mapping[str, RevisionQuery], clocks: Mapping[str, Clocks]
) -> dict[str, RevisionFacts]:
    """Return the answer to the query of each run. If there are no queries, no file is read."""
    if not queries:
        return {}
    tasks = scan.session.range(0, len(scan.sources), 1, len(scan.sources))
    stage = _Stage(scan.sources, scan.settled, dict(queries), {run_id: clocks[run_id] for run_id in queries})
    reached = {run_id: np.ones(len(query.calls), np.int64) for run_id, query in queries.items()}
    taken: dict[str, list[Int64s]] = {run_id: [] for run_id in queries}
    for row in tasks.mapInArrow(stage, "run_id string, reached binary, taken binary").collect():
        run_id = row["run_id"]
        np.maximum(reached[run_id], _unpacked(row["reached"]), out=reached[run_id])
        taken[run_id].append(_unpacked(row["taken"]))
    return {
        run_id: RevisionFacts(reached[run_id].tolist(), revision_ranges(distinct(np.concatenate(taken[run_id]))))
        for run_id in queries
    }


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of a query. `by_clock`: clock → (positions of its calls in the query, their stamps, ascending)."""

    count: int
    by_clock: Mapping[str, tuple[Int64s, Int64s]]

    @classmethod
    def of(cls, calls: Sequence[CallStamp]) -> _Calls:
        stamps = np.array([stamp for stamp, _ in calls], np.int64)
        names = np.array([name for _, name in calls], object)
        made: dict[str, tuple[Int64s, Int64s]] = {}
        for name in sorted({name for _, name in calls}):
            places = np.flatnonzero(names == name)
            places = places[np.argsort(stamps[places], kind="stable")]
            made[name] = (places, stamps[places])
        return cls(len(calls), made)


def _reached(rows: RowsOfFrame, calls: _Calls) -> Int64s:
    """Return for each call the highest revision among the rows that returned before it; 1 if there is none.

    Unlike `RowsOfFrame.reached`, this function does not sort the calls again for each chunk.
    """
    found = np.ones(calls.count, np.int64)
    clock = rows.frame.codes("clock_id")
    code = clock.ids[rows.taking]
    ended, revision = (rows.frame.numbers(name, 0)[rows.taking] for name in ("return_ns", "revision"))
    for other in np.unique(code).tolist():
        mine = code == other
        for name, (places, stamps) in calls.by_clock.items():
            margin = rows.clocks.margin_ns(clock.texts[other], name)
            if margin is not None:
                before = highest_before(ended[mine], revision[mine], _less(stamps, margin))
                found[places] = np.maximum(found[places], before)
    return found


def _less(stamps: Int64s, margin: int) -> Int64s:
    """Return each stamp minus the margin. A difference below the range of int64 becomes the least int64."""
    if margin > _LATEST:
        return np.array([max(_EARLIEST, stamp - margin) for stamp in stamps.tolist()], np.int64)
    less: Int64s = np.maximum(stamps, _EARLIEST + margin) - margin
    return less


class _Stage:
    """The stage that yields one answer for each source and run.

    An answer has two `_packed` arrays: for each call of the query, the highest revision before it; and the revisions of
    changes, ascending.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        settled: Settled,
        queries: Mapping[str, RevisionQuery],
        clocks: Mapping[str, Clocks],
    ) -> None:
        self._sources, self._settled, self._queries, self._clocks = sources, settled, queries, clocks
        self._calls = {run_id: _Calls.of(query.calls) for run_id, query in queries.items()}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from self._answered(self._sources[row["id"]])

    def _answered(self, source: Source) -> Iterator[pa.RecordBatch]:
        reached: dict[str, Int64s] = {}
        taken: dict[str, list[Int64s]] = {}
        for frame in plain_frames(source, self._settled, order_only=True):
            for run_id, rows in rows_by_run(frame, self._clocks):
                query = self._queries[run_id]
                highest = _reached(rows, self._calls[run_id])
                reached[run_id] = np.maximum(reached.get(run_id, highest), highest)
                taken.setdefault(run_id, []).append(rows.taken(query.low, query.high))
        for run_id, revisions in taken.items():
            packed = [_packed(reached[run_id]), _packed(distinct(np.concatenate(revisions)))]
            arrays: list[pa.Array[Any]] = [pa.array([one], pa.binary()) for one in packed]
            yield pa.RecordBatch.from_arrays([pa.array([run_id], pa.string()), *arrays], names=list(_ANSWERED))


def rows_by_run(frame: Frame, clocks: Mapping[str, Clocks]) -> Iterator[tuple[str, RowsOfFrame]]:
    """Yield (run_id, the rows of the run in the frame) for each run in `clocks`."""
    run = frame.codes("run_id")
    taking, changed = taking_part(frame), changes_of_one_key(frame) | inspect_multi_key(frame).changed
    for code, run_id in enumerate(run.texts):
        if run_id in clocks:
            rows = np.flatnonzero(run.ids == code)
            mine = rows[taking[rows]]
            yield run_id, RowsOfFrame(frame, rows, mine, mine[changed[mine]], clocks[run_id])


def _packed(numbers: Int64s) -> bytes:
    """Compress the differences between the numbers, because differences between revisions are mostly small."""
    return zlib.compress(np.diff(numbers, prepend=0).tobytes(), 1)


def _unpacked(packed: bytes) -> Int64s:
    numbers: Int64s = np.cumsum(np.frombuffer(zlib.decompress(packed), np.int64))
    return numbers
