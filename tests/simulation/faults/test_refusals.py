"""Each rule about refused members can fail, and a member that learns of its removal ends.

See docs/reference/specification.md#13-incarnations-and-pins.
"""

from __future__ import annotations

import pytest

from harness.sim.checks.coverage import GHOST_ENDED, HASTY, PIN_GAVE_WAY, TOLD_BY_REFUSAL
from harness.sim.engine.errors import Violation
from harness.sim.faults.disk_loss import HASTY_SHARE, REBORN_SHARE
from harness.sim.faults.refusals import BLANK_MEMBER_ENDS, ONLY_REMOVED_END, TOLD_REMOVED_END
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.draw_membership import MADE_ANEW_SHARE
from harness.sim.plan.plan import (
    ADD,
    LOSS,
    MILLISECOND_NS,
    PROMOTE,
    REMOVE,
    SECOND_NS,
    ChangeStep,
    Fault,
    names_new_voters,
)
from harness.sim.simulation import Simulation
from raft import Node
from tests.simulation.support.plans import a_changing_plan
from tests.simulation.support.stage import Stage


def refused(stage: Stage, code: str) -> None:
    member = stage.follower
    member.refused(member.life, stage.other.node_id, code)


def test_a_blank_member_that_goes_on_although_it_is_known_with_another_folder_is_seen() -> None:
    stage = Stage()
    stage.follower.is_blank = True
    stage.node(stage.follower)._incarnations._is_blank = False

    with pytest.raises(Violation) as caught:
        refused(stage, "wrong_incarnation")

    assert caught.value.rule == BLANK_MEMBER_ENDS


def test_a_removed_member_that_goes_on_although_it_was_told_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    monkeypatch.setattr(Node, "peer_refused", lambda *_: None)

    with pytest.raises(Violation) as caught:
        refused(stage, "removed")

    assert caught.value.rule == TOLD_REMOVED_END


def test_a_member_that_is_told_to_be_removed_and_is_not_is_seen() -> None:
    stage = Stage()

    with pytest.raises(Violation) as caught:
        refused(stage, "removed")

    assert caught.value.rule == ONLY_REMOVED_END


def test_any_other_refusal_ends_nobody() -> None:
    stage = Stage()

    for code in ("not_a_member", "feature_level", "wrong_incarnation"):
        refused(stage, code)
    stage.run(300)

    assert stage.follower.is_up


def test_a_removed_member_that_was_away_is_told_by_a_refusal_and_ends() -> None:
    """At this time the leader no longer sends to the removed member."""
    removal = ChangeStep(at_ns=400 * MILLISECOND_NS, what=REMOVE, shape=0.5)
    world = Simulation(a_changing_plan(changes=(removal,), silenced_rate=1.0))

    result = world.run()

    assert result.violation is None
    (removed,) = world.safety.members.committed.removed
    assert {TOLD_BY_REFUSAL, "a member stopped in order"} <= result.covered
    assert world.members[removed].is_lost or world.members[removed].life > 1


@pytest.mark.parametrize("is_hasty", [False, True])
def test_a_ghost_that_is_refused_ends_itself_and_a_spare_takes_its_place(is_hasty: bool) -> None:
    shape = HASTY_SHARE / 2 if is_hasty else (HASTY_SHARE + REBORN_SHARE) / 2
    loss = Fault(at_ns=400 * MILLISECOND_NS, kind=LOSS, duration_ns=50 * MILLISECOND_NS, target=None, shape=shape)

    result = Simulation(a_changing_plan(faults=(loss,))).run()

    assert result.violation is None
    assert {GHOST_ENDED, "a member that lost its disk was replaced"} <= result.covered
    assert (HASTY in result.covered) == is_hasty


def test_a_machine_that_some_know_by_another_folder_is_heard_by_them() -> None:
    """The machine was not a member when the others met its first folder. So its second folder counts, no matter which
    member leads."""
    seed = next(seed for seed in range(1, 20) if names_new_voters(seed))
    steps = ((200, ADD), (1_000, PROMOTE))
    changes = tuple(ChangeStep(at_ns=at_ms * MILLISECOND_NS, what=what, shape=0.4) for at_ms, what in steps)
    # The new leader sends to every member.
    leads = Fault(at_ns=2 * SECOND_NS, kind="take over", duration_ns=0, target=0.9, shape=0.0)
    for met_by in ("n1", "n2", "n3"):
        world = Simulation(
            a_changing_plan(seed=seed, former_folders={"n4": (met_by,)}, changes=changes, faults=(leads,))
        )

        result = world.run()

        assert result.violation is None
        assert PIN_GAVE_WAY in result.covered
        assert world.safety.members.committed.is_voter("n4")


def test_machines_that_were_made_anew_are_known_by_a_minority_of_the_voters() -> None:
    seeds = [seed for seed in range(1, 100) if draw_plan(seed).former_folders]
    assert 3 <= len(seeds) <= 100 * MADE_ANEW_SHARE
    for seed in seeds:
        plan = draw_plan(seed)
        for machine, met_by in plan.former_folders.items():
            assert machine not in plan.voters
            assert 0 < len(met_by) <= len(plan.voters) // 2


def test_who_has_met_another_folder_and_was_restarted_may_refuse_a_machine_until_it_is_named() -> None:
    """A restart makes the pin final. Without a restart, the machine's second folder would replace the pin."""
    world = Simulation(a_changing_plan(former_folders={"n4": ("n2",)}))
    member = world.members["n2"]
    member.life = 1
    assert not world.may_refuse("wrong_incarnation", "n4", by="n2")

    member.life = 3
    assert world.may_refuse("wrong_incarnation", "n4", by="n2")
    assert not world.may_refuse("wrong_incarnation", "n4", by="n1")
    assert not world.may_refuse("wrong_incarnation", "n3", by="n2")
