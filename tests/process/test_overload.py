"""Overload of real processes: bounds hold, refusals name the bound, other clients are served, and members recover.

No test measures times. Each step waits for an expected event, up to an absolute limit.
"""

from __future__ import annotations

import socket
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio

from kvstore import Client, Get, Put, Response
from kvstore.protocol.messages import (
    Code,
    Consistency,
    command_request,
    decode_response,
    encode_client_hello,
    encode_request,
    read_request,
)
from raft import FRAME_BYTES_MAX_CLIENT, MIB, FrameSplitter, frame
from tests.process import servers
from tests.process.servers import Server, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

SECONDS_MAX = 50
PATIENT = ("--election-timeout-ms", "2000")
"""With this time-out, a machine that is busy with other work does not cause a change of the leader. The tests are only
about effects that a client can cause."""

OPEN_MAX = 200
BIG = bytes(256 * 1024)
MEMORY_BYTES_MAX = 96 * MIB
"""The greatest growth of a member by a flood. 8 MiB of unread answers are in memory in three forms: encoded, joined,
and handed to the socket. The member also writes a few MiB of log. The rest is room for the allocator. A member that
encoded all answers immediately would grow by 277 MiB."""


def peak_bytes(server: Server) -> int:
    """The most memory that this process has used at any time."""
    assert server._process is not None
    status = Path(f"/proc/{server._process.pid}/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


class RawClient:
    """A connection that sends requests without waiting, and reads only when the test demands it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self.sent_bytes = 0

    @classmethod
    async def connected(cls, address: str, receive_buffer_bytes: int = 0) -> RawClient:
        """Connect, send a hello, and read the member's hello."""
        host, _, port = address.rpartition(":")
        raw = trio.socket.socket()
        if receive_buffer_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await raw.connect((host, int(port)))
        client = cls(trio.SocketStream(raw))
        await client.stream.send_all(frame(encode_client_hello()))
        (_,) = await client._bodies()
        return client

    async def flood_forever(self, data: bytes) -> None:
        """Send the data repeatedly. While the member does not read, `sent_bytes` stops rising."""
        while True:
            rest = memoryview(data)
            while rest:
                count = await self.stream.socket.send(rest)
                self.sent_bytes += count
                rest = rest[count:]

    async def responses(self) -> list[Response]:
        """The responses that have come so far. Waits for the first response."""
        return [decode_response(body) for body in await self._bodies()]

    async def _bodies(self) -> list[bytes]:
        bodies: list[bytes] = []
        while not bodies:
            data = await self.stream.receive_some(1024 * 1024)
            assert data, "the member has hung up"
            bodies += self._splitter.feed(data)
        return bodies


async def leader_of(client: Client) -> tuple[str, str, int]:
    """The leader as (node_id, client address, term). Waits until a leader is known."""
    while True:
        view = await client.members()
        if view.leader_id is not None and view.leader_address:
            return view.leader_id, view.leader_address, view.term
        await trio.sleep(0.02)


async def puts_until_stalled(client: Client, greedy: RawClient) -> None:
    """Put keys one after the other. Stop when the greedy connection could not send any bytes during ten consecutive
    puts."""
    number, unmoved, last = 0, 0, -1
    while unmoved < 10:
        number += 1
        await client.put(b"other/%d" % number, b"v")
        unmoved = unmoved + 1 if greedy.sent_bytes == last else 0
        last = greedy.sent_bytes


async def test_a_connection_that_floods_and_reads_nothing_stops_itself_and_nobody_else(tmp_path: Path) -> None:
    """The answers to the connection wait, up to a bound. Beyond this bound, its requests stay in the client's socket.
    The puts of other clients are carried out."""
    with trio.fail_after(SECONDS_MAX), running_cluster(tmp_path, 3, *PATIENT) as cluster:
        async with cluster.client() as client:
            await client.put(b"big", BIG)
            before = leader_id, address, _ = await leader_of(client)
            leader = cluster.servers[leader_id]
            memory_bytes = peak_bytes(leader)
            greedy = await RawClient.connected(address, receive_buffer_bytes=64 * 1024)
            put = frame(encode_request(1, command_request(Put(b"greedy", bytes(1024)))))
            get = frame(encode_request(2, read_request(Get(b"big"), Consistency.LINEARIZABLE)))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(greedy.flood_forever, (put + 3 * get) * 100)
                await puts_until_stalled(client, greedy)
                for number in range(20):
                    await client.put(b"after/%d" % number, b"v")
                added_bytes = peak_bytes(leader) - memory_bytes
                nursery.cancel_scope.cancel()
            await greedy.stream.aclose()

            assert greedy.sent_bytes > 0
            assert added_bytes < MEMORY_BYTES_MAX, f"{added_bytes / MIB:.0f} MiB"
            assert (await client.get(b"greedy")).record is not None
            assert await leader_of(client) == before


async def test_beyond_the_bound_of_open_proposals_the_answer_is_busy_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single read of a socket returns more requests than may be open. Every put of other clients is answered."""
    monkeypatch.setattr(servers, "hwm", hwm_with_a_small_bound)
    count = 4_000
    flood = [frame(encode_request(number, command_request(Put(b"k", b"v")))) for number in range(1, count + 1)]
    answers: Counter[tuple[int, str]] = Counter()
    with trio.fail_after(SECONDS_MAX), running_cluster(tmp_path, 3, *PATIENT) as cluster:
        async with cluster.client() as client:
            await client.put(b"first", b"v")
            before = leader_id, address, _ = await leader_of(client)
            memory_bytes = peak_bytes(cluster.servers[leader_id])
            greedy = await RawClient.connected(address)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(greedy.stream.send_all, b"".join(flood))
                for number in range(20):
                    await client.put(b"other/%d" % number, b"v")
            while answers.total() < count:
                answers.update((response.code, str(response.fields[0])) for response in await greedy.responses())
            again = [frame(encode_request(number, command_request(Put(b"k", b"v")))) for number in (1, 2, 3)]
            await greedy.stream.send_all(b"".join(again))
            recovered = [response.code for response in await greedy.responses()]
            await greedy.stream.aclose()

            busy = (Code.BUSY, f"proposals_pending_max is at its bound of {OPEN_MAX}; try again after a pause")
            assert set(answers) == {(Code.OK, "[1]"), busy}
            assert answers[busy] > 0
            assert set(recovered) == {Code.OK}
            assert peak_bytes(cluster.servers[leader_id]) - memory_bytes < MEMORY_BYTES_MAX
            assert await leader_of(client) == before


def hwm_with_a_small_bound(*arguments: str | Path) -> list[str]:
    """The command line of `hwm`, but with OPEN_MAX as the bound on open proposals. There is no option for this
    bound."""
    program = (
        "import functools, runpy, kvstore.cli.daemon.serve as serve;"
        f"serve.RaftConfig = functools.partial(serve.RaftConfig, proposals_pending_max={OPEN_MAX});"
        "runpy.run_module('kvstore.cli.main', run_name='__main__')"
    )
    return [sys.executable, "-c", program, *map(str, arguments)]
