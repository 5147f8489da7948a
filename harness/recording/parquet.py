"""Histories as Parquet: many small files, each complete, so that a killed harness leaves only readable files.

This module needs pyarrow, an optional extra, so other modules import it only when they use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_RECORD: list[tuple[str, pa.DataType]] = [
    ("value", pa.string()),
    ("create_revision", pa.int64()),
    ("mod_revision", pa.int64()),
    ("version", pa.int64()),
]
_SEEN: list[tuple[str, pa.DataType]] = [
    ("succeeded", pa.bool_()),
    ("found", pa.bool_()),
    *_RECORD,
    ("deleted_revision", pa.int64()),
    ("exact", pa.bool_()),
    ("items", pa.list_(pa.struct([("key", pa.string()), *_RECORD]))),
    ("more", pa.bool_()),
    ("count", pa.int64()),
]
_OUTPUT = pa.struct(
    [
        *_SEEN,
        ("results", pa.list_(pa.struct([("op", pa.string()), *_SEEN]))),
        ("answer", pa.string()),
    ]
)

_ROW: list[tuple[str, pa.DataType]] = [
    ("run_id", pa.string()),
    ("op_id", pa.int64()),
    ("client", pa.string()),
    ("session", pa.int64()),
    ("op", pa.string()),
    ("key", pa.string()),
    ("value", pa.string()),
    ("expected", pa.string()),
    ("expected_mod_revision", pa.int64()),
    ("request", pa.string()),
    ("output", _OUTPUT),
    ("status", pa.string()),
    ("error", pa.string()),
    ("call_ns", pa.int64()),
    ("return_ns", pa.int64()),
    ("clock_id", pa.string()),
    ("revision", pa.int64()),
    ("consistency", pa.string()),
    ("node", pa.string()),
    # Only the harness reads this column. The audit reads the columns of docs/reference/specification.md#103-row.
    ("age_ms", pa.int64()),
]
SCHEMA = pa.schema(_ROW)
# A file has these columns only if one of its rows has one of these fields. All other files have the schema SCHEMA.
_LEVEL_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("acknowledge", pa.string()),
    ("acknowledged_by", pa.list_(pa.string())),
    ("under_replicated", pa.bool_()),
    ("accepted_index", pa.int64()),
    ("accepted_term", pa.int64()),
]
_LEVEL_SCHEMA = pa.schema([*_ROW, *_LEVEL_COLUMNS])
_SLICE_ROWS = 100  # Encoding this many rows takes a few milliseconds.


class ParquetFiles:
    """Writes rows to FOLDER/rows-00000.parquet, -00001 …; each file is renamed into place when it is complete.

    Once `rows_max` rows wait, `flush` starts a new file with these rows. A thread encodes the file while further rows
    arrive. If `rows_max` further rows have arrived before the thread is done, `flush` waits for the thread.
    """

    def __init__(self, folder: Path, *, rows_max: int) -> None:
        assert rows_max > 0
        self._folder, self._rows_max = folder, rows_max
        self._pending: list[dict[str, object]] = []
        self._files = 0
        self._encoder = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parquet")
        self._under_way: Future[None] | None = None

    def add(self, row: dict[str, object]) -> None:
        self._pending.append(row)

    def flush(self) -> None:
        """Start a new file if enough rows wait. Raises the error of the previous file if its encoding failed.

        A killed harness loses the rows that still wait, but `calls.jsonl` has the calls of the writes among them.
        """
        if len(self._pending) >= self._rows_max:
            self._write()

    def close(self) -> None:
        """Write the remaining rows, and return once all files are complete. The method may be called twice."""
        if self._pending:
            self._write()
        self._wait()
        self._encoder.shutdown()

    def _write(self) -> None:
        self._wait()
        path = self._folder / f"rows-{self._files:05d}.parquet"
        self._under_way = self._encoder.submit(_encode, path, self._pending)
        self._files += 1
        self._pending = []

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None


def _encode(path: Path, rows: list[dict[str, object]]) -> None:
    """Write one file. The rows are converted in slices, because each conversion holds Python's global lock."""
    aside = path.with_suffix(".tmp")
    schema = _LEVEL_SCHEMA if any("acknowledge" in row for row in rows) else SCHEMA
    with pq.ParquetWriter(aside, schema) as file:
        slices = [rows[at : at + _SLICE_ROWS] for at in range(0, len(rows), _SLICE_ROWS)]
        file.write_table(pa.concat_tables(pa.Table.from_pylist(each, schema=schema) for each in slices))
    aside.replace(path)


def read_parquet(path: Path) -> Iterator[dict[str, object]]:
    """Yield the rows of one file as they were added. Parquet has a null for each absent field; these nulls are removed
    at every level, except `return_ns`.
    """
    for row in pq.read_table(path, schema=_LEVEL_SCHEMA).to_pylist():
        yield {"return_ns": None, **_without_nulls(row)}


def _without_nulls(value: dict[str, object]) -> dict[str, object]:
    return {name: _clean(item) for name, item in value.items() if item is not None}


def _clean(value: object) -> object:
    if isinstance(value, dict):
        return _without_nulls(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
