"""Finds *hot* keys, which have very many operations, in a sample that is taken before rows are shuffled.

A poor sample can make the audit use more memory, but it never changes a decision.

A task reads all keys of a Parquet source. If some key may be hot, the task sends every SAMPLE_STRIDE-th row to the
driver. If the source has JSON lines, a task reads only some parts of it, and sends all rows of these parts. From these
rows, the driver cuts each hot key into ranges of about `LIMITS.range` rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json
import pyarrow.parquet as parquet

from spark_audit.columnar.columns import Int64s
from spark_audit.history.clocks import Clocks
from spark_audit.tables.decide_keys import DecidedTable
from spark_audit.tables.effects import changes_of_one_key
from spark_audit.tables.frame import Frame
from spark_audit.tables.order import ranked
from spark_audit.tables.ranges import HOT_ROWS, LIMITS, Limits, decide_in_ranges
from spark_audit.tables.shuffle import concat

SAMPLE_STRIDE = 256  # One row in this many is sampled. So a key of HOT_ROWS rows has about 2,000 rows in the sample.
_LINES_EVERY_BYTES = 1 << 24
# This many of every _LINES_EVERY_BYTES bytes of JSON lines are read. So each sampled row stands for several rows.
_LINES_BYTES = 1 << 18
SAMPLE = "run_id string, key string, revision long, call_ns long, weight long"
_FIELDS: list[tuple[str, pa.DataType]] = [
    ("run_id", pa.string()),
    ("key", pa.string()),
    ("revision", pa.int64()),
    ("call_ns", pa.int64()),
    ("weight", pa.int64()),
]
_SCHEMA: pa.Schema = pa.schema(_FIELDS)
_READ = ["run_id", "key", "revision", "call_ns"]


@dataclass(frozen=True, slots=True)
class HotKey:
    """One hot key. `ranks`, `calls`: the (rank, call) at which each range after the first begins, ascending.

    Here the rank of an operation is 2·revision, plus one if the operation changes nothing.
    """

    run_id: str
    key: str
    ranks: tuple[int, ...]
    calls: tuple[int, ...]

    def ranges_of(self, rank: Int64s, call: Int64s) -> Int64s:
        """Return for each of these operations the number of its range."""
        ranks, calls = np.array(self.ranks, np.int64), np.array(self.calls, np.int64)
        place: Int64s = np.searchsorted(ranks, rank, side="left")
        behind = np.searchsorted(ranks, rank, side="right")
        # If a range begins at this rank, the call decides whether the operation belongs to the range.
        for begin in np.unique(place[behind > place]).tolist():
            same = (place == begin) & (behind > begin)
            end = int(behind[np.argmax(same)])
            place[same] = begin + np.searchsorted(calls[begin:end], call[same], side="right")
        return place


def sample_table(path: str, first: int, last: int, rows_min: int) -> pa.Table:
    """Return every SAMPLE_STRIDE-th row of the row groups in [`first`, `last`) of a Parquet file.

    The sample is empty if a column is missing, or if no key has `rows_min` rows in these groups. To count the rows of
    each key, only the column of keys is read.
    """
    groups = list(range(first, last))
    if not groups or not set(_READ) <= set(parquet.read_schema(path).names):
        return _SCHEMA.empty_table()
    with parquet.ParquetFile(path, read_dictionary=["key"]) as file:
        keys = file.read_row_groups(groups, columns=["key"], use_threads=False).unify_dictionaries().column("key")
        most: Any = pc.max(keys.value_counts().field("counts"))
        if (most.as_py() or 0) < rows_min:
            return _SCHEMA.empty_table()
        rest = [name for name in _READ if name != "key"]
        table = file.read_row_groups(groups, columns=rest, use_threads=False).append_column("key", keys)
    rows = np.arange(0, table.num_rows, SAMPLE_STRIDE)
    return _weighted(table.take(rows), SAMPLE_STRIDE)


def sample_lines(path: str, first: int, last: int) -> pa.Table:
    """Return a sample of the JSON lines from byte `first` to `last`: the whole lines in parts of _LINES_BYTES each."""
    parts: list[pa.Table] = []
    with Path(path).open("rb") as file:
        for begin in range(first, last, _LINES_EVERY_BYTES):
            file.seek(begin)
            text = file.read(_LINES_BYTES)
            whole = text[text.find(b"\n") + 1 : text.rfind(b"\n") + 1]
            if whole:
                weight = max(1, min(last - begin, _LINES_EVERY_BYTES) // len(whole))
                parts.append(_weighted(_parsed(whole), weight))
    return pa.concat_tables(parts) if parts else _SCHEMA.empty_table()


def _parsed(lines: bytes) -> pa.Table:
    options = arrow_json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
    return arrow_json.read_json(BytesIO(lines), parse_options=options).select(_READ)


def _weighted(table: pa.Table, weight: int) -> pa.Table:
    weights = pa.array(np.full(table.num_rows, weight, np.int64))
    return table.select(_READ).append_column("weight", weights).cast(_SCHEMA)


def hot_keys(samples: Iterable[pa.Table], rows_min: int = HOT_ROWS, range_rows: int = LIMITS.range) -> list[HotKey]:
    """Return the keys that, according to the samples, have more than `rows_min` rows, sorted by name.

    Each key is cut into ranges of about `range_rows` rows.
    """
    tables = list(samples)
    table = pa.concat_tables(tables) if tables else _SCHEMA.empty_table()
    named = table.filter(table.column("key").is_valid())
    rows = named.group_by(["run_id", "key"]).aggregate([("weight", "sum")]).to_pylist()
    names = sorted((row["run_id"], row["key"]) for row in rows if row["weight_sum"] > rows_min)
    return [_cut(named, run_id, key, range_rows) for run_id, key in names]


def _cut(sample: pa.Table, run_id: str, key: str, range_rows: int) -> HotKey:
    runs, keys = (np.asarray(sample.column(name).to_numpy()) for name in ("run_id", "key"))
    mine = sample.take(np.flatnonzero((runs == run_id) & (keys == key)))
    mine = mine.filter(mine.column("revision").is_valid())
    revision, call, weight = (np.asarray(mine.column(name).to_numpy()) for name in ("revision", "call_ns", "weight"))
    order = np.lexsort((call, revision))
    reached = np.cumsum(weight[order]) // range_rows
    begins = order[np.flatnonzero(np.diff(reached, prepend=0) > 0)]
    return HotKey(run_id, key, tuple((2 * revision[begins] + 1).tolist()), tuple(call[begins].tolist()))


def sampled(sources: Sequence[tuple[str, int, int, bool]], rows_min: int) -> Iterator[pa.Table]:
    """Yield a sample of each source. `sources`: (path, first, last, whether the file has JSON lines).

    `first` and `last` are numbers of row groups, or, for JSON lines, positions in bytes. Sources that cannot be read
    are skipped; their errors are reported elsewhere. `rows_min`: see `sample_table`.
    """
    for path, first, last, lines in sources:
        try:
            yield sample_lines(path, first, last) if lines else sample_table(path, first, last, rows_min)
        except (pa.ArrowException, OSError, ValueError):
            continue


def decide_parts(
    parts: Iterable[tuple[int, pa.Table]], clocks: Clocks, configurations_max: int, limits: Limits = LIMITS
) -> DecidedTable:
    """Decide one hot key. `parts`: (place, rows); the places ascend, and each occurs once (see `ShufflePiece`)."""
    coming = iter(parts)
    place, table = next(coming)
    run_id = str(table.column("run_id")[0])
    unranked, coming = (table, coming) if place == 0 else (table.slice(0, 0), chain(((place, table),), coming))
    kept = _Kept(limits.whole)
    kept.add(unranked)
    return decide_in_ranges(
        unranked, _ranges(coming, kept, limits), kept.whole, {run_id: clocks}, configurations_max, limits
    )


class _Kept:
    """Collects all rows of a key, unless they are too many to be decided as a whole."""

    def __init__(self, rows_max: int) -> None:
        self._left, self._tables = rows_max, list[pa.Table]()

    def add(self, table: pa.Table) -> None:
        self._left -= table.num_rows
        self._tables = [*self._tables, table] if self._left >= 0 else []

    def whole(self) -> pa.Table | None:
        return concat(self._tables) if self._left >= 0 else None


def _ranges(parts: Iterable[tuple[int, pa.Table]], kept: _Kept, limits: Limits) -> Iterator[pa.Table]:
    """Yield the ranges of the key. If a poor sample made a part much longer than a range, the part is split."""
    for _, table in parts:
        kept.add(table)
        if 2 * table.num_rows <= 3 * limits.range:
            yield table
            continue
        frame = Frame(table)
        order = ranked(frame, np.arange(frame.rows), frame.numbers("revision", 0), changes_of_one_key(frame))
        for begin in range(0, len(order), limits.range):
            yield table.take(order[begin : begin + limits.range])
