"""Requests about the members of the cluster, and the responses to these requests, as values and in their wire form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvstore.errors import InvalidAddress
from kvstore.protocol.addresses import parse_advertised
from kvstore.protocol.messages import Request, RequestKind, Response
from kvstore.protocol.wire_types import from_wire
from raft import (
    ChangeRefusal,
    InvalidConfiguration,
    Member,
    MembershipChange,
    ProtocolError,
)
from raft import ChangeRefused as RefusedByRaft

VOTER, LEARNER, INCOMING, OUTGOING = "voter", "learner", "incoming", "outgoing"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member. `part`: `voter` or `learner`; while voters change, also `incoming` or `outgoing`.

    `incarnation_id`: the incarnation of this member, 16 bytes, as far as the responding member knows; empty if unknown.
    `lag`: the number of log entries that this member lacks. `is_heard`: whether the leader has recently received a
    message from this member. `lag` and `is_heard` are None if the responding member is not the leader.
    """

    node_id: str
    part: str
    peer_address: str
    client_address: str
    incarnation_id: bytes
    lag: int | None
    is_heard: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The members of the cluster, as known to the member `node_id`. While `is_changing`, no other change can begin.

    `removed`: the ids of the last 256 removed members, which are never used again. `incarnation_id`: the incarnation
    that has connected to the responding member under the id `about` of the request, even if no member has this id;
    empty if there is none.
    """

    node_id: str
    cluster_id: bytes
    leader_id: str | None
    term: int
    is_changing: bool
    members: tuple[MemberView, ...]
    removed: tuple[str, ...]
    incarnation_id: bytes = b""  # Older builds do not send this field.

    def member(self, node_id: str) -> MemberView | None:
        """Return the member with this id; None if there is none."""
        return next((each for each in self.members if each.node_id == node_id), None)


def change_request(change: MembershipChange) -> Request:
    """Request a change of the members. The leader carries out the change, and responds once the whole change is
    committed."""
    items = (
        tuple(map(_row, change.add)),
        change.promote,
        change.remove,
        tuple(map(_row, change.update)),
    )
    return Request(kind=RequestKind.CHANGE, items=items)


def membership_request(address: str | None = None, *, of_leader: bool = False, about: str = "") -> Request:
    """Request the membership. `of_leader`: only the leader may answer. `about`: the node id to which
    `Membership.incarnation_id` of the response refers."""
    items = (of_leader, about) if about else (of_leader,)
    return Request(kind=RequestKind.MEMBERSHIP, items=items, anywhere=not of_leader, address=address)


def read_change(items: Sequence[Any]) -> MembershipChange:
    """Read the items of `change_request`. Raises ProtocolError for malformed items, raft.ChangeRefused for invalid
    members.
    """
    try:
        added, promoted, removed, updated = items[:4]
        return MembershipChange(
            add=tuple(map(_member, added)),
            promote=_ids(promoted),
            remove=_ids(removed),
            update=tuple(_member(row, may_lack_addresses=True) for row in updated),
        )
    except (TypeError, ValueError) as error:
        raise ProtocolError("a change request is [request_id, 8, members, ids, ids, members]") from error


def membership_to_fields(membership: Membership) -> tuple[Any, ...]:
    """Return the only field of the response: a map by field name, so that newer builds can add fields."""
    return (asdict(membership),)


def decode_membership(response: Response) -> Membership:
    """Read the response to `membership_request`. Raises ProtocolError."""
    try:
        found = response.fields[0]
        return from_wire(Membership, found, members=tuple(from_wire(MemberView, each) for each in found["members"]))
    except (ValueError, TypeError, LookupError) as error:
        raise ProtocolError(f"{response.node_id} gave no list of members: {error!r}") from error


def _row(member: Member) -> tuple[str, str, str, bytes]:
    return member.node_id, member.peer_address, member.client_address, member.incarnation_id


def _ids(items: object) -> tuple[str, ...]:
    if type(items) is not list or not all(type(each) is str for each in items):
        raise TypeError("ids are a list of texts")
    return tuple(items)


def _member(row: object, *, may_lack_addresses: bool = False) -> Member:
    """Read one member. Other members must be able to reach a member at both of its addresses, so neither may be a
    wildcard. `may_lack_addresses`: both addresses may be empty, because another member at the same addresses is about
    to replace this one."""
    if type(row) is not list or len(row) < 4 or not all(type(each) is str for each in row[:3]):
        raise TypeError("a member is [node_id, peer_address, client_address, incarnation_id]")
    try:
        for address in () if may_lack_addresses and row[1:3] == ["", ""] else row[1:3]:
            if parse_advertised(address)[1] == 0:
                raise InvalidAddress(address, "others cannot find it at port 0 (any)")
        return Member(*row[:4])
    except (InvalidConfiguration, InvalidAddress) as error:
        raise RefusedByRaft(ChangeRefusal.INVALID, str(error)) from error
