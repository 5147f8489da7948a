"""Whether Parquet files have the columns of a history row, told by their footers alone. Both engines ask first."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as parquet

from spark_audit.errors import FAULTS_SHOWN_MAX, Fault, MalformedHistory
from spark_audit.history.rows import FIELDS, Type


def check_footers(tables: Iterable[str]) -> None:
    """Raises MalformedHistory for a Parquet file that is none, or whose columns have other types."""
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
