"""The table of two systems compares windows that followed each other."""

from __future__ import annotations

from typing import Any

from benchmarks.single.windows import table_of_pairs


def window(system: str, repetition: int, per_second: float) -> dict[str, Any]:
    return {
        "generator": "lean",
        "system": system,
        "in_flight": 64,
        "repetition": repetition,
        "per_second": per_second,
        "p50_ms": 1.0,
        "p99_ms": 2.0,
        "cpu_us": 30.0,
    }


def test_the_ratio_is_the_median_of_neighbours() -> None:
    """In this example the machine became slower in the second half, for both systems."""
    rows = [window("plain", 0, 1_000.0), window("TLS", 0, 900.0)]
    rows += [window("TLS", 1, 95.0), window("plain", 1, 100.0), window("plain", 2, 100.0), window("TLS", 2, 97.0)]

    lines = table_of_pairs(rows, "generator", "puts/s", ("TLS", "plain")).splitlines()

    assert lines[2] == "| lean | 64 | plain | 100 (100–1,000) |  | 1.00 | 2.00 | 30.0 |"
    assert lines[3] == "| lean | 64 | TLS | 97 (95–900) | 0.95 | 1.00 | 2.00 | 30.0 |"
