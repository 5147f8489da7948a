"""The explicit Spark schema of a history row, made from the one table of fields in `history/rows.py`."""

from pyspark.sql import types as spark

from spark_audit.history.rows import FIELDS, Type

_ATOMS: dict[str, spark.DataType] = {
    "string": spark.StringType(),
    "long": spark.LongType(),
    "boolean": spark.BooleanType(),
}


def row_schema() -> spark.StructType:
    """All fields nullable: what must not be null is a rule, which names the line.

    See docs/reference/specification.md#103-row.
    """
    made = _data_type(FIELDS)
    assert isinstance(made, spark.StructType)
    return made


def _data_type(wanted: Type) -> spark.DataType:
    if isinstance(wanted, str):
        return _ATOMS[wanted]
    if isinstance(wanted, list):
        return spark.ArrayType(_data_type(wanted[0]))
    return spark.StructType([spark.StructField(name, _data_type(inner)) for name, inner in wanted])
