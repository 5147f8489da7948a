"""The places for client connections, without I/O. If more clients connect than a member can serve, some lose their
places.

There are `connections_max` places (docs/operations/guide.md, "Bounds"). If all places are taken, a new connection takes
the place of the connection that has been idle longest and has no open request. No address can hold more than half of
the places while connections from other addresses need them. A stream inside the program of the member gets a place even
if all connections are busy.

A connection that gets no regular place gets one of a few reserved places, for a few seconds. While a connection has a
reserved place, the member answers only the cheap requests that `hwm status` makes. Any client can get a reserved place,
because the member cannot distinguish operators from other clients. The restriction to cheap requests makes a reserved
place useless for other clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from kvstore.limits import ServiceLimits

IDLE_TICKS_MIN = 2
"""A connection keeps its place if it was used in this tick or the previous tick (a tick is a second). A client that
sends one request after another has no open request between two requests, but is not idle."""

RESERVED_TICKS_MAX = 5
"""The greatest number of ticks (seconds) that a connection may keep a reserved place. `hwm status` needs a few round
trips."""

SHARE_OF_ONE_ADDRESS = 2
"""One address may hold at most 1/SHARE_OF_ONE_ADDRESS (a half) of the places while other addresses need them."""

IN_PROCESS = ""
"""The origin of streams inside this program. These streams are never closed to make room for another connection."""


class ConnectionPlace:
    """The place of one connection."""

    def __init__(self, connection_id: int, origin: str, tick: int) -> None:
        self.connection_id, self.origin = connection_id, origin
        self.used_tick = tick  # The tick at which bytes last arrived.
        self.admitted_tick = tick
        self.is_reserved = False
        self.is_closing = False


class ConnectionPlaces:
    """The places of one member. `tick` counts seconds, and the host increments `tick`.

    `is_idle(connection_id)` returns True if the connection has no open request and no unsent response.
    """

    def __init__(self, limits: ServiceLimits, is_idle: Callable[[int], bool]) -> None:
        self._connections_max, self._reserved_max = limits.connections_max, limits.operator_connections_max
        self._is_idle = is_idle
        self.tick = 0
        self._taken: dict[int, ConnectionPlace] = {}
        self._reserved: dict[int, ConnectionPlace] = {}  # Oldest first.
        self._by_origin: Counter[str] = Counter()  # The number of connections with a regular place.
        self._searched_tick = -1
        self._searched_in_vain: set[tuple[str | None, int]] = set()  # Groups that had no idle connection in this tick.

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def reserved(self) -> Iterable[ConnectionPlace]:
        """The connections with a reserved place, oldest first."""
        return self._reserved.values()

    def admit(self, place: ConnectionPlace) -> ConnectionPlace | None:
        """Give a new connection a place. Return the connection that must be closed to free this place, or None."""
        if len(self._taken) < self._connections_max:
            self._take(place)
            return None
        victim = self._idle_longest(place.origin)
        if victim is not None:
            self.leave(victim)
            self._take(place)
            return victim
        place.is_reserved = True
        self._reserved[place.connection_id] = place
        return self._reserved_too_long() if len(self._reserved) > self._reserved_max else None

    def leave(self, place: ConnectionPlace) -> None:
        """Free the place of a connection that has ended or is about to be closed. May be called twice."""
        if self._taken.pop(place.connection_id, None) is not None:
            self._by_origin[place.origin] -= 1
            if not self._by_origin[place.origin]:
                del self._by_origin[place.origin]
        self._reserved.pop(place.connection_id, None)

    def promote(self, place: ConnectionPlace) -> ConnectionPlace | None:
        """Give a regular place to a connection with a reserved place, if possible; `place.is_reserved` is then false.

        Returns the connection that must be closed to free this place, or None.
        """
        victim = None
        if len(self._taken) >= self._connections_max:
            victim = self._idle_longest(place.origin)
            if victim is None:
                return None
            self.leave(victim)
        del self._reserved[place.connection_id]
        place.is_reserved = False
        self._take(place)
        return victim

    def overstayed(self) -> list[ConnectionPlace]:
        """Free the reserved places that connections have kept too long, and return these connections."""
        found = [place for place in self._reserved.values() if self.tick - place.admitted_tick >= RESERVED_TICKS_MAX]
        for place in found:
            self.leave(place)
        return found

    def _take(self, place: ConnectionPlace) -> None:
        self._taken[place.connection_id] = place
        self._by_origin[place.origin] += 1

    def _idle_longest(self, origin: str) -> ConnectionPlace | None:
        """Return the connection that must give up its place for a new connection of this origin, or None.

        Cost: O(places) for each searched group. There are few groups. A group without an idle connection is searched
        only once per tick.
        """
        if self._searched_tick != self.tick:
            self._searched_tick = self.tick
            self._searched_in_vain.clear()
        for group in self._groups(origin):
            if group not in self._searched_in_vain:
                if (found := self._idle_longest_of(*group)) is not None:
                    return found
                self._searched_in_vain.add(group)
        if origin == IN_PROCESS:  # Other clients must not keep the program from its store.
            others = [place for place in self._taken.values() if place.origin != IN_PROCESS]
            return min(others, key=_last_use, default=None)
        return None

    def _groups(self, origin: str) -> list[tuple[str | None, int]]:
        """Return groups of connections that may lose a place to a new connection of this origin. The first group is
        searched first.

        A group is a pair: the origin of its connections (None for any origin), and the least number of ticks for which
        a connection must have been idle.
        """
        share = max(1, self._connections_max // SHARE_OF_ONE_ADDRESS)
        if origin != IN_PROCESS and self._by_origin[origin] >= share:
            return [(origin, IDLE_TICKS_MIN)]
        (greedy, count), *_ = self._by_origin.most_common(1) or [("", 0)]
        if count > share and greedy != IN_PROCESS:
            return [(greedy, 0), (None, IDLE_TICKS_MIN)]
        return [(None, IDLE_TICKS_MIN)]

    def _idle_longest_of(self, origin: str | None, idle_ticks_min: int) -> ConnectionPlace | None:
        candidates = [place for place in self._taken.values() if origin in (None, place.origin)]
        for place in sorted(candidates, key=_last_use):
            if self.tick - place.used_tick < idle_ticks_min:
                break
            if place.origin != IN_PROCESS and self._is_idle(place.connection_id):
                return place
        return None

    def _reserved_too_long(self) -> ConnectionPlace:
        """Free and return the oldest reserved place of the address with the most reserved places."""
        by_origin = Counter(place.origin for place in self._reserved.values())
        most = max(by_origin.values())
        victim = next(place for place in self._reserved.values() if by_origin[place.origin] == most)
        self.leave(victim)
        return victim


def _last_use(place: ConnectionPlace) -> tuple[int, int]:
    return place.used_tick, place.connection_id


def origin_of(host: str) -> str:
    """Return the network that is treated as one address: an IPv4 address, or the /64 network of an IPv6 host.

    >>> origin_of("2001:db8:1:2:3:4:5:6"), origin_of("::1"), origin_of("192.0.2.7"), origin_of("::ffff:192.0.2.7")
    ('2001:db8:1:2', '0:0:0:0', '192.0.2.7', '192.0.2.7')
    """
    host = host.partition("%")[0]
    if "." in host:
        return host.rpartition(":")[2]
    if ":" not in host:
        return host
    before, gap, after = host.partition("::")
    head, tail = (part.split(":") if part else [] for part in (before, after))
    zeroes = ["0"] * (8 - len(head) - len(tail)) if gap else []
    return ":".join([*head, *zeroes, *tail][:4])
