"""Members can connect, no matter how many strangers call the peer port, and no stranger uses a connection for long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from math import inf

import pytest
import trio
import trio.lowlevel
import trio.testing

from raft import encode_message, frame
from raft.runtime.inbound_places import (
    CONNECTIONS_MAX,
    HELD_BACK_MAX,
    UNIDENTIFIED_MAX,
    UNIDENTIFIED_PER_ADDRESS_MAX,
    InboundPlaces,
)
from raft.runtime.peer_routes import STRANGERS_MAX
from raft.runtime.transport import FRAME_SECONDS_MAX
from tests.raft.runtime.test_connection_log import events
from tests.raft.runtime.test_hostile_callers import a_member, greeted, is_closed, says
from tests.raft.support.core_fixture import heartbeat
from tests.raft.support.machines import Machine, until

pytestmark = pytest.mark.timeout(30)


async def test_the_oldest_of_an_address_goes_first_and_then_the_oldest_of_all() -> None:
    places = InboundPlaces()
    elsewhere = places.enter("2.2.2.2")
    crowd = [places.enter("1.1.1.1") for _ in range(UNIDENTIFIED_PER_ADDRESS_MAX + 1)]
    assert [place.scope.cancel_called for place in crowd[:2]] == [True, False]
    assert not elsewhere.scope.cancel_called

    others = [places.enter(f"3.3.3.{number}") for number in range(UNIDENTIFIED_MAX - places.unidentified)]
    newest = places.enter("4.4.4.4")
    assert [place.scope.cancel_called for place in (elsewhere, *others, newest)] == [True] + [False] * (len(others) + 1)
    assert (places.unidentified, places.evicted) == (UNIDENTIFIED_MAX, 2)


async def test_members_are_counted_against_nobody() -> None:
    places = InboundPlaces()
    members = [places.enter("1.1.1.1") for _ in range(3)]
    for place in members:
        places.identify(place, is_member=True)
    for _ in range(CONNECTIONS_MAX):
        places.identify(places.enter("1.1.1.1"), is_member=False)
        places.enter("1.1.1.1")

    assert not any(place.scope.cancel_called for place in members)
    assert places.unidentified == UNIDENTIFIED_PER_ADDRESS_MAX


async def test_strangers_whose_hello_was_taken_are_bounded_too() -> None:
    places = InboundPlaces()
    strangers = []
    for _ in range(STRANGERS_MAX + 1):
        strangers.append(places.enter("1.1.1.1"))
        places.identify(strangers[-1], is_member=False)
    assert [place.scope.cancel_called for place in strangers] == [True] + [False] * STRANGERS_MAX

    places.leave(strangers[-1])
    places.identify(places.enter("1.1.1.1"), is_member=False)
    assert not any(place.scope.cancel_called for place in strangers[1:])


async def test_a_member_gets_in_at_once_though_strangers_have_all_places(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "raft.transport")
    async with a_member() as s1, AsyncExitStack() as stack:
        strangers = [await stack.enter_async_context(await silent(s1.transport.port)) for _ in range(CONNECTIONS_MAX)]
        await until(lambda: s1.transport._places.evicted >= CONNECTIONS_MAX - UNIDENTIFIED_PER_ADDRESS_MAX)
        assert s1.transport._places.held_back <= HELD_BACK_MAX
        # This stranger came later than the waiting strangers.
        assert await is_closed(strangers[-UNIDENTIFIED_PER_ADDRESS_MAX - 1])

        member = await stack.enter_async_context(await greeted(s1))
        await says(member, heartbeat(7))
        await until(lambda: s1.node.core.leader_id == "s2")
        for _ in range(CONNECTIONS_MAX):
            await stack.enter_async_context(await silent(s1.transport.port))
        await says(member, heartbeat(8))
        await until(lambda: s1.node.core.term == 8)

    assert len(events(caplog, "too_many_connections", "s1")) == 1


async def silent(port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)


@pytest.mark.parametrize("is_newer_of_two", [False, True])
async def test_a_frame_that_trickles_in_ends_its_connection(
    is_newer_of_two: bool, caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    """The time limit applies to the whole frame, and is not extended by a further byte."""
    caplog.set_level(logging.WARNING, "raft.transport")
    whole = frame(encode_message(0, heartbeat(7)))
    async with a_member(seconds_max=inf) as s1, await greeted(s1) as first, AsyncExitStack() as stack:
        await first.send_all(whole + whole)
        await turns_until(lambda: s1.node.core.term == 7)
        stream = await stack.enter_async_context(await greeted(s1)) if is_newer_of_two else first
        await stream.send_all((1_000_000).to_bytes(4, "big"))
        await turns_until(lambda: has_begun_a_frame(s1))
        for _ in range(5):
            await passes(FRAME_SECONDS_MAX / 6, mock_clock)
            assert events(caplog, "slow_frame", "s1") == []
            await stream.send_all(b"x")
            await trio.testing.wait_all_tasks_blocked()
        await passes(FRAME_SECONDS_MAX / 6, mock_clock)

    assert events(caplog, "slow_frame", "s1") == [{"peer_id": "s2", "limit_s": FRAME_SECONDS_MAX}]


async def test_whole_frames_may_be_as_far_apart_as_they_like(mock_clock: trio.testing.MockClock) -> None:
    """Followers send no messages to each other. When a frame is complete, its time limit ends."""
    data = frame(encode_message(0, heartbeat(7)))
    async with a_member(seconds_max=inf) as s1, await greeted(s1) as stream:
        await stream.send_all(data[:9])
        await turns_until(lambda: has_begun_a_frame(s1))
        await stream.send_all(data[9:])
        await turns_until(lambda: s1.node.core.term == 7)
        await passes(2 * FRAME_SECONDS_MAX, mock_clock)
        assert s1.transport._inbound.has("s2")
        await says(stream, heartbeat(8))
        await turns_until(lambda: s1.node.core.term == 8)


def has_begun_a_frame(s1: Machine) -> bool:
    """True if a connection of s2 has a time limit, which only a whole frame lifts."""
    return any(scope.deadline < inf for scope in s1.transport._inbound._scopes["s2"])


async def turns_until(condition: Callable[[], bool]) -> None:
    """Give the loop turns until `condition` is true, while the clock stands still. If it never becomes true, the test's
    time-out ends the wait."""
    while not condition():
        await trio.lowlevel.checkpoint()


async def passes(seconds: float, clock: trio.testing.MockClock) -> None:
    """Let this much time pass, and let all its effects happen."""
    clock.jump(seconds)
    await trio.testing.wait_all_tasks_blocked()
