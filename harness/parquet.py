"""Histories as Parquet: many small complete files, so that a killed harness leaves only readable ones.

Importing this module needs pyarrow, which is an optional extra: import it late.
"""

from __future__ import annotations

from collections.abc import Iterator
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
_OUTPUT = pa.struct([*_SEEN, ("results", pa.list_(pa.struct([("op", pa.string()), *_SEEN])))])

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
]
SCHEMA = pa.schema(_ROW)


class ParquetFiles:
    """Rows into FOLDER/rows-00000.parquet, -00001 …, each of at most `rows_max` rows, renamed into place when whole."""

    def __init__(self, folder: Path, *, rows_max: int) -> None:
        assert rows_max > 0
        self._folder, self._rows_max = folder, rows_max
        self._pending: list[dict[str, object]] = []
        self._files = 0

    def add(self, row: dict[str, object]) -> None:
        self._pending.append(row)

    def flush(self) -> None:
        """Write a file if enough rows wait for one. Those that do not are covered by the journal of calls."""
        if len(self._pending) >= self._rows_max:
            self._write()

    def close(self) -> None:
        if self._pending:
            self._write()

    def _write(self) -> None:
        path = self._folder / f"rows-{self._files:05d}.parquet"
        aside = path.with_suffix(".tmp")
        pq.write_table(pa.Table.from_pylist(self._pending, schema=SCHEMA), aside)
        aside.replace(path)
        self._files += 1
        self._pending = []


def read_parquet(path: Path) -> Iterator[dict[str, object]]:
    """Yield the rows of one file as they were written: nulls left out on every level, but for `return_ns`."""
    for row in pq.read_table(path, schema=SCHEMA).to_pylist():
        yield {"return_ns": None, **_without_nulls(row)}


def _without_nulls(value: dict[str, object]) -> dict[str, object]:
    return {name: _clean(item) for name, item in value.items() if item is not None}


def _clean(value: object) -> object:
    if isinstance(value, dict):
        return _without_nulls(value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
