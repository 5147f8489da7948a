"""A node exchanges messages only with members, and pins each member to the incarnation that it met first.

See docs/reference/specification.md#13-incarnations-and-pins.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from raft import Entry, EntryKind, IncarnationReplaced, Member, PeerRefused, RaftConfig, VoteRequest
from tests.raft.support.core_fixture import heartbeat
from tests.raft.support.node_cluster import OneNode, World, incarnation_of

FIRST, SECOND, THIRD = (bytes([number]) * 16 for number in range(1, 4))
"""Three data folders of one machine."""


def test_a_peer_is_pinned_before_anything_it_says_is_used() -> None:
    """A node syncs the pin of a peer before it uses a vote, an append or an acknowledgement of this peer.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig(), pinned=False)
    request = VoteRequest(term=5, last_index=0, last_term=0, transfer=False)

    s1.node.receive("s2", request)
    s1.node.peer_hello("s2", incarnation_of("s2"))
    s1.node.receive("s2", request)
    s1.flush()
    assert s1.node.core.term == 0
    assert s1.disk.names == ["pin s2"]

    s1.disk.complete_one()
    s1.node.peer_hello("s2", incarnation_of("s2"))
    s1.node.receive("s2", request)
    assert s1.node.core.term == 5
    assert s1.disk.names == ["pin s2"]


def test_a_peer_with_another_incarnation_is_refused_and_told_the_remedy() -> None:
    """A peer with another incarnation has lost its disk and its votes
    (docs/reference/specification.md#13-incarnations-and-pins)."""
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig(), pinned=False)
    s1.node.peer_hello("s2", incarnation_of("s2"))

    # The node refuses the peer even before the first pin is durable.
    with pytest.raises(PeerRefused, match="new node id") as caught:
        s1.node.peer_hello("s2", b"another one 1234")
    s1.settle()
    with pytest.raises(PeerRefused, match="forgotten its votes"):
        s1.node.peer_hello("s2", b"another one 1234")

    assert caught.value.code == "wrong_incarnation"
    assert incarnation_of("s2")[:4].hex() in caught.value.reason
    # The caller gets the text of the error, so this text must not contain the whole id.
    assert incarnation_of("s2").hex() not in caught.value.reason


def test_a_member_that_began_empty_and_was_known_before_promises_nothing_more() -> None:
    """The member's folder was created again after a loss. Another member that never met the old folder might count a
    vote of the new one.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
    s2 = OneNode("s2", ("s1", "s2", "s3"), RaftConfig())
    s2.settle()

    s2.node.peer_refused("s9", "wrong_incarnation")  # s9 is not a member, so its refusal does not matter.
    s2.node.peer_refused("s1", "not_a_member")
    assert s2.flush().failure is None
    s2.node.peer_refused("s1", "wrong_incarnation")

    failure = s2.flush().failure
    assert failure is not None
    assert "s1 knows this member with another data folder" in str(failure)
    assert isinstance(failure.__cause__, IncarnationReplaced)
    s2.node.receive("s3", VoteRequest(term=5, last_index=0, last_term=0, transfer=False))
    assert not s2.flush().send


def test_a_member_with_a_log_stays_whatever_one_peer_says_of_its_data_folder() -> None:
    """The peer that refuses may be wrong, because other members accepted this folder when they sent it the log."""
    world = World()
    world.elect()
    follower, other = world.followers()
    follower.crash()

    follower.node.peer_refused(other.node_id, "wrong_incarnation")

    assert follower.flush().failure is None


@pytest.mark.parametrize(("peer_id", "code"), [("s9", "not_a_member"), ("s1", "own_id")])
def test_a_stranger_is_refused(peer_id: str, code: str) -> None:
    """A node that has a leader refuses strangers. The leader knows all members, and all members know the leader."""
    s1 = OneNode("s1", ("s1",), RaftConfig())
    s1.settle()
    assert s1.node.core.hears_a_leader

    with pytest.raises(PeerRefused) as caught:
        s1.node.peer_hello(peer_id, bytes(16))
    assert caught.value.code == code


def test_a_stranger_that_leads_is_greeted_by_who_hears_it() -> None:
    """A joining member may hear a leader that is not in its configuration. In this case the joining member calls that
    leader in order to answer."""
    s9 = OneNode("s9", ("s1",), RaftConfig(), pinned=False)
    s9.node.peer_hello("s2", incarnation_of("s2"))
    s9.settle()
    s9.node.receive("s2", heartbeat(term=3))
    assert s9.node.core.hears_a_leader

    s9.node.peer_hello("s2", incarnation_of("s2"))

    with pytest.raises(PeerRefused) as caught:
        s9.node.peer_hello("s3", incarnation_of("s3"))
    assert caught.value.code == "not_a_member"


def test_the_folder_that_came_before_its_machine_was_a_member_may_be_made_anew() -> None:
    """No member has counted a promise of the first folder. When s9 becomes a member, its present folder is pinned
    permanently."""
    s1 = a_node_that_has_met_s9(FIRST, SECOND)
    assert s1.node.pinned_incarnation("s9") == SECOND

    s1.node.receive("s2", replace(heartbeat(term=1), entries=(with_s9(s1),)))
    s1.node.peer_hello("s9", THIRD)
    s1.settle()

    assert s1.node.pinned_incarnation("s9") == THIRD
    with pytest.raises(PeerRefused, match="forgotten its votes"):
        s1.node.peer_hello("s9", SECOND)


def with_s9(s1: OneNode, *, incarnation_id: bytes = b"", is_voter: bool = False) -> Entry:
    """This is the first entry of a log. It makes s9 a member."""
    members, added = s1.node.core.configuration, Member("s9", "s9:2", "s9:1", incarnation_id)
    members = replace(members, voters=(*members.voters, added)) if is_voter else replace(members, learners=(added,))
    return Entry(1, 1, EntryKind.CONFIGURATION, members.encode())


def a_node_that_has_met_s9(*incarnation_ids: bytes) -> OneNode:
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig())
    for incarnation_id in incarnation_ids:
        s1.node.peer_hello("s9", incarnation_id)
    s1.settle()
    return s1


def test_the_folder_that_was_heard_since_its_machine_is_a_member_is_pinned_for_good() -> None:
    """The connection of s9 may have been open all the time, without another hello. Meanwhile s9 may have voted."""
    s1 = a_node_that_has_met_s9(FIRST)
    s1.node.receive("s2", replace(heartbeat(term=1), entries=(with_s9(s1),)))
    s1.settle()

    s1.node.receive("s9", VoteRequest(term=2, last_index=1, last_term=1, transfer=False))

    with pytest.raises(PeerRefused, match="forgotten its votes"):
        s1.node.peer_hello("s9", SECOND)


def test_the_folder_that_was_heard_before_its_machine_was_a_member_may_be_made_anew() -> None:
    s1 = a_node_that_has_met_s9(FIRST)
    s1.node.receive("s9", VoteRequest(term=1, last_index=0, last_term=0, transfer=False))
    s1.node.receive("s2", replace(heartbeat(term=1), entries=(with_s9(s1),)))
    s1.settle()

    s1.node.peer_hello("s9", SECOND)

    assert s1.node.pinned_incarnation("s9") == SECOND


def test_the_folder_that_the_configuration_names_is_not_made_anew_though_it_was_met_before() -> None:
    s1 = a_node_that_has_met_s9(FIRST)
    s1.node.receive("s2", replace(heartbeat(term=1), entries=(with_s9(s1, incarnation_id=FIRST, is_voter=True),)))
    s1.settle()

    with pytest.raises(PeerRefused, match="forgotten its votes"):
        s1.node.peer_hello("s9", SECOND)


def test_another_folder_than_the_configuration_names_is_heard_no_more() -> None:
    """The connection of that folder is open, so no new hello comes that could be refused."""
    s1 = a_node_that_has_met_s9(SECOND)
    s1.node.receive("s2", replace(heartbeat(term=1), entries=(with_s9(s1, incarnation_id=FIRST, is_voter=True),)))
    s1.settle()

    s1.node.receive("s9", heartbeat(5, (1, 1)))
    assert s1.node.core.term == 1

    s1.node.peer_hello("s9", FIRST)
    s1.settle()
    s1.node.receive("s9", heartbeat(5, (1, 1)))
    assert s1.node.core.term == 5


def test_another_folder_than_the_configuration_names_is_not_heard_in_the_same_turn() -> None:
    """Several messages may arrive before the node carries out the effects of the first message."""
    s1 = a_node_that_has_met_s9(SECOND)
    s1.node.receive("s2", replace(heartbeat(term=1), entries=(with_s9(s1),)))
    s1.settle()
    s1.node.receive("s9", VoteRequest(term=1, last_index=0, last_term=0, transfer=False))
    s1.settle()

    named = replace(with_s9(s1, incarnation_id=FIRST), index=2)
    s1.node.receive("s2", replace(heartbeat(1, (1, 1)), entries=(named,)))
    s1.node.receive("s9", heartbeat(5, (2, 1)))
    assert s1.node.core.term == 1


def test_another_folder_than_the_configuration_names_is_not_heard_though_its_pin_was_on_its_way() -> None:
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig())
    s1.node.receive("s2", replace(heartbeat(term=1), entries=(with_s9(s1),)))
    s1.settle()
    s1.node.peer_hello("s9", SECOND)
    named = replace(with_s9(s1, incarnation_id=FIRST), index=2)
    s1.node.receive("s2", replace(heartbeat(1, (1, 1)), entries=(named,)))
    s1.settle()

    s1.node.receive("s9", heartbeat(5, (2, 1)))

    assert s1.node.core.term == 1


def test_a_folder_that_comes_again_after_another_waits_for_its_newest_pin() -> None:
    """The file of pins was written three times. The second version names the other folder."""
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig(), pinned=False)
    for incarnation_id in (FIRST, SECOND, FIRST):
        s1.node.peer_hello("s9", incarnation_id)
    request = VoteRequest(term=5, last_index=0, last_term=0, transfer=False)

    for _ in range(2):
        s1.disk.complete_one()
        s1.node.receive("s9", request)
        assert s1.node.core.term == 0
    s1.disk.complete_one()
    s1.node.receive("s9", request)

    assert s1.node.core.term == 5


def test_a_failed_pin_stops_the_node() -> None:
    """A failed write of the pin counts as a failed sync (docs/reference/specification.md#37-failed-sync)."""
    s1 = OneNode("s1", ("s1", "s2", "s3"), RaftConfig(), pinned=False)
    s1.node.peer_hello("s2", incarnation_of("s2"))

    s1.disk.complete_one(OSError(5, "Input/output error"))

    assert s1.flush().failure is not None
