"""Writes rows to a file, JSON lines or Parquet. The file gets its final name only when it is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from spark_audit.errors import UnreadablePath
from spark_audit.history.paths import replaceable_file
from spark_audit.history.rows import FIELDS, Type

ROWS_PER_GROUP = 50_000  # The number of rows in a row group of a Parquet file. One group at a time is in memory.


class RowWriter(Protocol):
    """A file of rows that is being written."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        ...

    def close(self) -> None:
        """Write the buffered rows, and close the file."""
        ...


@contextmanager
def rows_file(path: Path, *, replace: bool = False) -> Iterator[RowWriter]:
    """Open a writer for the body. Until the body ends, the file has a temporary name in the folder of `path`.

    Then the file is renamed to `path`. If there was an error, the file is removed instead. Raises UnreadablePath if
    `path` does not end in .jsonl or .parquet, if it exists and `replace` is False, or if the file cannot be created.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise UnreadablePath(str(path), "write to a name that ends in .jsonl or .parquet")
    if path.exists() and not replace:
        raise UnreadablePath(str(path), "is there already; --force replaces it")
    path = replaceable_file(path)
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        rows: RowWriter = _JsonLinesWriter(part) if path.suffix == ".jsonl" else _ParquetWriter(part)
    except ImportError as error:
        reason = f"Parquet needs {error.name}: pip install 'highwatermark[audit]', or write .jsonl"
        raise UnreadablePath(str(path), reason) from error
    except OSError as error:
        raise UnreadablePath(str(path), f"cannot be written: {error.strerror or error}") from error
    try:
        try:
            yield rows
        finally:
            rows.close()
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class _JsonLinesWriter:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(self._encode(row) + "\n")

    def close(self) -> None:
        self._file.close()


class _ParquetWriter:
    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        self._schema = pa.schema([(name, _arrow(wanted)) for name, wanted in FIELDS])
        self._to_table = pa.Table.from_pylist
        self._writer = parquet.ParquetWriter(str(path), self._schema)
        self._rows: list[Mapping[str, Any]] = []

    def write(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROWS_PER_GROUP:
            self._flush()

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(self._to_table(self._rows, schema=self._schema))
        self._rows.clear()


def _arrow(wanted: Type) -> Any:
    import pyarrow as pa

    if isinstance(wanted, str):
        return {"string": pa.string(), "long": pa.int64(), "boolean": pa.bool_()}[wanted]
    if isinstance(wanted, list):
        return pa.list_(_arrow(wanted[0]))
    return pa.struct([(name, _arrow(inner)) for name, inner in wanted])
