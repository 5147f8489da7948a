"""The judge of an endurance run accepts only facts that it has observed, and fails the run for each forbidden event."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.endurance.__main__ import report
from benchmarks.endurance.judge import MIB, Bounds, Finding, Sample, judge, recovery_seconds, thirds
from benchmarks.endurance.load import EnduranceSpec, EnduringLoad
from benchmarks.endurance.plot import spans
from tests.benchmarks.test_load import AnsweringServer, a_spec
from tests.benchmarks.test_load import server as server

BOUNDS = Bounds(
    phase_seconds={"steady": 60, "overload": 10, "recovery": 20}, window_requests=10_000, warm_bytes=64 * MIB
)
CALM, LATE = 0.02, 0.9


def a_run(change: Callable[[int, Sample], None] | None = None) -> list[Sample]:
    """Samples of ninety seconds without any fault, except for the changes that `change` makes to each sample."""
    samples = []
    for number in range(90):
        phase = "steady" if number < 60 else "overload" if number < 70 else "recovery"
        sample = Sample(
            at=float(number),
            phase=phase,
            greedy=phase == "steady" and number // 10 % 2 == 1,
            answers=10_000,
            load_max_ms=80.0,
            rss={"n1": 200 * MIB, "n2": 190 * MIB},
            term={"n1": 3, "n2": 3},
            leader={"n1": "n1", "n2": "n1"},
            light=[(number + part / 10 - 1, LATE if phase == "overload" else CALM) for part in range(10)],
        )
        if change is not None:
            change(number, sample)
        samples.append(sample)
    return samples


def failing(samples: list[Sample], bounds: Bounds = BOUNDS) -> list[str]:
    return [finding.name for finding in judge(samples, bounds) if not finding.holds]


def test_a_run_in_which_all_is_well_is_green() -> None:
    assert failing(a_run()) == []


def test_a_run_that_nobody_looked_at_proves_nothing() -> None:
    assert len(failing([])) >= 5
    assert failing(a_run()[:65]) != []
    assert "every second was looked at, and work was done" in failing(a_run()[::2])


def test_a_cluster_that_answers_nothing_is_not_well() -> None:
    def refuse_all(_: int, sample: Sample) -> None:
        sample.refused = sample.answers

    assert "every second was looked at, and work was done" in failing(a_run(refuse_all))


@pytest.mark.parametrize("seen", [("n1", 4, "n1"), ("n2", 3, "n2")])
def test_an_election_seen_by_one_member_once_is_found(seen: tuple[str, int, str]) -> None:
    member, term, leader = seen

    def elect(number: int, sample: Sample) -> None:
        if number == 61:
            sample.term[member], sample.leader[member] = term, leader

    assert failing(a_run(elect)) == ["no election: one term, one leader"]


def test_a_member_that_does_not_answer_for_long_may_hide_an_election() -> None:
    def fall_silent(seconds: int) -> list[Sample]:
        def silent(number: int, sample: Sample) -> None:
            if 10 <= number < 10 + seconds:
                sample.term["n2"] = sample.leader["n2"] = None

        return a_run(silent)

    assert failing(fall_silent(5)) == []
    assert failing(fall_silent(30)) == ["no election: one term, one leader"]


def test_busy_is_an_answer_and_anything_else_is_an_error() -> None:
    def refuse(_: int, sample: Sample) -> None:
        sample.refused = 5_000

    def fail_once(number: int, sample: Sample) -> None:
        if number == 33:
            sample.errors = {"light outcome_unknown": 1}

    assert failing(a_run(refuse)) == []
    assert failing(a_run(fail_once)) == ["no error other than Busy"]


def test_memory_that_grows_in_the_last_third_is_found() -> None:
    def grow(number: int, sample: Sample) -> None:
        if number >= 40:
            sample.rss["n2"] = 240 * MIB

    assert failing(a_run(grow)) == ["memory of n2 is flat"]


def test_memory_may_grow_while_the_log_cache_is_filling() -> None:
    """If memory grows while the log cache is below `raft.RaftConfig.log_cache_bytes_max`, this is not a leak."""

    def grow(number: int, sample: Sample) -> None:
        if number >= 40:
            sample.rss["n2"] = 240 * MIB

    assert failing(a_run(grow), replace(BOUNDS, warm_bytes=0, put_bytes=144.0)) == []
    assert failing(a_run(grow), replace(BOUNDS, warm_bytes=0, put_bytes=400.0)) == ["memory of n2 is flat"]


def test_one_long_wait_of_the_light_client_is_found() -> None:
    def wait(number: int, sample: Sample) -> None:
        if number == 15:
            sample.light[3] = (14.2, 2.1)

    assert failing(a_run(wait)) == ["the light client is served"]


def test_an_overload_may_be_slow_but_not_endless() -> None:
    """An answer may take 2 s plus twice the time that 10,000 open requests take at 10,000 a second."""

    def wait(number: int, sample: Sample) -> None:
        sample.load_max_ms = 3_900.0 if number == 65 else 80.0

    def wait_longer(number: int, sample: Sample) -> None:
        sample.load_max_ms = 4_100.0 if number == 65 else 80.0

    assert failing(a_run(wait)) == []
    assert failing(a_run(wait_longer)) == ["overload: answers are late at most"]


def test_an_overload_may_cost_memory_for_what_is_open_and_no_more() -> None:
    def grow(number: int, sample: Sample) -> None:
        if number >= 60:
            sample.rss["n1"] = 261 * MIB  # The bound is 200 MiB plus a fifth, plus 2 KiB for each of 10,000 requests.

    assert failing(a_run(grow)) == ["overload: memory of n1 is bounded"]
    assert failing(a_run(grow), replace(BOUNDS, window_requests=20_000)) == []


def test_recovery_is_counted_from_the_end_of_the_overload_to_the_end_of_the_last_long_wait() -> None:
    def late_until(moment: float) -> list[Sample]:
        def late(_: int, sample: Sample) -> None:
            if sample.phase == "recovery":
                sample.light = [(began, LATE if began < moment else CALM) for began, _ in sample.light]

        return a_run(late)

    back = recovery_seconds(late_until(72.0), BOUNDS)
    assert back == pytest.approx(71.9 + LATE - 69.0)  # The last sample of the overload is at second 69.
    assert failing(late_until(72.0)) == []
    assert failing(late_until(81.0)) == ["after the overload the light client's p99 is back"]


def test_a_client_that_is_not_seen_calm_for_long_enough_is_not_back() -> None:
    def late(number: int, sample: Sample) -> None:
        if sample.phase == "recovery" and number < 87:
            sample.light = [(began, LATE) for began, _ in sample.light]

    assert recovery_seconds(a_run(late), BOUNDS) is None


def test_a_recovery_in_which_nothing_is_answered_is_none() -> None:
    """After an election, the load may continue to ask a member that no longer leads."""

    def refuse(_: int, sample: Sample) -> None:
        if sample.phase == "recovery":
            sample.errors = {"not the leader": sample.answers}

    assert recovery_seconds(a_run(refuse), BOUNDS) is None


def test_thirds_are_of_time_and_hold_every_sample() -> None:
    samples = a_run()[:60]
    parts = thirds(samples)

    assert [len(part) for part in parts] == [20, 20, 20]
    assert [sample for part in parts for sample in part] == samples


def test_the_report_names_what_fails_first_to_the_eye() -> None:
    text = report(a_run(), [Finding("a", True, "fine"), Finding("b", False, "not fine")], BOUNDS)

    assert "- holds: a: fine" in text
    assert "- FAILS: b: not fine" in text
    assert "NOT all checks hold" in text


def test_what_is_shaded_are_the_greedy_connection_the_overload_and_the_recovery() -> None:
    assert spans(a_run()) == [
        ("greedy", 9.0, 19.0), ("greedy", 29.0, 39.0), ("greedy", 49.0, 59.0),
        ("overload", 59.0, 69.0), ("recovery", 69.0, 89.0),
    ]  # fmt: skip


@pytest.mark.timeout(30)
def test_ticks_add_up_to_all_that_was_answered(server: AnsweringServer) -> None:
    load = EnduringLoad(EnduranceSpec(load=a_spec(server.address, seconds=1.5), put_share=1.0))
    ticks = list(load.ticks())
    load.close()

    assert [tick.get("ended", False) for tick in ticks] == [False, False, True]
    assert ticks[-1]["puts"] == server.puts
    # The difference is the number of requests that were open at the end.
    assert 0 < server.puts - sum(tick["answers"] for tick in ticks) <= 8
    assert ticks[-1]["unanswered"] == 0
    assert not any(tick["errors"] or tick["refused"] for tick in ticks)


@pytest.mark.timeout(30)
def test_an_open_loop_holds_back_what_finds_its_windows_full(server: AnsweringServer) -> None:
    spec = EnduranceSpec(load=a_spec(server.address, rate=20_000, in_flight=0, seconds=0.5), put_share=1.0, window=3)
    load = EnduringLoad(spec)
    ticks = list(load.ticks())
    load.close()

    offered, held_back = (sum(tick[name] for tick in ticks) for name in ("offered", "held_back"))
    assert server.at_once_max <= 3
    assert held_back > 0
    assert offered - held_back == ticks[-1]["puts"] == server.puts
    assert offered <= 20_000 * 0.5 + 1


def test_a_spec_survives_the_wire() -> None:
    spec = EnduranceSpec(load=a_spec("127.0.0.1:1"), put_share=0.25, window=7)

    assert EnduranceSpec.from_json(spec.to_json()) == spec


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(110)
def test_a_smoke_run_goes_through_all_phases_on_real_members_and_says_what_it_found(tmp_path: Path) -> None:
    """The machine decides whether a bound holds, so the test only demands that the run checks every bound."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.endurance", "--smoke", "--folder", tmp_path / "data", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    (written,) = tmp_path.glob("*-endurance.json")
    document = json.loads(written.read_text(encoding="utf-8"))
    held = [finding["holds"] for finding in document["findings"]]
    assert done.returncode == (0 if all(held) else 1), done.stderr
    assert ("**all checks hold" in done.stdout) == all(held)
    assert list(dict.fromkeys(sample["phase"] for sample in document["samples"])) == ["steady", "overload", "recovery"]
    for phase in ("steady", "overload", "recovery"):
        seen = [sample for sample in document["samples"] if sample["phase"] == phase]
        assert sum(sample["answers"] for sample in seen) > 0, (phase, document["samples"])
        assert sum(len(sample["light"]) for sample in seen) > 0, (phase, document["samples"])
        assert all(set(sample["rss"]) == {"n1", "n2", "n3"} for sample in seen), phase
    assert sum(sample["greedy"] for sample in document["samples"]) >= 2
    assert written.with_suffix(".svg").stat().st_size > 1_000
