"""Checks the columns of Parquet histories, from their footers alone, and selects the columns that an engine reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from spark_audit.errors import FAULTS_SHOWN_MAX, Fault, MalformedHistory
from spark_audit.history.rows import FIELDS, REQUEST_OPS, Type
from spark_audit.tables.frame import NAMES

_ONLY_SHOWN = ("session", "error", "node")  # No decision depends on these columns.
_ONLY_MANY = ("output.items", "output.results", "output.answer")


def check_footers(tables: Iterable[str]) -> None:
    """Check these files. Raises MalformedHistory if a file is not Parquet, or if its columns are not the columns of
    rows."""
    faults: list[Fault] = []
    for path in tables:
        try:
            schema = parquet.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            faults.append(Fault(path, 0, f"is not a Parquet file ({str(error).splitlines()[0]})"))
            continue
        faults.extend(Fault(path, 0, reason) for reason in _column_problems(schema))
    if faults:
        raise MalformedHistory(tuple(faults[:FAULTS_SHOWN_MAX]), len(faults))


def _column_problems(schema: pa.Schema) -> list[str]:
    missing = [name for name in ("run_id", "op_id", "client", "op", "status", "call_ns") if name not in schema.names]
    found = [f"column {name} is missing" for name in missing]
    for name, wanted in FIELDS:
        if schema.names.count(name) > 1:
            found.append(f"column {name} is there twice")
        elif name in schema.names and not _fits(schema.field(name).type, wanted):
            meant = wanted if isinstance(wanted, str) else "the documented structure"
            found.append(f"column {name} is of type {schema.field(name).type}, not {meant}")
    return found


def _fits(have: pa.DataType, wanted: Type) -> bool:
    if pa.types.is_null(have):
        return True
    if isinstance(wanted, str):
        plain = have.value_type if pa.types.is_dictionary(have) else have
        if wanted == "string":
            return pa.types.is_string(plain) or pa.types.is_large_string(plain)
        return pa.types.is_int64(plain) if wanted == "long" else pa.types.is_boolean(plain)
    if isinstance(wanted, list):
        return pa.types.is_list(have) and _fits(have.value_type, wanted[0])
    if not pa.types.is_struct(have):
        return False
    fields = {have.field(i).name: have.field(i).type for i in range(have.num_fields)}
    names = [have.field(i).name for i in range(have.num_fields)]
    return all(names.count(name) < 2 and (name not in fields or _fits(fields[name], inner)) for name, inner in wanted)


def open_table(path: str) -> parquet.ParquetFile:
    """Open a file. The columns NAMES, which repeat few texts, will be read as dictionaries."""
    have = parquet.read_schema(path).names
    return parquet.ParquetFile(path, read_dictionary=[name for name in NAMES if name in have])


def leaves(file: parquet.ParquetFile, ops: pa.ChunkedArray[Any], *, shown: bool = False) -> list[str]:
    """Return the columns to read if these operations occur. `shown`: whether to include columns that are only shown.

    The columns of listings, transactions and services cost three times as much as all other columns. So these columns
    are read only if such an operation occurs, except for `request`, which a put or a get may have, too.
    """
    known = {name for name, _ in FIELDS if shown or name not in _ONLY_SHOWN}
    paths = [file.schema.column(number).path for number in range(len(file.schema))]
    wanted = [path for path in paths if path.split(".")[0] in known]
    if any(op in REQUEST_OPS for op in ops.unique().to_pylist()):
        return wanted
    kept = [path for path in wanted if not f"{path}.".startswith(tuple(f"{name}." for name in _ONLY_MANY))]
    answers = [path for path in wanted if path.startswith("output.")]
    return (
        kept if any(path in kept for path in answers) else kept + answers[:1]
    )  # At least one field of `output` is read, because `output` would otherwise be null.
