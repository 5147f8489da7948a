"""A running member gets input at its peer port from callers that it should not trust."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import raft.runtime.handshake
import raft.runtime.transport
from raft import Message, VoteResponse, encode_message, frame
from raft.protocol.hello import FEATURE_LEVEL_SAID_MAX
from raft.runtime.addresses import is_dialable
from tests.raft.runtime.test_connection_log import events
from tests.raft.support.core_fixture import heartbeat
from tests.raft.support.machines import Machine, a_listener, peer_hello, until

pytestmark = pytest.mark.timeout(30)


@asynccontextmanager
async def a_member(seconds_max: float = 20) -> AsyncIterator[Machine]:
    """The member s1 of three members, which cannot reach any other member. `seconds_max` is the time-out by the clock
    of the test."""
    with trio.fail_after(seconds_max):
        listener, _ = await a_listener()
        s1 = Machine("s1", ["s1", "s2", "s3"], listener)
        async with trio.open_nursery() as nursery:
            await nursery.start(s1.driver.run)
            yield s1
            nursery.cancel_scope.cancel()


async def greeted(s1: Machine, node_id: str = "s2", **fields: Any) -> trio.SocketStream:
    stream = await trio.open_tcp_stream("127.0.0.1", s1.transport.port)
    await stream.send_all(peer_hello(node_id, **fields))
    assert await stream.receive_some()
    return stream


async def says(stream: trio.SocketStream, message: Message) -> None:
    await stream.send_all(frame(encode_message(0, message)))


async def is_closed(stream: trio.SocketStream) -> bool:
    try:
        return await stream.receive_some() == b""
    except trio.BrokenResourceError:
        return True


async def still_takes_messages(s1: Machine, term: int) -> None:
    async with await greeted(s1, "s3") as stream:
        await says(stream, heartbeat(term))
        await until(lambda: s1.node.core.leader_id == "s3")


async def test_a_forged_term_costs_the_connection_and_nothing_is_persisted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "raft.transport")
    async with a_member() as s1:
        for _ in range(2):
            async with await greeted(s1) as stream:
                await says(stream, VoteResponse(term=2**63 - 1, granted=False))
                assert await is_closed(stream)
        await still_takes_messages(s1, 9)
        assert s1.node.core.term == 9

    (broken,) = events(caplog, "protocol_broken", "s1")
    assert broken["peer_id"] == "s2"
    assert broken["reason"].startswith("term 9223372036854775807, where this member is in term ")


@pytest.mark.parametrize("what", ["decode_hello", "decode_message"])
async def test_a_mistake_in_judging_input_costs_one_connection_and_is_logged_once_with_its_traceback(
    what: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "raft.transport")
    place = raft.runtime.handshake if what == "decode_hello" else raft.runtime.transport
    real = getattr(place, what)

    def mistaken(body: bytes) -> object:
        if b"s2" in body or body == encode_message(0, heartbeat(7)):
            raise KeyError("a slip")
        return real(body)

    async with a_member() as s1:
        monkeypatch.setattr(place, what, mistaken)
        for count in (1, 2):
            async with await trio.open_tcp_stream("127.0.0.1", s1.transport.port) as stream:
                await stream.send_all(peer_hello("s2" if what == "decode_hello" else "s3"))
                if what == "decode_message":
                    assert await stream.receive_some()
                    await says(stream, heartbeat(7))
                assert await is_closed(stream)
            assert s1.transport.validation_faults == count
        await still_takes_messages(s1, 8)

    told = [record for record in caplog.records if "could not validate" in record.getMessage()]
    assert [(record.levelname, bool(record.exc_info)) for record in told] == [("ERROR", True), ("DEBUG", False)]


async def test_an_address_that_nobody_can_dial_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "raft.transport")
    async with a_member() as s1:
        async with await greeted(s1, peer_address="a..b:7104") as stream:
            await says(stream, heartbeat(5))
            await until(lambda: s1.node.core.leader_id == "s2")
            assert s1.transport._peers.addresses_of("s2") == ()
        async with await greeted(s1, peer_address="127.0.0.1:1") as stream:
            await until(lambda: s1.transport._peers.addresses_of("s2") == ("127.0.0.1:1",))

    assert events(caplog, "bad_address", "s1") == [{"peer_id": "s2", "reason": "a..b:7104"}]


async def test_a_hello_of_an_impossible_build_is_none() -> None:
    async with a_member() as s1, await trio.open_tcp_stream("127.0.0.1", s1.transport.port) as stream:
        await stream.send_all(peer_hello("s2", level_max=FEATURE_LEVEL_SAID_MAX + 1))
        await until(lambda: s1.transport.hellos_refused == {"not_a_hello": 1})


@pytest.mark.parametrize(
    ("address", "is_good"),
    [
        ("s1.example:7102", True),
        ("[::1]:7102", True),
        ("127.0.0.1:65535", True),
        ("bücher.example:7102", True),
        ("a..b:7102", False),
        (f"{'a' * 64}:7102", False),
        (f"{'a.' * 200}a:7102", False),
        ("s1:0", False),
        ("s1:65536", False),
        ("s1", False),
        ("", False),
        (":7102", False),
        ("a\n:7102", False),
    ],
)
def test_an_address_is_dialable_if_a_resolver_can_be_asked_for_it(address: str, is_good: bool) -> None:
    assert is_dialable(address) is is_good
