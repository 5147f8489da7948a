"""Checks that everything a message asserts is on the disk of its sender before the message leaves.

See docs/reference/specification.md#31-messages-wait-for-the-disk.
"""

from __future__ import annotations

from harness.sim.checks.context import CheckedWorld
from harness.sim.engine.errors import broken
from harness.sim.world.context import MachineView
from raft import (
    AppendAccepted,
    AppendEntries,
    AppendRejected,
    InstallSnapshotProgress,
    Message,
    Node,
    PeerRefused,
    PreVoteRequest,
    PreVoteResponse,
    Role,
    VoteRequest,
    VoteResponse,
)

PINNED_BEFORE_ANSWERS = "a pin is durable before its peer is answered"
PINNED_BEFORE_USE = "a pin is durable before a message of its peer is used"
PINNED_AS_MEMBER = "a member that was heard, or pinned before a restart, is not replaced by another folder"

NOBODY = bytes(16)
"""An incarnation id that no folder has."""

ANSWERS = (AppendAccepted, AppendRejected, InstallSnapshotProgress, PreVoteResponse, VoteResponse)


def check_promise(world: CheckedWorld, member: MachineView, node: Node, receiver: str, message: Message) -> None:
    """Raise Violation if `message`, which `member` now sends to `receiver`, asserts more than the member's disk holds.

    If the disk already has a later term than the message, most assertions of the message no longer matter, because no
    peer counts them.
    """
    durable = member.logs.durable
    state = durable.hard_state
    if message.term > state.term:
        broken(
            "a term is durable before a message states it", f"{member.node_id} sends {message}, its disk says {state}"
        )
    is_current = message.term == state.term
    if isinstance(message, ANSWERS):
        check_pin(world, member, receiver, PINNED_BEFORE_ANSWERS)
    match message:
        case VoteResponse(term=term, granted=True):
            check_vote(world, member, term, receiver, is_current)
        case VoteRequest(term=term, last_index=index, last_term=last_term):
            check_vote(world, member, term, member.node_id, is_current)
            if is_current:
                check_tail(member, index, last_term)
        case PreVoteRequest(last_index=index, last_term=last_term) if is_current:
            check_tail(member, index, last_term)
        case AppendAccepted(match_index=index):
            check_leads(world, member, message.term, receiver)
            if is_current:
                check_acknowledgement(member, node, message.term, index)
                check_equality(world, member, receiver, message.term, index)
        case AppendEntries(commit_index=commit_index):
            committed = world.safety.commit_index
            if commit_index > committed:
                broken("nothing is shown above the mark", f"{member.node_id} tells {commit_index} of {committed}")
        case _:
            pass


def check_pin(world: CheckedWorld, member: MachineView, peer_id: str, rule: str) -> None:
    """Check that the pin of a peer is durable before a message of the peer is used, and before an answer leaves.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
    pins = member.image.durable_names.get("pins")
    incarnation_id = world.members[peer_id].identity.incarnation_id
    if not member.is_damaged and (pins is None or incarnation_id not in pins.durable):
        broken(rule, f"{member.node_id} hears and answers {peer_id}")


def check_refuses_others(member: MachineView, node: Node, peer_id: str) -> None:
    """Check that `member` refuses every data folder of a peer except the folder that it knows.

    The peer is in the configuration of `member`. The refusal changes nothing, so this check does not change the run.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
    try:
        node.peer_hello(peer_id, NOBODY)
    except PeerRefused as refused:
        answer = refused.code
    else:
        answer = "accepted"
    if answer != "wrong_incarnation":
        broken(PINNED_AS_MEMBER, f"{member.node_id} knows {peer_id}; the hello of another folder is {answer}")


def check_leads(world: CheckedWorld, member: MachineView, term: int, receiver: str) -> None:
    """Check that an append is acknowledged only to the leader of its term (Raft §5.1)."""
    leader = world.safety.leader_of(term)
    if receiver != leader:
        broken(
            "an append is acknowledged to the leader of the term",
            f"{member.node_id} acknowledges to {receiver} in term {term}, which {leader} leads",
        )


def check_vote(world: CheckedWorld, member: MachineView, term: int, candidate: str, is_current: bool) -> None:
    """Check that a member gives one vote per term, and that the vote is durable before it leaves."""
    world.safety.voted(member.node_id, term, candidate)
    state = member.logs.durable.hard_state
    if is_current and state.voted_for != candidate:
        broken(
            "a vote is durable before a message states it",
            f"{member.node_id} votes for {candidate} in term {term}, its disk says {state}",
        )


def check_acknowledgement(member: MachineView, node: Node, term: int, index: int) -> None:
    """Check that the log is durable up to the acknowledged index. The durable entry at this index must have the same
    term as the entry in memory.
    """
    durable = member.logs.durable
    held = member.logs.memory.term_at(index)
    is_other = node.core.term == term and held is not None and durable.term_at(index) != held
    if index > durable.last_index or is_other:
        broken(
            "an entry is durable before it is acknowledged",
            f"{member.node_id} acknowledges ({index}, {held}) in term {term},",
            f"its disk ends at {durable.last_index} and has term {durable.term_at(index)} there",
        )


def check_equality(world: CheckedWorld, member: MachineView, receiver: str, term: int, index: int) -> None:
    """Check that an acknowledged entry equals the leader's entry, while this leader leads (Raft §5.3).

    The leader counts the acknowledged entry as a copy of its own entry.
    """
    leader = world.members[receiver]
    if leader.node is None or (leader.node.core.term, leader.node.core.role) != (term, Role.LEADER):
        return
    theirs, ours = leader.logs.memory, member.logs.durable.term_at(index)
    expected = theirs.term_at(index)
    if index > theirs.last_index or (ours != expected and ours is not None and expected is not None):
        broken(
            "an acknowledgement names entries that the leader has",
            f"{member.node_id} acknowledges ({index}, {ours}) in term {term},",
            f"the log of {receiver} ends at {theirs.last_index} and has term {expected} there",
        )


def check_tail(member: MachineView, index: int, term: int) -> None:
    """Check that the end of the log in a message is durable before the message leaves.

    If a snapshot of a higher index has arrived while the message waited for the disk, the end cannot be checked.
    """
    durable = member.logs.durable
    if index >= durable.base.index and durable.term_at(index) != term:
        broken(
            "a tail is durable before a message states it",
            f"{member.node_id} tells of ({index}, {term}), its disk has {durable.last_index}, {durable.term_at(index)}",
        )
