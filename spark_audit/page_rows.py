"""The material of a page from rows in hand, without Spark: for what `check_rows` decided."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spark_audit.page_faults import RunAbout
from spark_audit.page_material import (
    NEIGHBOURS_MAX,
    PLOTS_MAX,
    SPAN_NS_MAX,
    Axis,
    Bar,
    Counts,
    Material,
    Plot,
    Row,
    bar_of,
    buckets_of,
    margin_ns,
    moments,
    rounded_latency,
    scene,
    wrong_runs,
)
from spark_audit.rows import FIELDS
from spark_audit.split import parts
from spark_audit.verdict import Verdict, Violation

_LEFT_OUT: dict[str, Any] = dict.fromkeys(name for name, _ in FIELDS)  # A field that is null may be left out.


def gather_rows(rows: Iterable[Row], verdict: Verdict, about: Mapping[str, RunAbout] | None = None) -> Material:
    """What the page of this verdict shows of these rows, which are well-formed. `about`: by run."""
    history = [{**_LEFT_OUT, **row} for row in rows]
    known = about or {}
    scenes = tuple(_scene(history, violation) for violation in verdict.violations)
    by_axis: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in history:
        clock = known.get(row["run_id"], RunAbout()).axis_clock(row["clock_id"])
        by_axis[row["run_id"], clock].append(row)
    wrong = wrong_runs(verdict)
    drawn = sorted(by_axis, key=lambda name: (name[0] not in wrong, name[0], -len(by_axis[name]), name[1]))[:PLOTS_MAX]
    axes = [_axis(name, by_axis[name]) for name in drawn]
    plots = [
        Plot(axis, buckets_of(axis, _counts(axis, by_axis[name])), known.get(name[0], RunAbout()).faults(axis.start_ns))
        for name, axis in zip(drawn, axes, strict=True)
        if axis is not None
    ]
    return Material(scenes, tuple(plots), len(by_axis) - len(plots))


def _end(row: Row) -> int:
    return int(row["call_ns"] if row["return_ns"] is None else row["return_ns"])


def _scene(history: Sequence[Row], violation: Violation) -> tuple[Bar, ...]:
    guilty = {op.op_id for op in violation.operations}
    mine = [row for row in history if row["run_id"] == violation.run_id]
    own = {row["op_id"]: bar_of(row, whole=True) for row in mine if row["op_id"] in guilty}
    if violation.key is None:
        around: list[Row] = mine
    else:
        around = [part for row in mine for key, part in parts(row) if key == violation.key]
    return scene(violation, own, _near(around, violation, guilty))


def _near(around: Sequence[Row], violation: Violation, guilty: set[int]) -> list[Bar]:
    stamps = moments(violation)
    if not stamps or not around:
        return []
    span = max(map(_end, around)) - min(row["call_ns"] for row in around)
    ranked = [
        (min(max(row["call_ns"] - stamp, stamp - _end(row), 0) for stamp in stamps), row["call_ns"], row["op_id"], row)
        for row in around
        if row["op_id"] not in guilty
    ]
    within = sorted((one for one in ranked if one[0] <= margin_ns(span, len(around))), key=lambda one: one[:3])
    return [bar_of(row, whole=violation.key is None) for *_, row in within[:NEIGHBOURS_MAX]]


def _axis(name: tuple[str, str], rows: Sequence[Row]) -> Axis | None:
    start, end = min(row["call_ns"] for row in rows), max(map(_end, rows))
    return Axis.over(*name, start, end, len(rows)) if end - start <= SPAN_NS_MAX else None


def _counts(axis: Axis, rows: Iterable[Row]) -> dict[int, Counts]:
    counts: dict[int, Counts] = defaultdict(Counts)
    latencies: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        called, ended = counts[axis.bucket(row["call_ns"])], axis.bucket(_end(row))
        if row["status"] == "unknown":
            called.unknown += 1
        elif row["status"] == "fail":
            counts[ended].failed += 1
        else:
            counts[ended].completed += 1
            latencies[ended].append(rounded_latency(row["return_ns"] - row["call_ns"]))
            _note_revision(called, counts[ended], row)
    for number, mine in latencies.items():
        mine.sort()
        counts[number].p50_ns, counts[number].p99_ns = (mine[-(-len(mine) * q // 100) - 1] for q in (50, 99))
    return counts


def _note_revision(called: Counts, ended: Counts, row: Row) -> None:
    revision = row["revision"]
    if revision is None:
        return
    ended.highest = max(revision, ended.highest or revision)
    if row["consistency"] == "local":
        called.lowest_local = min(revision, called.lowest_local or revision)
    else:
        called.lowest = min(revision, called.lowest or revision)
