"""Each rule about one member and about the mark fails if a member of a running world has a wrong value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.sim.checks.messages import PINNED_AS_MEMBER
from raft import (
    AppendAccepted,
    HardState,
    LogPosition,
    Message,
    Node,
    PreVoteRequest,
    Role,
    VoteRequest,
    VoteResponse,
)
from tests.simulation.support.stage import APPEND, Stage, broken_rule

Act = Callable[[Stage], object]

WRONG: dict[str, list[Act]] = {
    "terms never go back": [lambda s: s.show(s.follower, term=s.term - 1), Stage.recovers_an_older_term],
    "the mark never falls in a life": [lambda s: s.show(s.follower, commit_index=s.index - 1)],
    "applied never falls": [lambda s: s.show(s.follower, last_applied=s.index - 1)],
    "the applied entries are those that were committed": [lambda s: s.forgets_that_it_applied(s.follower)],
    "order of the marks": [
        lambda s: s.show(s.follower, first_index=s.index + 2),
        lambda s: s.show(s.follower, snapshot_index=s.index + 1),
        lambda s: s.show(s.follower, last_index=s.index - 1),
    ],
    "durable means synced": [lambda s: s.show(s.follower, durable_index=s.index + 1)],
    "the low-water mark never falls": [lambda s: s.show(s.leader, low_watermark=s.index - 1)],
    "the low-water mark is applied and durable everywhere": [Stage.hides_the_low_watermark],
    "election safety": [lambda s: s.show(s.follower, role=Role.LEADER)],
    "a leader has the votes of a majority": [lambda s: s.show(s.follower, term=s.term + 1, role=Role.LEADER)],
    "leader completeness": [Stage.leads_without_the_last, Stage.commits_without_a_later_leader],
    "a member commits only entries that it has": [lambda s: s.commit(s.leader)],
    "a leader commits only behind an entry of its own term": [
        lambda s: s.commits_what_is(term=s.term - 1, durable=True)
    ],
    "committed means durable on a majority": [
        lambda s: s.commits_what_is(term=s.term, durable=False),
        lambda s: s.world.commitment._recover_aside(s.follower, s.index + 1, s.term),
        lambda s: s.world.commitment._recover_aside(s.follower, s.index, s.term + 1),
    ],
    "durable entries can be recovered": [Stage.loses_its_disk],
    "entries are applied in order": [
        lambda s: s.applies(s.index, s.term),
        lambda s: s.applies(s.index + 2, s.term),
    ],
    "applied only when durable here": [lambda s: s.applies(s.index + 1, s.term)],
    "the log forgets only entries that a snapshot holds": [lambda s: s.drops(s.index + 2)],
    "a snapshot is durable before the log is cut": [Stage.drops_before_the_snapshot_is_durable],
    "a read sees every write that was acknowledged before it": [Stage.reads_behind],
}


@pytest.mark.parametrize(("rule", "place"), [(rule, place) for rule in WRONG for place in range(len(WRONG[rule]))])
def test_a_member_that_shows_something_wrong_is_seen(rule: str, place: int) -> None:
    """The rules are those of Raft §5.2 to §5.4, thesis §6.4 and
    docs/reference/specification.md#3-order-of-durability."""
    stage = Stage()

    with broken_rule(rule):
        WRONG[rule][place](stage)


def test_a_quiet_world_breaks_no_rule() -> None:
    """The unchanged world breaks no rule, so the violations in the other tests come only from the changes of these
    tests."""
    stage = Stage()

    for member in stage.world.members.values():
        stage.show(member)
    stage.commits_what_is(term=stage.term, durable=True)
    stage.world.commitment._recover_aside(stage.other, stage.index, stage.term)


# The statement of a message must be true on its sender's disk.

ACCEPTED = AppendAccepted(term=0, match_index=0, last_applied=0, read_counter=0)

Say = Callable[[Stage], Message]

PROMISES: dict[str, list[Say]] = {
    "a term is durable before a message states it": [lambda s: replace(APPEND, term=s.term + 1)],
    "a vote is durable before a message states it": [
        lambda s: VoteResponse(term=s.term, granted=True),
        lambda s: VoteRequest(term=s.term, last_index=s.index, last_term=s.term),
    ],
    "a tail is durable before a message states it": [
        lambda s: PreVoteRequest(term=s.term, next_term=s.term + 1, last_index=s.index + 1, last_term=s.term),
        lambda s: PreVoteRequest(term=s.term, next_term=s.term + 1, last_index=s.index, last_term=s.term + 1),
    ],
    "an entry is durable before it is acknowledged": [
        lambda s: replace(ACCEPTED, term=s.term, match_index=s.index + 1)
    ],
    "nothing is shown above the mark": [lambda s: replace(APPEND, term=s.term, commit_index=s.index + 1)],
}


@pytest.mark.parametrize(
    ("rule", "place"), [(rule, place) for rule in PROMISES for place in range(len(PROMISES[rule]))]
)
def test_a_message_that_says_more_than_the_disk_holds_is_seen(rule: str, place: int) -> None:
    """The follower has not voted, but its message claims that it has
    (docs/reference/specification.md#31-messages-wait-for-the-disk)."""
    stage = Stage()
    stage.follower.logs.durable.hard_state = HardState(stage.term, None, 0)
    stage.world.safety._votes.clear()

    with broken_rule(rule):
        stage.say(stage.leader, PROMISES[rule][place](stage))


def test_a_tail_that_a_snapshot_has_replaced_since_may_still_be_told() -> None:
    """A snapshot was installed while the message waited for its sync. So the disk now has more than the message
    claims."""
    stage = Stage()
    stage.follower.logs.durable.base = LogPosition(stage.index + 9, stage.term)
    stage.follower.logs.durable.terms = []
    request = PreVoteRequest(term=stage.term, next_term=stage.term + 1, last_index=stage.index, last_term=stage.term)

    stage.say(stage.leader, request)


def test_a_second_vote_in_a_message_is_seen() -> None:
    """Raft §5.2: the rule applies across crashes, and does not depend on the content of the disk."""
    stage = Stage()
    stage.world.safety._votes.clear()
    vote = VoteResponse(term=stage.term, granted=True)
    stage.follower.logs.durable.hard_state = HardState(stage.term, stage.leader.node_id, 0)
    stage.say(stage.leader, vote)

    stage.follower.logs.durable.hard_state = HardState(stage.term, stage.other.node_id, 0)
    with broken_rule("one vote per term"):
        stage.say(stage.other, vote)


def test_an_answer_to_who_is_not_pinned_is_seen() -> None:
    """A member that has lost its disk has also lost its votes, so no other member may answer it.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
    stage = Stage()
    del stage.follower.image.durable_names["pins"]

    with broken_rule("a pin is durable before its peer is answered"):
        stage.say(stage.leader, replace(ACCEPTED, term=stage.term))


def test_the_use_of_a_message_of_who_is_not_pinned_is_seen() -> None:
    """The rule finds such a use of a message even if no answer follows."""
    stage = Stage()
    del stage.follower.image.durable_names["pins"]

    with broken_rule("a pin is durable before a message of its peer is used"):
        stage.node(stage.follower).receive(stage.leader.node_id, replace(APPEND, term=stage.term))


def test_who_would_take_another_folder_for_a_member_that_it_has_heard_is_seen() -> None:
    """The leader has not sent a hello since it became a member. So its pin is still preliminary."""
    stage = Stage()
    node = stage.node(stage.follower)
    stage.checker(stage.follower)._heard_members.clear()
    node._incarnations._pins[stage.leader.node_id].is_preliminary = True

    with broken_rule(PINNED_AS_MEMBER):
        node.receive(stage.leader.node_id, replace(APPEND, term=stage.term))


def test_who_would_take_another_folder_for_a_member_after_a_restart_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.follower.crash(power=True)
    monkeypatch.setattr(Node, "peer_hello", lambda *_: None)

    stage.follower.boot()
    with broken_rule(PINNED_AS_MEMBER):
        stage.run(300)


def test_an_acknowledgement_to_who_does_not_lead_is_seen() -> None:
    """Raft §5.1."""
    stage = Stage()

    with broken_rule("an append is acknowledged to the leader of the term"):
        stage.say(stage.other, replace(ACCEPTED, term=stage.term))


@pytest.mark.parametrize("has_another", [True, False], ids=["another entry", "no entry"])
def test_an_acknowledgement_of_what_the_leader_does_not_have_is_seen(*, has_another: bool) -> None:
    """Raft §5.3: a durable entry that differs from the leader's entry is not a copy of it."""
    stage = Stage()
    stage.has(stage.follower, stage.index + 1, stage.term - 1, durable=True)
    if has_another:
        stage.has(stage.leader, stage.index + 1, stage.term, durable=False)

    stage.say(stage.leader, replace(ACCEPTED, term=stage.term, match_index=stage.index))
    with broken_rule("an acknowledgement names entries that the leader has"):
        stage.say(stage.leader, replace(ACCEPTED, term=stage.term, match_index=stage.index + 1))


def test_what_belongs_to_a_term_that_is_over_promises_nothing() -> None:
    """No leader counts a message of an earlier term."""
    stage = Stage()
    stage.world.safety.leads(stage.other.node_id, 1, stage.term - 1)

    stage.say(stage.other, replace(ACCEPTED, term=stage.term - 1, match_index=stage.index + 9))
