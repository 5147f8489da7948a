"""Percentiles over one run, and medians over several runs. The code is short, so that a reader can check it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.reports.percentile import percentile


def latencies_ms(seconds: Iterable[float]) -> dict[str, float]:
    """Return p50, p99, p99.9 and the maximum of the latencies, in ms; empty if there are no latencies."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    names = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    return {name: round(percentile(ordered, share) * 1e3, 4) for name, share in names.items()}


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle values. There must be at least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


CELL_FIELDS = ("work", "members", "existing_keys", "value_bytes", "in_flight", "connections", "offered_per_second")
"""The fields that identify a cell. `cell_of` omits `connections`, because PySyncObj always has 0 in this field."""


def cell_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what identifies the cell of a row. Rows with the same cell and system are repetitions."""
    return tuple(row[name] for name in CELL_FIELDS if name != "connections")


def medians(rows: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """Return, by cell and then by system, one row for all repetitions.

    In this row, throughput, percentiles and CPU times are medians over the repetitions. `errors` is the sum over the
    repetitions, and `repetitions` their number. `ops_per_second_range` has the least and the greatest throughput.
    `verified` is true only if every repetition was verified. Cells and systems keep the order in which they first
    appear.
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
