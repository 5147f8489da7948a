"""Many seeds at once, the command, and a failure that can be sent from one process to another."""

from __future__ import annotations

import json
import pickle

import pytest
from click.testing import CliRunner

from harness.sim.campaign import Totals, run_campaign
from harness.sim.cli import EXIT_VIOLATION, simulate
from harness.sim.errors import Violation
from harness.sim.simulation import SeedResult, run_seed
from tests.simulation.deliberate_bugs import half_is_a_majority


def test_a_violation_travels_between_processes() -> None:
    """STYLE: an error whose fields are its arguments unpickles."""
    violation = Violation("election safety", "term 3 has two leaders")

    copy = pickle.loads(pickle.dumps(violation))

    assert (copy.rule, copy.detail) == ("election safety", "term 3 has two leaders")
    assert str(copy) == "election safety: term 3 has two leaders"


@pytest.mark.timeout(100)
def test_a_campaign_over_processes_counts_what_its_seeds_count() -> None:
    """Seeds are independent: where they run makes no difference."""
    *_, totals = run_campaign(1, 4, jobs=2)
    alone = [run_seed(seed) for seed in range(1, 5)]

    assert totals.seeds == 4
    assert totals.events == sum(result.events for result in alone)
    assert totals.simulated_ns == sum(result.simulated_ns for result in alone)
    assert set(totals.marks) == set().union(*(result.marks for result in alone))


def test_totals_keep_failures_in_the_form_that_programs_read() -> None:
    """`--json`."""
    totals = Totals()
    totals.add(SeedResult(seed=5, events=10, simulated_ns=2 * 10**9, seconds=0.5, trace_hash="00", marks=frozenset()))
    totals.add(
        SeedResult(
            seed=4,
            events=30,
            simulated_ns=10**9,
            seconds=0.5,
            trace_hash="00",
            marks=frozenset({"truncated"}),
            violation=Violation("log matching", "…"),
        )
    )

    found = totals.to_json()

    assert (found["seeds"], found["events"], found["events_per_core_second"]) == (2, 40, 40)
    assert found["simulated_per_core_second"] == 3.0
    assert found["marks"] == {"truncated": 1}
    assert found["failures"] == [{"seed": 4, "rule": "log matching", "detail": "…"}]


def test_one_seed_is_replayed_with_one_line_per_event() -> None:
    """`hwm-harness simulate --seed N --trace`."""
    done = CliRunner().invoke(simulate, ["--seed", "3", "--trace"])

    assert done.exit_code == 0
    assert done.stderr.startswith("seed 3, ")
    assert run_seed(3).trace_hash in done.stderr
    lines = [line for line in done.stdout.splitlines() if "<became_leader" in line]
    assert lines
    assert lines[0].split()[1:3] == ["n1", "leader"]


def test_a_failure_ends_with_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed or it did not happen."""
    half_is_a_majority(monkeypatch)

    done = CliRunner().invoke(simulate, ["--seed", "4"])

    assert done.exit_code == EXIT_VIOLATION
    assert "seed 4: committed means durable on a majority" in done.stdout
    assert "hwm-harness simulate --seed 4 --trace" in done.stdout


def test_json_is_all_that_is_on_stdout() -> None:
    """Data to stdout, words to stderr."""
    done = CliRunner().invoke(simulate, ["--seed", "3", "--json"])

    assert json.loads(done.stdout)["failures"] == []


def test_a_trace_of_many_seeds_is_refused_with_the_reason() -> None:
    """Wrong flags are told, not guessed at."""
    done = CliRunner().invoke(simulate, ["--trace"])

    assert done.exit_code == 2
    assert "--trace needs --seed" in done.stderr
