"""Histories as Arrow tables and Parquet files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from spark_audit.history.rows import FIELDS, Type
from spark_audit.tables.frame import schema
from spark_audit.testing.generate import Row

_ATOMS: dict[str, pa.DataType] = {"string": pa.string(), "long": pa.int64(), "boolean": pa.bool_()}


def _arrow(wanted: Type) -> pa.DataType:
    if isinstance(wanted, str):
        return _ATOMS[wanted]
    if isinstance(wanted, list):
        return pa.list_(_arrow(wanted[0]))
    fields: list[pa.Field[Any]] = [pa.field(name, _arrow(inner)) for name, inner in wanted]
    return pa.struct(fields)


SCHEMA: pa.Schema = pa.schema([pa.field(name, _arrow(kind)) for name, kind in FIELDS])


def history_table(rows: Iterable[Row]) -> pa.Table:
    """The rows as a table with the columns of a file."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA)


def write_table(path: Path, rows: list[Row], **options: Any) -> None:
    """Write the rows to a Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema(names_coded=False)), path, **options)
