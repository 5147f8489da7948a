"""The bounds on connections to this member's peer port. The bounds keep strangers from using up the resources that
members need.

A caller is unidentified until its hello is accepted. If there are too many unidentified callers, the caller that has
waited longest is evicted, because an honest caller sends its hello within milliseconds. A stranger is a caller that is
not a member, but whose hello was accepted. The connections of members are not counted here, because
`InboundConnections` allows only two per member.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from raft.membership.configuration import MEMBERS_MAX
from raft.runtime.peer_routes import STRANGERS_MAX

UNIDENTIFIED_MAX = 30
"""The maximum number of unidentified callers. Even if all members start at the same time, there are far fewer
unidentified callers than this. Each caller has a buffer of at most HELLO_BYTES_MAX."""

UNIDENTIFIED_PER_ADDRESS_MAX = UNIDENTIFIED_MAX // 2
"""The maximum number of unidentified callers from one address. Because of this bound, many callers from one machine
evict each other, but do not evict callers from other machines."""

HELD_BACK_MAX = 64
HELD_BACK_SECONDS = 2.0
"""An evicted connection stays open for another HELD_BACK_SECONDS, unless HELD_BACK_MAX others are held back already.
If an evicted connection were closed at once, callers that connect again immediately could take all the time of the
event loop and fill the kernel's queue."""

CONNECTIONS_MAX = UNIDENTIFIED_MAX + STRANGERS_MAX + 2 * MEMBERS_MAX + HELD_BACK_MAX
"""The maximum number of all inbound connections (128): unidentified callers, strangers, two connections per member, and
evicted connections that are held back."""


@dataclass(slots=True, eq=False)
class Place:
    """One inbound connection. Cancelling `scope` ends the connection."""

    address: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class InboundPlaces:
    """The inbound connections in two queues, unidentified callers and strangers, oldest first.

    All methods except `hold_back` are synchronous.
    """

    def __init__(self) -> None:
        self._unidentified: dict[Place, None] = {}
        self._strangers: dict[Place, None] = {}
        self.held_back = 0
        self.evicted = 0  # The number of connections that were evicted since this process started.

    def enter(self, address: str) -> Place:
        """Add a new connection, which has no hello yet. This may evict an older connection. `address`: the host of the
        caller."""
        same = [place for place in self._unidentified if place.address == address]
        if len(same) >= UNIDENTIFIED_PER_ADDRESS_MAX:
            self._evict(self._unidentified, same[0])
        elif len(self._unidentified) >= UNIDENTIFIED_MAX:
            self._evict(self._unidentified, next(iter(self._unidentified)))
        place = Place(address)
        self._unidentified[place] = None
        return place

    def identify(self, place: Place, *, is_member: bool) -> None:
        """Note that the hello on this connection was accepted."""
        # There is nothing to do for a member, or for a connection that was already evicted.
        if self._unidentified.pop(place, place) is place or is_member:
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self._evict(self._strangers, next(iter(self._strangers)))
        self._strangers[place] = None

    async def hold_back(self) -> None:
        """Wait before an evicted connection is closed. Meanwhile nothing is read from the connection."""
        if self.held_back < HELD_BACK_MAX:
            self.held_back += 1
            try:
                await trio.sleep(HELD_BACK_SECONDS)
            finally:
                self.held_back -= 1

    def leave(self, place: Place) -> None:
        """Forget a closed connection."""
        self._unidentified.pop(place, None)
        self._strangers.pop(place, None)

    @property
    def unidentified(self) -> int:
        """The number of unidentified callers."""
        return len(self._unidentified)

    def _evict(self, queue: dict[Place, None], place: Place) -> None:
        del queue[place]
        place.scope.cancel()
        self.evicted += 1
