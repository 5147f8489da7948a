"""The report states the measured results, even if they are unfavourable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.compare.conductor import row_of
from benchmarks.compare.plots import curves
from benchmarks.compare.table import losses, report
from benchmarks.load.plan import CONTENDERS, Cell, Group
from benchmarks.load.spec import LoadResult, LoadSpec
from benchmarks.measure.statistics import medians
from tests.benchmarks.test_statistics import a_row

BY_NAME = {contender.name: contender for contender in CONTENDERS}


def a_result(**changed: Any) -> LoadResult:
    fields: dict[str, Any] = {
        "operations": 1_000, "seconds": 2.0, "puts": 1_200, "revision_before": 10, "revision_after": 1_210,
        "latencies_ms": {"p50_ms": 1.0, "p99_ms": 2.0, "p999_ms": 3.0, "max_ms": 4.0},
        "cpu_seconds": {"leader": 0.03, "follower 1": 0.01}, "generator_cpu_seconds": 0.005, "errors": {},
    }  # fmt: skip
    return LoadResult(**(fields | changed))


def a_document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    machine = {
        "processor": "a processor", "cores": 2, "memory_gib": 8.0, "system": "Linux", "python": "CPython 3.11",
        "versions": {}, "filesystem": "ext4", "fdatasync_us": 130, "load_average": 0.1,
    }  # fmt: skip
    return {
        "date": "2026-01-02T03:04:05+00:00", "plan": "quick", "repetitions": 3, "machine": machine, "etcd": "3.5.1",
        "skipped": ["etcd: there is none"], "failures": [], "rows": rows,
    }  # fmt: skip


def test_a_row_has_what_was_promised_and_per_operation_what_was_spent() -> None:
    row = row_of(BY_NAME["etcd"], Cell(Group(), "put", 64, 8), 2, a_result())

    assert {key: row[key] for key in ("system", "work", "in_flight", "connections", "value_bytes", "members")} == {
        "system": "etcd", "work": "put", "in_flight": 64, "connections": 8, "value_bytes": 128, "members": 3,
    }  # fmt: skip
    assert (row["repetition"], row["ops_per_second"], row["p50_ms"], row["p99_ms"]) == (2, 500.0, 1.0, 2.0)
    assert row["cpu_us_per_op"] == 40.0
    assert row["cpu_us_per_op_by_process"] == {"leader": 30.0, "follower 1": 10.0}
    assert row["generator_cpu_us_per_op"] == 5.0
    assert row["verified"]


@pytest.mark.parametrize(
    "changed", [{"revision_after": 1_209}, {"revision_after": 1_211}, {"errors": {"busy": 1}}, {"unanswered": 1}]
)
def test_a_run_is_verified_only_if_exactly_its_puts_took_place(changed: dict[str, Any]) -> None:
    row = row_of(BY_NAME["etcd"], Cell(Group(), "put", 64, 8), 1, a_result(**changed))

    assert not row["verified"]


def test_spec_and_result_cross_the_pipe_unchanged() -> None:
    spec = LoadSpec(
        kind="etcd", endpoints=["127.0.0.1:1"], work="put", in_flight=1, connections=1, rate=0, value_bytes=1,
        existing_keys=1, seed=1, warmup_seconds=0.5, seconds=1.0, pids={"leader": 7},
    )  # fmt: skip
    assert LoadSpec.from_json(spec.to_json()) == spec
    assert LoadResult.from_json(a_result().to_json()) == a_result()


def test_a_lost_cell_is_named_with_both_numbers() -> None:
    rows = [a_row("highwatermark", 80.0, p99_ms=9.0), a_row("etcd", 100.0, p99_ms=3.0)]

    [line] = losses(medians(rows))

    assert "etcd" in line
    assert "0.80×" in line
    assert "9.00 against 3.00 ms" in line


def test_more_throughput_with_a_worse_tail_is_a_loss_too() -> None:
    rows = [a_row("highwatermark", 200.0, p99_ms=9.0), a_row("etcd", 100.0, p99_ms=3.0)]

    [line] = losses(medians(rows))

    assert "×" not in line
    assert "p99" in line


def test_a_won_cell_is_no_loss_and_neither_is_our_own_client() -> None:
    rows = [
        a_row("highwatermark", 200.0, p99_ms=1.0),
        a_row("etcd", 100.0, p99_ms=3.0),
        a_row("highwatermark-client", 900.0, p99_ms=0.1),
    ]

    assert losses(medians(rows)) == []


def test_the_report_names_losses_skipped_peers_and_every_system() -> None:
    text = report(a_document([a_row("highwatermark", 80.0), a_row("etcd", 100.0)]))

    assert "Skipped: etcd: there is none" in text
    assert text.index("Where Highwatermark loses") < text.index("| load |")
    assert "| 64 in flight on 8 | highwatermark | 80 (80–80) |" in text
    assert "0.80×" in text


def test_a_row_in_doubt_says_so_in_the_table() -> None:
    text = report(a_document([a_row("etcd", 100.0, verified=False, errors=3)]))

    assert "**not verified, 3 errors**" in text


def test_a_curve_has_its_points_in_order_of_load() -> None:
    rows = [a_row("etcd", 100.0 + n, in_flight=n) for n in (64, 1, 1024)] + [a_row("etcd", 5.0, value_bytes=16)]

    assert [row["in_flight"] for row in curves(rows)["put"]["etcd"]] == [1, 64, 1024]


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_the_rows_of_a_result_file_have_the_promised_fields(name: str) -> None:
    """Other programs read `latest.json`: its rows keep these names, before and after they are written as JSON."""
    made = row_of(BY_NAME[name], Cell(Group(), "put", 64, 8), 1, a_result())

    row = json.loads(json.dumps(a_document([made])))["rows"][0]

    assert row["system"] == name
    assert {
        "system", "work", "in_flight", "connections", "value_bytes", "members", "repetition", "ops_per_second",
        "p50_ms", "p99_ms", "cpu_us_per_op",
    } <= set(row)  # fmt: skip
