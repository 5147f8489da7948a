"""These tests check which results make a run among hostile strangers fail."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from harness.runs.hostile import RSS_BYTES_MAX, HostileResult, Latencies, visits, windows_of

QUIET = Latencies(operations=1_000, p50_ms=4.0, p99_ms=10.0)
HOSTILE = Latencies(operations=4_000, p50_ms=6.0, p99_ms=29.0)
GOOD = HostileResult(
    seed=1,
    clients=12,
    seconds=15.0,
    windows=(),
    quiet=QUIET,
    hostile=HOSTILE,
    operations=5_000,
    by_status={"ok": 5_000, "fail": 0, "unknown": 0},
    kills=1,
    leader_changes=1,
    sound=True,
    words="well",
    rss_bytes_peak=60 * 2**20,
    descriptors_peak=40,
    operator_checks={"status ok": 5, "livez ok": 5},
    operator_failures=(),
    operator_worst_ms=3.0,
    intruder={"refused": 2},
    stranger_counts={"idle-clients": 9},
    audit_words="LINEARIZABLE",
    audit_exit_code=0,
)
SECOND_NS = 1_000_000_000


def test_a_run_that_strangers_did_not_hurt_has_no_findings() -> None:
    assert GOOD.findings == ()
    assert GOOD.exit_code == 0
    assert GOOD.p99_ratio == pytest.approx(2.9)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (replace(GOOD, sound=False, words="two states"), "did not end well: two states"),
        (replace(GOOD, rss_bytes_peak=RSS_BYTES_MAX + 1), "768 MiB"),
        (replace(GOOD, operator_failures=("n1: status: silent",)), "n1: status: silent"),
        (replace(GOOD, intruder={"let in": 1}), "let into a folder 1 times"),
        (replace(GOOD, stranger_counts={}), "no stranger came"),
        (replace(GOOD, hostile=replace(HOSTILE, p99_ms=31.0)), "3.1 times"),
        (replace(GOOD, quiet=Latencies.of(())), "inf times"),
        (replace(GOOD, audit_exit_code=3, audit_words="VIOLATION"), "VIOLATION"),
    ],
    ids=["unsound", "memory", "operators", "intruder", "no strangers", "latency", "nothing done", "audit"],
)
def test_each_harm_is_a_finding(result: HostileResult, words: str) -> None:
    (finding,) = result.findings

    assert words in finding
    assert result.exit_code == 3


def test_strangers_come_for_as_long_as_was_asked_with_quiet_windows_around_each_visit() -> None:
    assert visits(60.0) == ((15.0, 75.0),)
    assert visits(600.0) == ((75.0, 675.0),)
    hour = visits(3_600.0)
    assert len(hour) == 6
    assert sum(leaves - comes for comes, leaves in hour) == pytest.approx(3_600.0)
    assert [later[0] - earlier[1] for earlier, later in pairwise(hour)] == [75.0] * 5


def test_an_operation_counts_for_the_window_in_which_it_was_called_once_that_has_settled() -> None:
    events = [
        {"kind": "load_started", "at_ns": 0},
        {"kind": "strangers_came", "at_ns": 100 * SECOND_NS},
        {"kind": "strangers_leave", "at_ns": 190 * SECOND_NS},
        {"kind": "strangers_left", "at_ns": 200 * SECOND_NS},
        {"kind": "load_ended", "at_ns": 300 * SECOND_NS},
    ]

    def row(second: float, milliseconds: int, status: str = "ok") -> dict[str, object]:
        call_ns = int(second * SECOND_NS)
        return {"status": status, "call_ns": call_ns, "return_ns": call_ns + milliseconds * 1_000_000}

    rows = [
        row(1, 900),  # The first clients connect.
        row(50, 2),
        row(99.9, 400),  # Strangers came during this operation.
        row(101, 900),
        row(150, 8),
        row(150, 900, "fail"),
        row(250, 4),
        row(301, 900),  # This is one of the reads after the load.
    ]

    windows, quiet, hostile = windows_of(events, rows)

    assert [(window.strangers, window.latencies.operations) for window in windows] == [
        (False, 2),
        (True, 1),
        (False, 1),
    ]
    assert [window.until_ns - window.from_ns for window in windows] == [100 * SECOND_NS] * 3
    assert (quiet.operations, quiet.p50_ms, quiet.p99_ms) == (3, 4.0, 400.0)
    assert (hostile.operations, hostile.p99_ms) == (1, 8.0)
