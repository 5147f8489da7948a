"""Places for client connections, for times when more clients come than a member can serve. Sans-I/O.

There are `connections_max` places (docs/operations/guide.md, "Bounds"). Only when all are taken a connection loses its
place: the one that has been idle longest, and has no request open, gives it to the new connection. No address keeps
more than half of the places from others, and a stream of the member's own program gets a place even from a busy
connection.

A connection that gets no place this way is admitted to one of a few reserved places, for seconds. There a member
answers only the cheap requests that `hwm status` makes: operators cannot be told from strangers, so a reserved place is
useless for anything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from kvstore.limits import ServiceLimits

IDLE_TICKS_MIN = 2
"""A connection that was used in this tick or the one before (a second each) keeps its place: a client that asks one
thing after the other has no request open between two of them."""

RESERVED_TICKS_MAX = 5
"""How long (s) a reserved place may be kept: `hwm status` needs a few round trips."""

SHARE_OF_ONE_ADDRESS = 2
"""When all places are taken, one address may keep a half of them from the others."""

IN_PROCESS = ""
"""The origin of a stream inside this program: it is never closed for another one."""


class ConnectionPlace:
    """The place of one connection."""

    def __init__(self, connection_id: int, origin: str, tick: int) -> None:
        self.connection_id, self.origin = connection_id, origin
        self.used_tick = tick  # When bytes last came.
        self.admitted_tick = tick
        self.is_reserved = False
        self.is_closing = False


class ConnectionPlaces:
    """The places of one member. `tick` counts seconds; the host raises it.

    `is_idle` tells of a connection id whether nothing is open on it.
    """

    def __init__(self, limits: ServiceLimits, is_idle: Callable[[int], bool]) -> None:
        self._connections_max, self._reserved_max = limits.connections_max, limits.operator_connections_max
        self._is_idle = is_idle
        self.tick = 0
        self._taken: dict[int, ConnectionPlace] = {}
        self._reserved: dict[int, ConnectionPlace] = {}  # Oldest first.
        self._by_origin: Counter[str] = Counter()  # Connections that have a place.
        self._searched_tick = -1
        self._searched_in_vain: set[tuple[str | None, int]] = set()  # In that tick: groups without an idle connection.

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def reserved(self) -> Iterable[ConnectionPlace]:
        """Those that have a reserved place, oldest first."""
        return self._reserved.values()

    def admit(self, place: ConnectionPlace) -> ConnectionPlace | None:
        """Take in a new connection; returns the one that is to be closed for it."""
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
        """The connection is gone, or about to be closed. May be called twice."""
        if self._taken.pop(place.connection_id, None) is not None:
            self._by_origin[place.origin] -= 1
            if not self._by_origin[place.origin]:
                del self._by_origin[place.origin]
        self._reserved.pop(place.connection_id, None)

    def promote(self, place: ConnectionPlace) -> ConnectionPlace | None:
        """Give a proper place to one that has a reserved one, if possible (then it is no longer `is_reserved`).

        Returns the connection that is to be closed for it.
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
        """Reserved places that were kept for too long; they are free from now on."""
        found = [place for place in self._reserved.values() if self.tick - place.admitted_tick >= RESERVED_TICKS_MAX]
        for place in found:
            self.leave(place)
        return found

    def _take(self, place: ConnectionPlace) -> None:
        self._taken[place.connection_id] = place
        self._by_origin[place.origin] += 1

    def _idle_longest(self, origin: str) -> ConnectionPlace | None:
        """The connection that gives its place to a newcomer of this origin.

        Cost: O(places), and in vain at most once a tick for each group that is searched, of which there are few.
        """
        if self._searched_tick != self.tick:
            self._searched_tick = self.tick
            self._searched_in_vain.clear()
        for group in self._groups(origin):
            if group not in self._searched_in_vain:
                if (found := self._idle_longest_of(*group)) is not None:
                    return found
                self._searched_in_vain.add(group)
        if origin == IN_PROCESS:  # The program must not be locked out of its own store.
            others = [place for place in self._taken.values() if place.origin != IN_PROCESS]
            return min(others, key=_last_use, default=None)
        return None

    def _groups(self, origin: str) -> list[tuple[str | None, int]]:
        """Connections that may give a place to a newcomer of this origin, best first: (origin or None for any, ticks
        idle).
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
        """The oldest of the address that has most of the reserved places."""
        by_origin = Counter(place.origin for place in self._reserved.values())
        most = max(by_origin.values())
        victim = next(place for place in self._reserved.values() if by_origin[place.origin] == most)
        self.leave(victim)
        return victim


def _last_use(place: ConnectionPlace) -> tuple[int, int]:
    return place.used_tick, place.connection_id


def origin_of(host: str) -> str:
    """The unit that counts as one address: an IPv4 address, or the network of 2^64 that an IPv6 host has to itself.

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
