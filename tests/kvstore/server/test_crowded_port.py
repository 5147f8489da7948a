"""A client port with real sockets: all its places for clients are taken, or its memory for incomplete frames and unread
answers is used up."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from kvstore import Busy, Client
from kvstore.limits import ServiceLimits
from kvstore.member.config import MemberConfig
from kvstore.member.member import RunningMember, run_member
from kvstore.protocol.commands import Get, Put, Range
from kvstore.protocol.messages import (
    Code,
    Consistency,
    Response,
    command_request,
    decode_response,
    encode_client_hello,
    encode_request,
    read_request,
    status_request,
)
from kvstore.protocol.status import MemberStatus
from kvstore.resources import connection_places
from kvstore.resources.connection_places import IDLE_TICKS_MIN
from kvstore.server import client_listener
from kvstore.server.connections import OPERATOR_REQUESTS_MAX
from kvstore.server.work_budget import UNITS_PER_TURN
from raft import FRAME_BYTES_MAX_CLIENT, MIB, FrameSplitter, ProtocolError, frame

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def _quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_listener, "TICK_SECONDS", 0.01)


class Stranger:
    """One raw connection on which the hello was sent and the answer was read."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)

    @classmethod
    async def connected(cls, address: str) -> Stranger:
        host, _, port = address.rpartition(":")
        raw = trio.socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * 1024)
        await raw.connect((host, int(port)))
        found = cls(trio.SocketStream(raw))
        await found.stream.send_all(frame(encode_client_hello()))
        await found.bodies()
        return found

    async def bodies(self) -> list[bytes]:
        """The bodies of the next frames; an empty list at the end of the connection."""
        bodies: list[bytes] = []
        while not bodies:
            data = await self.stream.receive_some(64 * 1024)
            if not data:
                return []
            bodies = self._splitter.feed(data)
        return bodies

    async def answer(self, body: bytes) -> Response:
        await self.stream.send_all(frame(body))
        return decode_response((await self.bodies())[0])

    async def last_words(self) -> str:
        """The reason with which the member closed the connection. The call fails if the member did not close it."""
        words = ""
        try:
            while bodies := await self.bodies():
                for body in bodies:
                    decode_response(body)
        except ProtocolError as error:
            words = str(error)
        except trio.BrokenResourceError:
            pass
        return words

    async def reads_nothing(self, key: bytes, count: int) -> None:
        """Request more answers than the sockets can hold, and read none of the answers."""
        get = encode_request(1, read_request(Get(key), Consistency.LOCAL))
        await self.stream.send_all(frame(get) * count)


@asynccontextmanager
async def serving(folder: Path, limits: ServiceLimits) -> AsyncIterator[RunningMember]:
    config = MemberConfig(folder=folder / "data", bootstrap=True, listen_client="127.0.0.1:0", service=limits)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            member: RunningMember = await nursery.start(partial(run_member, config))
            yield member
            nursery.cancel_scope.cancel()


async def holding_a_place(member: RunningMember) -> Stranger:
    """A connection that is not idle, because it has as many unread answers as it may have."""
    stranger = await Stranger.connected(member.client_address)
    connection = member.port._service._connections[max(member.port._connections)]
    await stranger.reads_nothing(b"big", 9)
    while connection.unsent_bytes < MIB:
        await trio.lowlevel.checkpoint()
    return stranger


async def test_an_idle_connection_gives_its_place_and_is_told_why(tmp_path: Path) -> None:
    async with serving(tmp_path, ServiceLimits(connections_max=2)) as member:
        strangers = [await Stranger.connected(member.client_address) for _ in range(2)]
        member.port._places.tick += IDLE_TICKS_MIN
        async with Client([member.client_address]) as client:
            await client.put("a", "1")
            assert "idle longest" in await strangers[0].last_words()
        for stranger in strangers:
            await stranger.stream.aclose()


async def test_a_session_in_use_survives_that_its_idle_connection_gave_its_place(tmp_path: Path) -> None:
    """If its connection is closed, the client connects again by itself. Nothing fails, and nothing is carried out
    twice."""
    async with serving(tmp_path, ServiceLimits(connections_max=1)) as member, Client([member.client_address]) as client:
        for number in range(5):
            await client.put("a", str(number))
            session_id = client._pump._core.session_id  # type: ignore[union-attr]
            member.port._places.tick += IDLE_TICKS_MIN
            stranger = await Stranger.connected(member.client_address)
            member.port._places.tick += IDLE_TICKS_MIN
            assert (await client.get("a")).record is not None
            assert client._pump._core.session_id == session_id  # type: ignore[union-attr]
            assert "idle longest" in await stranger.last_words()
            await stranger.stream.aclose()
        assert (await client.get("a")).record.version == 5  # type: ignore[union-attr]


async def test_operators_get_in_when_no_place_can_be_had_and_clients_once_one_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every place is taken by a connection that is not idle, because it has unread answers."""
    monkeypatch.setattr(connection_places, "RESERVED_TICKS_MAX", 1_000_000)
    async with serving(tmp_path, ServiceLimits(connections_max=2)) as member:
        async with Client([member.client_address]) as client:
            await client.put("big", bytes(MIB - 100))
        strangers = [await holding_a_place(member) for _ in range(2)]
        crowd = [await Stranger.connected(member.client_address) for _ in range(20)]

        async with Client([member.client_address]) as client:
            assert all(isinstance(each, MemberStatus) for each in (await client.cluster_status()).values())
            assert await client.membership()
            with pytest.raises(Busy, match="connections_max is at its bound of 2"):
                await client.put("b", "1", deadline_seconds=0.6)
            await strangers[0].stream.aclose()
            await client.put("b", "1", deadline_seconds=10)

        for stranger in (*strangers, *crowd):
            await stranger.stream.aclose()


async def test_a_reserved_place_serves_few_requests_and_for_seconds_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = connection_places.RESERVED_TICKS_MAX
    monkeypatch.setattr(connection_places, "RESERVED_TICKS_MAX", 1_000_000)  # A slow machine must not cause a time-out.
    async with serving(tmp_path, ServiceLimits(connections_max=1)) as member:
        async with Client([member.client_address]) as client:
            await client.put("big", bytes(MIB - 100))
        holder = await holding_a_place(member)

        quick = await Stranger.connected(member.client_address)
        put = encode_request(1, command_request(Put(b"k", b"v")))
        get = encode_request(2, read_request(Get(b"big"), Consistency.LOCAL))
        hashed = encode_request(3, status_request(with_hash=True))
        answers = [await quick.answer(body) for body in (put, get, hashed)]
        assert [answer.code for answer in answers] == [Code.BUSY] * 3
        assert (await quick.answer(encode_request(4, status_request()))).code == Code.OK
        await quick.stream.send_all(b"".join(frame(encode_request(n, status_request())) for n in range(5, 200)))
        assert f"has {OPERATOR_REQUESTS_MAX} requests" in await quick.last_words()

        monkeypatch.setattr(connection_places, "RESERVED_TICKS_MAX", seconds)
        slow = await Stranger.connected(member.client_address)
        assert "reserved for `hwm status`" in await slow.last_words()
        for stranger in (holder, quick, slow):
            await stranger.stream.aclose()


async def test_half_frames_of_all_have_one_bound_and_who_holds_most_is_closed(tmp_path: Path) -> None:
    limits = ServiceLimits(incomplete_bytes_total_max=10 * MIB)
    async with serving(tmp_path, limits) as member:
        strangers = [await Stranger.connected(member.client_address) for _ in range(6)]
        beginning = (4 * MIB - 1).to_bytes(4, "big") + bytes(3 * MIB)
        async with trio.open_nursery() as nursery:

            async def half(stranger: Stranger) -> None:
                with suppress(trio.BrokenResourceError):
                    await stranger.stream.send_all(beginning)

            for stranger in strangers:
                nursery.start_soon(half, stranger)
            async with Client([member.client_address]) as client:
                for number in range(50):
                    await client.put("a", str(number))
                await client.put("large", bytes(MIB - 100))
        service = member.port._service
        with trio.fail_after(10):
            async with Client([member.client_address]) as client:
                while len([each for each in service._connections.values() if not each.closed]) > 5:
                    await client.put("a", "1")
        held = sum(each.incomplete_bytes for each in service._connections.values())
        assert 3 * MIB <= held <= limits.incomplete_bytes_total_max + 4 * MIB
        for stranger in strangers:
            await stranger.stream.aclose()


async def test_unread_answers_of_all_have_one_bound_and_who_holds_most_is_closed(tmp_path: Path) -> None:
    """The bound also holds while many answers are made together. A client that reads its answers is not closed."""
    limits = ServiceLimits(unsent_bytes_total_max=20 * MIB)
    async with serving(tmp_path, limits) as member, Client([member.client_address]) as client:
        await client.put("big", bytes(MIB - 100))
        service = member.port._service
        strangers = [await Stranger.connected(member.client_address) for _ in range(10)]
        most = 0
        for stranger in strangers:
            await stranger.reads_nothing(b"big", 12)
            assert len((await client.get("big")).record.value) == MIB - 100  # type: ignore[union-attr]
            most = max(most, sum(each.unsent_bytes for each in service._connections.values()))
        with trio.fail_after(10):
            while len(member.port._connections) > 6:
                await client.put("a", "1")
        assert most <= limits.unsent_bytes_total_max + 8 * MIB
        for stranger in strangers:
            await stranger.stream.aclose()


async def test_a_client_that_leaves_its_answers_unread_is_closed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_listener, "UNREAD_SECONDS_MAX", 0.05)
    monkeypatch.setattr(client_listener, "BYTES_PER_SECOND_MIN", 1 << 40)
    async with serving(tmp_path, ServiceLimits()) as member, Client([member.client_address]) as client:
        await client.put("big", bytes(MIB - 100))
        stranger = await Stranger.connected(member.client_address)
        await stranger.reads_nothing(b"big", 12)
        while len(member.port._connections) > 1:
            await client.put("a", "1")
        await stranger.stream.aclose()


async def test_single_requests_are_answered_turn_after_turn_while_a_flood_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test, the flood comes only once. The other clients send more requests than one turn can answer."""
    monkeypatch.setattr(client_listener, "WORK_PAUSE_SHARE", 1e9)
    async with serving(tmp_path, ServiceLimits()) as member:
        flood = await Stranger.connected(member.client_address)
        service = member.port._service
        scan = encode_request(1, read_request(Range(), Consistency.LOCAL))
        await flood.stream.send_all(frame(scan) * 200)
        while not service.has_work:
            await trio.lowlevel.checkpoint()

        others = [await Stranger.connected(member.client_address) for _ in range(2 * UNITS_PER_TURN)]
        for stranger in others:
            await stranger.stream.send_all(frame(scan))
        for stranger in others:
            assert decode_response((await stranger.bodies())[0]).code == Code.OK
        assert service.has_work, "the flood waits"
        for stranger in (flood, *others):
            await stranger.stream.aclose()
