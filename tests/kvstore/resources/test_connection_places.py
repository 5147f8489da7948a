"""When all places for clients are taken, a new connection may cause another connection to be closed. The tests show
which connection is closed."""

from __future__ import annotations

import pytest

from kvstore.limits import ServiceLimits
from kvstore.resources.connection_places import (
    IDLE_TICKS_MIN,
    IN_PROCESS,
    RESERVED_TICKS_MAX,
    ConnectionPlace,
    ConnectionPlaces,
    origin_of,
)


class Port:
    """Connections with ids from 1 on; all are idle except those in `busy`."""

    def __init__(self, connections_max: int, operator_connections_max: int = 2) -> None:
        limits = ServiceLimits(connections_max=connections_max, operator_connections_max=operator_connections_max)
        self.busy: set[int] = set()
        self.places = ConnectionPlaces(limits, lambda connection_id: connection_id not in self.busy)
        self._last_id = 0

    def connect(self, origin: str) -> tuple[ConnectionPlace, int | None]:
        """The place of the new connection, and the id of the connection that was closed to make room."""
        self._last_id += 1
        place = ConnectionPlace(self._last_id, origin, self.places.tick)
        victim = self.places.admit(place)
        return place, None if victim is None else victim.connection_id

    def fill(self, origins: str) -> list[ConnectionPlace]:
        """Open one connection from each of these origins. No other connection is closed for this."""
        found = [self.connect(origin) for origin in origins]
        assert all(victim is None for _, victim in found)
        return [place for place, _ in found]


def test_nobody_is_closed_while_there_are_places() -> None:
    port = Port(3)
    port.fill("abc")
    port.places.tick += 1_000_000
    assert len(port.places) == 3
    assert not list(port.places.reserved)


def test_the_connection_that_was_idle_longest_gives_its_place() -> None:
    port = Port(3)
    first, second, third = port.fill("abc")
    port.places.tick = 10
    first.used_tick, second.used_tick, third.used_tick = 7, 5, 6

    assert port.connect("d")[1] == second.connection_id
    assert port.connect("e")[1] == third.connection_id


def test_requests_that_are_open_and_recent_use_keep_a_place() -> None:
    port = Port(3)
    first, second, third = port.fill("abc")
    port.places.tick = 10
    port.busy = {first.connection_id}
    second.used_tick = port.places.tick - IDLE_TICKS_MIN + 1
    third.used_tick = port.places.tick - IDLE_TICKS_MIN

    assert port.connect("d")[1] == third.connection_id
    place, victim = port.connect("e")
    assert (place.is_reserved, victim) == (True, None)


def test_who_finds_no_place_gets_a_reserved_one_and_the_oldest_there_goes() -> None:
    port = Port(1, operator_connections_max=2)
    port.fill("a")
    one, two = (port.connect(origin)[0] for origin in "bc")
    assert one.is_reserved
    assert two.is_reserved
    three, victim = port.connect("d")
    assert (three.is_reserved, victim) == (True, one.connection_id)
    assert [place.connection_id for place in port.places.reserved] == [two.connection_id, three.connection_id]


def test_an_address_that_hammers_the_reserve_pushes_out_itself() -> None:
    port = Port(1, operator_connections_max=3)
    port.fill("a")
    operator = port.connect("operator")[0]
    assert [port.connect("x")[1] for _ in range(5)] == [None, None, 3, 4, 5]
    assert operator in port.places.reserved


def test_a_reserved_place_is_kept_for_seconds_only() -> None:
    port = Port(1)
    port.fill("a")
    place = port.connect("b")[0]
    port.places.tick += RESERVED_TICKS_MAX - 1
    assert port.places.overstayed() == []
    port.places.tick += 1
    assert port.places.overstayed() == [place]
    assert not list(port.places.reserved)


def test_an_address_with_more_than_its_half_gives_way_to_others_though_it_was_just_used() -> None:
    port = Port(4)
    port.fill("xxxa")
    assert port.connect("b")[1] == 1
    assert port.connect("c")[0].is_reserved  # Now "x" has no more than half of the places.


def test_an_address_with_its_half_takes_places_from_itself_alone() -> None:
    port = Port(4)
    port.fill("axxb")
    port.places.tick = 10
    assert [port.connect("x")[1] for _ in range(2)] == [2, 3]


def test_where_all_come_from_one_address_its_share_is_no_bound() -> None:
    port = Port(3)
    port.fill("xxx")
    port.places.tick = 10
    assert [port.connect("x")[1] for _ in range(3)] == [1, 2, 3]


def test_an_address_that_finds_no_place_keeps_no_other_from_one() -> None:
    """The address "x" connects all the time, so in each tick it would be the first to search for a place without
    success."""
    port = Port(4, operator_connections_max=3)
    port.fill("xxab")
    port.places.tick, port.busy = 10, {1, 2}

    assert port.connect("x")[0].is_reserved
    assert port.connect("c")[1] == 3
    port.places.tick = 11
    waiting = next(iter(port.places.reserved))
    assert port.places.promote(waiting) is None
    assert port.connect("d")[1] == 4


def test_an_address_with_more_than_its_half_that_is_all_busy_protects_no_idle_connection_of_others() -> None:
    port = Port(4)
    port.fill("xxxa")
    port.places.tick, port.busy = 10, {1, 2, 3}

    assert port.connect("b")[1] == 4


def test_the_program_of_the_member_gets_a_place_though_all_are_busy() -> None:
    """If the program got no place, it would be locked out of its own store. No connection of the program is closed to
    make room for other clients."""
    port = Port(3)
    port.fill(["x", IN_PROCESS, "y"])  # type: ignore[arg-type]
    port.busy = {1, 2, 3}

    assert port.connect(IN_PROCESS)[1] == 1
    assert port.connect(IN_PROCESS)[1] == 3
    place, victim = port.connect(IN_PROCESS)
    assert (place.is_reserved, victim) == (True, None)


def test_a_search_in_vain_is_not_repeated_within_its_tick() -> None:
    """A search looks at all places. So a caller that connects without a pause must not cause a search each time."""
    port = Port(4)
    port.fill("xxxa")
    port.busy = {1, 2, 3, 4}
    asked: list[int] = []
    is_idle = port.places._is_idle
    port.places._is_idle = lambda connection_id: asked.append(connection_id) or is_idle(connection_id)  # type: ignore[func-returns-value]
    for tick in (10, 11):
        port.places.tick = tick
        for _ in range(20):
            port.connect("b")
        assert len(asked) <= 8 * (tick - 9)


def test_a_stream_inside_the_program_is_never_closed_for_another() -> None:
    port = Port(2)
    port.fill([IN_PROCESS, IN_PROCESS])  # type: ignore[arg-type]
    port.places.tick = 10
    assert port.connect("x")[0].is_reserved


def test_a_reserved_place_becomes_a_proper_one_once_there_is_one() -> None:
    port = Port(1)
    (taken,) = port.fill("a")
    waiting = port.connect("b")[0]
    assert port.places.promote(waiting) is None
    assert list(port.places.reserved) == [waiting]

    port.places.tick += IDLE_TICKS_MIN
    assert port.places.promote(waiting) is taken
    assert not waiting.is_reserved
    assert not list(port.places.reserved)
    port.places.leave(waiting)
    another = port.connect("c")[0]
    assert not another.is_reserved


@pytest.mark.parametrize("count", [1, 2])
def test_leaving_twice_frees_one_place(count: int) -> None:
    port = Port(2)
    places = port.fill("xx")
    for _ in range(count):
        port.places.leave(places[0])
    assert len(port.places) == 1
    assert not port.connect("x")[0].is_reserved
    assert port.connect("x")[0].is_reserved


def test_hosts_of_one_ipv6_network_are_one_address() -> None:
    assert origin_of("2001:db8::1") == origin_of("2001:db8:0:0:ffff::9") != origin_of("2001:db8:0:1::1")
    assert origin_of("fe80::1%eth0") == "fe80:0:0:0"
