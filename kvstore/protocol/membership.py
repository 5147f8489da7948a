"""Who belongs to the cluster, and changing it: the shapes on the wire, and the client's side.

A change goes through the log as a command does, but under no session: if its answer is lost nobody can say how it
ended. The calls that state a *goal* (`add_member`, …) look then, and go on until the goal is reached.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import trio

from kvstore.errors import ChangeRefused, InvalidAddress, OperationFailed, OutcomeUnknown, Unavailable
from kvstore.protocol.addresses import parse_advertised
from kvstore.protocol.answers import read_answer
from kvstore.protocol.messages import MembersView, Request, RequestKind, Response, decode_members, members_request
from kvstore.protocol.wire_types import from_wire
from raft import (
    ChangeRefusal,
    InvalidConfiguration,
    Member,
    MembershipChange,
    ProtocolError,
)
from raft import ChangeRefused as RefusedByRaft

if TYPE_CHECKING:  # A client changes members without loading one.
    from raft import Configuration, Node

WAIT_SECONDS_DEFAULT = 60.0
LOOK_SECONDS = 0.05
"""Between two looks at how far a member has come."""

VOTER, LEARNER, INCOMING, OUTGOING = "voter", "learner", "incoming", "outgoing"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member. `part`: voter, learner, or while voters change `incoming` or `outgoing`.

    `incarnation_id`: of the data folder that it has here, 16 bytes; none until it was heard by who says this. `lag`:
    log entries that it lacks, and `is_heard`: it has answered lately; both None unless the leader says this.
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
    """The members as one of them, `node_id`, sees them. While `is_changing` no other change is begun.

    `removed`: ids of former members, which are never used again (the last 256). `incarnation_id`: of the data folder
    that was met here under the id that was asked about, member or not; none if nobody has come under it.
    """

    node_id: str
    cluster_id: bytes
    leader_id: str | None
    term: int
    is_changing: bool
    members: tuple[MemberView, ...]
    removed: tuple[str, ...]
    incarnation_id: bytes = b""  # Older members do not say.

    def member(self, node_id: str) -> MemberView | None:
        """The member of this id; None if there is none."""
        return next((each for each in self.members if each.node_id == node_id), None)


# On the wire


def change_request(change: MembershipChange) -> Request:
    """Have the leader change the members. Answered when all of it is committed."""
    items = (
        tuple(map(_row, change.add)),
        change.promote,
        change.remove,
        tuple(map(_row, change.update)),
    )
    return Request(kind=RequestKind.CHANGE, items=items)


def membership_request(address: str | None = None, *, of_leader: bool = False, about: str = "") -> Request:
    """Who are the members? `of_leader`: who leads is to say it. `about`: an id, for `Membership.incarnation_id`."""
    items = (of_leader, about) if about else (of_leader,)
    return Request(kind=RequestKind.MEMBERSHIP, items=items, anywhere=not of_leader, address=address)


def read_change(items: Sequence[Any]) -> MembershipChange:
    """What `change_request` made. Raises ProtocolError for another shape, raft.ChangeRefused for impossible words."""
    try:
        added, promoted, removed, updated = items[:4]
        return MembershipChange(
            add=tuple(map(_member, added)),
            promote=_ids(promoted),
            remove=_ids(removed),
            update=tuple(map(_member, updated)),
        )
    except (TypeError, ValueError) as error:
        raise ProtocolError("a change request is [request_id, 8, members, ids, ids, members]") from error


def membership_of(node: Node, client_address: Callable[[Member], str], about: str = "") -> Membership:
    """As this node sees it. `client_address`: where clients reach a member. `about`: an id, or none."""
    core, status = node.core, node.status()
    progress = {peer.peer_id: peer for peer in status.peers}
    is_leader = core.leading_term is not None

    def view(member: Member) -> MemberView:
        peer, is_self = progress.get(member.node_id), member.node_id == core.node_id
        own = node.identity.incarnation_id if is_self else node.pinned_incarnation(member.node_id)
        return MemberView(
            node_id=member.node_id,
            part=part_of(core.configuration, member.node_id),
            peer_address=member.peer_address,
            client_address=client_address(member),
            incarnation_id=member.incarnation_id or own,
            lag=core.last_index - peer.match_index if peer else 0 if is_self and is_leader else None,
            is_heard=peer.recent_active if peer else True if is_self and is_leader else None,
        )

    return Membership(
        node_id=core.node_id,
        cluster_id=node.identity.cluster_id,
        leader_id=core.leader_id,
        term=core.term,
        is_changing=core.is_changing,
        members=tuple(map(view, core.configuration.members)),
        removed=core.configuration.removed,
        incarnation_id=node.pinned_incarnation(about),
    )


def part_of(configuration: Configuration, node_id: str) -> str:
    """What a member is: voter, learner, incoming or outgoing; empty for who is none."""
    if configuration.member(node_id) is None:
        return ""
    if node_id in configuration.learner_ids:
        return LEARNER
    if not configuration.is_joint or node_id in {*configuration.voter_ids} & {*configuration.outgoing_ids}:
        return VOTER
    return INCOMING if node_id in configuration.voter_ids else OUTGOING


def membership_to_fields(membership: Membership) -> tuple[Any, ...]:
    """The fields of the answer: one map by field name, so that a newer member can tell more."""
    return (asdict(membership),)


def decode_membership(response: Response) -> Membership:
    """Read the answer. Raises ProtocolError."""
    try:
        found = response.fields[0]
        return from_wire(Membership, found, members=tuple(from_wire(MemberView, each) for each in found["members"]))
    except (ValueError, TypeError, LookupError) as error:
        raise ProtocolError(f"{response.node_id} told nothing of the members: {error!r}") from error


def _row(member: Member) -> tuple[str, str, str, bytes]:
    return member.node_id, member.peer_address, member.client_address, member.incarnation_id


def _ids(items: object) -> tuple[str, ...]:
    if type(items) is not list or not all(type(each) is str for each in items):
        raise TypeError("ids are a list of texts")
    return tuple(items)


def _member(row: object) -> Member:
    """Others are to find it, so both addresses must be ones that can be dialled."""
    if type(row) is not list or len(row) < 4 or not all(type(each) is str for each in row[:3]):
        raise TypeError("a member is [node_id, peer_address, client_address, incarnation_id]")
    try:
        for address in row[1:3]:
            if parse_advertised(address)[1] == 0:
                raise InvalidAddress(address, "port 0 (any) is no address at which others find it")
        return Member(*row[:4])
    except (InvalidConfiguration, InvalidAddress) as error:
        raise RefusedByRaft(ChangeRefusal.INVALID, str(error)) from error


# The client's side


class MemberCalls:
    """What a `Client` can do about the members. `ask` is its own."""

    @abstractmethod
    async def ask(self, request: Request, deadline_seconds: float | None = None) -> Response:
        """What a member answers."""

    @abstractmethod
    def learn(self, addresses: Sequence[str]) -> None:
        """These are the client addresses of all members now."""

    async def members(self, *, deadline_seconds: float | None = None) -> MembersView:
        """Who belongs to the cluster, and who leads, as any one member sees it."""
        request = members_request()
        view = read_answer(await self.ask(request, deadline_seconds), decode_members, has_effect=request.has_effect)
        self.learn([address for _, address in view.members])
        return view

    async def membership(
        self, *, of_leader: bool = False, about: str = "", deadline_seconds: float | None = None
    ) -> Membership:
        """Everything about the members, as any one of them sees it; with `of_leader` as the leader does.

        `about`: an id, member or not, for `Membership.incarnation_id`.
        """
        request = membership_request(of_leader=of_leader, about=about)
        found = read_answer(await self.ask(request, deadline_seconds), decode_membership, has_effect=request.has_effect)
        self.learn([member.client_address for member in found.members])
        return found

    async def change_members(self, change: MembershipChange, *, deadline_seconds: float | None = None) -> int:
        """Change the members, all at once; returns the index of the last entry of it once that is committed.

        Raises ChangeRefused (nothing has changed), OutcomeUnknown: look at `membership`.
        """
        request = change_request(change)
        return read_answer(await self.ask(request, deadline_seconds), _read_index, has_effect=request.has_effect)

    async def add_member(
        self, member: Member, *, promote: bool = False, wait_seconds: float = WAIT_SECONDS_DEFAULT
    ) -> Membership:
        """Have `member` as a learner; with `promote` as a voter, once it has caught up. It need not run before.

        Like the other calls for a goal: what is so already is no error, a change that is under way is waited for,
        at most `wait_seconds`. Raises ChangeRefused, OutcomeUnknown, Unavailable.
        """
        found = await self._reach(_adding(member), wait_seconds)
        return await self.promote_member(member.node_id, wait_seconds=wait_seconds) if promote else found

    async def promote_member(self, node_id: str, *, wait_seconds: float = WAIT_SECONDS_DEFAULT) -> Membership:
        """Make a learner a voter, as soon as it has caught up."""
        change = MembershipChange(promote=(node_id,))
        return await self._reach(_Goal(change, lambda now: _is(now, node_id, VOTER)), wait_seconds)

    async def remove_member(self, node_id: str, *, wait_seconds: float = WAIT_SECONDS_DEFAULT) -> Membership:
        """Remove a voter or learner, the leader too (then another one leads). It stops when it learns of it."""
        change = MembershipChange(remove=(node_id,))
        return await self._reach(_Goal(change, lambda now: node_id in now.removed), wait_seconds)

    async def update_member(self, member: Member, *, wait_seconds: float = WAIT_SECONDS_DEFAULT) -> Membership:
        """Tell everybody another address of a member. Before it moves there."""
        return await self._reach(_Goal(MembershipChange(update=(member,)), lambda now: _has(now, member)), wait_seconds)

    async def replace_member(
        self, old_id: str, new: Member, *, wait_seconds: float = WAIT_SECONDS_DEFAULT
    ) -> Membership:
        """Put `new` in the place of a member, which may be dead: add it, wait for it to catch up, then both at once.

        The cluster never has fewer voters than before. It can be called again if it was interrupted anywhere: as both
        places change at once, no call leaves both as voters, and so ChangeRefused is raised for that.
        """
        if old_id == new.node_id:  # It would be removed, and could not come back.
            raise ChangeRefused("used_id", f"{old_id} cannot take its own place: an id is never used again")
        end = trio.current_time() + wait_seconds
        now = await self.membership(of_leader=True)
        old = now.member(old_id)
        if old is None and old_id not in now.removed:
            known = ", ".join(each.node_id for each in now.members)
            raise ChangeRefused("unknown_member", f"{old_id} is no member; there are: {known}")
        if old is not None and _is(now, new.node_id, VOTER):
            raise ChangeRefused(
                "duplicate",
                f"{new.node_id} is a voter already, beside {old_id}, and cannot take a second place",
                None,
                f"to remove {old_id} alone: `hwm member remove {old_id}`; to replace it, give the new member a new id",
            )
        await self._reach(_adding(new), wait_seconds)  # Refused if a member of this id has other addresses.
        # A voter goes in the change that gives the new one its vote. If it has gone and that one has none, it had none.
        is_voter = old.part != LEARNER if old is not None else now.member(new.node_id) is None
        change = MembershipChange(promote=(new.node_id,) if is_voter else (), remove=(old_id,))

        def is_done(now: Membership) -> bool:
            return old_id in now.removed and (not is_voter or _is(now, new.node_id, VOTER))

        if old is None:
            change = MembershipChange(promote=(new.node_id,))
        return await self._reach(_Goal(change, is_done), max(0.0, end - trio.current_time()))

    async def _reach(self, goal: _Goal, wait_seconds: float) -> Membership:
        error: OperationFailed | OutcomeUnknown = Unavailable(f"nobody led within {wait_seconds:g} s")
        is_certain = True  # No attempt can have had an effect: each was refused, or never sent.
        is_hopeless = False  # The last one was refused for good.
        with trio.move_on_after(wait_seconds):
            while True:
                was_certain = is_certain
                try:
                    now = await self.membership(of_leader=True)
                    if not now.is_changing and goal.is_reached(now):
                        return now
                    is_certain = False
                    await self.change_members(goal.change)
                    continue  # Look, for the answer.
                except ChangeRefused as refused:
                    error, is_certain = refused, was_certain
                    if not refused.is_passing and (is_certain or is_hopeless):
                        break
                    is_hopeless = not refused.is_passing  # Perhaps since an attempt before it has succeeded: look.
                except Unavailable as lost:
                    error, is_certain = lost, was_certain  # Nobody leads for a moment.
                except OutcomeUnknown as lost:
                    error = lost  # Who led has gone with the answer.
                await trio.sleep(LOOK_SECONDS)
        if is_certain or isinstance(error, OutcomeUnknown):
            raise error
        raise OutcomeUnknown(f"no answer to a change of the members within {wait_seconds:g} s; {error}")


def _read_index(response: Response) -> int:
    if type(response.fields[0]) is not int:
        raise ProtocolError(f"{response.node_id} did not say where the members changed")
    return response.fields[0]


@dataclass(frozen=True, slots=True)
class _Goal:
    change: MembershipChange
    is_reached: Callable[[Membership], bool]


def _adding(member: Member) -> _Goal:
    return _Goal(MembershipChange(add=(member,)), lambda now: _has(now, member))


def _has(now: Membership, member: Member) -> bool:
    found = now.member(member.node_id)
    return found is not None and _addresses(found) == _addresses(member)


def _addresses(member: Member | MemberView) -> tuple[str, str]:
    return member.peer_address, member.client_address


def _is(now: Membership, node_id: str, part: str) -> bool:
    found = now.member(node_id)
    return found is not None and found.part == part
