"""Draws an SVG with time as its x axis, and the few kinds of shapes on it.

The script in `violation_page.html` zooms the SVG. The class of an element selects how the element is zoomed. `ticks`
are redrawn for the visible part. A group of the class `stay` keeps its position and its width. A text of the class
`room` is shown only while it fits into `data-room` units of x. No text is stretched.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement

WIDTH, LEFT, RIGHT, TOP = 1100, 150, 20, 22
TICKS_WANTED = 9
CHARACTER_WIDTH = 5.6  # About the width of a character of 10 px sans-serif.

INK, PALE, GRID, VIOLATION, FAULT = "#222", "#6b7280", "#e5e7eb", "#dc2626", "#f59e0b"
_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))


class TimeAxis:
    """Maps stamps in [start_ns, end_ns] to positions on the x axis. The labels of ticks count from `zero_ns`."""

    def __init__(self, start_ns: int, end_ns: int, zero_ns: int) -> None:
        assert start_ns < end_ns, (start_ns, end_ns)
        self.start_ns, self.end_ns, self.zero_ns = start_ns, end_ns, zero_ns
        self.scale = (WIDTH - LEFT - RIGHT) / (end_ns - start_ns)  # Units of x per ns.

    def x(self, stamp_ns: int) -> float:
        """Return the horizontal position of a stamp."""
        return LEFT + (min(max(stamp_ns, self.start_ns), self.end_ns) - self.start_ns) * self.scale

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield (x, label) of about TICKS_WANTED ticks, in steps of 1, 2 or 5 times a power of ten."""
        step = _step((self.end_ns - self.start_ns) / TICKS_WANTED)
        first = -((self.zero_ns - self.start_ns) // step)
        for number in range(first, (self.end_ns - self.zero_ns) // step + 1):
            yield self.x(self.zero_ns + number * step), moment(number * step, step)


def _step(wanted_ns: float) -> int:
    power = 1
    while power * 10 <= wanted_ns:
        power *= 10
    return next(power * by for by in (1, 2, 5, 10) if power * by >= wanted_ns or by == 10)


def moment(offset_ns: int, step_ns: int) -> str:
    """Return the label of a tick, such as `+1500 µs`. The unit is the largest unit that is at most the step."""
    size, unit = next((size, unit) for size, unit in _UNITS if step_ns >= size or size == 1)
    return f"{offset_ns // size:+d} {unit}" if offset_ns else f"0 {unit}"


def time_svg(axis: TimeAxis, height: int, label: str, focus: tuple[int, int] | None = None) -> Element:
    """Return a drawing with nothing but its ticks.

    `focus`: the interval of stamps that a browser shows first if it runs scripts.
    """
    attributes = {
        "xmlns": "http://www.w3.org/2000/svg",
        "class": "time",
        "role": "img",
        "aria-label": plain(label),
        "viewBox": f"0 0 {WIDTH} {height}",
        "width": str(WIDTH),
        "height": str(height),
        "preserveAspectRatio": "none",
        "data-zero": f"{LEFT + (axis.zero_ns - axis.start_ns) * axis.scale:.3f}",
        "data-scale": repr(axis.scale),
    }
    if focus is not None:
        low, high = axis.x(focus[0]), axis.x(focus[1])
        attributes["data-focus"] = f"{low:.3f} {high - low:.3f}"
    svg = Element("svg", attributes)
    ticks = SubElement(svg, "g", {"class": "ticks"})
    for x, words in axis.ticks():
        line(ticks, x, TOP - 4, x, height, GRID)
        text(ticks, x, TOP - 9, words, PALE, anchor="middle")
    return svg


def staying(svg: Element, height: int) -> Element:
    """Add a group at the left edge, on a white background, that stays in view when the drawing is zoomed."""
    group = SubElement(svg, "g", {"class": "stay"})
    rect(group, 0, TOP, LEFT - 4, height - TOP, "#fff")
    return group


def titled(parent: Element, words: str) -> Element:
    """Add a group with a tooltip."""
    group = SubElement(parent, "g")
    SubElement(group, "title").text = plain(words)
    return group


def rect(parent: Element, x: float, y: float, width: float, height: float, fill: str, **style: str) -> Element:
    shape = {"x": f"{x:.3f}", "y": f"{y:.1f}", "width": f"{max(0.0, width):.3f}", "height": f"{height:.1f}"}
    return SubElement(parent, "rect", {**shape, "fill": fill, **_dashed(style)})


def line(parent: Element, x1: float, y1: float, x2: float, y2: float, colour: str, **style: str) -> Element:
    ends = {"x1": f"{x1:.3f}", "y1": f"{y1:.1f}", "x2": f"{x2:.3f}", "y2": f"{y2:.1f}"}
    return SubElement(parent, "line", {**ends, "stroke": colour, **_dashed(style)})


def path(parent: Element, points: list[tuple[float, float]], colour: str, **style: str) -> Element:
    """Draw straight lines from point to point."""
    drawn = "M" + " L".join(f"{x:.3f},{y:.1f}" for x, y in points)
    return SubElement(parent, "path", {"d": drawn, "stroke": colour, "fill": "none", **_dashed(style)})


def text(
    parent: Element, x: float, y: float, words: str, colour: str, *, anchor: str = "start", **style: str
) -> Element:
    where = {"x": f"{x:.3f}", "y": f"{y:.1f}", "fill": colour, "text-anchor": anchor}
    drawn = SubElement(parent, "text", {**where, **_dashed(style)})
    drawn.text = plain(words)
    return drawn


def room_text(parent: Element, x: float, y: float, words: str, colour: str, room: float) -> None:
    """Draw a text inside a shape that is `room` wide. The text is hidden if it does not fit."""
    drawn = text(parent, x, y, words, colour, **{"class": "room", "data-room": f"{room:.3f}"})
    if len(drawn.text or "") * CHARACTER_WIDTH > room:
        drawn.set("visibility", "hidden")


def plain(words: str) -> str:
    """Return the text with escapes for control characters and halves of surrogate pairs, which XML cannot contain."""
    return "".join(c if _in_xml(ord(c)) else c.encode("unicode_escape").decode("ascii") for c in words)


def _in_xml(code: int) -> bool:
    return code in (9, 10) or 0x20 <= code < 0x7F or 0xA0 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or code > 0xFFFF


def _dashed(style: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in style.items()}
