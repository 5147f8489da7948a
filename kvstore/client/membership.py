"""Calls of a client about the members of the cluster.

A change goes through the log like a command, but without a session. If its response is lost, its outcome is unknown.
Some calls state a *goal* (`add_member`, …). These calls repeatedly read the membership and send the change, until the
goal is reached.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstore.errors import ChangeRefused, OperationFailed, OutcomeUnknown, Unavailable
from kvstore.event_loop import EventLoop
from kvstore.protocol.membership import (
    LEARNER,
    VOTER,
    Membership,
    MemberView,
    change_request,
    decode_membership,
    membership_request,
)
from kvstore.protocol.messages import MembersView, Request, Response, decode_members, members_request
from kvstore.protocol.results import read_answer
from raft import Member, MembershipChange, ProtocolError

WAIT_SECONDS_DEFAULT = 60.0


LOOK_SECONDS = 0.05
"""The pause between two requests for the membership while a goal is not reached yet."""


class MemberCalls:
    """The operations of a `Client` on the membership. `Client` implements `loop`, `ask` and `learn`."""

    @property
    @abstractmethod
    def loop(self) -> EventLoop:
        """The event loop in which the calls wait."""

    @abstractmethod
    async def ask(self, request: Request, deadline_seconds: float | None = None) -> Response:
        """Send a request; return the response of a member."""

    @abstractmethod
    def learn(self, addresses: Sequence[str]) -> None:
        """Set the current client addresses of all members. The node ids of these members are looked up again."""

    def _note_members(self, view: MembersView) -> None:
        """Look up the node ids of members in this list, if the client keeps one."""

    async def members(self, *, deadline_seconds: float | None = None) -> MembersView:
        """The members of the cluster and its leader, as any one member knows them."""
        request = members_request()
        view = read_answer(await self.ask(request, deadline_seconds), decode_members, has_effect=request.has_effect)
        self.learn([address for _, address in view.members])
        self._note_members(view)
        return view

    async def membership(
        self, *, of_leader: bool = False, about: str = "", deadline_seconds: float | None = None
    ) -> Membership:
        """What one member knows about all members. Any member may answer; with `of_leader`, only the leader.

        `about`: a node id, of a member or not. The `incarnation_id` of the result is the incarnation that is pinned for
        this id.
        """
        request = membership_request(of_leader=of_leader, about=about)
        found = read_answer(await self.ask(request, deadline_seconds), decode_membership, has_effect=request.has_effect)
        self.learn([member.client_address for member in found.members])
        return found

    async def change_members(self, change: MembershipChange, *, deadline_seconds: float | None = None) -> int:
        """Carry out all parts of a change at once; return the index of its last entry once that entry is committed.

        Raises ChangeRefused, with nothing changed. Raises OutcomeUnknown if the response is lost: `membership` then
        shows the outcome.
        """
        request = change_request(change)
        return read_answer(await self.ask(request, deadline_seconds), _read_index, has_effect=request.has_effect)

    async def add_member(
        self, member: Member, *, promote: bool = False, wait_seconds: float = WAIT_SECONDS_DEFAULT
    ) -> Membership:
        """Add `member` as a learner; with `promote`, make it a voter once it has caught up. The member need not run
        yet.

        This method and the next four methods state a goal. It is not an error if the goal is reached already. If
        another change is under way, the method waits for its end. The whole wait takes at most `wait_seconds`; with
        `promote`, at most `wait_seconds` for each of the two steps. Raises ChangeRefused, OutcomeUnknown, Unavailable.
        """
        found = await self._reach(_adding(member), wait_seconds)
        return await self.promote_member(member.node_id, wait_seconds=wait_seconds) if promote else found

    async def promote_member(self, node_id: str, *, wait_seconds: float = WAIT_SECONDS_DEFAULT) -> Membership:
        """Make a learner a voter as soon as the learner has caught up."""
        change = MembershipChange(promote=(node_id,))
        return await self._reach(_Goal(change, lambda now: _is(now, node_id, VOTER)), wait_seconds)

    async def remove_member(self, node_id: str, *, wait_seconds: float = WAIT_SECONDS_DEFAULT) -> Membership:
        """Remove a voter or learner, even the leader (then another member leads).

        The removed member stops once it knows of its removal.
        """
        change = MembershipChange(remove=(node_id,))
        return await self._reach(_Goal(change, lambda now: node_id in now.removed), wait_seconds)

    async def update_member(self, member: Member, *, wait_seconds: float = WAIT_SECONDS_DEFAULT) -> Membership:
        """Change the addresses at which the other members and the clients reach a member. Call this before the member
        moves."""
        return await self._reach(_Goal(MembershipChange(update=(member,)), lambda now: _has(now, member)), wait_seconds)

    async def replace_member(
        self, old_id: str, new: Member, *, wait_seconds: float = WAIT_SECONDS_DEFAULT
    ) -> Membership:
        """Replace a member, which may be dead, by `new`. Add `new`, wait until it has caught up, then promote it and
        remove the old member in one change.

        The cluster never has fewer voters than before. If the call was interrupted at any point, it can be repeated.
        Promotion and removal are one change, so this call never makes both members voters. If both are voters before
        the call, ChangeRefused is raised. All steps together take at most `wait_seconds`.
        """
        if old_id == new.node_id:
            raise ChangeRefused("used_id", f"{old_id} cannot take its own place: an id is never used again")
        end = self.loop.time() + wait_seconds
        now = await self._membership_of_leader(wait_seconds)
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
        await self._reach(_adding(new), wait_seconds, end)  # Refused if this id has other addresses.
        # The change that removes a voter also promotes the new member. If the old member is gone and the new member is
        # a learner, the old member was therefore not a voter.
        is_voter = old.part != LEARNER if old is not None else now.member(new.node_id) is None
        change = MembershipChange(promote=(new.node_id,) if is_voter else (), remove=(old_id,))

        def is_done(now: Membership) -> bool:
            return old_id in now.removed and (not is_voter or _is(now, new.node_id, VOTER))

        if old is None:
            change = MembershipChange(promote=(new.node_id,))
        return await self._reach(_Goal(change, is_done), wait_seconds, end)

    async def _membership_of_leader(self, wait_seconds: float) -> Membership:
        """Return the membership, as the leader knows it. Waits for a leader if there is none."""
        with self.loop.move_on_after(wait_seconds):
            while True:
                try:
                    return await self.membership(of_leader=True)
                except Unavailable:  # There may be no leader for a moment.
                    await self.loop.sleep(LOOK_SECONDS)
        raise Unavailable(f"nobody led within {wait_seconds:g} s")

    async def _reach(self, goal: _Goal, wait_seconds: float, end: float | None = None) -> Membership:
        """Send the change of a goal until the goal is reached. `end`: the end of the wait on the clock of the loop, if
        a part of `wait_seconds` has passed already."""
        error: OperationFailed | OutcomeUnknown = Unavailable(f"nobody led within {wait_seconds:g} s")
        is_certain = True  # True while no attempt has had an effect, because each was refused or never sent.
        is_hopeless = False  # True after an attempt that was refused permanently.
        with self.loop.move_on_at(self.loop.time() + wait_seconds if end is None else end):
            while True:
                was_certain = is_certain
                try:
                    now = await self.membership(of_leader=True)
                    if not now.is_changing and goal.is_reached(now):
                        return now
                    is_certain = False
                    await self.change_members(goal.change)
                    continue  # The next read of the membership shows the result.
                except ChangeRefused as refused:
                    error, is_certain = refused, was_certain
                    if not refused.is_passing and (is_certain or is_hopeless):
                        break
                    # Read the membership once more before giving up, because an earlier attempt may have succeeded.
                    is_hopeless = not refused.is_passing
                except Unavailable as lost:
                    error, is_certain = lost, was_certain  # There may be no leader for a moment.
                except OutcomeUnknown as lost:
                    error = lost  # The response of the leader was lost.
                await self.loop.sleep(LOOK_SECONDS)
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
