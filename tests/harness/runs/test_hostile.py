"""What a run among strangers must not have shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.runs.hostile import RSS_BYTES_MAX, HostileResult, HostileRun

QUIET = HostileRun(
    strangers=False,
    seconds=10.0,
    operations=1_000,
    by_status={"ok": 1_000, "fail": 0, "unknown": 0},
    kills=1,
    leader_changes=1,
    p50_ms=4.0,
    p99_ms=10.0,
    sound=True,
    words="well",
    rss_bytes_peak=60 * 2**20,
    descriptors_peak=40,
    operator_checks={"status ok": 5, "livez ok": 5},
    operator_failures=(),
    operator_worst_ms=3.0,
    intruder={},
    stranger_counts={},
)
HOSTILE = replace(QUIET, strangers=True, p99_ms=29.0, intruder={"refused": 2}, stranger_counts={"idle-clients": 9})
GOOD = HostileResult(seed=1, clients=12, runs=(QUIET, HOSTILE, QUIET), audit_words="LINEARIZABLE", audit_exit_code=0)


def with_strangers(hostile: HostileRun) -> HostileResult:
    return replace(GOOD, runs=(QUIET, hostile, QUIET))


def test_a_run_that_strangers_did_not_hurt_has_no_findings() -> None:
    assert GOOD.findings == ()
    assert GOOD.exit_code == 0
    assert GOOD.p99_ratio == pytest.approx(2.9)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (with_strangers(replace(HOSTILE, sound=False, words="two states")), "did not end well: two states"),
        (with_strangers(replace(HOSTILE, rss_bytes_peak=RSS_BYTES_MAX + 1)), "768 MiB"),
        (with_strangers(replace(HOSTILE, operator_failures=("n1: status: silent",))), "n1: status: silent"),
        (with_strangers(replace(HOSTILE, intruder={"let in": 1})), "let into a folder 1 times"),
        (with_strangers(replace(HOSTILE, stranger_counts={})), "no stranger came"),
        (with_strangers(replace(HOSTILE, p99_ms=31.0)), "3.1 times"),
        (replace(GOOD, audit_exit_code=3, audit_words="VIOLATION"), "VIOLATION"),
    ],
    ids=["unsound", "memory", "operators", "intruder", "no strangers", "latency", "audit"],
)
def test_each_harm_is_a_finding(result: HostileResult, words: str) -> None:
    (finding,) = result.findings

    assert words in finding
    assert result.exit_code == 3
