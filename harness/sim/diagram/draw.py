"""Draws the end of a run as a space-time diagram on an HTML page: a line per process, and an arrow per message."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from string import Template
from xml.etree.ElementTree import Element, SubElement, tostring

from harness.sim.diagram.record import DiagramEvent, Flight, Picture, label_of

EVENTS_SHOWN = 300
"""How many of the last events are drawn, unless --last gives another number."""

LEFT, TOP, MEMBER_WIDTH, CLIENT_WIDTH = 90, 40, 230, 90
ROW_MIN, ROW_MAX, NS_PER_PIXEL = 16.0, 70.0, 400_000
NAMES_EVERY = 600.0
BAR_WIDTH, BAR_LANES = 7, 3
LABEL_CHARACTERS_MAX = 34

ROLES = {
    "leader": "#1a7f37",
    "candidate": "#b45309",
    "pre-candidate": "#a16207",
    "follower": "#2563eb",
    "": "#6b7280",
}
"""Colours by role. The empty role stands for clients."""

ARROW, LOST, FAULT, DOWN, VIOLATION = "#9aa4b2", "#b91c1c", "#f59e0b", "#d1d5db", "#dc2626"


def draw_lamport(picture: Picture) -> str:
    """Return the page as HTML."""
    page = Template(files("harness.sim.diagram").joinpath("lamport_page.html").read_text(encoding="utf-8"))
    verdict = f"<b>{escape(picture.violation)}</b>" if picture.violation else "every rule held"
    named = [(role or "client", colour) for role, colour in ROLES.items()]
    legend = " ".join(f'<span style="color:{colour}">● {role}</span>' for role, colour in named)
    svg = tostring(Drawing(picture).draw(), encoding="unicode")
    return page.substitute(title=escape(picture.title), verdict=verdict, legend=legend, svg=svg)


class Drawing:
    """Computes the positions of all elements, and then draws them from back to front."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._x: dict[str, float] = {}
        x = float(LEFT)
        for place in picture.places:
            self._x[place] = x + 20
            x += MEMBER_WIDTH if self._is_member(place) else CLIENT_WIDTH
        self._width = x
        self._y: dict[int, float] = {}  # The y coordinate of each event, by its number.
        self._times: list[int] = []
        self._heights: list[float] = []
        self._place_rows()
        self._by_number = {event.number: event for event in picture.events}
        self._height = (self._heights[-1] if self._heights else TOP) + 90

    def draw(self) -> Element:
        """Return the SVG element."""
        box = f"0 0 {self._width:.0f} {self._height:.0f}"
        size = {"width": f"{self._width:.0f}", "height": f"{self._height:.0f}"}
        svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": box, **size})
        SubElement(svg, "rect", {**size, "fill": "#fff"})
        self._lines(svg)
        self._bars(svg)
        for flight in self._picture.flights:
            self._flight(svg, flight)
        for event in self._picture.events:
            self._event(svg, event)
        self._end(svg)
        return svg

    # -- where things are

    def _is_member(self, place: str) -> bool:
        return not place.startswith("c")

    def _place_rows(self) -> None:
        """Place each event in a separate row. A long silence becomes a wider gap, up to ROW_MAX."""
        y, before = TOP + 20.0, None
        for event in self._picture.events:
            gap = 0.0 if before is None else (event.time_ns - before) / NS_PER_PIXEL
            y += min(ROW_MAX, max(ROW_MIN, gap))
            before = event.time_ns
            self._y[event.number] = y
            self._times.append(event.time_ns)
            self._heights.append(y)

    def _at(self, time_ns: int) -> float:
        """Return the y coordinate of a moment, interpolated between the event before it and the event after it."""
        place = bisect_right(self._times, time_ns)
        if place == 0:
            return float(TOP)
        if place == len(self._times):
            return self._heights[-1] + 12
        before, after = self._times[place - 1], self._times[place]
        share = (time_ns - before) / (after - before) if after > before else 0.0
        return self._heights[place - 1] + share * (self._heights[place] - self._heights[place - 1])

    # -- what is drawn

    def _lines(self, svg: Element) -> None:
        for place, x in self._x.items():
            line(svg, x, TOP, x, self._height - 60, "#4b5563", width=1.2)
            y = float(TOP) - 10
            while y < self._height - 60:
                text(svg, x + 4, y, place, "#111" if y < TOP else "#bbb", size=14)
                y += NAMES_EVERY
        told = -100.0
        for event in self._picture.events:
            y = self._y[event.number]
            if y - told > 40:
                text(svg, 4, y + 3, f"{event.time_ns / 1e9:.6f} s", "#6b7280")
                told = y

    def _bars(self, svg: Element) -> None:
        """Draw bars for members that are down, and for faults.

        A bar is on the line of its member. The bars of faults without a member are at the left.
        """
        first_ns = self._times[0] if self._times else 0
        healed_ns = next((at_ns for at_ns, words in self._picture.faults if words == "healed"), self._picture.end_ns)
        for node_id, since, until in self._picture.downs:
            until_ns = self._picture.end_ns if until is None else until
            if until_ns > first_ns:
                self._bar(svg, self._x[node_id] - 4, 8, (since, until_ns), DOWN, f"{node_id} is down")
        for lane, (time_ns, words) in enumerate(self._picture.faults):
            found = re.search(r"\b(n\d+)\b(?: for (\d+) ms)?", words)
            until_ns = time_ns + (int(found[2]) * 1_000_000 if found and found[2] else 0)
            if max(time_ns, min(until_ns, healed_ns)) < first_ns:
                continue
            x = self._x.get(found[1], LEFT) if found else float(LEFT)
            x -= 12 + lane % BAR_LANES * (BAR_WIDTH + 1)
            self._bar(svg, x, BAR_WIDTH, (time_ns, max(time_ns, min(until_ns, healed_ns))), FAULT, words)
            if time_ns >= first_ns:
                text(svg, x + BAR_WIDTH + 16, self._at(time_ns) - 2, words, "#b45309", size=10)

    def _bar(self, svg: Element, x: float, width: float, span: tuple[int, int], fill: str, words: str) -> None:
        top, end = self._at(span[0]), self._at(span[1])
        shape = {"x": f"{x:.1f}", "y": f"{top:.1f}", "width": f"{width:.1f}", "height": f"{max(4.0, end - top):.1f}"}
        bar = SubElement(svg, "rect", {**shape, "fill": fill, "fill-opacity": "0.8", "rx": "2"})
        SubElement(bar, "title").text = f"{span[0] / 1e9:.6f} s  {words}"

    def _flight(self, svg: Element, flight: Flight) -> None:
        sender = self._by_number.get(flight.sender)
        receiver = self._by_number.get(flight.received) if flight.received is not None else None
        if receiver is None and (sender is None or not flight.receiver or flight.received is not None):
            return  # The flight began or ended before the shown part, or a client's bytes have no known receiver.
        x2 = self._x[receiver.place if receiver else flight.receiver]
        y1 = self._y[sender.number] if sender else float(TOP)
        x1 = self._x[sender.place] if sender else x2 - 30
        words = label_of(flight) or "bytes"
        if receiver is not None:
            arrow = line(svg, x1, y1, x2, self._y[receiver.number], ARROW, width=1.1, end="url(#head)")
            SubElement(arrow, "title").text = words
            return
        if self._picture.violation is not None and flight.due_ns == self._picture.end_ns:
            self._last_flight(svg, x1, y1, x2, words)
            return
        is_under_way = flight.due_ns is not None and flight.due_ns > self._picture.end_ns
        share = 0.45 if flight.due_ns is None else 0.92
        y2 = y1 + 14 if flight.due_ns is None else self._at(flight.due_ns)
        x, y = x1 + (x2 - x1) * share, y1 + (y2 - y1) * share
        colour = ARROW if is_under_way else LOST
        gone = line(svg, x1, y1, x, y, colour, width=1.0, dashes="4 3")
        SubElement(gone, "title").text = f"{words}: {'under way' if is_under_way else 'lost'}"
        if not is_under_way:
            line(svg, x - 4, y - 4, x + 4, y + 4, LOST, width=1.6)
            line(svg, x - 4, y + 4, x + 4, y - 4, LOST, width=1.6)

    def _last_flight(self, svg: Element, x1: float, y1: float, x2: float, words: str) -> None:
        """Draw the message that arrived at the moment of the violation, because its arrival broke the rule."""
        y2 = self._heights[-1] + 14
        arrow = line(svg, x1, y1, x2, y2, VIOLATION, width=2.0)
        SubElement(arrow, "title").text = f"{words}: with this the rule was broken"
        SubElement(svg, "circle", {"cx": f"{x2:.1f}", "cy": f"{y2:.1f}", "r": "5", "fill": VIOLATION})

    def _event(self, svg: Element, event: DiagramEvent) -> None:
        x, y, colour = self._x[event.place], self._y[event.number], ROLES.get(event.role, "#6b7280")
        shape = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "4.5" if event.labels else "3", "fill": colour}
        group = SubElement(svg, "g")
        SubElement(group, "title").text = f"{event.time_ns / 1e9:.9f} s  {event.place}  {event.words}"
        SubElement(group, "circle", shape)
        if event.labels:
            words = ", ".join(event.labels).replace("_", " ")
            text(group, x + 8, y + 3, words[:LABEL_CHARACTERS_MAX], colour)

    def _end(self, svg: Element) -> None:
        head = {"id": "head", "viewBox": "0 0 8 8", "refX": "8", "refY": "4", "markerWidth": "7", "markerHeight": "7"}
        marker = SubElement(SubElement(svg, "defs"), "marker", {**head, "orient": "auto"})
        SubElement(marker, "path", {"d": "M0,1 L8,4 L0,7 z", "fill": ARROW})
        if self._picture.violation is None:
            return
        y = self._height - 60
        line(svg, 0, y, self._width, y, VIOLATION, width=2.5)
        told = text(
            svg, 8, y + 20, f"{self._picture.end_ns / 1e9:.6f} s  {self._picture.violation}", VIOLATION, size=13
        )
        told.set("font-weight", "bold")
        for event in self._guilty():
            ring = {"cx": f"{self._x[event.place]:.1f}", "cy": f"{self._y[event.number]:.1f}", "r": "9"}
            SubElement(svg, "circle", {**ring, "fill": "none", "stroke": VIOLATION, "stroke-width": "2.5"})

    def _guilty(self) -> Iterator[DiagramEvent]:
        """Return the last event of each member that the violation names."""
        for place in set(re.findall(r"\bn\d+\b", self._picture.violation or "")):
            mine = [event for event in self._picture.events if event.place == place]
            yield from mine[-1:]


def line(
    parent: Element,
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    colour: str,
    *,
    width: float,
    end: str = "",
    dashes: str = "",
) -> Element:
    """Add a line to `parent`, with an arrowhead (`end`) or dashes if wanted."""
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    style = {"stroke": colour, "stroke-width": str(width)}
    more = {"marker-end": end, "stroke-dasharray": dashes}
    return SubElement(parent, "line", {**ends, **style, **{name: value for name, value in more.items() if value}})


def text(parent: Element, x: float, y: float, words: str, colour: str, *, size: int = 10) -> Element:
    """Add a text to `parent`."""
    where = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    drawn = SubElement(parent, "text", {**where, "fill": colour, "font-size": str(size)})
    drawn.text = words
    return drawn
