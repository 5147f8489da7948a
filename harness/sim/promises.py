"""What a message promises must be on the sender's disk before it leaves (FORMATS §3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.sim.errors import require
from raft import AppendAccepted, AppendEntries, Message, Node, PreVoteRequest, VoteRequest, VoteResponse

if TYPE_CHECKING:
    from harness.sim.member import Member


def check_promise(member: Member, node: Node, receiver: str, message: Message) -> None:
    """Raise Violation if `message`, which now leaves `member` for `receiver`, says more than its disk holds.

    What belongs to a term that is over (on that disk) is history: nobody counts it any more.
    """
    durable = member.copies.durable
    state = durable.hard_state
    require(
        message.term <= state.term,
        "a term is durable before it is told",
        f"{member.node_id} sends {message} while its disk says {state}",
    )
    is_current = message.term == state.term
    match message:
        case VoteResponse(term=term, granted=True):
            member.world.ledger.voted(member.node_id, term, receiver)
            require(
                not is_current or state.voted_for == receiver,
                "a vote is durable before it is told",
                f"{member.node_id} grants {receiver} term {term}, its disk says {state}",
            )
        case VoteRequest(term=term, last_index=index, last_term=last_term):
            member.world.ledger.voted(member.node_id, term, member.node_id)
            require(
                not is_current or state.voted_for == member.node_id,
                "a vote is durable before it is told",
                f"{member.node_id} asks for votes in term {term}, its disk says {state}",
            )
            check_tail(member, index, last_term, is_current)
        case PreVoteRequest(last_index=index, last_term=last_term):
            check_tail(member, index, last_term, is_current)
        case AppendAccepted(match_index=index):
            require(
                not is_current or index <= durable.last_index,
                "an entry is durable before it is acknowledged",
                f"{member.node_id} acknowledges {index} in term {message.term}, its disk ends at {durable.last_index}",
            )
            term_at = member.copies.memory.term_at(index)
            require(
                not is_current
                or term_at is None
                or node.core.term != message.term
                or durable.term_at(index) == term_at,
                "an entry is durable before it is acknowledged",
                f"{member.node_id} acknowledges ({index}, {term_at}), its disk has term {durable.term_at(index)} there",
            )
        case AppendEntries(commit_index=commit_index, entries=entries):
            check_append(member, commit_index)
            if entries:
                require(entries[0].term <= message.term, "entry terms never fall", member.node_id, message)
        case _:
            pass


def check_tail(member: Member, index: int, term: int, is_current: bool) -> None:
    """A log tail is durable before it is told."""
    durable = member.copies.durable
    require(
        not is_current or durable.term_at(index) == term,
        "a tail is durable before it is told",
        f"{member.node_id} tells of ({index}, {term}), its disk has {durable.last_index}, {durable.term_at(index)}",
    )


def check_append(member: Member, commit_index: int) -> None:
    """No leader tells of a mark that no majority holds."""
    committed = member.world.ledger.commit_index
    require(
        commit_index <= committed,
        "nothing is shown above the mark",
        f"{member.node_id} tells of {commit_index}, committed are {committed}",
    )
