"""Clients of etcd in the simulator: the seeds that have them, what they reach, and that their rules find faults."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.errors import ExtraMissing
from harness.sim.campaign import run_campaign
from harness.sim.checks.coverage import WANTED_OF_ETCD
from harness.sim.cli import EXIT_BAD_INPUT, simulate
from harness.sim.load.service import ServiceLoad
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.draw_etcd import draw_etcd_plan
from harness.sim.plan.plan import (
    ALL_HEALED,
    MILLISECOND_NS,
    NO_ACCESS,
    NO_COORDINATION,
    NO_EXTRAS,
    RAISE,
    SECOND_NS,
    USUAL_LEVELS,
    EtcdPlan,
    Fault,
    Plan,
    UpgradeStep,
)
from harness.sim.plan.plan_file import read_plan, write_plan
from harness.sim.simulation import Simulation, run_etcd_seed
from kvstore import ClientLimits, StoreLimits
from tests.simulation.support.plans import TIMERS, a_calm_plan, run_all, run_until

ROOT = Path(__file__).resolve().parent.parent.parent.parent
FIRST_SEEDS = range(1, 26)

FAILED_SEEDS = (20261256,)
"""Seeds that have found a fault: progress of a watch from a revision that the store had not reached."""


def a_plan(*faults: Fault, seed: int = 1, **changes: object) -> Plan:
    """Three members, and programs of all kinds that speak etcd's API, for four seconds."""
    calm = a_calm_plan(members=3, heal=ALL_HEALED, seed=seed)
    load = replace(
        calm.load,
        with_service=True,
        clients=1,
        workers=1,
        think_ns=100 * MILLISECOND_NS,
        extras=NO_EXTRAS,
        burst=0,
        stay_ns=0,
        session_ttl_ns=60 * SECOND_NS,
        client_limits=ClientLimits(),
        connections=replace(calm.load.connections, break_rate=0.0, late_rate=0.0),
    )
    etcd = EtcdPlan(
        clients=2, workers=2, keepers=3, lockers=3, watchers=2, think_ns=20 * MILLISECOND_NS, compact_share=1.0
    )
    return replace(
        calm,
        until_ns=4 * SECOND_NS,
        load=load,
        raft=TIMERS,
        store=StoreLimits(),
        faults=faults,
        coordination=NO_COORDINATION,
        access=NO_ACCESS,
        acknowledgements=USUAL_LEVELS,
        changes=(),
        founders=0,
        first_build=2,
        upgrades=(UpgradeStep(at_ns=300 * MILLISECOND_NS, what=RAISE, shape=0.5),),
        etcd=replace(etcd, **changes),  # type: ignore[arg-type]
    )


def statuses(simulation: Simulation, until_ns: int) -> set[str]:
    """How the calls of etcd's clients have ended that began before `until_ns`."""
    assert isinstance(simulation.load, ServiceLoad)
    calls = [row for row in simulation.load.rows if str(row["client"]).startswith("e")]
    return {str(row["status"]) for row in calls if int(str(row["call_ns"])) < until_ns}


# What the clients reach


@pytest.mark.timeout(120)
def test_without_faults_every_call_is_answered_and_all_rules_hold() -> None:
    simulation = Simulation(a_plan())

    result = simulation.run()

    assert result.violation is None
    # At the end of a run, an operator restarts the members with the newest build.
    assert statuses(simulation, 3_500 * MILLISECOND_NS) == {"ok"}
    assert result.counts["commits"] > 100
    assert result.covered >= {
        "an etcd client swapped a value",
        "an etcd client was told a change",
        "an etcd client resumed a watch",
        "an etcd client renewed a lease",
        "an etcd client compacted the history",
        "an etcd client got a lock",
        "a lease was revoked",
    }


@pytest.mark.timeout(100)
@pytest.mark.parametrize("seed", FIRST_SEEDS)
def test_the_first_seeds_hold_every_rule(seed: int) -> None:
    """Most mutants of `harness/mutants/catalogue/etcd.toml` die here."""
    run_all([draw_etcd_plan(seed)])


@pytest.mark.timeout(100)
@pytest.mark.parametrize("seed", FAILED_SEEDS)
def test_seeds_that_once_failed_hold_every_rule(seed: int) -> None:
    run_all([draw_etcd_plan(seed)])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_fresh_seeds_hold_every_rule() -> None:
    """The error message names the seed that failed."""
    first_seed = int.from_bytes(os.urandom(5), "big")

    run_all(map(draw_etcd_plan, range(first_seed, first_seed + 60)))


@pytest.mark.timeout(200)
def test_leaders_die_while_leases_are_kept() -> None:
    """A lease expires when its owner is cut off, and a put that still names it is refused."""
    faults = [
        Fault(at_ns=at_ms * MILLISECOND_NS, kind=kind, duration_ns=SECOND_NS, target=None, shape=0.3)
        for at_ms, kind in ((1_000, "kill"), (2_200, "lose power"), (3_400, "pause"))
    ]
    marks = {
        "an etcd call failed: 4",
        "an etcd call failed: 14",
        "an etcd client lost a lease",
        "a put of an etcd client named a lease that has ended",
        "a lease expired",
    }
    assert marks <= WANTED_OF_ETCD.keys()

    run_until(marks, (replace(a_plan(*faults, seed=seed), until_ns=9 * SECOND_NS) for seed in range(1, 12)))


@pytest.mark.timeout(200)
def test_a_contender_whose_lease_ends_while_it_waits_gets_no_lock() -> None:
    plans = (
        replace(a_plan(seed=seed, clients=1, workers=1, keepers=0, lockers=8, watchers=1), until_ns=9 * SECOND_NS)
        for seed in range(1, 6)
    )
    run_until({"an etcd client lost its lease in the line for a lock"}, plans)


# One seed is one run


@pytest.mark.timeout(120)
def test_a_seed_gives_the_same_trace_in_each_process() -> None:
    """PYTHONHASHSEED changes the order of a set of strings, so no decision may depend on such an order."""
    program = (
        "from harness.sim.simulation import run_etcd_seed\n"
        "print(*(run_etcd_seed(seed).trace_hash for seed in (3, 9, 18)))"
    )
    expected = " ".join(run_etcd_seed(seed).trace_hash for seed in (3, 9, 18)) + "\n"
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
        assert done.stdout == expected


# The seeds that have the clients


def test_a_seed_has_clients_of_etcd_only_if_it_is_asked_for_them() -> None:
    """A seed must mean the same run on machines without the libraries."""
    assert not any(draw_plan(seed).etcd.is_on for seed in range(1, 101))
    plans = [draw_etcd_plan(seed) for seed in range(1, 101)]

    assert all(plan.etcd.is_on and plan.load.with_service and plan.upgrades for plan in plans)
    assert not any(plan.coordination.is_on or plan.access.is_on for plan in plans)
    assert all(plan.faults == draw_plan(plan.seed).faults for plan in plans)


def test_a_plan_with_clients_of_etcd_survives_its_file(tmp_path: Path) -> None:
    plan = draw_etcd_plan(1)
    write_plan(plan, tmp_path / "plan.toml", "a plan with clients of etcd")

    assert read_plan(tmp_path / "plan.toml") == plan
    assert f"{plan.etcd.clients} clients of etcd" in plan.words()


def test_seeds_without_clients_of_etcd_load_none_of_their_libraries() -> None:
    program = (
        "import sys; import harness.sim.simulation\nprint(*sorted({'h2', 'h11', 'google.protobuf'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "\n"


def test_without_the_libraries_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "harness.sim.load.etcd.load", None)
    with pytest.raises(ExtraMissing):
        run_etcd_seed(1)

    done = CliRunner().invoke(simulate, ["--etcd", "--seed", "1"])

    assert done.exit_code == EXIT_BAD_INPUT
    assert "pip install 'highwatermark[etcd]'" in done.stderr


@pytest.mark.timeout(100)
def test_a_campaign_gives_the_clients_to_each_seed_and_wants_marks_of_its_own() -> None:
    *_, totals = run_campaign(1, 2, jobs=1, with_etcd=True)

    assert totals.wanted == WANTED_OF_ETCD
    assert totals.covered["the etcd clients began"] == 2


@pytest.mark.timeout(120)
def test_the_command_that_replays_a_failure_asks_for_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.sim.load.etcd.watcher.EtcdWatcher._progress", _fails)

    done = CliRunner().invoke(simulate, ["--etcd", "--seed", "9"])

    assert "replay: hwm-harness simulate --seed 9 --etcd --trace" in done.stdout


def _fails(*_: object) -> None:
    raise AssertionError
