"""Writes the file of `--keys`: one row per key, with the method that decided it. All engines write the same file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from spark_audit.errors import UnreadablePath
from spark_audit.history.paths import replaceable_file

_KINDS: dict[str, pa.DataType] = {
    "run_id": pa.string(),
    "key": pa.string(),
    "status": pa.string(),
    "method": pa.string(),
    "operations": pa.int64(),
    "weak": pa.int64(),
    "configurations": pa.int64(),
}
KEY_COLUMNS = tuple(_KINDS)
KEYS_AT_ONCE = 10_000  # At most this many rows are Python objects at a time.


def write_key_file(keys: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write these rows, in this order, to a Parquet file with the columns KEY_COLUMNS. Other fields are ignored.

    The file is written under another name and then renamed. Raises UnreadablePath if the file cannot be written, or if
    `path` exists and is not a file.
    """
    schema = pa.schema(_KINDS)
    path = replaceable_file(path)
    aside = path.with_name(f".{path.name}.part")
    rows = iter(keys)
    try:
        with parquet.ParquetWriter(aside, schema) as writer:
            while some := [{name: row[name] for name in KEY_COLUMNS} for row in islice(rows, KEYS_AT_ONCE)]:
                writer.write_batch(pa.RecordBatch.from_pylist(some, schema=schema))
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UnreadablePath(str(path), f"cannot be written ({error.strerror or error})") from error
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
