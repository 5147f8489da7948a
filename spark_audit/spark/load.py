"""Reads histories into Spark with an explicit schema, and finds the malformed rows, with their files and lines.

Each row has a column `_at`, its position in the scan. For the few rows that are shown, `_at` is converted to a file and
line. The conversion needs the least `_at` and the number of rows of each file split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark.sql import functions as f
from pyspark.sql import types as spark

from spark_audit.errors import Fault, MalformedHistory
from spark_audit.history.paths import HistoryFile, read_run_file
from spark_audit.history.recorded_files import RECORD_SUFFIX, LeftOut, left_out_of, torn_line
from spark_audit.history.rows import FIELDS, RULES, UNREADABLE, Type, problem, read_line, text_fields
from spark_audit.tables.parquet import check_footers

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# This number is added to the `_at` of each row of a Parquet file, so that no JSON line has the same `_at`.
PARQUET_AT = 1 << 60
_ATOMS: dict[str, spark.DataType] = {
    "string": spark.StringType(),
    "long": spark.LongType(),
    "boolean": spark.BooleanType(),
}


def row_schema() -> spark.StructType:
    """Return the fields of a row as a Spark schema. All fields are nullable.

    RULES check which fields are required, because their errors name the line. The schema does not check it. See
    docs/reference/specification.md#103-row.
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


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rows of some files.

    The columns of `rows` are the fields of a row, `_at`, `_file`, `_problem` (null if the row is well-formed), and
    `_raw` (the text of the line, if the row is malformed). `scans`: the DataFrames that read the files.
    """

    rows: DataFrame
    scans: tuple[DataFrame, ...]


def load(spark_session: SparkSession, files: Sequence[HistoryFile]) -> Loaded:
    """Plan to read `files`, which must not be empty. Of the files, only Parquet footers are read now.

    Raises MalformedHistory if a Parquet file is damaged, or if its columns have wrong types.
    """
    texts = [str(file.path.resolve()) for file in files if not file.parquet]
    tables = [str(file.path.resolve()) for file in files if file.parquet]
    check_footers(tables)
    scans: list[DataFrame] = []
    parsed: list[DataFrame] = []
    if texts:
        text = _placed(spark_session.read.option("lineSep", "\n").text(texts), 0)
        scans.append(text)
        torn = [line for path in texts if (line := torn_line(path)) is not None]
        # The op_id makes each line unique, so no whole line equals a torn line of a recorder.
        parsed.append(_parsed(text.where(~f.col("value").cast("binary").isin(torn)) if torn else text))
        folders = {file.folder for file in files if file.path.name.endswith(RECORD_SUFFIX)}
        for folder in sorted(folders):
            if left_out := left_out_of(folder):
                of_recorder = f.col("_file").endswith(RECORD_SUFFIX)
                mine = of_recorder & (f.col("run_id") == f.lit(read_run_file(folder).get("run_id")))
                parsed[0] = parsed[0].where(~f.coalesce(mine & _is_left_out(left_out), f.lit(False)))
    if tables:
        table = _placed(spark_session.read.schema(row_schema()).parquet(*tables), PARQUET_AT)
        scans.append(table)
        plain = table.withColumn("_raw", f.lit(None).cast("string")).withColumn("_unreadable", f.lit(False))
        parsed.append(_with_problem(plain.drop("_block")))
    return Loaded(reduce(lambda one, other: one.unionByName(other), parsed), tuple(scans))


def _is_left_out(left_out: LeftOut) -> Column:
    """Return whether the key of a row is left out; null for a row without a key."""
    key = f.col("key")
    is_base64 = key.startswith("base64:")
    data = f.when(is_base64, f.unbase64(f.substring(key, len("base64:") + 1, 2**31 - 1))).otherwise(key.cast("binary"))
    found = key.isin(*left_out.keys)
    for start, end in left_out.ranges:
        inside = data >= f.lit(start)
        found |= inside if end is None else inside & (data < f.lit(end))
    return found


def _placed(scan: DataFrame, base: int) -> DataFrame:
    return scan.select(
        "*",
        (f.monotonically_increasing_id() + f.lit(base)).alias("_at"),
        f.col("_metadata.file_path").alias("_file"),
        f.col("_metadata.file_block_start").alias("_block"),
    )


def _parsed(text: DataFrame) -> DataFrame:
    """Parse the lines. Each line is first enclosed in another JSON object, so that text after the row is an error."""
    schema = (
        spark.StructType().add("row", row_schema()).add("end", spark.LongType()).add("_corrupt", spark.StringType())
    )
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt", "allowSingleQuotes": "false"}
    wrapped = f.concat(f.lit('{"row":'), f.col("value"), f.lit(',"end":1}'))
    rows = text.where(f.trim("value") != "").select(
        f.from_json(wrapped, schema, options).alias("line"), f.col("value").alias("_raw"), "_at", "_file"
    )
    names = "|".join(sorted(text_fields()))
    # Whether a text field has a value other than text or null.
    coerced = f.col("_raw").rlike(rf'[{{,]\s*"(?:{names})"\s*:\s*(?!"|null\b)\S')
    broken = f.col("line._corrupt").isNotNull() | f.col("line.end").isNull() | f.col("line.row").isNull()
    unreadable = broken | coerced | ~f.is_valid_utf8("_raw")
    return _with_problem(rows.select("line.row.*", "_raw", "_at", "_file", unreadable.alias("_unreadable")))


def _with_problem(rows: DataFrame) -> DataFrame:
    found = f.when(f.col("_unreadable"), f.lit(UNREADABLE))
    for rule in RULES:
        found = found.when(f.expr(rule.sql), f.lit(rule.reason))
    checked = rows.withColumn("_problem", found)
    return checked.withColumn("_raw", f.when(f.col("_problem").isNotNull(), f.col("_raw"))).drop("_unreadable")


def local_path(uri: str) -> str:
    """Return the path in a file URI, which Spark writes as file:///x or file:/x."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri


class SplitLocations:
    """Converts `_at` to a file and line. The rows of each file split are counted once, when the object is made."""

    def __init__(self, loaded: Loaded) -> None:
        # (least `_at`, file, start of the split in bytes, number of rows)
        self._splits: list[tuple[int, str, int, int]] = []
        for scan in loaded.scans:
            counted = scan.groupBy("_file", "_block").agg(f.min("_at").alias("first"), f.count("*").alias("rows"))
            self._splits += [(r["first"], r["_file"], r["_block"], r["rows"]) for r in counted.collect()]
        self._splits.sort()

    def fault(self, at: int, reason: str) -> Fault:
        """Return the fault of the row with this `_at`, with its file and line."""
        first, file, block, _ = max(split for split in self._splits if split[0] <= at)
        before = sum(rows for _, other, start, rows in self._splits if other == file and start < block)
        return Fault(local_path(file), before + at - first + 1, reason)


def refuse(loaded: Loaded, bad: Sequence[tuple[int, str, str | None]], count: int) -> MalformedHistory:
    """Return the error for malformed rows. `bad`: (`_at`, reason, text of the line if it could not be read)."""
    locations = SplitLocations(loaded)
    faults = [locations.fault(at, precise_reason(reason, raw)) for at, reason, raw in bad]
    return MalformedHistory(tuple(sorted(faults, key=lambda fault: (fault.file, fault.line))), count)


def precise_reason(reason: str, raw: str | None) -> str:
    """Return a more precise reason for a line that Spark could not read, from Python's JSON parser.

    `raw`: the text of the line; if it is None, `reason` is returned.
    """
    if raw is None:
        return reason
    row, broken = read_line(raw)
    return broken or problem(row) or reason
