"""The benchmark of callers compares windows that followed each other, and fails if a ratio exceeds its bound."""

from __future__ import annotations

from typing import Any

from benchmarks.single.caller_process import WORLDS as PROGRAMS
from benchmarks.single.callers import WORLDS, ratios, table, too_dear


def rows(repetition: int, **costs: float) -> list[dict[str, Any]]:
    return [
        {"repetition": repetition, "callers": 256, "world": world, "cpu_us": cost, "per_second": 1_000.0}
        for world, cost in costs.items()
    ]


def test_the_ratio_is_the_median_of_neighbours() -> None:
    """In this example the machine was slower in the second repetition, for trio and for asyncio."""
    found = rows(0, trio=20.0, asyncio=16.0) + rows(1, trio=200.0, asyncio=150.0) + rows(2, trio=20.0, asyncio=17.0)

    assert ratios(found)["asyncio", 256] == 0.8
    assert too_dear(found) == []
    assert table(found).splitlines()[3] == "| 256 | asyncio | 1,000 (1,000–1,000) | 17.0 | 0.80 |"


def test_a_world_that_costs_too_much_is_named() -> None:
    assert too_dear(rows(0, trio=20.0, asyncio=19.0)) == [
        "asyncio at 256 callers costs 0.95 × trio's; the bound is 0.9"
    ]


def test_each_world_has_its_program() -> None:
    assert set(PROGRAMS) == set(WORLDS)
