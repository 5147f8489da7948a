"""After the faults, a quorum must work without the other members. Members that come back later must not disturb this
quorum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import raft.core.elections
from harness.sim.plan.draw import draw_heal, draw_plan
from harness.sim.plan.plan import ALL_HEALED, DEAD_KINDS, MILLISECOND_NS, Dead, HealPlan
from harness.sim.simulation import Simulation
from raft.membership.quorum import Tally
from tests.simulation.support.plans import a_calm_plan

EVERYBODY = tuple(Dead(kind=kind, target=share) for kind in DEAD_KINDS for share in (0.0, 0.2, 0.4, 0.6, 0.8))


@pytest.mark.parametrize("members", [1, 2, 3, 4, 5])
def test_the_dead_are_a_minority_however_many_are_drawn(members: int) -> None:
    """Members that were lost for other reasons count as dead, too. In this test the log of one member is rotten, if a
    quorum remains."""
    world = Simulation(a_calm_plan(members=members, heal=HealPlan(dead=EVERYBODY)))
    minority = (members - 1) // 2
    for member in list(world.members.values())[: min(1, minority)]:
        member.is_damaged = member.is_lost = True

    world.healing.heal()

    assert world.healing.dead_count == minority
    assert len(world.healing.living()) == members - minority


@pytest.mark.timeout(60)
@pytest.mark.parametrize("returns", [False, True], ids=["for ever", "for a while"])
@pytest.mark.parametrize("kind", DEAD_KINDS)
def test_a_quorum_works_without_a_dead_member(kind: str, returns: bool) -> None:
    """The test works with any dead member, any kind of death, and any duration."""
    for target in (0.0, 0.4, None):
        world = Simulation(
            a_calm_plan(members=3, heal=HealPlan(dead=(Dead(kind=kind, target=target),), returns=returns))
        )

        result = world.run()

        assert result.violation is None, target
        assert f"a member stayed dead: {kind}" in result.covered
        assert (f"a member came back: {kind}" in result.covered) == returns
        assert ("members came back to a calm quorum" in result.covered) == returns


@pytest.mark.parametrize("is_behind", [False, True])
def test_of_whoever_is_cut_off_amid_unread_frames_no_term_is_remembered(is_behind: bool) -> None:
    """A slow process still reads frames from the time before the cut, and may learn of a new term from them."""
    world = Simulation(a_calm_plan(members=3, heal=HealPlan(dead=(Dead(kind="cut off", target=0.9),))))
    for member in world.members.values():
        member.initialize()
        member.boot()
    world.load.start()
    world._run_until(1_000 * MILLISECOND_NS, lambda: False)
    attention = world.members["n3"].scheduler
    if is_behind:
        attention.service_ns = 10 * MILLISECOND_NS
        world._run_until(2_000 * MILLISECOND_NS, lambda: bool(attention))

    world.healing.heal()

    assert bool(attention) == is_behind
    assert ("n3" in world.healing._term_when_cut) != is_behind


def test_who_stays_dead_is_drawn_for_itself() -> None:
    """The draw has its own random stream, `heal`. In a third of the seeds, all members are healed. In half of the
    others, the dead members stay dead."""
    drawn = [draw_heal(seed) for seed in range(300)]

    assert [draw_heal(seed) for seed in range(300)] == drawn
    assert 60 < sum(plan.dead == ALL_HEALED.dead for plan in drawn) < 140
    assert 100 < sum(plan.returns for plan in drawn) < 200
    assert draw_plan(7).heal == draw_heal(7)


# Defects that break these rules


def rule_broken_with(dead: str) -> str:
    """The rule that a run breaks if the last member is dead for a while. With unchanged code the run breaks no rule."""
    for seed in range(1, 6):
        heal = HealPlan(dead=(Dead(kind=dead, target=0.9),), returns=True)
        plan = a_calm_plan(members=3, heal=heal, seed=seed)
        # With leases, the run would break the rule about promises first.
        plan = replace(plan, raft=replace(plan.raft, lease_reads=False))
        violation = Simulation(plan).run().violation
        if violation is not None:
            return violation.rule
    return ""


def pre_votes_move_the_term(patch: pytest.MonkeyPatch) -> None:
    """Change the code so that a member moves to the next term before it asks for pre-votes."""
    ask = raft.core.elections.Elections.ask_for_pre_votes

    def moved(self: raft.core.elections.Elections) -> Tally:
        self._state.move_to_term(self._state.term + 1)
        return ask(self)

    patch.setattr(raft.core.elections.Elections, "ask_for_pre_votes", moved)


def test_a_member_that_comes_to_new_terms_without_being_heard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thesis §9.6: when other members hear this member, its higher term would depose a working leader."""
    pre_votes_move_the_term(monkeypatch)

    assert rule_broken_with("cut off") == "a member that hears nobody keeps its term"


def test_a_member_that_disturbs_when_it_comes_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thesis §9.6: a restarted member would campaign before it hears the leader."""
    pre_votes_move_the_term(monkeypatch)
    begin = raft.core.elections.Elections.__init__

    def hasty(self: raft.core.elections.Elections, state: Any) -> None:
        begin(self, state)
        self.deadline = state.now + 1

    monkeypatch.setattr(raft.core.elections.Elections, "__init__", hasty)

    assert rule_broken_with("kill") == "a member that comes back disturbs no quorum"


def test_a_quorum_that_needs_everybody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every run healed all members, no run would show this defect."""

    def all_of_them(self: Any, votes: dict[str, bool]) -> Tally:
        return Tally.WON if sum(votes.values()) == len(self.voters) else Tally.OPEN

    monkeypatch.setattr("raft.membership.quorum.Quorum.tally", all_of_them)

    assert rule_broken_with("kill") == "a healed cluster takes a write"
