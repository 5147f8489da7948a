"""Percentiles of one run, medians over runs. Plain and small, so that a reader can check them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.reports.percentile import percentile


def latencies_ms(seconds: Iterable[float]) -> dict[str, float]:
    """p50, p99, p99.9 and the greatest, in ms. Empty if there was none."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    names = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    return {name: round(percentile(ordered, share) * 1e3, 4) for name, share in names.items()}


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of both middle ones; length ≥ 1."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


CELL_FIELDS = ("work", "members", "existing_keys", "value_bytes", "in_flight", "connections", "offered_per_second")
"""What makes two rows repetitions of one another, besides their system. PySyncObj's `connections` are 0."""


def cell_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Which cell a row measures, whatever the system."""
    return tuple(row[name] for name in CELL_FIELDS if name != "connections")


def medians(rows: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """cell → system → one row whose numbers are the medians over its repetitions.

    `repetitions` counts them, `ops_per_second_range` has the least and the greatest, and `verified` is true only if
    every one was. Cells and systems keep the order in which they first appear.
    """
    gathered: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        gathered.setdefault(cell_of(row), {}).setdefault(row["system"], []).append(row)
    return {
        cell: {system: _median_row(same) for system, same in by_system.items()} for cell, by_system in gathered.items()
    }


def _median_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(rows[0])
    names = ("ops_per_second", "p50_ms", "p99_ms", "p999_ms", "cpu_us_per_op", "generator_cpu_us_per_op")
    for name in names:
        values = [row[name] for row in rows if row.get(name) is not None]
        merged[name] = median(values) if values else None
    processes = [row["cpu_us_per_op_by_process"] for row in rows]
    merged["cpu_us_per_op_by_process"] = {
        name: median([each[name] for each in processes if name in each]) for name in processes[0]
    }
    rates = [row["ops_per_second"] for row in rows]
    merged["ops_per_second_range"] = [min(rates), max(rates)]
    merged["repetitions"] = len(rows)
    merged["verified"] = all(row["verified"] for row in rows)
    merged["errors"] = sum(row["errors"] for row in rows)
    del merged["repetition"]
    return merged
