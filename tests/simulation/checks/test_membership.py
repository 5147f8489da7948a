"""Each rule about changes of the members can fail (Raft §6, thesis §4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.checks.membership import ConfigurationHistory, check_standing, halves_of, has_majorities
from harness.sim.checks.snapshots import check_built
from harness.sim.engine.errors import Violation
from harness.sim.world.shadow_log import ShadowLog
from kvstore import UnsupportedFeatureLevel
from raft import Applied, Configuration, Effects, Entry, EntryKind, HardState, LevelRange, LogPosition, Node, Role
from tests.raft.support.core_cluster import configuration
from tests.simulation.support.stage import Stage

THREE = configuration(["n1", "n2", "n3"])
FOUR = configuration(["n1", "n2", "n3", "n4"])
JOINT = configuration(["n1", "n2", "n3", "n4"], outgoing=["n1", "n2", "n3"])


def entry_of(index: int, term: int, members: Configuration) -> Entry:
    return Entry(index, term, EntryKind.CONFIGURATION, members.encode())


def a_book(*written: Configuration, term: int = 1) -> tuple[ConfigurationHistory, ShadowLog]:
    """A history of n1, which has appended these configurations to its log, one after the other."""
    safety = SafetyChecker(THREE)
    for index, members in enumerate(written, start=1):
        safety.members.wrote("n1", entry_of(index, term, members))
    return safety.members, ShadowLog(LogPosition(0, 0), [term] * len(written), HardState(term))


def test_a_second_change_before_the_first_is_committed_is_seen() -> None:
    """If a joint configuration is left too early, this also counts as a second change."""
    book, log = a_book(JOINT, FOUR)
    with pytest.raises(Violation) as caught:
        book.check_fresh("n1", log, 0, 1)
    assert caught.value.rule == "one change of the members at a time"

    book, log = a_book(JOINT, FOUR)
    book.check_fresh("n1", log, 1, 1)
    assert book.in_force(log) == FOUR


def test_a_change_before_a_commit_of_the_own_term_is_seen() -> None:
    book, log = a_book(JOINT, term=2)

    with pytest.raises(Violation) as caught:
        book.check_fresh("n1", log, 1, 1)

    assert caught.value.rule == "members change behind a commit of the leader's own term"


@pytest.mark.parametrize("has_committed", [True, False])
def test_a_change_in_a_step_in_which_the_leader_stops_is_judged_by_that_step(has_committed: bool) -> None:
    """The leader may stop because it commits a level that its build does not know. After a restart, the leader's mark
    is different."""
    stage = Stage()
    leader, term, own_first = stage.leader, stage.term + 1, stage.index + 1
    safety, upgrading = stage.world.safety, stage.world.upgrades
    upgrading.best[leader.node_id] = 2
    for member in (leader, stage.follower):
        stage.has(member, own_first, term, durable=True)
    safety.wrote(leader.node_id, entry_of(own_first + 1, term, THREE), term)
    stage.has(leader, own_first + 1, term, durable=False)

    def stops() -> Effects:
        raise UnsupportedFeatureLevel(2, LevelRange(1, 1))

    core = SimpleNamespace(role=Role.LEADER, term=term, commit_index=own_first if has_committed else stage.index)
    leader.node = cast(Node, SimpleNamespace(core=core, take_effects=stops))
    if has_committed:
        leader.settle("disk")
        assert (safety.commit_index, safety.members.fresh) == (own_first, [])
        assert not leader.is_up
        return
    with pytest.raises(Violation) as caught:
        leader.settle("disk")
    assert caught.value.rule == "members change behind a commit of the leader's own term"


@pytest.mark.parametrize("after", [FOUR, configuration(["n1"]), configuration(["n1", "n4"], outgoing=["n1", "n2"])])
def test_a_configuration_that_does_not_follow_from_the_last_is_seen(after: Configuration) -> None:
    """Raft §6: the majorities of two successive configurations must have a common member."""
    book, _ = a_book(after)

    with pytest.raises(Violation) as caught:
        book.reached(1, 1)

    assert caught.value.rule == "configurations that follow each other share majorities"


def test_the_way_through_a_joint_configuration_is_right() -> None:
    book, _ = a_book(JOINT, FOUR, configuration(["n1", "n2", "n3", "n4"], learners=["n5"]))

    for index in (1, 2, 3):
        book.reached(index, 1)

    assert book.committed.learner_ids == ("n5",)
    assert halves_of(JOINT) == (("n1", "n2", "n3", "n4"), ("n1", "n2", "n3"))
    assert has_majorities(halves_of(JOINT), ["n1", "n2", "n4"])
    assert not has_majorities(halves_of(JOINT), ["n1", "n2"])


def test_an_id_that_comes_back_is_seen() -> None:
    book, _ = a_book(
        configuration(["n1", "n2", "n3"], removed=["n4"]), configuration(["n1", "n2", "n3"], learners=["n4"])
    )
    book.reached(1, 1)

    with pytest.raises(Violation) as caught:
        book.reached(2, 1)

    assert caught.value.rule == "an id is never used again"


def test_members_that_are_not_those_of_the_log_are_seen() -> None:
    """For example, the members were not rolled back after a cut, or were not found after a restart."""
    stage = Stage()
    stage.world.safety.wrote(stage.leader.node_id, entry_of(stage.index + 1, stage.term, JOINT), stage.term)
    check_standing(stage.world.safety.members, stage.follower, stage.node(stage.follower))
    stage.has(stage.follower, stage.index + 1, stage.term, durable=False)

    with pytest.raises(Violation) as caught:
        check_standing(stage.world.safety.members, stage.follower, stage.node(stage.follower))

    assert caught.value.rule == "the newest configuration in the log is in force"


def test_a_campaign_of_who_is_no_voter_is_seen() -> None:
    """The removed member may campaign as long as the entry of its removal may be cut, because it may have to lead
    (thesis, Figure 4.6)."""
    stage = Stage()
    without = configuration(
        [stage.leader.node_id], removed=sorted(member.node_id for member in (stage.follower, stage.other))
    )
    stage.world.safety.wrote(stage.leader.node_id, entry_of(stage.index + 1, stage.term, without), stage.term)
    stage.has(stage.follower, stage.index + 1, stage.term, durable=False)

    def stands(commit_index: int) -> None:
        core = SimpleNamespace(configuration=without, role=Role.PRE_CANDIDATE, commit_index=commit_index)
        check_standing(stage.world.safety.members, stage.follower, cast(Node, SimpleNamespace(core=core, failure=None)))

    stands(stage.index)
    with pytest.raises(Violation) as caught:
        stands(stage.index + 1)
    assert caught.value.rule == "a member that is certainly no voter neither campaigns nor leads"


def test_a_snapshot_with_other_members_is_seen() -> None:
    """For example, the snapshot contains members that were not yet committed at its index."""
    stage = Stage()
    stage.node(stage.follower).snapshot_now()
    stage.run(200)
    storage = stage.checker(stage.follower)._storage
    index = storage.snapshots.latest().header.index
    stage.world.safety.members._written[index, stage.term] = JOINT
    stage.world.safety.members._newest_first = [(index, stage.term)]

    with pytest.raises(Violation) as caught:
        check_built(stage.world.safety, stage.follower, storage)

    assert caught.value.rule == "a snapshot has the members as of its index"


def test_a_change_that_is_not_done_and_told_to_be_is_seen() -> None:
    """The change is not complete with a joint configuration."""
    stage = Stage()
    effects = Effects(completions=[Applied(-1, stage.index, stage.world.configuration)])
    stage.world.membership.on_flush(stage.leader, effects)
    assert effects.completions == []

    with pytest.raises(Violation) as caught:
        stage.world.membership.on_flush(stage.leader, Effects(completions=[Applied(-1, stage.index, JOINT)]))

    assert caught.value.rule == "a change that is reported as done is done"
