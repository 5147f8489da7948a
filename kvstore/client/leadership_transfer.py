"""The client's side of a leadership transfer: ask the leader, then poll until another member leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kvstore.errors import TransferRefused
from kvstore.event_loop import EventLoop
from kvstore.protocol.messages import MembersView, Request, transfer_request

LOOK_SECONDS = 0.02


async def hand_over(
    loop: EventLoop,
    ask: Callable[[Request], Awaitable[object]],
    members: Callable[[], Awaitable[MembersView]],
    to: str | None,
    deadline_seconds: float,
) -> str:
    """Request the transfer, and return the id of the new leader once it leads.

    The new leader is `to`. If `to` is None, the new leader is any member except the present leader. Raises
    TransferRefused if the leader refuses, or the transfer takes too long.

    The request is sent once, because a second request could undo the first. If the connection is lost before the
    response, Unavailable is raised, and the leadership may nevertheless be transferred.
    """
    first: MembersView | None = None
    is_asked = False
    with loop.move_on_after(deadline_seconds):
        while True:
            view = await members()
            if view.leader_id is not None:
                first = first or view
                is_other = view.leader_id != first.leader_id and view.term > first.term
                if view.leader_id == to or (to is None and is_other):
                    return view.leader_id
                if not is_asked and view.leader_address:
                    is_asked = True
                    await ask(transfer_request(to, view.leader_address))
            await loop.sleep(LOOK_SECONDS)
    who = "nobody leads" if first is None else f"{first.leader_id} led when it was asked"
    raise TransferRefused("too_late", f"{to or 'another member'} did not lead by the deadline; {who}")
