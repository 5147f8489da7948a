"""The material that a page shows besides its verdict. Its size is bounded and does not depend on the history's length.

`local/page_material.py` gathers the material from a history in memory, `spark/page_material.py` gathers the same
material in Spark. All numbers are integers, so the same history gives exactly the same page, even if it is partitioned
differently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_audit.history.operation import operation_of
from spark_audit.verdict.verdict import Verdict, Violation
from spark_audit.verdict.words import describe, row_words

Row = Mapping[str, Any]

# The maximum number of operations near a violation that are drawn in addition to those of the violation.
NEIGHBOURS_MAX = 40
BUCKETS_MAX = 240  # The maximum number of buckets in a plot over time. A screen cannot show more.
# A short history has fewer buckets, because a p99 of three operations would mean nothing.
BUCKETS_MIN, OPERATIONS_PER_BUCKET = 8, 25
# The maximum number of plots on a page. A run has one plot, or one per clock if its clocks cannot be compared. Runs
# with violations come first.
PLOTS_MAX = 8
# The maximum number of characters of a value or a response that a tooltip shows.
TEXT_CHARACTERS_MAX = 1_000
LATENCY_BITS = 7  # Latencies are rounded down to this many leading bits, which changes them by less than 1.6 %.
# Neighbours of a violation are searched within a distance in which MARGIN_FACTOR * NEIGHBOURS_MAX operations are called
# on average.
MARGIN_FACTOR = 4
SPAN_NS_MAX = 2**62  # A run whose first and last stamps are further apart than this (146 years) is not plotted.


@dataclass(frozen=True, slots=True)
class Bar:
    """An operation on the time axis.

    `guilty`: whether the operation is part of the violation. `return_ns`: None if the outcome is unknown. `clock`: the
    clock of the row; in a scene it has the same meaning as `Axis.clock`.
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

    `completed`, `failed`, and the latencies of completed operations belong to the bucket of the return; `unknown` and
    the lags belong to the bucket of the call. `lag`: by how many revisions a response to a call of this bucket is
    behind at most. This is the highest revision in responses that returned before the bucket began, minus the lowest
    revision in responses to calls of this bucket. `local_lag`: the same for `local` and `bounded` reads, which may be
    behind. These reads are left out of `lag`. A lag is None if there is nothing to compare.
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
    """The time axis of the buckets of a run. `clock`: "" if the axis is for all clocks that can be compared."""

    run_id: str
    clock: str
    start_ns: int
    width_ns: int
    buckets: int

    @classmethod
    def over(cls, run_id: str, clock: str, start_ns: int, end_ns: int, operations: int) -> Axis:
        """Return the axis from `start_ns` to `end_ns`. The last stamp, `end_ns`, is inside the last bucket."""
        wanted = min(BUCKETS_MAX, max(BUCKETS_MIN, operations // OPERATIONS_PER_BUCKET))
        span = end_ns - start_ns + 1
        width = -(-span // wanted)
        return cls(run_id, clock, start_ns, width, -(-span // width))

    def bucket(self, stamp_ns: int) -> int:
        """Return the number of the bucket that contains a stamp."""
        return (stamp_ns - self.start_ns) // self.width_ns


@dataclass(frozen=True, slots=True)
class FaultWindow:
    """An injected fault. `stop_ns` is None if the fault lasted until the end of the run."""

    start_ns: int
    stop_ns: int | None
    words: str


@dataclass(frozen=True, slots=True)
class Plot:
    """One run over time. `clock_error_ns`: the greatest error between two clocks of the run that can be compared."""

    axis: Axis
    buckets: tuple[Bucket, ...]
    faults: tuple[FaultWindow, ...] = ()
    clock_error_ns: int = 0


@dataclass(frozen=True, slots=True)
class Material:
    """The material of a page.

    `scenes`: the bars of each violation, in the order of the verdict. `plots_left_out`: the number of plots that are
    not drawn.
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
    """Return all buckets of an axis, in order. A bucket that is not in `counts` has no operations."""
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
    """Return the latency, rounded down to LATENCY_BITS leading bits."""
    shift = max(0, nanoseconds.bit_length() - LATENCY_BITS)
    return nanoseconds >> shift << shift


def margin_ns(span_ns: int, operations: int) -> int:
    """Return the distance (ns) from a violation within which neighbours are searched.

    `operations`: the number of operations in `span_ns`.
    """
    return MARGIN_FACTOR * NEIGHBOURS_MAX * (span_ns // max(1, operations) + 1)


def moments(violation: Violation) -> list[int]:
    """Return the stamps of the operations of a violation. Its neighbours are near one of these stamps."""
    stamps = {op.call_ns for op in violation.operations}
    return sorted(stamps | {op.return_ns for op in violation.operations if op.return_ns is not None})


def bar_of(row: Row, *, whole: bool) -> Bar:
    """Return the bar of a row. `whole`: whether the row is a whole row and not a projection onto one key."""
    words, details = _words(row, whole), tuple(_details(row))
    stamps = (row["call_ns"], row["return_ns"])
    return Bar(row["op_id"], row["client"], row["op"], row["status"], row["clock_id"], *stamps, words, details)


def bar_from(fields: Mapping[str, Any]) -> Bar:
    """Return the bar that `asdict` converted to these fields. The fields may have been converted to JSON and back."""
    return Bar(**{**fields, "details": tuple((name, text) for name, text in fields["details"])})


def scene(
    violation: Violation, own: Mapping[int, Bar], neighbours: Iterable[Bar], axis_clock: Callable[[str], str]
) -> tuple[Bar, ...]:
    """Return the bars of one violation, sorted by call.

    `own`: op_id → bar of a row of the violation. These bars show the texts of the violation's operations. The deletion
    of a key by a lease has no row, so its bar is made from the violation alone. `axis_clock`: the clock of a row → the
    clock of its axis in the plot of the run (`RunAbout.axis_clock`). The returned bars have the clock of the axis.
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
    drawn = (replace(bar, clock=axis_clock(bar.clock)) for bar in bars)
    return tuple(sorted(drawn, key=lambda bar: (bar.call_ns, bar.op_id)))


def wrong_runs(verdict: Verdict) -> list[str]:
    """Return the runs of the violations in the verdict."""
    return sorted({violation.run_id for violation in verdict.violations})


def _words(row: Row, whole: bool) -> str:
    name = f"{row['op']} #{row['op_id']}"
    if row["status"] == "fail":
        return f"{name} failed ({row.get('error') or 'no reason given'}), without effect"
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
        ("level", row.get("acknowledge")),
        ("acknowledged by", ", ".join(row.get("acknowledged_by") or ()) or None),
        ("under-replicated", "yes" if row.get("under_replicated") else None),
        ("accepted", _entry_words(row)),
    )
    return ((name, _cut(str(text))) for name, text in fields if text is not None)


def _entry_words(row: Row) -> str | None:
    index, term = row.get("accepted_index"), row.get("accepted_term")
    return None if index is None else f"at index {index} of term {term}"


def _without_nulls(answer: Any) -> Any:
    """Return the answer without its null fields, at any depth."""
    if isinstance(answer, Mapping):
        return {name: _without_nulls(value) for name, value in answer.items() if value is not None}
    return [_without_nulls(item) for item in answer] if isinstance(answer, list) else answer


def _cut(text: str) -> str:
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    return f"{text[:TEXT_CHARACTERS_MAX]}… ({len(text):,} characters)"
