"""Parts of a page for tests: its drawings as XML, and the bars in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree.ElementTree import Element, fromstring

from spark_audit import check_rows
from spark_audit.local.page_material import gather_rows
from spark_audit.report.page import draw_page
from spark_audit.testing.generate import Row

SVG = "{http://www.w3.org/2000/svg}"


def page_of(rows: Sequence[Row], clocks: Sequence[Row] = ()) -> str:
    """The page for these rows."""
    verdict = check_rows(rows, clocks=clocks)
    return draw_page(verdict, gather_rows(rows, verdict))


def drawings(page: str) -> list[Element]:
    """Every SVG of the page. The test fails if one of them is not valid XML."""
    return [fromstring(text) for text in re.findall(r"<svg\b.*?</svg>", page, re.DOTALL)]


def groups(drawing: Element, name: str) -> list[Element]:
    """The groups with this class: guilty, neighbour, fault, slice, violation."""
    return [group for group in drawing.iter(f"{SVG}g") if group.get("class") == name]


def ids(found: Iterable[Element]) -> set[int]:
    return {int(str(group.get("data-op"))) for group in found}


def title(group: Element) -> str:
    return group.findtext(f"{SVG}title") or ""


def span_of(group: Element) -> tuple[float, float]:
    """The x positions at which a bar begins and ends."""
    shape: Any = group.find(f"{SVG}rect")
    return float(shape.get("x")), float(shape.get("x")) + float(shape.get("width"))
