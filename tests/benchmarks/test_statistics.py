"""Each number in the report is the quantity that its name says."""

from __future__ import annotations

from typing import Any

from benchmarks.measure.statistics import latencies_ms, median, medians


def a_row(system: str, ops: float, repetition: int = 1, **changed: Any) -> dict[str, Any]:
    row = {
        "system": system, "work": "put", "in_flight": 64, "connections": 8, "value_bytes": 128, "members": 3,
        "repetition": repetition, "ops_per_second": ops, "p50_ms": 1.0, "p99_ms": 2.0, "p999_ms": 3.0,
        "cpu_us_per_op": 30.0, "cpu_us_per_op_by_process": {"leader": 20.0, "follower 1": 10.0},
        "generator_cpu_us_per_op": 4.0, "existing_keys": 1000, "offered_per_second": None, "errors": 0,
        "verified": True,
    }  # fmt: skip
    return row | changed


def test_of_nothing_there_are_no_latencies() -> None:
    assert latencies_ms([]) == {}


def test_latencies_are_told_in_milliseconds_whatever_their_order() -> None:
    assert latencies_ms([0.003, 0.001, 0.002]) == {"p50_ms": 2.0, "p99_ms": 3.0, "p999_ms": 3.0, "max_ms": 3.0}


def test_a_median_of_an_even_number_is_between_both_middle_ones() -> None:
    assert median([9.0, 1.0, 5.0]) == 5.0
    assert median([1.0, 9.0, 5.0, 7.0]) == 6.0


def test_repetitions_of_one_cell_and_system_become_one_row() -> None:
    rows = [a_row("etcd", ops, repetition) for repetition, ops in enumerate([300.0, 100.0, 200.0], start=1)]

    [systems] = medians(rows).values()

    assert systems["etcd"]["ops_per_second"] == 200.0
    assert systems["etcd"]["ops_per_second_range"] == [100.0, 300.0]
    assert systems["etcd"]["repetitions"] == 3
    assert "repetition" not in systems["etcd"]


def test_one_repetition_that_is_not_verified_puts_the_median_in_doubt() -> None:
    [systems] = medians([a_row("etcd", 1.0), a_row("etcd", 1.0, 2, verified=False, errors=4)]).values()

    assert not systems["etcd"]["verified"]
    assert systems["etcd"]["errors"] == 4


def test_a_system_without_connections_meets_the_others_in_the_same_cell() -> None:
    rows = [a_row("highwatermark", 9.0), a_row("pysyncobj", 1.0, connections=0, generator_cpu_us_per_op=None)]

    [systems] = medians(rows).values()

    assert list(systems) == ["highwatermark", "pysyncobj"]
    assert systems["pysyncobj"]["generator_cpu_us_per_op"] is None


def test_different_sizes_are_different_cells() -> None:
    rows = [a_row("etcd", 1.0), a_row("etcd", 1.0, value_bytes=16), a_row("etcd", 1.0, members=5)]

    assert len(medians(rows)) == 3
