"""Parquet histories opened for reading: which columns, and which as dictionaries. The same for both engines."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from spark_audit.history.rows import FIELDS, MANY
from spark_audit.tables.frame import NAMES

_ONLY_SHOWN = ("session", "error", "node")  # Nothing is decided by these.
_ONLY_MANY = ("request", "output.items", "output.results")


def open_table(path: str) -> parquet.ParquetFile:
    """Texts that come again are read as dictionaries, those that there are: Arrow knows no other names."""
    have = parquet.read_schema(path).names
    return parquet.ParquetFile(path, read_dictionary=[name for name in NAMES if name in have])


def leaves(file: parquet.ParquetFile, ops: "pa.ChunkedArray[Any]", *, shown: bool = False) -> list[str]:
    """The columns to read where these operations are, with those that are only `shown` if they are wanted.

    The ones of listings and transactions cost three times as much as all others: only if there are any.
    """
    known = {name for name, _ in FIELDS if shown or name not in _ONLY_SHOWN}
    paths = [file.schema.column(number).path for number in range(len(file.schema))]
    wanted = [path for path in paths if path.split(".")[0] in known]
    if any(op in MANY for op in ops.unique().to_pylist()):
        return wanted
    kept = [path for path in wanted if not path.startswith(tuple(f"{name}." for name in _ONLY_MANY))]
    answers = [path for path in wanted if path.startswith("output.")]
    return kept if any(path in kept for path in answers) else kept + answers[:1]  # Else none would seem to be there.
