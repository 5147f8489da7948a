"""Gathers the material of a page from a history in memory. No Python code runs per operation, only numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_audit.history.operation import WEAK
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
    Row,
    bar_of,
    buckets_of,
    margin_ns,
    moments,
    scene,
    wrong_runs,
)
from spark_audit.tables.conform import conform
from spark_audit.tables.frame import Bools, Frame, Int64s, schema
from spark_audit.tables.multi_key import inspect_multi_key, single_rows
from spark_audit.verdict.verdict import Verdict, Violation

_POWERS: Int64s = 2 ** np.arange(63)
_LATEST = 2**63 - 1


def gather_rows(rows: Iterable[Row], verdict: Verdict, about: Mapping[str, RunAbout] | None = None) -> Material:
    """Return the material for the page of this verdict. `rows`: well-formed rows, whose texts UTF-8 can encode.

    `about`: run_id → information about the run.
    """
    frame = Frame(conform(pa.Table.from_pylist([{**row} for row in rows], schema=schema(names_coded=False))))
    parts, _ = single_rows(frame, inspect_multi_key(frame))
    return gather(frame, parts, verdict, about or {})


def gather(frame: Frame, parts: pa.Table, verdict: Verdict, about: Mapping[str, RunAbout]) -> Material:
    """Return the material for the page of this verdict. `frame`: all rows of the history.

    `parts`: the same rows, split into rows about single keys (`single_rows`).
    """
    whole, by_key = _Stamped.of(frame), _Stamped.of(Frame(parts))
    scenes = tuple(_scene(whole, by_key, violation, about) for violation in verdict.violations)
    plots, left_out = _plots(frame, wrong_runs(verdict), about)
    return Material(scenes, plots, left_out)


# -- violations, and operations near them


@dataclass(frozen=True, slots=True)
class _Stamped:
    """A frame, and the end of each of its rows: the return, or the call if the operation never returned."""

    frame: Frame
    end: Int64s

    @classmethod
    def of(cls, frame: Frame) -> _Stamped:
        return cls(frame, _ends(frame))

    def where(self, **names: str) -> Int64s:
        """Return the rows in which each of these columns (`run_id`, `key`) has the given value."""
        every = np.ones(self.frame.rows, np.bool_)
        for name, wanted in names.items():
            every &= self.frame.codes(name).among(wanted)
        return np.flatnonzero(every)


def _ends(frame: Frame) -> Int64s:
    call = frame.numbers("call_ns", 0)
    return np.where(frame.null("return_ns"), call, frame.numbers("return_ns", 0))


def _scene(whole: _Stamped, by_key: _Stamped, violation: Violation, about: Mapping[str, RunAbout]) -> tuple[Bar, ...]:
    axis_clock = about.get(violation.run_id, RunAbout()).axis_clock
    guilty = np.array([op.op_id for op in violation.operations], np.int64)
    mine = whole.where(run_id=violation.run_id)
    own = whole.frame.dicts(mine[np.isin(whole.frame.numbers("op_id", -1)[mine], guilty)])
    bars = {row["op_id"]: bar_of(row, whole=True) for row in own}
    if violation.key is None:
        return scene(violation, bars, _near(whole, mine, violation, guilty), axis_clock)
    around = by_key.where(run_id=violation.run_id, key=violation.key)
    return scene(violation, bars, _near(by_key, around, violation, guilty), axis_clock)


def _near(of: _Stamped, around: Int64s, violation: Violation, guilty: Int64s) -> list[Bar]:
    """Return the bars of the rows nearest to the violation in time. `around`: the rows to choose from."""
    call, end, op_id = of.frame.numbers("call_ns", 0)[around], of.end[around], of.frame.numbers("op_id", -1)[around]
    stamps = moments(violation)
    if not stamps or not len(around) or int(end.max()) - int(call.min()) > SPAN_NS_MAX:
        return []
    distance = np.full(len(around), _LATEST)
    for stamp in stamps:
        distance = np.minimum(distance, np.maximum(np.maximum(call - stamp, stamp - end), 0))
    margin = margin_ns(int(end.max()) - int(call.min()), len(around))
    near = np.flatnonzero((distance <= min(margin, _LATEST)) & ~np.isin(op_id, guilty))
    nearest = near[np.lexsort((op_id[near], call[near], distance[near]))][:NEIGHBOURS_MAX]
    return [bar_of(row, whole=violation.key is None) for row in of.frame.dicts(around[nearest])]


# -- the whole history over time


@dataclass(frozen=True, slots=True)
class _OnAxis:
    """The rows of a run that share one time axis. `axis` computes where this axis begins and ends."""

    run_id: str
    clock: str
    rows: Int64s

    def axis(self, call: Int64s, end: Int64s) -> Axis | None:
        first, last = int(call[self.rows].min()), int(end[self.rows].max())
        if last - first > SPAN_NS_MAX:
            return None
        return Axis.over(self.run_id, self.clock, first, last, len(self.rows))


def _plots(frame: Frame, wrong: Sequence[str], about: Mapping[str, RunAbout]) -> tuple[tuple[Plot, ...], int]:
    call, end = frame.numbers("call_ns", 0), _ends(frame)
    every = list(_axes(frame, about))
    every.sort(key=lambda one: (one.run_id not in wrong, one.run_id, -len(one.rows), one.clock))
    plots: list[Plot] = []
    for one in every[:PLOTS_MAX]:
        axis = one.axis(call, end)
        if axis is not None:
            run = about.get(one.run_id, RunAbout())
            buckets = buckets_of(axis, _counts(frame, axis, one.rows, end))
            plots.append(Plot(axis, buckets, run.faults(axis.start_ns), run.clock_error_ns))
    return tuple(plots), len(every) - len(plots)


def _axes(frame: Frame, about: Mapping[str, RunAbout]) -> Iterable[_OnAxis]:
    run, clock = frame.codes("run_id"), frame.codes("clock_id")
    owner = run.ids * np.int64(len(clock.texts)) + clock.ids
    rows: dict[tuple[str, str], list[Int64s]] = {}
    for pair in np.unique(owner).tolist():
        run_id, name = run.texts[pair // len(clock.texts)], clock.texts[pair % len(clock.texts)]
        axis = run_id, about.get(run_id, RunAbout()).axis_clock(name)
        rows.setdefault(axis, []).append(np.flatnonzero(owner == pair))
    return [_OnAxis(*axis, np.concatenate(some)) for axis, some in rows.items()]


def _counts(frame: Frame, axis: Axis, rows: Int64s, end: Int64s) -> dict[int, BucketCounts]:
    """Return the counts of each bucket.

    Completed and failed operations, latencies, and the highest revision belong to the bucket of the return. All other
    numbers belong to the bucket of the call.
    """
    status = frame.codes("status")
    ok, failed, unknown = (status.among(name)[rows] for name in ("ok", "fail", "unknown"))
    called, ended = ((stamp[rows] - axis.start_ns) // axis.width_ns for stamp in (frame.numbers("call_ns", 0), end))
    local = frame.codes("consistency").among(*WEAK)[rows]
    revision = frame.numbers("revision", 0)[rows]
    with_revision = ok & (revision > 0)
    numbers = (np.bincount(where[some], minlength=axis.buckets)
               for where, some in ((ended, ok), (ended, failed), (called, unknown)))  # fmt: skip
    latency = (end - frame.numbers("call_ns", 0))[rows]
    columns = [column.tolist() for column in (
        *numbers,
        *_percentiles(ended[ok], _rounded(latency[ok]), axis.buckets),
        _highest(ended, revision, with_revision, axis.buckets),
        -_highest(called, -revision, with_revision & ~local, axis.buckets),
        -_highest(called, -revision, with_revision & local, axis.buckets),
    )]  # fmt: skip
    return {
        number: BucketCounts(*values[:3], *map(_or_none, values[3:]))
        for number, values in enumerate(zip(*columns, strict=True))
    }


def _or_none(number: int) -> int | None:
    return None if number in (-_LATEST, _LATEST) else number


def _rounded(latency: Int64s) -> Int64s:
    """Round latencies down like `rounded_latency` in report/material.py."""
    bits = np.searchsorted(_POWERS, latency, side="right")
    shift = np.maximum(bits - LATENCY_BITS, 0)
    return latency >> shift << shift


def _percentiles(bucket: Int64s, latency: Int64s, buckets: int) -> tuple[Int64s, Int64s]:
    """Return p50 and p99 of each bucket, by nearest rank; -_LATEST for a bucket without latencies."""
    ranked = latency[np.lexsort((latency, bucket))]
    sizes = np.bincount(bucket, minlength=buckets)
    starts = np.cumsum(sizes) - sizes
    some = sizes > 0
    p50, p99 = np.full(buckets, -_LATEST), np.full(buckets, -_LATEST)
    for percent, reached in ((50, p50), (99, p99)):
        reached[some] = ranked[(starts - -sizes * percent // 100 - 1)[some]]
    return p50, p99


def _highest(bucket: Int64s, number: Int64s, where: Bools, buckets: int) -> Int64s:
    """Return the greatest number of each bucket; -_LATEST for a bucket without numbers."""
    highest = np.full(buckets, -_LATEST)
    np.maximum.at(highest, bucket[where], number[where])
    return highest
