"""Each rule about lost disks can fail. In a quiet world, members that lost their disks are refused, and are then
replaced.

See docs/reference/specification.md#13-incarnations-and-pins.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.sim.engine.errors import Violation
from harness.sim.faults.disk_loss import REBORN_SHARE
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.plan import ALL_HEALED, LOSS, MILLISECOND_NS, Fault, Plan
from harness.sim.simulation import Simulation
from harness.sim.world.member import SimMember
from tests.simulation.support.plans import TIMERS, a_calm_plan
from tests.simulation.support.stage import Stage

REFUSES, REBORN = 0.99, 0.01
"""Shapes of the fault. With REFUSES, the operator starts the member with the empty folder, and the member refuses. With
REBORN, the folder is made again."""

assert REBORN < REBORN_SHARE < REFUSES


def inject(stage: Stage, member: SimMember, shape: float = REFUSES) -> None:
    fault = Fault(at_ns=stage.world.queue.now, kind=LOSS, duration_ns=0, target=None, shape=shape)
    stage.world.disk_loss.lose(fault, member)


def rule_of(error: pytest.ExceptionInfo[Violation]) -> str:
    return error.value.rule


def test_a_member_that_starts_without_its_files_is_seen() -> None:
    stage = Stage()
    stage.follower.crash(power=False)

    with pytest.raises(Violation) as caught:
        stage.world.disk_loss.check_refuses(stage.follower)  # The follower still has all its files.

    assert rule_of(caught) == "a member without its files does not start"


def test_who_hears_a_member_that_has_lost_its_disk_is_seen() -> None:
    """The other member might count a vote of a member that has forgotten an earlier vote."""
    stage = Stage()
    stage.world.disk_loss.greeted(stage.leader, stage.follower.node_id)

    stage.follower.says_it_is = replace(stage.follower.identity, incarnation_id=b"another disk ...")
    with pytest.raises(Violation) as caught:
        stage.world.disk_loss.greeted(stage.leader, stage.follower.node_id)

    assert rule_of(caught) == "a new folder is ignored by every member that knew the lost one"


def test_a_minority_loses_its_disks_and_no_more() -> None:
    """If a majority lost their disks, nobody could restore the data, and the cluster might stop."""
    stage = Stage()

    inject(stage, stage.follower)
    inject(stage, stage.other)
    inject(stage, stage.leader)

    assert [m.is_lost for m in (stage.follower, stage.other, stage.leader)] == [True, False, False]
    assert stage.follower.image.names == {}
    assert stage.other.is_up
    assert stage.leader.is_up


def a_plan(shape: float, *, spares: int) -> Plan:
    """A plan with three voters and `spares` more machines. The leader loses its disk under load."""
    machines = 3 + spares
    calm = a_calm_plan(members=machines, heal=ALL_HEALED)
    fault = Fault(at_ns=400 * MILLISECOND_NS, kind=LOSS, duration_ns=50 * MILLISECOND_NS, target=None, shape=shape)
    return replace(calm, founders=3, raft=TIMERS, until_ns=2_500 * MILLISECOND_NS, faults=(fault,))


@pytest.mark.parametrize(
    ("shape", "mark"),
    [
        (REFUSES, "a member refused to start on an empty disk"),
        (REBORN, "a hello was refused: wrong_incarnation"),
    ],
)
def test_a_leader_that_loses_its_disk_is_refused_and_replaced_while_clients_go_on(shape: float, mark: str) -> None:
    world = Simulation(a_plan(shape, spares=1))

    result = world.run()

    assert result.violation is None
    assert {mark, "a disk was lost", "a member that lost its disk was replaced"} <= result.covered
    members = world.safety.members.committed
    (lost,) = members.removed
    assert world.members[lost].is_lost
    assert len(members.voters) == 3
    assert members.is_voter("n4")


def test_without_a_machine_to_take_its_place_a_lost_member_stays_away() -> None:
    """The other members are a quorum, and continue to serve."""
    world = Simulation(a_plan(REFUSES, spares=0))

    result = world.run()

    assert result.violation is None
    assert sum(member.is_lost for member in world.members.values()) == 1
    assert "a member that lost its disk was replaced" not in result.covered
    assert world.safety.members.committed.voter_ids == ("n1", "n2", "n3")


def test_nobody_is_made_anew_whom_a_member_has_never_met() -> None:
    """A member that never met the lost folder would accept the new folder as the folder of a new member. If an operator
    gives `--bootstrap` for a lost member, this is a mistake and not a fault to simulate."""
    stage = Stage()
    assert stage.world.disk_loss._is_known_to_all(stage.follower)

    stage.other.image.durable_names.pop("pins")

    assert not stage.world.disk_loss._is_known_to_all(stage.follower)


def test_seeds_in_which_disks_are_lost_have_no_other_damage_to_count_and_leave_nobody_dead() -> None:
    plans = [draw_plan(seed) for seed in range(1, 120)]
    lossy = [plan for plan in plans if any(fault.kind == LOSS for fault in plan.faults)]

    assert 3 <= len(lossy) <= 20
    for plan in lossy:
        assert (plan.changes, plan.heal.dead) == ((), ())
        assert 3 <= plan.founders == len(plan.voters) <= len(plan.members)
        assert set(plan.disks) == set(plan.members)


def test_a_member_starts_from_short_reads_as_from_whole_ones() -> None:
    """A read may return fewer bytes than requested, although the file does not end there."""
    stage = Stage()
    stage.run(300)
    before = stage.follower.logs.durable.last_index
    stage.follower.crash(power=True)
    stage.follower.image.reads_are_short = True

    stage.follower.boot()
    stage.run(300)

    assert "a member started from short reads" in stage.world.covered
    assert stage.node(stage.follower).core.last_index >= before > 3
