"""Each rule about feature levels can fail. An upgrade in a quiet world keeps all these rules.

See docs/reference/specification.md#713-feature-levels.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.sim.checks.snapshots import check_built
from harness.sim.engine.errors import Violation
from harness.sim.faults.upgrades import LEVEL_MAX
from harness.sim.plan.plan import UpgradeStep
from harness.sim.world.member import SimMember
from kvstore import RaiseFeatureLevel, UnsupportedFeatureLevel, encode_command
from raft import Entry, EntryKind, LevelRange, encode_batch
from tests.simulation.support.stage import Stage


class Upgraded(Stage):
    """A stage whose members know only level 1, unless a test gives them other builds."""

    def __init__(self) -> None:
        super().__init__()
        self.upgrades = self.world.upgrades
        self.world.plan = replace(self.world.plan, upgrades=(UpgradeStep(at_ns=0, what="roll", shape=0.0),))

    def all_know(self, level: int) -> None:
        """Give all members builds that know the level, and let each member announce its build to the others."""
        self.upgrades.best = dict.fromkeys(self.upgrades.best, level)
        for said in self.upgrades._said.values():
            said.update(dict.fromkeys(said, LevelRange(1, level)))

    def raised_to(self, member: SimMember, level: int) -> None:
        """Let the state machine of the member apply an entry that raises the feature level to `level`."""
        assert member.machine is not None
        member.machine._levels = LevelRange(1, LEVEL_MAX)
        payload = encode_batch(0, [encode_command(RaiseFeatureLevel(level))])
        member.machine.apply(Entry(self.index + 1, self.term, EntryKind.COMMANDS, payload))


def rule_of(error: pytest.ExceptionInfo[Violation]) -> str:
    return error.value.rule


def test_a_level_that_a_member_never_knew_is_seen_when_it_is_proposed() -> None:
    stage = Upgraded()
    stage.all_know(2)
    stage.upgrades._check_asked(2, stage.node(stage.leader))

    stage.upgrades.best[stage.follower.node_id] = 1
    with pytest.raises(Violation) as caught:
        stage.upgrades._check_asked(2, stage.node(stage.leader))

    assert rule_of(caught) == "a level is raised only when every member knows it"


def test_a_member_that_applies_what_its_build_does_not_know_is_seen() -> None:
    stage = Upgraded()
    stage.raised_to(stage.follower, 2)

    with pytest.raises(Violation) as caught:
        stage.upgrades.applied(stage.follower)

    assert rule_of(caught) == "no member applies an entry of a level that its build lacks"


def test_a_level_that_is_raised_though_a_lost_member_has_not_said_that_it_knows_it_is_seen() -> None:
    stage = Upgraded()
    stage.all_know(2)
    leader = stage.node(stage.leader)
    stage.upgrades._check_asked(2, leader)

    stage.leader.lose_connection(stage.follower.node_id)
    with pytest.raises(Violation) as caught:
        stage.upgrades._check_asked(2, leader)

    assert rule_of(caught) == "a level is raised only when every member says that it knows it"


def test_a_level_that_falls_is_seen() -> None:
    stage = Upgraded()
    stage.upgrades.levels[stage.follower.node_id] = LevelRange(1, 2)
    stage.follower.checker.level = 2

    with pytest.raises(Violation) as caught:
        stage.upgrades.applied(stage.follower)

    assert rule_of(caught) == "a level never falls"


def test_a_member_that_stops_though_it_never_knew_the_level_is_seen() -> None:
    """Only a member that joined after the level was proposed may stop for this reason."""
    stage = Upgraded()
    error = UnsupportedFeatureLevel(2, LevelRange(1, 1))
    with pytest.raises(Violation) as caught:
        stage.upgrades.has_stopped(stage.follower, error)
    assert rule_of(caught) == "no member is led to a level that its build never knew"

    stage.upgrades._asked.append((2, frozenset({stage.leader.node_id})))
    stage.upgrades.has_stopped(stage.follower, error)
    stage.run(1_000)
    assert stage.upgrades.levels[stage.follower.node_id].highest == LEVEL_MAX


def test_a_member_that_stops_at_a_level_that_its_build_knows_is_seen() -> None:
    stage = Upgraded()
    stage.upgrades.best[stage.follower.node_id] = 2
    stage.upgrades.levels[stage.follower.node_id] = LevelRange(1, 2)

    with pytest.raises(Violation) as caught:
        stage.upgrades.has_stopped(stage.follower, UnsupportedFeatureLevel(2, LevelRange(1, 1)))

    assert rule_of(caught) == "a build continues at every level that it knows"


def test_a_hello_that_should_be_refused_is_seen() -> None:
    stage = Upgraded()
    node, machine = stage.node(stage.leader), stage.leader.machine
    stage.upgrades.greet(node, machine, stage.follower.identity)
    stage.raised_to(stage.leader, 2)
    node._levels.on_hello = lambda *_: None  # type: ignore[method-assign]

    with pytest.raises(Violation) as caught:
        stage.upgrades.greet(node, machine, stage.follower.identity)

    assert rule_of(caught) == "a member hears no build that lacks the level in force"


def test_a_rolled_out_build_lets_the_level_be_raised() -> None:
    """A request that comes earlier is refused. A member that goes back to the old build stops when it reaches the
    entry."""
    stage = Upgraded()
    stage.upgrades._raise(2, 1)
    stage.run(200)
    assert {"a level was refused: unknown_level"} <= stage.world.covered

    stage.upgrades._carry_out(UpgradeStep(at_ns=0, what="roll", shape=0.9))
    stage.run(3_000)
    stage.upgrades._raise(2, 12)
    stage.run(1_000)
    assert {m.machine.feature_level for m in stage.world.members.values() if m.machine} == {2}

    stage.upgrades._carry_out(UpgradeStep(at_ns=0, what="back", shape=0.0))
    stage.run(3_000)
    assert "a member stopped at a level that its build does not know" in stage.world.covered
    assert {m.machine.feature_level for m in stage.world.members.values() if m.machine} == {2}


def test_a_snapshot_of_a_raised_level_is_read_back_by_a_build_that_knows_it() -> None:
    """No member stops because of the snapshot, and the state of this member is compared like any other state."""
    stage = Upgraded()
    stage.upgrades._carry_out(UpgradeStep(at_ns=0, what="roll", shape=0.9))
    stage.run(3_000)
    stage.upgrades._raise(2, 12)
    stage.run(1_000)
    life = stage.follower.life

    stage.node(stage.follower).snapshot_now()
    stage.run(200)

    storage = stage.checker(stage.follower)._storage
    header = storage.snapshots.latest().header
    assert header.machine["feature_level"] == 2
    assert stage.follower.life == life
    stage.world.safety._hashes[header.index] = ("another", b"another state")
    with pytest.raises(Violation) as caught:
        check_built(stage.world.safety, stage.follower, storage)
    assert rule_of(caught) == "state machine agreement"


def test_who_has_its_last_build_is_left_in_peace() -> None:
    """If the roll-out of a build is not complete when the faults end, all members get the build at that moment. No
    member gets it later."""
    stage = Upgraded()
    stage.upgrades._carry_out(UpgradeStep(at_ns=0, what="roll", shape=0.9))
    stage.upgrades.stop()
    stage.run(40)
    lives = [member.life for member in stage.world.members.values()]

    stage.run(3_000)

    assert [member.life for member in stage.world.members.values()] == lives


def test_who_was_taken_back_while_it_was_down_has_the_last_build_in_the_end() -> None:
    """With its old build, the member would only hear a leader that refuses it, so it would never follow a leader."""
    stage = Upgraded()
    stage.upgrades._carry_out(UpgradeStep(at_ns=0, what="roll", shape=0.0))
    stage.upgrades._carry_out(UpgradeStep(at_ns=0, what="roll", shape=0.0))
    stage.run(1_000)
    name = stage.follower.node_id
    assert stage.upgrades.levels[name].highest == LEVEL_MAX

    stage.upgrades._give(stage.follower, LEVEL_MAX - 1, 10**9)
    stage.upgrades.stop()
    stage.run(3_000)

    assert stage.upgrades.levels[name].highest == LEVEL_MAX
