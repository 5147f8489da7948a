"""Campaigns of many seeds, the command that runs such campaigns, and failures that one process sends to another."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from harness.sim.campaign import Totals, run_campaign
from harness.sim.checks.coverage import CAMPAIGN_SEEDS_MIN, FIGURE_8, WANTED, CoverageTracker, is_too_rare
from harness.sim.cli import EXIT_INTERRUPTED, EXIT_NOT_REACHED, EXIT_VIOLATION, simulate
from harness.sim.engine.errors import Violation
from harness.sim.plan.plan import KINDS
from harness.sim.simulation import SeedResult, Simulation, run_seed
from raft import Effects, TraceEvent
from tests.simulation.support.deliberate_bugs import messages_do_not_wait_for_the_sync

PLANS = Path(__file__).parent / "regressions"


def test_a_violation_travels_between_processes() -> None:
    """An error can be unpickled only if its fields are the arguments of its constructor."""
    violation = Violation("election safety", "term 3 has two leaders")

    copy = pickle.loads(pickle.dumps(violation))

    assert (copy.rule, copy.detail) == ("election safety", "term 3 has two leaders")
    assert str(copy) == "election safety: term 3 has two leaders"


@pytest.mark.timeout(100)
def test_a_campaign_over_processes_counts_what_its_seeds_count() -> None:
    """Seeds are independent of each other, so a seed may run in any process."""
    *_, totals = run_campaign(1, 4, jobs=2)
    alone = [run_seed(seed) for seed in range(1, 5)]

    assert totals.seeds == 4
    assert totals.events == sum(result.events for result in alone)
    assert totals.simulated_ns == sum(result.simulated_ns for result in alone)
    assert set(totals.covered) == set().union(*(result.covered for result in alone))


@pytest.mark.timeout(100)
def test_a_campaign_that_ends_early_leaves_no_process_behind() -> None:
    """A caller that needs no more totals closes the generator."""
    steps = run_campaign(1, None, jobs=2)

    next(steps)
    steps.close()

    assert multiprocessing.active_children() == []


def test_a_campaign_that_is_stopped_tells_what_it_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM has the same effect as Ctrl-C."""

    def stopped_after_one(*_: object, **__: object) -> Iterator[Totals]:
        totals = Totals()
        totals.add(run_seed(1))
        yield totals
        os.kill(os.getpid(), signal.SIGTERM)
        yield totals

    monkeypatch.setattr("harness.sim.cli.run_campaign", stopped_after_one)
    ended = CliRunner().invoke(simulate, ["--minutes", "9", "--json"])

    assert ended.exit_code == EXIT_INTERRUPTED, ended.output
    assert json.loads(ended.stdout)["seeds"] == 1
    assert "stopped after 1 seeds" in ended.stderr


def test_totals_keep_failures_in_the_form_that_programs_read() -> None:
    """The command prints the totals with `--json`."""
    totals = Totals()
    totals.add(SeedResult(seed=5, events=10, simulated_ns=2 * 10**9, seconds=0.5, trace_hash="00", covered=frozenset()))
    totals.add(
        SeedResult(
            seed=4,
            events=30,
            simulated_ns=10**9,
            seconds=0.5,
            trace_hash="00",
            covered=frozenset({"truncated"}),
            violation=Violation("log matching", "…"),
        )
    )

    found = totals.to_json()

    assert (found["seeds"], found["events"], found["events_per_core_second"]) == (2, 40, 40)
    assert found["simulated_per_core_second"] == 3.0
    assert found["marks"] == {"truncated": 1}
    assert found["failures"] == [{"seed": 4, "rule": "log matching", "detail": "…"}]
    replay = totals.to_json({4: "--seed 4"})["failures"][0]["replay"]
    assert replay == "hwm-harness simulate --seed 4 --trace"


def test_one_seed_is_replayed_with_one_line_per_event() -> None:
    """The test runs the command `hwm-harness simulate --seed N --trace`."""
    done = CliRunner().invoke(simulate, ["--seed", "3", "--trace"])

    assert done.exit_code == 0
    assert done.stderr.startswith("seed 3, ")
    assert run_seed(3).trace_hash in done.stderr
    lines = [line for line in done.stdout.splitlines() if "<became_leader" in line]
    assert lines
    assert lines[0].split()[2] == "leader"


def test_a_failure_ends_with_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a run that follows from its seed can be replayed."""
    messages_do_not_wait_for_the_sync(monkeypatch)

    done = CliRunner().invoke(simulate, ["--seed", "4"])

    assert done.exit_code == EXIT_VIOLATION
    assert "seed 4: a term is durable before a message states it" in done.stdout
    assert "replay: hwm-harness simulate --seed 4 --trace" in done.stdout
    assert "picture: hwm-harness simulate --seed 4 --lamport seed-4.html" in done.stdout


def test_json_is_all_that_is_on_stdout() -> None:
    """Data goes to stdout, messages to stderr."""
    done = CliRunner().invoke(simulate, ["--seed", "3", "--json"])

    assert json.loads(done.stdout)["failures"] == []


def test_a_trace_of_many_seeds_is_refused_with_the_reason() -> None:
    """A wrong flag is an error. The command does not guess its meaning."""
    done = CliRunner().invoke(simulate, ["--trace"])

    assert done.exit_code == 2
    assert "--trace needs --seed" in done.stderr


def hit(*, seeds: int, but: str | None = None) -> Totals:
    """The totals of a campaign of this number of seeds. The campaign has hit all wanted marks, or all except one."""
    return Totals(seeds=seeds, covered=Counter({mark: seeds for mark in WANTED if mark != but}))


def test_every_kind_of_fault_is_wanted_of_a_long_run() -> None:
    """A new kind of fault must be in the list of wanted marks, too."""
    assert set(KINDS) <= set(WANTED)
    assert {FIGURE_8, "truncated", "stepped_down"} <= set(WANTED)


def test_a_long_campaign_that_never_hit_any_one_of_the_wanted_marks_has_not_reached_it() -> None:
    """If an event never happened in a run, the run proves nothing about this event."""
    for mark in WANTED:
        assert hit(seeds=CAMPAIGN_SEEDS_MIN, but=mark).not_reached() == [mark]
        assert hit(seeds=CAMPAIGN_SEEDS_MIN - 1, but=mark).not_reached() == []
    assert hit(seeds=CAMPAIGN_SEEDS_MIN).not_reached() == []


@pytest.mark.parametrize("mark", sorted(WANTED)[::20])
def test_a_long_campaign_that_never_hit_a_wanted_mark_fails_and_says_which(
    mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a short campaign, missing marks are only reported."""

    def simulated(totals: Totals) -> Result:
        monkeypatch.setattr("harness.sim.cli.campaign", lambda *_: totals)
        return CliRunner().invoke(simulate, [])

    missing = simulated(hit(seeds=CAMPAIGN_SEEDS_MIN, but=mark))
    short = simulated(hit(seeds=CAMPAIGN_SEEDS_MIN - 1, but=mark))
    complete = simulated(hit(seeds=CAMPAIGN_SEEDS_MIN))

    assert (missing.exit_code, short.exit_code, complete.exit_code) == (EXIT_NOT_REACHED, 0, 0)
    assert f"NOT REACHED: {mark}" in missing.stdout
    assert f"not reached (it counts from 1,000 seeds): {mark}" in short.stdout
    assert "reached" not in complete.stdout.lower()


def test_a_mark_is_told_to_be_rare_below_its_share() -> None:
    """If a rare mark is missing, this is only reported. If another mark is never hit, the campaign fails."""
    assert is_too_rare("truncated", 49, 1_000)
    assert not is_too_rare("truncated", 50, 1_000)
    assert not is_too_rare("nobody wants this", 0, 1_000)


@pytest.mark.parametrize(("terms_at_3", "is_figure_8"), [((2, 2, 4), True), ((2, 4, 4), False)])
def test_figure_8_is_recognised_when_it_happens(terms_at_3: tuple[int, ...], is_figure_8: bool) -> None:
    """Raft §5.4.2: the mark means that an entry of an old term was cut although a majority had it."""
    logs = [SimpleNamespace(durable=SimpleNamespace(term_at={3: term}.get)) for term in terms_at_3]
    members = {f"n{number}": SimpleNamespace(node_id=f"n{number}", logs=copy) for number, copy in enumerate(logs)}
    covered: set[str] = set()
    world = SimpleNamespace(members=members, cover=covered.add)
    cut = TraceEvent("truncated", {"from_index": 3, "removed_term": 2})

    looker: Any = CoverageTracker(cast(Simulation, world))
    looker.look(members["n0"], SimpleNamespace(core=None), None, Effects(events=[cut]))

    assert (FIGURE_8 in covered) is is_figure_8


def test_a_bad_plan_file_ends_with_a_sentence_and_exit_code_2(tmp_path: Path) -> None:
    """Every command of the harness handles bad input in this way."""
    path = tmp_path / "bad.toml"
    path.write_text("seed = 1\nuntil_ns = 'soon'", encoding="utf-8")

    done = CliRunner().invoke(simulate, ["--plan", str(path)])

    assert done.exit_code == 2
    assert f"{path}: until_ns = 'soon' cannot be played\nhint: a whole number is wanted" in done.stderr
