"""Half of the seeds have a profile. A profile leads to situations that independent draws rarely reach."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.sim.plan.draw import draw_plan
from harness.sim.plan.draw_membership import LAST_VOTER_REMOVAL
from harness.sim.plan.plan import MILLISECOND_NS, SECOND_NS
from harness.sim.plan.profiles import PROFILES, draw_profile
from harness.sim.simulation import Simulation
from harness.sim.world.probes import LONE_PUTS
from kvstore import ClientLimits, StoreLimits
from raft import RaftConfig
from storage import StorageLimits
from tests.simulation.support.plans import first_in, run_until

AS_DRAWN = PROFILES[0].name


def test_half_of_the_seeds_are_as_drawn_and_every_profile_comes_up() -> None:
    """The weight of a profile determines how often it is drawn."""
    found = Counter(draw_profile(seed).name for seed in range(2_000))

    assert found.keys() == {profile.name for profile in PROFILES}
    assert 800 < found[AS_DRAWN] < 1_200
    assert min(found.values()) > 20


def test_a_plan_has_the_members_and_the_name_of_its_profile() -> None:
    """The single-voter profile has one voter. A profile in which faults must hit a leader has more voters."""
    assert first_in("single voter").members == ("n1",)
    assert all(
        len(draw_plan(seed).members) > 2 for seed in range(200) if "frequent elections" in draw_profile(seed).name
    )
    assert first_in("production limits").words().split(": ")[0].endswith(", production limits")


def test_a_restless_plan_strikes_the_leader_several_times_a_second() -> None:
    """A fault comes once in one or two election time-outs, so some frames arrive between the faults."""
    plan = first_in("frequent elections")

    at_leader = [fault for fault in plan.faults if fault.target is None]
    assert len(at_leader) > 2 * plan.until_ns / 1e9
    assert plan.raft.election_timeout_max_ns == 120 * MILLISECOND_NS
    assert [fault.at_ns for fault in plan.faults] == sorted(fault.at_ns for fault in plan.faults)


def test_the_profile_of_production_limits_leaves_production_defaults_untouched() -> None:
    """Most users set no bounds, so the default bounds must be tested."""
    plan = first_in("production limits")

    assert (plan.raft, plan.storage, plan.store) == (RaftConfig(), StorageLimits(), StoreLimits())
    assert plan.load.client_limits == ClientLimits()


def test_where_leaders_read_by_lease_the_settings_of_members_are_often_at_odds() -> None:
    """One member has longer time-outs than the others, and always reads by lease."""
    leased = [
        plan
        for plan in map(draw_plan, range(1, 200))
        if plan.raft.lease_reads and LAST_VOTER_REMOVAL not in plan.profile
    ]
    at_odds = [plan for plan in leased if plan.patience]

    assert 0.3 * len(leased) < len(at_odds) < 0.7 * len(leased)
    assert any(plan.leaseless for plan in at_odds)
    for plan in at_odds:
        (patient, times), usual = *plan.patience.items(), plan.raft.election_timeout_min_ns
        assert plan.raft_of(patient).lease_reads
        waits = {plan.raft_of(member).election_timeout_min_ns for member in plan.members if member != patient}
        assert (waits, plan.raft_of(patient).election_timeout_min_ns) == ({usual}, times * usual)
        assert plan.election_timeout_max_ns == plan.raft_of(patient).election_timeout_max_ns
        assert not any(plan.raft_of(member).lease_reads for member in plan.leaseless)
    assert not any(plan.patience or plan.leaseless for plan in map(draw_plan, range(1, 200)) if plan not in leased)


def test_clocks_are_coarse_in_some_seeds_and_never_where_leases_need_fine_ones() -> None:
    plans = [draw_plan(seed) for seed in range(1, 200)]
    coarse = [plan for plan in plans if plan.clocks.grain_ns > 1]

    assert 0.1 * len(plans) < len(coarse) < 0.3 * len(plans)
    assert not any(plan.raft.lease_reads or plan.trusts_clocks for plan in coarse)
    assert all(SECOND_NS % plan.clocks.grain_ns == 0 for plan in coarse)


def test_a_log_keeps_more_than_a_few_entries_where_clocks_are_coarsest() -> None:
    """In seed 20,100,774 a member with a grain of 50 ms installs one slice of a snapshot per grain. Its leader kept
    only two entries in its log. So the member got one snapshot after another and never caught up."""
    plans = [draw_plan(seed) for seed in (20_100_774, *range(1, 200))]
    coarsest = [plan for plan in plans if plan.clocks.grain_ns == 50_000_000]
    assert plans[0] in coarsest
    assert len(coarsest) > 3
    assert all(plan.raft.retention_bytes_max >= 20_000 for plan in coarsest)


def test_watches_catch_up_where_clocks_are_coarse() -> None:
    """In seed 20,135,842 a hub did one unit of work per grain of 10 ms, and five watches had 1,266 revisions to
    read."""
    plans = [draw_plan(seed) for seed in (20_135_842, *range(1, 400))]
    coarse = [plan for plan in plans if plan.coordination.watchers and plan.clocks.grain_ns > 1_000_000]
    assert plans[0] in coarse
    assert len(coarse) > 2
    for plan in coarse:
        assert plan.coordination.hub.get("step_units_max", 1_000) >= plan.clocks.grain_ns // 1_000_000


@pytest.mark.timeout(60)
@pytest.mark.fast_path
def test_a_session_that_ends_at_the_time_of_a_put_is_over_on_members_that_catch_up_too() -> None:
    """Members that catch up apply runs of entries with one put each."""
    plan = next(plan for plan in map(draw_plan, range(1, 200)) if plan.profile.endswith("expiry at command time"))

    result = Simulation(plan).run()

    assert result.violation is None
    assert LONE_PUTS in result.covered


@pytest.mark.timeout(60)
def test_a_patient_leader_takes_over_and_others_lead_while_it_is_cut_off() -> None:
    """If a defect made a leader confuse its own settings with the promises of the other members, only such plans would
    show it."""
    plan = next(plan for plan in map(draw_plan, range(1, 1_000)) if plan.profile == "lease faults" and plan.patience)

    marks = Simulation(plan).run().covered

    assert marks >= {"take over", "leadership was transferred", "a read was let through: lease", "stepped_down"}


@pytest.mark.timeout(60)
def test_clients_with_short_sessions_are_given_up_too_early_and_come_too_late() -> None:
    """The marks are retries of executed requests, late requests below the acknowledged number, and ended sessions."""
    seeds = [seed for seed in range(1, 400) if draw_profile(seed).name == "short sessions"][:5]
    marks = {
        "a client's bytes were late",
        "a request came after it was closed",
        "a retry found its result in the session",
        "a session expired",
    }
    run_until(marks, map(draw_plan, seeds))
