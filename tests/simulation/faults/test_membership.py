"""Refusals of membership changes are checked. After the faults, changes must be possible.

See docs/reference/specification.md#14-removed-ids.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.sim.engine.errors import Violation
from harness.sim.plan.plan import ADD, MILLISECOND_NS, ChangeStep, UpgradeStep
from harness.sim.simulation import Simulation
from raft import ChangeRefusal, ChangeRefused, LevelRange, LevelRefusal, LevelRefused, Member, MembershipChange
from raft.core.membership_change import MembershipChanger
from raft.node.feature_levels import PeerFeatureLevels
from tests.simulation.support.plans import a_changing_plan
from tests.simulation.support.stage import Stage

AN_ADDITION = ChangeStep(at_ns=400 * MILLISECOND_NS, what=ADD, shape=0.5)
A_ROLL_OUT = UpgradeStep(at_ns=400 * MILLISECOND_NS, what="roll", shape=0.5)


def test_an_id_that_nobody_had_is_not_to_be_refused_as_used() -> None:
    stage = Stage()
    error = ChangeRefused(ChangeRefusal.USED_ID, "it was a member")
    of_a_member = MembershipChange(add=(Member(stage.follower.node_id),))
    stage.world.membership.check_refusal("n1", of_a_member, error)

    with pytest.raises(Violation) as caught:
        stage.world.membership.check_refusal("n1", MembershipChange(add=(Member("n9"),)), error)

    assert caught.value.rule == "an id is refused as used only if a member had it"


def test_a_build_that_knows_a_level_is_not_to_be_refused_for_it() -> None:
    stage = Stage()
    leader = stage.node(stage.leader)
    error = LevelRefused(LevelRefusal.OLD_MEMBER, "upgrade it first")
    stage.world.upgrades.check_refusal(2, leader, error)  # The builds of all members know only level 1.

    told = stage.world.upgrades._said[stage.leader.node_id]
    told.update(dict.fromkeys(told, LevelRange(1, 2)))
    with pytest.raises(Violation) as caught:
        stage.world.upgrades.check_refusal(2, leader, error)

    assert caught.value.rule == "a level is refused for a build only if a member has one that lacks it"


def test_learners_that_the_faults_leave_are_promoted_in_the_end() -> None:
    world = Simulation(a_changing_plan(changes=(AN_ADDITION,)))

    result = world.run()

    assert result.violation is None
    assert "learners were promoted after the faults" in result.covered
    assert world.safety.members.committed.is_voter("n4")


def test_a_leader_that_refuses_every_promotion_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(changer: MembershipChanger, promoted: tuple[str, ...]) -> None:
        if promoted:
            raise ChangeRefused(ChangeRefusal.BEHIND, "it lacks 0 entries", 0)

    monkeypatch.setattr(MembershipChanger, "_check_caught_up", refuse)
    # The repeated changes must not count as a backlog.
    monkeypatch.setattr("harness.sim.simulation.BACKLOG_LIMITS_MAX", 3)

    result = Simulation(a_changing_plan(changes=(AN_ADDITION,))).run()

    assert result.violation is not None
    assert result.violation.rule == "a healed cluster promotes its learners"


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_leader_that_refuses_every_level_is_seen(is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(levels: PeerFeatureLevels, level: int, core: Any) -> None:
        raise LevelRefused(LevelRefusal.SILENT_MEMBER, "n2 was not heard lately")

    if is_refused:
        monkeypatch.setattr(PeerFeatureLevels, "check_raise", refuse)

    result = Simulation(a_changing_plan(upgrades=(A_ROLL_OUT,))).run()

    if is_refused:
        assert result.violation is not None
        assert result.violation.rule == "a healed cluster may raise its level"
    else:
        assert result.violation is None
        assert "nothing prevented a level after the faults" in result.covered
