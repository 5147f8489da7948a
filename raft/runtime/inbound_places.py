"""The bounds of connections to this member's peer port, which keep strangers from taking a place that a member needs.

A caller is unidentified until its hello is accepted. When there are too many unidentified callers, the one that has
waited longest is evicted: an honest caller says hello within milliseconds. Members take no place here, because
`InboundConnections` bounds their connections by their ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from raft.membership.configuration import MEMBERS_MAX
from raft.runtime.peer_routes import STRANGERS_MAX

UNIDENTIFIED_MAX = 30
"""The maximum number of connections without an accepted hello. A simultaneous start of all members needs only a
fraction of it. Each connection buffers at most HELLO_BYTES_MAX."""

UNIDENTIFIED_PER_ADDRESS_MAX = UNIDENTIFIED_MAX // 2
"""The same bound for one address, so that many callers from one machine evict their own connections, not those from
elsewhere."""

HELD_BACK_MAX = 64
HELD_BACK_SECONDS = 2.0
"""An evicted connection is closed only after HELD_BACK_SECONDS, unless HELD_BACK_MAX others wait for this already.
Otherwise many callers that connect again at once would take all the time of the loop and fill the kernel's queue."""

CONNECTIONS_MAX = UNIDENTIFIED_MAX + STRANGERS_MAX + 2 * MEMBERS_MAX + HELD_BACK_MAX
"""The maximum number of all inbound connections (128): unidentified callers, one per stranger, two per member, and
evicted ones that are held back."""


@dataclass(slots=True, eq=False)
class Place:
    """One connection. Cancelling `scope` ends it."""

    address: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class InboundPlaces:
    """The places of inbound connections: two queues, oldest first. All methods but `hold_back` are synchronous."""

    def __init__(self) -> None:
        self._unidentified: dict[Place, None] = {}
        self._strangers: dict[Place, None] = {}  # Callers that are not members, with an accepted hello.
        self.held_back = 0
        self.evicted = 0  # Connections evicted since this process started.

    def enter(self, address: str) -> Place:
        """Give an accepted connection a place, which may evict an older one. `address` is the caller's host."""
        same = [place for place in self._unidentified if place.address == address]
        if len(same) >= UNIDENTIFIED_PER_ADDRESS_MAX:
            self._evict(self._unidentified, same[0])
        elif len(self._unidentified) >= UNIDENTIFIED_MAX:
            self._evict(self._unidentified, next(iter(self._unidentified)))
        place = Place(address)
        self._unidentified[place] = None
        return place

    def identify(self, place: Place, *, is_member: bool) -> None:
        """The hello on this connection was accepted."""
        # The caller was evicted, or as a member needs no place.
        if self._unidentified.pop(place, place) is place or is_member:
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self._evict(self._strangers, next(iter(self._strangers)))
        self._strangers[place] = None

    async def hold_back(self) -> None:
        """Wait before a connection that lost its place is closed. Nothing is read from it while it waits."""
        if self.held_back < HELD_BACK_MAX:
            self.held_back += 1
            try:
                await trio.sleep(HELD_BACK_SECONDS)
            finally:
                self.held_back -= 1

    def leave(self, place: Place) -> None:
        """The connection is closed: its place is free."""
        self._unidentified.pop(place, None)
        self._strangers.pop(place, None)

    @property
    def unidentified(self) -> int:
        """The number of connections without an accepted hello."""
        return len(self._unidentified)

    def _evict(self, queue: dict[Place, None], place: Place) -> None:
        del queue[place]
        place.scope.cancel()
        self.evicted += 1
