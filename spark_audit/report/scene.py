"""Draws one violation: a lane per client, and a bar per operation.

The operations of the violation are red, and their neighbours are grey.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from xml.etree.ElementTree import Element, tostring

from spark_audit.report import axis as draw
from spark_audit.report.axis import LEFT, RIGHT, TOP, VIOLATION, WIDTH, TimeAxis
from spark_audit.report.material import Bar

LANE, BAR = 36, 14
# If the operations of the violation take less than this share of the axis, a browser first shows only their part.
FOCUS_SHARE = 0.4
CLIENT_CHARACTERS_MAX = 24
LABEL_CHARACTERS_MAX = 60
WRITE, READ, FAILED = "#b3bcc8", "#dde2e9", "#ffffff"  # The colours of operations that are not part of the violation.
GUILTY_WRITE, GUILTY_READ = "#dc2626", "#fca5a5"
_READS = ("get", "range")


def draw_scene(bars: Sequence[Bar], label: str) -> str:
    """Return the SVG. `bars` must be sorted by call, and at least one of them must be `guilty`."""
    return tostring(_Scene(_on_one_axis(bars), label).draw(), encoding="unicode")


def shares_no_axis(bars: Sequence[Bar]) -> bool:
    """Return whether the bars have stamps of clocks that cannot be compared with each other.

    If they cannot be compared, the order of bars in different lanes means nothing.
    """
    return len({bar.clock for bar in bars}) > 1


def _on_one_axis(bars: Sequence[Bar]) -> list[Bar]:
    """Return the bars on one axis. If their clocks cannot be compared, the first bar of each clock begins at 0."""
    if not shares_no_axis(bars):
        return list(bars)
    first = {clock: min(bar.call_ns for bar in bars if bar.clock == clock) for clock in {bar.clock for bar in bars}}
    return [
        replace(
            bar,
            call_ns=bar.call_ns - first[bar.clock],
            return_ns=None if bar.return_ns is None else bar.return_ns - first[bar.clock],
        )
        for bar in bars
    ]


class _Scene:
    def __init__(self, bars: Sequence[Bar], label: str) -> None:
        self._bars, self._label = bars, label
        self._guilty = [bar for bar in bars if bar.guilty]
        self._labels: Counter[str] = Counter()  # Client → the number of labels drawn so far in its lane.
        guilty_clients = [bar.client for bar in self._guilty]
        clients = dict.fromkeys([*guilty_clients, *(bar.client for bar in bars)])
        self._lane = {client: TOP + number * LANE for number, client in enumerate(clients)}
        self._height = TOP + len(clients) * LANE + 6
        low, high = _reach(bars)
        margin = max(1, (high - low) // 25)
        self._axis = TimeAxis(low - margin, high + 2 * margin, min(bar.call_ns for bar in self._guilty))

    def draw(self) -> Element:
        svg = draw.time_svg(self._axis, self._height, self._label, self._focus())
        for bar in self._guilty:
            for stamp in (bar.call_ns, bar.return_ns):
                if stamp is not None:
                    x = self._axis.x(stamp)
                    draw.line(svg, x, TOP, x, self._height, VIOLATION, stroke_dasharray="2 4", stroke_opacity="0.5")
        for bar in self._bars:
            self._bar(svg, bar)
        labels = draw.staying(svg, self._height)
        guilty = {bar.client for bar in self._guilty}
        for client, y in self._lane.items():
            draw.line(svg, 0, y + LANE, WIDTH, y + LANE, draw.GRID)
            colour = VIOLATION if client in guilty else draw.PALE
            draw.text(labels, LEFT - 10, y + 24, _cut(client, CLIENT_CHARACTERS_MAX), colour, anchor="end")
        return svg

    def _focus(self) -> tuple[int, int] | None:
        low, high = _reach(self._guilty)
        margin = max(1, (high - low) * 3 // 10)
        if high - low + 2 * margin > FOCUS_SHARE * (self._axis.end_ns - self._axis.start_ns):
            return None
        return low - margin, high + 2 * margin

    def _bar(self, svg: Element, bar: Bar) -> None:
        y = self._lane[bar.client] + (LANE - BAR) / 2 + 3
        x = self._axis.x(bar.call_ns)
        end = WIDTH - RIGHT if bar.return_ns is None else self._axis.x(bar.return_ns)
        group = draw.titled(svg, tooltip(bar, self._axis.zero_ns))
        group.set("class", "guilty" if bar.guilty else "neighbour")
        group.set("data-op", str(bar.op_id))
        fill, edge = _colours(bar)
        # An operation of unknown outcome may take effect at any time after its call, so its bar has no right edge.
        if bar.return_ns is None:
            draw.rect(group, x, y, end - x, BAR, fill, fill_opacity="0.35")
            corners = [(end, y), (x, y), (x, y + BAR), (end, y + BAR)]
            draw.path(group, corners, edge, stroke_dasharray="5 3").set("class", "open")
        else:
            draw.rect(group, x, y, end - x, BAR, fill, stroke=edge)
        if bar.guilty:
            self._label_of(group, bar, x, y)
        else:
            draw.room_text(group, x + 3, y + 10.5, f"{bar.op} #{bar.op_id}", draw.INK, end - x - 6)

    def _label_of(self, group: Element, bar: Bar, x: float, y: float) -> None:
        """Write the label of a bar, alternately above and below the bars of a client.

        The label begins at the call; in the right part of the picture, it ends at the call.
        """
        y += -3 if self._labels[bar.client] % 2 == 0 else BAR + 9
        self._labels[bar.client] += 1
        words = _cut(bar.words, LABEL_CHARACTERS_MAX)
        if x > WIDTH * 0.62:
            draw.text(group, x, y, words, VIOLATION, anchor="end", font_weight="600")
        else:
            draw.text(group, x, y, words, VIOLATION, font_weight="600")


def tooltip(bar: Bar, zero_ns: int) -> str:
    """Return all information about the bar, as lines. Times count from the first call of the violation."""
    ended = "never returned" if bar.return_ns is None else f"returned {(bar.return_ns - zero_ns) / 1e6:+.6f} ms"
    lasted = "" if bar.return_ns is None else f", after {(bar.return_ns - bar.call_ns) / 1e6:.6f} ms"
    times = f"{bar.client}: called {(bar.call_ns - zero_ns) / 1e6:+.6f} ms, {ended}{lasted}"
    return "\n".join([bar.words, times, *(f"{name}: {words}" for name, words in bar.details)])


def _colours(bar: Bar) -> tuple[str, str]:
    if bar.guilty:
        return (GUILTY_READ if bar.op in _READS else GUILTY_WRITE), "#7f1d1d"
    if bar.status == "fail":
        return FAILED, "#9aa4b2"
    return (READ if bar.op in _READS else WRITE), "#7b8794"


def _reach(bars: Sequence[Bar]) -> tuple[int, int]:
    stamps = [stamp for bar in bars for stamp in (bar.call_ns, bar.return_ns) if stamp is not None]
    return min(stamps), max(max(stamps), min(stamps) + 1)


def _cut(words: str, characters_max: int) -> str:
    return words if len(words) <= characters_max else f"{words[: characters_max - 1]}…"
