"""Gathers the material of a page in Spark. The driver receives only the material that is drawn.

For each violation, the driver receives the operations of the violation and at most NEIGHBOURS_MAX other operations. For
each run that is drawn, the driver receives one row per bucket.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as f
from pyspark.sql import types as spark

from spark_audit.history.operation import WEAK
from spark_audit.history.projection import project
from spark_audit.report.faults import RunAbout
from spark_audit.report.material import (
    LATENCY_BITS,
    NEIGHBOURS_MAX,
    PLOTS_MAX,
    SPAN_NS_MAX,
    Axis,
    Bar,
    BucketCounts,
    Material,
    Plot,
    bar_from,
    bar_of,
    buckets_of,
    margin_ns,
    moments,
    scene,
    wrong_runs,
)
from spark_audit.spark.keys import SINGLE
from spark_audit.spark.load import row_schema
from spark_audit.verdict.verdict import Verdict

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Stage = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_END = "coalesce(return_ns, call_ns)"
_SOUGHT = "violation int, run_id string, key string, moments array<long>, op_ids array<long>, margin long"
_BARS = "violation int, bar string"


def gather(rows: DataFrame, verdict: Verdict, about: Mapping[str, RunAbout]) -> Material:
    """Return the material for the page of this verdict. `rows`: all rows, which must be well-formed.

    `about`: run_id → information about the run, for all runs.
    """
    plots, left_out = _plots(rows, wrong_runs(verdict), about)
    return Material(_scenes(rows, verdict, about), plots, left_out)


# -- violations and their neighbours


def _scenes(rows: DataFrame, verdict: Verdict, about: Mapping[str, RunAbout]) -> tuple[tuple[Bar, ...], ...]:
    own: dict[int, dict[int, Bar]] = {}
    near: dict[int, list[Bar]] = {}
    if any(violation.operations for violation in verdict.violations):
        mine = rows.where(f.col("run_id").isin(wrong_runs(verdict))).select(*row_schema().names)
        for number, bar in _collected(_own(mine, verdict), whole=True):
            own.setdefault(number, {})[bar.op_id] = bar
        for keyed in (True, False):
            for number, bar in _near(mine, verdict, keyed):
                near.setdefault(number, []).append(bar)
    return tuple(
        scene(violation, own.get(number, {}), near.get(number, ()), about[violation.run_id].axis_clock)
        for number, violation in enumerate(verdict.violations)
    )


def _own(rows: DataFrame, verdict: Verdict) -> DataFrame:
    wanted = [
        (number, violation.run_id, op.op_id)
        for number, violation in enumerate(verdict.violations)
        for op in violation.operations
    ]
    sought = rows.sparkSession.createDataFrame(wanted, "violation int, run_id string, op_id long").distinct()
    return rows.join(f.broadcast(sought), ["run_id", "op_id"])


def _near(rows: DataFrame, verdict: Verdict, keyed: bool) -> list[tuple[int, Bar]]:
    """Return (number of the violation, neighbour), either for the violations with a key (`keyed`) or for those without
    a key.
    """
    about = {
        number: violation
        for number, violation in enumerate(verdict.violations)
        if violation.operations and (violation.key is not None) is keyed
    }
    if not about:
        return []
    names = ["run_id", "key"] if keyed else ["run_id"]
    around = _parts(rows, {(v.run_id, str(v.key)) for v in about.values()}) if keyed else rows
    spans = around.groupBy(*names).agg(
        f.count("*").alias("rows"), f.min("call_ns").alias("first"), f.max(f.expr(_END)).alias("last")
    )
    if not keyed:
        spans = spans.where(f.col("run_id").isin(sorted({v.run_id for v in about.values()})))
    margins = {
        tuple(span[name] for name in names): margin_ns(span["last"] - span["first"], span["rows"])
        for span in spans.collect()
        if span["last"] - span["first"] <= SPAN_NS_MAX
    }
    sought = [
        (number, v.run_id, v.key, moments(v), sorted({op.op_id for op in v.operations}), margins[name])
        for number, v in about.items()
        if (name := (v.run_id, v.key) if keyed else (v.run_id,)) in margins
    ]
    if not sought:
        return []
    windows = rows.sparkSession.createDataFrame(sought, _SOUGHT)
    joined = around.join(f.broadcast(windows if keyed else windows.drop("key")), names)
    distance = f"array_min(transform(moments, m -> greatest(call_ns - m, m - {_END}, 0L)))"
    nearest = Window.partitionBy("violation").orderBy("distance", "call_ns", "op_id")
    ranked = (
        joined.withColumn("distance", f.expr(distance))
        .where("distance <= margin and not array_contains(op_ids, op_id)")
        .withColumn("place", f.row_number().over(nearest))
        .where(f.col("place") <= NEIGHBOURS_MAX)
    )
    return _collected(ranked.drop("moments", "op_ids", "margin", "distance", "place"), whole=not keyed)


def _parts(rows: DataFrame, keys: set[tuple[str, str]]) -> DataFrame:
    """Return the projections of the rows (`project`) onto these (run_id, key)."""
    schema = spark.StructType([*row_schema().fields, spark.StructField("weak", spark.StringType()),
                               spark.StructField("changes_store", spark.BooleanType())])  # fmt: skip
    wanted = rows.sparkSession.createDataFrame(sorted(keys), "run_id string, key string")
    plain = rows.where(SINGLE).join(f.broadcast(wanted), ["run_id", "key"], "left_semi")
    single = plain.withColumn("weak", f.lit(None).cast("string")).withColumn("changes_store", f.lit(False))
    cut = rows.where(f"not ({SINGLE})").mapInArrow(_cutter(frozenset(keys), schema), schema)
    return single.unionByName(cut)


def _cutter(keys: frozenset[tuple[str, str]], schema: spark.StructType) -> Stage:
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema)

    def cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pieces = [
                dict(part) for row in batch.to_pylist() for key, part in project(row) if (row["run_id"], key) in keys
            ]  # fmt: skip
            yield pa.RecordBatch.from_pylist(pieces, schema=arrow)

    return cut


def _collected(rows: DataFrame, *, whole: bool) -> list[tuple[int, Bar]]:
    """Return (number of the violation, bar) for each row.

    The executors convert rows to bars, because the response in a row may be very long.
    """

    def draw(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fields: list[pa.Field[Any]] = [pa.field("violation", pa.int32()), pa.field("bar", pa.string())]
        schema = pa.schema(fields)
        for batch in batches:
            made = [
                {"violation": row["violation"], "bar": json.dumps(asdict(bar_of(row, whole=whole)))}
                for row in batch.to_pylist()
            ]
            yield pa.RecordBatch.from_pylist(made, schema=schema)

    return [(row["violation"], bar_from(json.loads(row["bar"]))) for row in rows.mapInArrow(draw, _BARS).collect()]


# -- the whole history over time


def _plots(rows: DataFrame, wrong: Sequence[str], about: Mapping[str, RunAbout]) -> tuple[tuple[Plot, ...], int]:
    placed = _on_axes(rows, about)
    spans = placed.groupBy("run_id", "axis").agg(
        f.count("*").alias("rows"), f.min("call_ns").alias("first"), f.max(f.expr(_END)).alias("last")
    )
    first = (~f.col("run_id").isin(list(wrong)), "run_id", f.desc("rows"), "axis")
    drawn = spans.orderBy(*first).limit(PLOTS_MAX).collect()
    count = spans.count() if len(drawn) == PLOTS_MAX else len(drawn)
    axes = [
        Axis.over(span["run_id"], span["axis"], span["first"], span["last"], span["rows"])
        for span in drawn
        if span["last"] - span["first"] <= SPAN_NS_MAX
    ]
    if not axes:
        return (), count
    counts = _counts(placed, axes)
    plots = (
        Plot(
            axis,
            buckets_of(axis, counts.get(number, {})),
            about[axis.run_id].faults(axis.start_ns),
            about[axis.run_id].clock_error_ns,
        )
        for number, axis in enumerate(axes)
    )
    return tuple(plots), count - len(axes)


def _on_axes(rows: DataFrame, about: Mapping[str, RunAbout]) -> DataFrame:
    """Return the rows with a column `axis`, which has the same meaning as `Axis.clock`."""
    plain = rows.select("run_id", "clock_id", "call_ns", "return_ns", "status", "revision", "consistency")
    compared = [(run_id, clock, "") for run_id, known in sorted(about.items()) for clock in sorted(known.compared)]
    if not compared:
        return plain.withColumn("axis", f.col("clock_id"))
    named = rows.sparkSession.createDataFrame(compared, "run_id string, clock_id string, shared string")
    joined = plain.join(f.broadcast(named), ["run_id", "clock_id"], "left")
    return joined.withColumn("axis", f.coalesce("shared", "clock_id")).drop("shared")


def _counts(placed: DataFrame, axes: Sequence[Axis]) -> dict[int, dict[int, BucketCounts]]:
    """Return the counts: number of the axis → number of the bucket → counts."""
    listed = [(number, axis.run_id, axis.clock, axis.start_ns, axis.width_ns) for number, axis in enumerate(axes)]
    known = placed.sparkSession.createDataFrame(listed, "plot int, run_id string, axis string, start long, width long")
    mine = placed.join(f.broadcast(known), ["run_id", "axis"])
    counts: dict[int, dict[int, BucketCounts]] = {}
    for row in _by_return(mine).collect():
        made = BucketCounts(row["completed"], row["failed"], 0, row["p50"], row["p99"], row["highest"])
        counts.setdefault(row["plot"], {})[row["bucket"]] = made
    for row in _by_call(mine).collect():
        made = counts.setdefault(row["plot"], {}).setdefault(row["bucket"], BucketCounts())
        made.unknown, made.lowest, made.lowest_local = row["unknown"], row["lowest"], row["lowest_local"]
    return counts


def _by_return(rows: DataFrame) -> DataFrame:
    """Return the counts and latencies of operations by the bucket of their return.

    Percentiles are by nearest rank, from the counts of rounded latencies.
    """
    ok, latency = "status = 'ok'", "(return_ns - call_ns)"
    shift = f"greatest(length(bin({latency})) - {LATENCY_BITS}, 0)"
    rounded = f"case when {ok} then shiftleft(shiftright({latency}, {shift}), {shift}) end"
    counted = (
        rows.where("status != 'unknown'")
        .groupBy("plot", _bucket("return_ns").alias("bucket"), f.expr(rounded).alias("latency"))
        .agg(f.count_if(f.expr(ok)).alias("completed"), f.count_if(f.expr("status = 'fail'")).alias("failed"),
             f.max(f.expr(f"case when {ok} then revision end")).alias("highest"))
    )  # fmt: skip
    bucket = Window.partitionBy("plot", "bucket")
    ranked = counted.withColumn("below", f.sum("completed").over(bucket.orderBy("latency"))).withColumn(
        "all", f.sum("completed").over(bucket)
    )
    reached = [f.min(f.expr(f"case when below * 100 >= `all` * {q} then latency end")).alias(f"p{q}") for q in (50, 99)]
    sums = [f.sum(name).alias(name) for name in ("completed", "failed")]
    return ranked.groupBy("plot", "bucket").agg(*sums, f.max("highest").alias("highest"), *reached)


def _by_call(rows: DataFrame) -> DataFrame:
    condition = f"status = 'ok' and coalesce(consistency, '') {{}} {WEAK}"
    return rows.groupBy("plot", _bucket("call_ns").alias("bucket")).agg(
        f.count_if(f.expr("status = 'unknown'")).alias("unknown"),
        f.min(f.expr(f"case when {condition.format('not in')} then revision end")).alias("lowest"),
        f.min(f.expr(f"case when {condition.format('in')} then revision end")).alias("lowest_local"),
    )


def _bucket(stamp: str) -> Column:
    return f.expr(f"cast(({stamp} - start) div width as int)")
