"""The material that a page shows beside its verdict. Its size is bounded, however long the history is.

`local/page_material.py` gathers the material from a history in memory, `spark/page_material.py` in Spark; both results
are equal. Numbers are integers, so the same history gives the same page, byte by byte, however it is partitioned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_audit.history.operation import operation_of
from spark_audit.verdict.verdict import Verdict, Violation
from spark_audit.verdict.words import describe, row_words

Row = Mapping[str, Any]

NEIGHBOURS_MAX = 40  # The number of other operations drawn beside the operations of a violation.
BUCKETS_MAX = 240  # The number of buckets in a plot over time: a screen cannot show more.
# A short history has fewer buckets, because a p99 of three operations means nothing.
BUCKETS_MIN, OPERATIONS_PER_BUCKET = 8, 25
# The number of plots: one per run, or per clock if the clocks of a run cannot be compared. Runs with violations come
# first.
PLOTS_MAX = 8
# The number of characters of a value or a response in a tooltip; the history has the whole text.
TEXT_CHARACTERS_MAX = 1_000
LATENCY_BITS = 7  # Latencies are rounded down to this many leading bits, which changes them by less than 1.6 %.
# Neighbours are sought in an interval of time that has, on average, MARGIN_FACTOR * NEIGHBOURS_MAX operations.
MARGIN_FACTOR = 4
SPAN_NS_MAX = 2**62  # A run whose first and last stamps lie further apart (146 years) is not plotted.


@dataclass(frozen=True, slots=True)
class Bar:
    """An operation on the time axis.

    `guilty`: the operation is part of the violation. `return_ns`: None if the outcome is unknown.
    """

    op_id: int
    client: str
    op: str
    status: str
    clock: str
    call_ns: int
    return_ns: int | None
    words: str
    details: tuple[tuple[str, str], ...] = ()
    guilty: bool = False


@dataclass(frozen=True, slots=True)
class Bucket:
    """A slice of time.

    `completed`, `failed` and the latencies of completed operations belong to the bucket of the return; `unknown` and
    the lags belong to the bucket of the call. A lag compares the lowest revision in responses to calls of this bucket
    with the highest revision returned before the bucket began. The lag is the number of revisions by which the lowest
    is behind the highest. `local_lag` is the lag of `local` and `bounded` reads, which may be behind. A lag is
    None if there is nothing to compare.
    """

    completed: int = 0
    failed: int = 0
    unknown: int = 0
    p50_ns: int | None = None
    p99_ns: int | None = None
    lag: int | None = None
    local_lag: int | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """The position of the buckets of a run. `clock`: "" for all clocks that can be compared, otherwise one clock."""

    run_id: str
    clock: str
    start_ns: int
    width_ns: int
    buckets: int

    @classmethod
    def over(cls, run_id: str, clock: str, start_ns: int, end_ns: int, operations: int) -> Axis:
        """The axis from `start_ns` to `end_ns`, the last stamp, which lies within the last bucket."""
        wanted = min(BUCKETS_MAX, max(BUCKETS_MIN, operations // OPERATIONS_PER_BUCKET))
        span = end_ns - start_ns + 1
        width = -(-span // wanted)
        return cls(run_id, clock, start_ns, width, -(-span // width))

    def bucket(self, stamp_ns: int) -> int:
        """The number of the bucket that holds a stamp."""
        return (stamp_ns - self.start_ns) // self.width_ns


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """An injected fault. `stop_ns` is None if the fault lasted until the end of the run."""

    start_ns: int
    stop_ns: int | None
    words: str


@dataclass(frozen=True, slots=True)
class Plot:
    """One run over time."""

    axis: Axis
    buckets: tuple[Bucket, ...]
    faults: tuple[FaultWindow, ...] = ()


@dataclass(frozen=True, slots=True)
class Material:
    """The material of a page.

    `scenes`: the bars of each violation, in the order of the verdict. `plots_left_out`: see PLOTS_MAX.
    """

    scenes: tuple[tuple[Bar, ...], ...] = ()
    plots: tuple[Plot, ...] = ()
    plots_left_out: int = 0


@dataclass(slots=True)
class BucketCounts:
    """The counts of a bucket. A revision is None if no response reported one."""

    completed: int = 0
    failed: int = 0
    unknown: int = 0
    p50_ns: int | None = None
    p99_ns: int | None = None
    highest: int | None = None  # The highest revision of the operations that returned in the bucket.
    # The lowest revision of the operations that were called in the bucket, except `local` and `bounded` reads.
    lowest: int | None = None
    lowest_local: int | None = None


def buckets_of(axis: Axis, counts: Mapping[int, BucketCounts]) -> tuple[Bucket, ...]:
    """All buckets of an axis, in order; those without counts are empty."""
    made: list[Bucket] = []
    highest = None  # The highest revision in all earlier buckets.
    for number in range(axis.buckets):
        of = counts.get(number, BucketCounts())
        lags = [
            None if lowest is None or highest is None else max(0, highest - lowest)
            for lowest in (of.lowest, of.lowest_local)
        ]  # fmt: skip
        made.append(Bucket(of.completed, of.failed, of.unknown, of.p50_ns, of.p99_ns, *lags))
        highest = max((revision for revision in (highest, of.highest) if revision is not None), default=None)
    return tuple(made)


def rounded_latency(nanoseconds: int) -> int:
    """The latency, rounded down to LATENCY_BITS leading bits."""
    shift = max(0, nanoseconds.bit_length() - LATENCY_BITS)
    return nanoseconds >> shift << shift


def margin_ns(span_ns: int, operations: int) -> int:
    """The distance (ns) from a violation within which neighbours are sought, if `span_ns` has this many operations."""
    return MARGIN_FACTOR * NEIGHBOURS_MAX * (span_ns // max(1, operations) + 1)


def moments(violation: Violation) -> list[int]:
    """The stamps of the operations of a violation. The neighbours of a violation are near one of these stamps."""
    stamps = {op.call_ns for op in violation.operations}
    return sorted(stamps | {op.return_ns for op in violation.operations if op.return_ns is not None})


def bar_of(row: Row, *, whole: bool) -> Bar:
    """The bar of a row. `whole`: the row is not a projection onto one key."""
    words, details = _words(row, whole), tuple(_details(row))
    stamps = (row["call_ns"], row["return_ns"])
    return Bar(row["op_id"], row["client"], row["op"], row["status"], row["clock_id"], *stamps, words, details)


def bar_from(fields: Mapping[str, Any]) -> Bar:
    """The inverse of `asdict`, for fields that came through JSON."""
    return Bar(**{**fields, "details": tuple((name, text) for name, text in fields["details"])})


def scene(violation: Violation, own: Mapping[int, Bar], neighbours: Iterable[Bar]) -> tuple[Bar, ...]:
    """The bars of one violation, by call.

    `own`: op_id → bar of a row of the violation; these bars get the words of the violation. The deletion by a lease has
    no row, so its bar has nothing but the words.
    """
    bars = list(neighbours)
    clock = next((bar.clock for bar in own.values()), "")
    for shown in violation.operations:
        bar = own.get(shown.op_id)
        if bar is None:
            status = "ok" if shown.return_ns is not None else "unknown"
            stamps = (shown.call_ns, shown.return_ns)
            bar = Bar(shown.op_id, shown.client, shown.op, status, clock, *stamps, shown.words)
        bars.append(replace(bar, words=shown.words, guilty=True))
    return tuple(sorted(bars, key=lambda bar: (bar.call_ns, bar.op_id)))


def wrong_runs(verdict: Verdict) -> list[str]:
    """The runs of which violations are shown."""
    return sorted({violation.run_id for violation in verdict.violations})


def _words(row: Row, whole: bool) -> str:
    name = f"{row['op']} #{row['op_id']}"
    if row["status"] == "fail":
        return f"{name} failed ({row.get('error') or 'no reason told'}), without effect"
    if not whole:
        operations = operation_of(row)
        if operations:
            return describe(operations[0])
    return f"{name}, its outcome unknown" if row["status"] == "unknown" else row_words(row)


def _details(row: Row) -> Iterable[tuple[str, str]]:
    by_revision = row.get("expected_mod_revision")
    expected = row.get("expected") if by_revision is None else f"revision {by_revision}"
    fields: Sequence[tuple[str, Any]] = (
        ("key", row.get("key")),
        ("value", row.get("value")),
        ("expected", "the key absent" if expected is None and row["op"] == "cas" else expected),
        ("request", row.get("request")),
        ("answer", row["output"] and json.dumps(_without_nulls(row["output"]), ensure_ascii=False, sort_keys=True)),
        ("revision", row.get("revision")),
        ("status", row["status"]),
        ("error", row.get("error")),
        ("consistency", row.get("consistency")),
        ("node", row.get("node")),
    )
    return ((name, _cut(str(text))) for name, text in fields if text is not None)


def _without_nulls(answer: Any) -> Any:
    """The answer without null fields."""
    if isinstance(answer, Mapping):
        return {name: _without_nulls(value) for name, value in answer.items() if value is not None}
    return [_without_nulls(item) for item in answer] if isinstance(answer, list) else answer


def _cut(text: str) -> str:
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    return f"{text[:TEXT_CHARACTERS_MAX]}… ({len(text):,} characters)"
