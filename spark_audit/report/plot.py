"""Draws a run over time: rate, latency, unknown outcomes and lag of revisions, with faults and violations marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log10
from xml.etree.ElementTree import Element, tostring

from spark_audit.report import axis as draw
from spark_audit.report.axis import FAULT, INK, LEFT, PALE, RIGHT, TOP, VIOLATION, WIDTH, TimeAxis
from spark_audit.report.material import Bucket, FaultWindow, Plot
from spark_audit.verdict.words import span

CHART, GAP = 74, 16
BLUE, GREEN, RED, PURPLE = "#2563eb", "#1a7f37", "#b91c1c", "#7c3aed"
CHARTS = ("per second", "latency", "unknown outcomes", "revisions behind")


def draw_plot(plot: Plot, marks: Sequence[tuple[int, str]]) -> str:
    """Return the SVG. `marks`: (stamp, words) for each violation of this run."""
    return tostring(_Charts(plot, marks).draw(), encoding="unicode")


class _Charts:
    def __init__(self, plot: Plot, marks: Sequence[tuple[int, str]]) -> None:
        self._plot, self._marks = plot, marks
        axis = plot.axis
        self._end_ns = axis.start_ns + axis.buckets * axis.width_ns
        self._time = TimeAxis(axis.start_ns, self._end_ns, axis.start_ns)
        self._height = TOP + len(CHARTS) * (CHART + GAP)

    def draw(self) -> Element:
        svg = draw.time_svg(self._time, self._height, f"run {self._plot.axis.run_id} over time")
        for fault in self._plot.faults:
            self._fault(svg, fault)
        names = Element("g")
        self._rate(svg, names, self._top(0))
        self._latency(svg, names, self._top(1))
        self._unknown(svg, names, self._top(2))
        self._lag(svg, names, self._top(3))
        for number in range(len(CHARTS)):
            base = self._top(number) + CHART
            draw.line(svg, LEFT, base, WIDTH - RIGHT, base, PALE)
        for stamp, words in self._marks:
            x = self._time.x(stamp)
            group = draw.titled(svg, words)
            group.set("class", "violation")
            draw.line(group, x, TOP, x, self._height, VIOLATION, stroke_width="2")
        self._slices(svg)
        draw.staying(svg, self._height).extend(names)
        return svg

    def _top(self, number: int) -> float:
        return TOP + number * (CHART + GAP) + GAP / 2

    # -- the four charts

    def _rate(self, svg: Element, names: Element, top: float) -> None:
        seconds = self._plot.axis.width_ns / 1e9
        highest = max(max(bucket.completed, bucket.failed) for bucket in self._plot.buckets) / seconds or 1.0
        self._name(names, top, 0, (("completed", BLUE), ("failed", RED)), [(1.0, _short(highest)), (0.0, "0")])
        self._curve(svg, top, lambda bucket: bucket.completed / seconds / highest, BLUE)
        if any(bucket.failed for bucket in self._plot.buckets):
            self._curve(svg, top, lambda bucket: bucket.failed / seconds / highest, RED)

    def _latency(self, svg: Element, names: Element, top: float) -> None:
        """Draw the latency chart. Each line of its grid marks ten times the latency of the line below."""
        known = [bucket for bucket in self._plot.buckets if bucket.p50_ns is not None]
        least = min((bucket.p50_ns or 1 for bucket in known), default=1)
        most = max((bucket.p99_ns or 1 for bucket in known), default=1)
        low = len(str(least)) - 1
        decades = max(1, len(str(most)) - low)
        grid = [(number / decades, span(10 ** (low + number))) for number in range(decades + 1)]
        self._name(names, top, 1, (("p50", GREEN), ("p99", PURPLE)), grid)

        def height(nanoseconds: int | None) -> float | None:
            if nanoseconds is None:
                return None
            return (log10(max(1, nanoseconds)) - low) / decades

        self._curve(svg, top, lambda bucket: height(bucket.p50_ns), GREEN)
        self._curve(svg, top, lambda bucket: height(bucket.p99_ns), PURPLE)

    def _unknown(self, svg: Element, names: Element, top: float) -> None:
        highest = max(bucket.unknown for bucket in self._plot.buckets)
        self._name(names, top, 2, (), [(1.0, f"{highest:,}"), (0.0, "0")] if highest else [(0.0, "none")])
        for number, bucket in enumerate(self._plot.buckets):
            if bucket.unknown:
                x, width = self._slice(number)
                height = CHART * bucket.unknown / highest
                draw.rect(svg, x, top + CHART - height, width, height, FAULT)

    def _lag(self, svg: Element, names: Element, top: float) -> None:
        lags = [lag for bucket in self._plot.buckets for lag in (bucket.lag, bucket.local_lag) if lag is not None]
        highest = max(lags, default=0)
        grid = [(1.0, f"{highest:,}"), (0.0, "0")] if highest else [(0.0, "0" if lags else "not told")]
        self._name(names, top, 3, (("local reads", GREEN), ("all others", BLUE)), grid)
        self._curve(svg, top, lambda bucket: _share(bucket.local_lag, highest), GREEN)
        self._curve(svg, top, lambda bucket: _share(bucket.lag, highest), BLUE)

    # -- the parts of the charts

    def _slice(self, number: int) -> tuple[float, float]:
        """Return the x and the width of a bucket."""
        axis = self._plot.axis
        x = self._time.x(axis.start_ns + number * axis.width_ns)
        return x, self._time.x(axis.start_ns + (number + 1) * axis.width_ns) - x

    def _curve(self, svg: Element, top: float, height: Callable[[Bucket], float | None], colour: str) -> None:
        """Draw a curve with one step per bucket. The curve has a gap where a bucket has no value."""
        points: list[tuple[float, float]] = []
        for number, bucket in enumerate([*self._plot.buckets, None]):
            share = None if bucket is None else height(bucket)
            if share is None:
                if points:
                    draw.path(svg, points, colour, stroke_width="1.5")
                points = []
                continue
            x, width = self._slice(number)
            y = top + CHART * (1 - share)
            points += [(x, y), (x + width, y)]

    def _name(
        self,
        names: Element,
        top: float,
        number: int,
        curves: Sequence[tuple[str, str]],
        grid: Sequence[tuple[float, str]],
    ) -> None:
        draw.text(names, 4, top + 10, CHARTS[number], INK, font_weight="600")
        for place, (words, colour) in enumerate(curves):
            draw.text(names, 4, top + 24 + 12 * place, f"— {words}", colour)
        for share, words in grid:
            draw.text(names, LEFT - 8, top + CHART * (1 - share) + 3, words, PALE, anchor="end")

    def _fault(self, svg: Element, fault: FaultWindow) -> None:
        stop = self._end_ns if fault.stop_ns is None else fault.stop_ns
        if stop < self._plot.axis.start_ns or fault.start_ns > self._end_ns:
            return
        x, end = self._time.x(fault.start_ns), self._time.x(stop)
        group = draw.titled(svg, f"{fault.words}, {span(max(0, stop - fault.start_ns))}")
        group.set("class", "fault")
        draw.rect(group, x, TOP, max(1.0, end - x), self._height - TOP, FAULT, fill_opacity="0.16")
        draw.room_text(group, x + 2, TOP + 5, fault.words, "#92400e", end - x - 4)

    def _slices(self, svg: Element) -> None:
        """Add for each bucket a tooltip that covers all charts."""
        for number, bucket in enumerate(self._plot.buckets):
            if bucket == Bucket():
                continue
            x, width = self._slice(number)
            group = draw.titled(svg, self._words(number, bucket))
            group.set("class", "slice")
            draw.rect(group, x, TOP, width, self._height - TOP, "#000", fill_opacity="0")

    def _words(self, number: int, bucket: Bucket) -> str:
        axis = self._plot.axis
        lines = [
            f"{span(number * axis.width_ns)} after the first call, for {span(axis.width_ns)}",
            f"{bucket.completed:,} completed ({bucket.completed / axis.width_ns * 1e9:,.0f} per second), "
            f"{bucket.failed:,} failed, {bucket.unknown:,} of unknown outcome",
        ]
        if bucket.p50_ns is not None and bucket.p99_ns is not None:
            lines.append(f"latency p50 {span(bucket.p50_ns)}, p99 {span(bucket.p99_ns)}")
        if bucket.local_lag is not None:
            lines.append(f"local reads up to {bucket.local_lag:,} revisions behind")
        if bucket.lag:
            lines.append(f"answers up to {bucket.lag:,} revisions behind")
        return "\n".join(lines)


def _share(lag: int | None, highest: int) -> float | None:
    return None if lag is None else lag / max(1, highest)


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
