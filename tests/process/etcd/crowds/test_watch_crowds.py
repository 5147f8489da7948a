"""Thousands of watches on one member. The bytes of the watchers are made and counted without a library."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio

from kvstore.etcd.schema import make
from tests.kvstore.etcd.grpc_client import GrpcClient, grpc_client
from tests.process.etcd.attacks import DATA, HEADERS, KV, OPENING, WATCH, WINDOW, call, frame
from tests.process.servers import running_cluster

HEAD_BYTES = 9
SETUP_SECONDS_MAX, EVENT_SECONDS_MAX = 240.0, 60.0
BYTES_PER_STREAM_MAX = 24 * 1024
"""The memory of a member for one stream with one watch. It measured 7 KiB."""

FAN_OUT_MS_MAX = 250.0
EVENTS = 9


class Watchers:
    """One connection with watches of one key, one on each stream. Counts their messages."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._rest = b""
        self.messages = 0
        self.ended = 0  # The streams that have ended.
        self._changed = trio.Event()

    async def open(self, count: int) -> None:
        create = make("WatchRequest", create_request=make("WatchCreateRequest", key=b"watched"))
        streams = (call(number, WATCH, create, is_last=False) for number in range(1, 2 * count, 2))
        await self._stream.send_all(OPENING + frame(WINDOW, 0, 0, b"\x3f\0\0\0") + b"".join(streams))

    async def read(self) -> None:
        while data := await self._stream.receive_some(65_536):
            data = self._rest + data
            at = 0
            while len(data) - at >= HEAD_BYTES:
                end = at + HEAD_BYTES + int.from_bytes(data[at : at + 3])
                if end > len(data):
                    break
                self.messages += data[at + 3] == DATA
                self.ended += data[at + 3] == HEADERS and data[at + 4] & 1
                at = end
            self._rest = data[at:]
            self._changed.set()

    async def wait(self, messages: int) -> None:
        """Wait until so many messages have come."""
        while self.messages < messages:
            assert not self.ended, f"{self.ended} streams have ended"
            await self._changed.wait()
            self._changed = trio.Event()


@asynccontextmanager
async def watchers(address: str, connections: int, streams: int) -> AsyncIterator[list[Watchers]]:
    """Connections with `streams` watches each, which have all begun."""
    host, _, port = address.rpartition(":")
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        found = []
        for _ in range(connections):
            one = Watchers(await stack.enter_async_context(await trio.open_tcp_stream(host, int(port))))
            nursery.start_soon(one.read)
            found.append(one)
        with trio.fail_after(SETUP_SECONDS_MAX):
            for one in found:
                await one.open(streams)
            for one in found:
                await one.wait(streams)
        yield found
        nursery.cancel_scope.cancel()


async def put(client: GrpcClient) -> None:
    await client.call(f"{KV}/Put", make("PutRequest", key=b"watched", value=bytes(100)))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(10 * 60)
async def test_ten_thousand_streams_get_an_event_and_the_member_goes_on(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    connections, streams = 100, 100
    with running_cluster(tmp_path, 1, "--etcd") as cluster:
        (address,) = cluster.endpoints
        member = psutil.Process(cluster.servers["s1"].pid)
        async with grpc_client(address) as client:
            await put(client)
            before = member.memory_info().rss
            async with watchers(address, connections, streams) as found:
                with trio.fail_after(EVENT_SECONDS_MAX):
                    began = trio.current_time()
                    await put(client)
                    for one in found:
                        await one.wait(2 * streams)
                seconds = trio.current_time() - began
                per_stream = (member.memory_info().rss - before) / (connections * streams)
            print(f"an event took {seconds:.2f} s, a stream {per_stream:.0f} bytes")
            record_property("10,000 streams", f"{seconds:.2f} s, {per_stream:.0f} bytes")
            assert per_stream < BYTES_PER_STREAM_MAX
            with trio.fail_after(EVENT_SECONDS_MAX):
                await put(client)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(5 * 60)
async def test_a_thousand_watchers_of_a_key_have_its_event_in_a_quarter_of_a_second(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    connections, streams = 10, 100
    with running_cluster(tmp_path, 1, "--etcd") as cluster:
        (address,) = cluster.endpoints
        async with grpc_client(address) as client, watchers(address, connections, streams) as found:
            delays = []
            for number in range(EVENTS):
                with trio.fail_after(EVENT_SECONDS_MAX):
                    began = trio.current_time()
                    await put(client)
                    for one in found:
                        await one.wait((2 + number) * streams)
                delays.append((trio.current_time() - began) * 1e3)
            median = statistics.median(delays)
            print(f"an event reached 1,000 watchers in {median:.0f} ms ({min(delays):.0f}–{max(delays):.0f})")
            record_property("1,000 watchers", f"{median:.0f} ms ({min(delays):.0f}–{max(delays):.0f})")
            assert median < FAN_OUT_MS_MAX
