"""Members with wrong clocks. The tests check how the node reacts, and that the rules judge a member by its own
clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import pytest

from harness.sim.plan.draw import draw_plan
from harness.sim.plan.plan import (
    CALM,
    CLOCK_KINDS,
    GOOD_CLOCKS,
    MILLISECOND_NS,
    SECOND_NS,
    ClockPlan,
    DiskPlan,
    Fault,
    Plan,
)
from harness.sim.simulation import Simulation
from harness.sim.world.member import SimMember
from raft import Role

MEMBERS = ("n1", "n2", "n3")


def a_calm_plan(*, with_service: bool = False, faults: tuple[Fault, ...] = (), clocks: ClockPlan = GOOD_CLOCKS) -> Plan:
    """A plan with three members, quick disks and a quiet network. Its programs write, and make reads that need a round.

    There are no other read modes, because they rely on the clocks, which these tests falsify.
    """
    plan = draw_plan(1)
    load = replace(plan.load, with_service=with_service, clients=3, think_ns=5 * MILLISECOND_NS, read_share=0.5)
    return replace(
        plan,
        members=MEMBERS,
        until_ns=2 * SECOND_NS,
        raft=replace(
            plan.raft,
            heartbeat_interval_ns=50 * MILLISECOND_NS,
            election_timeout_min_ns=200 * MILLISECOND_NS,
            election_timeout_max_ns=400 * MILLISECOND_NS,
            lease_reads=False,
        ),
        disks=dict.fromkeys(MEMBERS, DiskPlan(sync_ns=MILLISECOND_NS)),
        network=CALM,
        load=replace(load, read_modes=False),
        clocks=clocks,
        faults=faults,
    )


def inject(world: Simulation, kind: str, member: SimMember, *, duration_ns: int, shape: float = 0.5) -> None:
    assert kind in CLOCK_KINDS
    target = (MEMBERS.index(member.node_id) + 0.5) / len(MEMBERS)
    fault = Fault(at_ns=world.queue.now, kind=kind, duration_ns=duration_ns, target=target, shape=shape)
    world.injector.inject(fault)


def a_world_with_a_leader(plan: Plan) -> tuple[Simulation, SimMember]:
    world = Simulation(plan)
    for member in world.members.values():
        member.initialize()
        world.queue.at(0, member.boot)
    world.load.start()
    run_until(world, SECOND_NS)
    return world, next(member for member in world.members.values() if leads(member))


def leads(member: SimMember) -> bool:
    return member.node is not None and member.node.core.role is Role.LEADER


def run_until(world: Simulation, time_ns: int) -> None:
    while (due := world.queue.next_time()) is not None and due <= time_ns:
        world.queue.step()


def test_a_leader_whose_clock_jumps_past_an_election_time_out_leads_no_more_from_that_moment() -> None:
    """By the leader's clock, a majority was silent for an election time-out. A timer that was set before the jump must
    fire without delay."""
    world, leader = a_world_with_a_leader(a_calm_plan())

    inject(world, "clock jumps", leader, duration_ns=400 * MILLISECOND_NS)
    run_until(world, world.queue.now)

    assert not leads(leader)


def test_a_leader_whose_clock_jumps_a_little_leads_on() -> None:
    """From the view of the leader, one or two heartbeats come late."""
    world, leader = a_world_with_a_leader(a_calm_plan())

    inject(world, "clock jumps", leader, duration_ns=100 * MILLISECOND_NS)
    run_until(world, 2 * SECOND_NS)

    assert leads(leader)


def test_a_suspended_leader_learns_from_its_peers_alone_that_it_was_deposed() -> None:
    """The leader's clock stood still, so none of its time-outs expires. The leader answers no read until it has heard
    its peers (thesis §6.4).

    The programs on the leader's side of the partition make reads all the time. The rules check each read that is
    answered.
    """
    world, leader = a_world_with_a_leader(a_calm_plan())
    term, shown_ns = leader.current_term, leader.now()
    resumes_at = world.queue.now + SECOND_NS

    inject(world, "suspend", leader, duration_ns=SECOND_NS)
    run_until(world, resumes_at - 1)

    others = [member for member in world.members.values() if member is not leader]
    assert max(member.current_term for member in others) > term
    assert max(member.applied_max for member in others) > leader.applied_max
    assert (leads(leader), leader.current_term, leader.now()) == (True, term, shown_ns)

    run_until(world, resumes_at + 200 * MILLISECOND_NS)
    assert not leads(leader)
    assert leader.current_term > term


def test_a_machine_that_loses_its_power_begins_its_clock_anew_anywhere() -> None:
    """Durable data must not depend on a monotonic clock."""
    before, after = list[int](), list[int]()
    for seed in range(20):
        world = Simulation(replace(a_calm_plan(), seed=seed))
        member = world.members["n1"]
        member.initialize()
        member.boot()
        run_until(world, SECOND_NS)
        before.append(member.now())
        member.crash(power=True)
        after.append(member.now())

    assert any(late > early for early, late in zip(before, after, strict=True))
    assert any(late < early for early, late in zip(before, after, strict=True))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("with_service", [False, True], ids=["programs", "clients"])
@pytest.mark.parametrize("kind", sorted(CLOCK_KINDS))
def test_runs_full_of_one_fault_of_clocks_hold_every_rule(kind: str, with_service: bool) -> None:
    """In addition, the clocks run at half to twice their rate. A fault hits the leader four times a second."""
    faults = tuple(
        Fault(
            at_ns=at_ms * MILLISECOND_NS,
            kind=kind,
            duration_ns=(at_ms % 700 + 50) * MILLISECOND_NS,
            target=None if at_ms % 500 else 0.5,
            shape=at_ms % 1_000 / 1_000,
        )
        for at_ms in range(250, 2_000, 250)
    )
    plan = a_calm_plan(with_service=with_service, faults=faults, clocks=ClockPlan(spread=2.0, client_spread=2.0))

    result = Simulation(plan).run()

    assert result.violation is None
    assert kind in result.covered
    assert result.counts["commits"] > 10


def test_clients_whose_clocks_jump_end_their_calls_and_everything_else_holds() -> None:
    """All deadlines of the clients pass at the same moment. In this case an open call ends as unknown, or certainly had
    no effect."""
    jump = Fault(at_ns=0, kind="a client's clock jumps", duration_ns=SECOND_NS, target=None, shape=0.4)
    by_an_hour = replace(jump, shape=0.3001)
    jumps = (
        replace(each, at_ns=at_ms * MILLISECOND_NS)
        for each, at_ms in zip(cycle((jump, by_an_hour)), range(300, 1_900, 100), strict=False)
    )
    result = Simulation(a_calm_plan(with_service=True, faults=tuple(jumps))).run()

    assert result.violation is None
    assert result.counts["operations ok"] > 100
    assert result.counts["operations unknown"] + result.counts["operations fail"] > 0
