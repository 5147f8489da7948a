"""The coordination load has watches, leases, locks and old revisions, while members fail. These tests also put defects
into the code, which the load must find."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from harness.sim.checks.coverage import INSTALLED, RESTARTED, STRUCK, WANTED
from harness.sim.load.coordination import is_of_coordination, without_own_keys
from harness.sim.load.coordination_program import PREFIX
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.draw_coordination import (
    COORDINATION_SHARE,
    KEY_LIMIT_SHARE,
    KEY_LIMITS,
    with_coordination,
    with_key_limit,
)
from harness.sim.plan.plan import (
    MILLISECOND_NS,
    NO_COORDINATION,
    RAISE,
    SECOND_NS,
    CoordinationPlan,
    Fault,
    HealPlan,
    Plan,
    UpgradeStep,
)
from harness.sim.simulation import Simulation
from harness.workload.operation_generator import Planned
from kvstore import Compact, Get, LeaseRenew, Operation, Put, Range, StoreLimits, Txn, command_body
from kvstore.store.leases import GrantedLease, Leases
from kvstore.watch.hub import WatchHub
from kvstore.watch.watcher import Watcher, WatcherState
from tests.simulation.support.plans import TIMERS, a_calm_plan, run_all, run_until

TINY_HUB = {
    "message_bytes_max": 80,
    "follow_events": 1,
    "catch_up_events": 4,
    "serve_watchers": 1,
    "group_events_max": 4,
    "step_units_max": 10,
}


def a_plan(*, faults: tuple[Fault, ...] = (), seed: int = 1, **changes: object) -> Plan:
    """A plan of five seconds with three members and all kinds of programs. The members raise the level at the start."""
    calm = a_calm_plan(members=3, heal=HealPlan(), seed=seed)
    coordination = CoordinationPlan(
        clients=2,
        owners=2,
        contenders=3,
        writers=1,
        watchers=5,
        think_ns=20 * MILLISECOND_NS,
        lease_grace_ns=100 * MILLISECOND_NS,
        window_bytes=300,
        death_share=1.0 if faults else 0.0,
    )
    load = replace(
        calm.load, with_service=True, clients=1, workers=1, think_ns=100 * MILLISECOND_NS, patience_ns=SECOND_NS
    )
    return replace(
        calm,
        until_ns=5 * SECOND_NS,
        raft=replace(TIMERS, snapshot_log_bytes=2_000, retention_bytes_max=500, snapshot_chunk_bytes=1_000),
        load=load,
        first_build=2,
        upgrades=(UpgradeStep(at_ns=300 * MILLISECOND_NS, what=RAISE, shape=0.5),),
        coordination=replace(coordination, **changes),  # type: ignore[arg-type]
        changes=(),
        founders=0,
        faults=faults,
    )


def struck(kinds: tuple[str, ...], every_ms: int = 400) -> tuple[Fault, ...]:
    """Faults of these kinds, one after the other. Half of them hit the leader."""
    return tuple(
        Fault(
            at_ns=at_ms * MILLISECOND_NS,
            kind=kinds[at_ms // every_ms % len(kinds)],
            duration_ns=300 * MILLISECOND_NS,
            target=None if at_ms // every_ms % 2 else 0.4,
            shape=0.8,
        )
        for at_ms in range(1_000, 4_800, every_ms)
    )


def drawn() -> list[Plan]:
    """The plans of the first seeds with this load."""
    return list(islice((plan for plan in map(draw_plan, range(1, 2_000)) if plan.coordination.is_on), 40))


@pytest.mark.timeout(100)
def test_a_calm_run_reaches_what_programs_do() -> None:
    """Programs reach these coverage marks without any fault."""
    reached = run_all([a_plan(history_events_max=200)], commits_min=100)

    assert reached >= {
        "the coordination load began",
        "a lease expired",
        "a lease was revoked",
        "a lease expired by clocks that keep to their bound",
        "a lock was obtained",
        "a lock passed on",
        "a watch went on at another member",
        "a member was read at an old revision",
        "a client read an old revision",
    }


@pytest.mark.timeout(200)
def test_members_that_fail_serve_watches_that_miss_nothing() -> None:
    """Members die, are cut off, and catch up by snapshots. Faults hit leaders at the time when leases expire."""
    plans = [
        a_plan(
            faults=struck(("kill", "cut off", "lose power", "pause")),
            seed=seed,
            history_events_max=10,
            hub=TINY_HUB if seed % 2 else {},
        )
        for seed in range(1, 7)
    ]
    run_until({RESTARTED, STRUCK, "a watch was cancelled by a compaction", "a guarded write was refused"}, plans)


@pytest.mark.timeout(300)
def test_drawn_seeds_hold_every_rule_and_reach_the_rarer_marks() -> None:
    """A long campaign fails if it does not reach these marks."""
    marks = {INSTALLED, "a renewal came after the end of its lease", "a large revision came in parts"}
    assert marks <= WANTED.keys()

    run_until(marks, drawn())


@pytest.mark.timeout(60)
def test_a_small_limit_on_keys_is_reached_by_deletions_and_by_leases() -> None:
    """The replay checks which commands are refused."""
    reached = run_all([a_plan(delete_keys_max=2)], commits_min=100)

    assert reached >= {"a command was refused: too_many_keys", "a command was refused: lease_is_full"}


@pytest.mark.timeout(60)
def test_a_run_is_the_same_each_time() -> None:
    first, second = Simulation(a_plan()).run(), Simulation(a_plan()).run()

    assert first.violation is None
    assert first.trace_hash == second.trace_hash


# The seeds that have the load


def test_a_share_of_the_seeds_has_the_load_and_the_others_are_as_they_were() -> None:
    """The load is drawn last, from a separate random stream, so the other draws stay the same."""
    plans = [draw_plan(seed) for seed in range(1, 601)]
    with_load = [plan for plan in plans if plan.coordination.is_on]

    served = [plan for plan in plans if plan.load.with_service]
    assert 0.5 * COORDINATION_SHARE < len(with_load) / len(served) < 2 * COORDINATION_SHARE
    assert all(plan.upgrades and plan.load.with_service for plan in with_load)
    others = [plan for plan in plans if not plan.coordination.is_on]
    without = [plan for plan in others if not (plan.acknowledgements.is_on or plan.access.is_on)]
    assert all(plan.first_build == 1 for plan in without)


def test_some_seeds_with_the_load_have_a_small_limit_on_keys_and_the_others_the_usual_one() -> None:
    """The limit is drawn from a separate random stream."""
    plans = [plan.coordination for plan in drawn()]
    small = [plan.delete_keys_max for plan in plans if plan.bounds_keys]

    assert 0.5 * KEY_LIMIT_SHARE < len(small) / len(plans) < 2 * KEY_LIMIT_SHARE
    assert set(small) <= set(KEY_LIMITS)
    assert {plan.delete_keys_max for plan in plans if not plan.bounds_keys} == {StoreLimits().delete_keys_max}
    without = replace(draw_plan(3), coordination=NO_COORDINATION)
    assert all(with_key_limit(without, Random(number)) is without for number in range(20))


def test_a_seed_without_the_load_keeps_its_plan() -> None:
    class Never:
        def random(self) -> float:
            return COORDINATION_SHARE

    plan = draw_plan(3)

    assert with_coordination(plan, Never()) is plan  # type: ignore[arg-type]


# The keys of the load


@pytest.mark.parametrize(
    ("operation", "is_own"),
    [
        (Put(PREFIX + b"data/1", b"x"), True),
        (Put(b"key-001", b"x"), False),
        (Txn((), (Txn((), (Get(PREFIX + b"a"),)),)), True),
        (Txn((), (Put(b"key-001", b"x"), Range(limit=3))), False),
        (LeaseRenew((1,)), True),
        (Compact(7), True),
    ],
)
def test_commands_of_the_load_are_known_by_their_keys(operation: Operation, is_own: bool) -> None:
    """The ordinary load uses no command with these keys."""
    assert is_of_coordination(command_body(operation)) is is_own


def test_the_ordinary_load_lists_no_keys_of_the_load() -> None:
    clipped = without_own_keys(Planned(Txn((), (Put(b"a", b"1"), Range(limit=3))), 7))

    assert clipped == Planned(Txn((), (Put(b"a", b"1"), Range(limit=3, end=PREFIX))), 7)
    assert without_own_keys(Planned(Range(b"a", b"c"))) == Planned(Range(b"a", b"c"))


# Defects that the load finds


def is_caught(rule: str, plans: list[Plan]) -> bool:
    """True if one of the runs breaks this rule, and no earlier run breaks another rule."""
    for plan in plans:
        violation = Simulation(plan).run().violation
        if violation is not None:
            assert violation.rule.startswith(rule), violation
            return True
    return False


@pytest.mark.timeout(200)
def test_progress_that_is_ahead_of_the_events_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that continues from the revision of this progress message misses the events that were not sent to it."""

    def is_told_too_early(hub: WatchHub, watcher: Watcher) -> bool:
        assert watcher.asked_revision is not None
        return watcher.state is not WatcherState.AHEAD and hub._revision >= watcher.asked_revision

    monkeypatch.setattr(WatchHub, "_is_told", is_told_too_early)
    plans = [a_plan(seed=seed, hub=TINY_HUB) for seed in range(1, 6)]

    assert is_caught("a watch gets a progress message only", plans)


@pytest.mark.timeout(200)
def test_a_lease_that_ends_before_its_owner_may_believe_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All members agree. So the state hash does not show the defect, but the replay shows it."""
    grant = Leases.grant

    def granted_for_half(leases: Leases, lease_id: int, ttl_ns: int, leader_time: int) -> GrantedLease:
        lease = grant(leases, lease_id, ttl_ns // 2, leader_time)
        lease.ttl_ns = ttl_ns
        return lease

    monkeypatch.setattr(Leases, "grant", granted_for_half)

    assert is_caught("the store is the replay of its log", [a_plan(seed=seed) for seed in range(1, 4)])
