"""Abuse of HTTP/2 and gRPC: the member goes on, and the attacker is bounded."""

from __future__ import annotations

import itertools
import time
from functools import partial
from pathlib import Path

import h2.settings
import pytest
import trio.testing

from kvstore import Client
from kvstore.etcd.call import STREAM_REQUESTS_MAX
from kvstore.etcd.errors import Status
from kvstore.etcd.http2.connection import CONTROLS_PER_MESSAGE, HttpBounds, HttpConnection, HttpEvent, WindowOpened
from kvstore.etcd.http2.library import LibraryConnection
from kvstore.etcd.http2.output import OutputQueues
from kvstore.etcd.pace import RequestPace
from kvstore.etcd.schema import Message, make
from tests.kvstore.etcd.grpc_client import Call, CallFailed, grpc_client
from tests.kvstore.etcd.member import KV, WATCH, Etcd, http2, http_connection, serving
from tests.kvstore.etcd.test_transport import HEADERS_OF_PUT, PREFACE, SETTINGS, frame, raw, read_to_end

__all__ = ["http2"]

pytestmark = pytest.mark.usefixtures("http2")

WINDOW_OF_1 = frame(8, 0, 0, b"\0\0\0\1")
PING_BYTES = b"12345678"


def opened(settings: bytes = SETTINGS, bounds: HttpBounds | None = None) -> HttpConnection:
    """A connection with the call 1."""
    connection = http_connection(bounds)
    connection.receive(PREFACE + settings + frame(1, 4, 1, HEADERS_OF_PUT), 0)
    connection.send_headers(1, [(b":status", b"200")])
    connection.take_output()
    return connection


async def test_a_client_that_opens_no_more_calls_gets_the_rest_of_its_responses(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd, grpc_client(etcd.address) as leaving:
        stream = await leaving.open(f"{WATCH}/Watch")
        await stream.send(make("WatchRequest", create_request=make("WatchCreateRequest", key=b"a")))
        await stream.receive()
        goaway = frame(7, 0, 0, bytes(8))
        await leaving.stream.send_all(goaway + frame(6, 0, 0, PING_BYTES) + goaway)
        await etcd.put(b"a", b"1")
        found = await stream.receive()
        assert found is not None
        assert found.events[0].kv.value == b"1"


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(frame(8, 0, 0, b"\0\0\0\1") * 1_200, id="window updates"),
        pytest.param(frame(8, 0, 1, b"\0\0\0\1") * 1_200, id="window updates of a stream"),
        pytest.param(frame(6, 1, 0, PING_BYTES) * 1_200, id="answers to pings"),
        pytest.param(frame(2, 0, 7, b"\0\0\0\0\1") * 1_200, id="priorities"),
        pytest.param(frame(200, 0, 0, b"") * 1_200, id="frames of unknown kinds"),
    ],
)
async def test_floods_of_frames_that_carry_nothing_end_the_connection(tmp_path: Path, flood: bytes) -> None:
    async with serving(tmp_path / "data") as etcd, await raw(etcd.address) as attacker:
        await attacker.send_all(PREFACE + SETTINGS + frame(1, 4, 1, HEADERS_OF_PUT) + flood)
        await read_to_end(attacker)
        assert (await etcd.put(b"a")).header.revision == 2


def test_a_client_may_ping_and_open_its_windows_for_each_message_that_it_reads() -> None:
    """As grpc-go does, to measure the bandwidth."""
    connection = opened()
    for _ in range(5_000):
        connection.send_data(1, b"message")
        for _ in range(CONTROLS_PER_MESSAGE // 2):
            assert not connection.receive(frame(6, 0, 0, PING_BYTES) + WINDOW_OF_1, 1)


def test_a_client_may_not_read_byte_by_byte() -> None:
    connection = opened(frame(4, 0, 0, b"\0\4\0\0\0\1"))  # The window of a stream has 1 byte.
    connection.send_data(1, bytes(1 << 20))
    reads = 0
    while not connection.receive(frame(8, 0, 1, b"\0\0\0\1"), 1):
        reads += 1
    assert 400 < reads < 1_100


def test_a_large_response_goes_out_in_linear_time() -> None:
    """A response that is copied for each of its frames would take minutes."""
    connection = opened()
    connection.send_data(1, bytes(60 << 20))
    sent = 0
    events: list[HttpEvent] = []
    while not events:
        sent += len(connection.take_output())
        for stream_id in (0, 1):
            events += connection.receive(frame(8, 0, stream_id, b"\0\0\x20\0"), 1)
    assert events == [WindowOpened(1)]
    assert sent + len(connection.take_output()) > 60 << 20


MANY = range(1, 601, 2)


def many_waiting(monkeypatch: pytest.MonkeyPatch) -> tuple[HttpConnection, list[int]]:
    """A connection with many streams that wait for their windows, and the list of the streams that it looks at."""
    connection = http_connection()
    requests = b"".join(frame(1, 5, each, HEADERS_OF_PUT) for each in MANY)
    connection.receive(PREFACE + frame(4, 0, 0, b"\0\4\0\0\0\0") + requests, 1)
    for each in MANY:
        connection.send_headers(each, [(b":status", b"200")])
        connection.send_data(each, b"waits")
    looks: list[int] = []
    send = OutputQueues._send_frame

    def look(queues: OutputQueues, stream_id: int, found: list[HttpEvent]) -> bool:
        looks.append(stream_id)
        return send(queues, stream_id, found)

    monkeypatch.setattr(OutputQueues, "_send_frame", look)
    return connection, looks


def test_a_message_for_each_of_many_waiting_streams_costs_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event for a thousand watches of a client that does not read once stopped the member for a second."""
    connection, looks = many_waiting(monkeypatch)
    for each in MANY:
        connection.send_data(each, b"waits too")
    assert len(looks) < 3 * len(MANY)


def test_bytes_that_open_no_window_cost_the_same_with_many_waiting_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, looks = many_waiting(monkeypatch)
    for byte in frame(6, 0, 0, PING_BYTES):
        connection.receive(bytes([byte]), 1)
    assert not looks


def test_a_large_response_beside_many_waiting_streams_goes_out_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, looks = many_waiting(monkeypatch)
    connection.send_data(1, bytes(10 << 20))
    wide = (20 << 20).to_bytes(4)
    events = connection.receive(frame(8, 0, 0, wide) + frame(8, 0, 1, wide), 1)
    while connection.has_more:
        connection.take_output()
        events += connection.send_more()
    assert events == [WindowOpened(1)]
    assert len(looks) < 3 * len(MANY) + (10 << 20) // 16_384


def test_the_windows_of_all_streams_change_once_for_each_frame_of_settings() -> None:
    """A frame has place for 2,730 windows. Each of them once cost a look at each stream."""
    connection = http_connection()
    requests = b"".join(frame(1, 5, each, HEADERS_OF_PUT) for each in range(1, 1_801, 2))
    connection.receive(PREFACE + SETTINGS + requests, 1)
    began = time.thread_time()
    assert not connection.receive(frame(4, 0, 0, b"\0\4\0\0\0\0\0\4\0\1\0\0" * 1_365), 1)
    assert time.thread_time() - began < 0.1


@pytest.mark.parametrize(("streams", "frames_min", "frames_max"), [(1, 900, 1_100), (900, 250, 350)])
def test_a_client_may_not_change_the_windows_of_many_streams_all_the_time(
    streams: int, frames_min: int, frames_max: int
) -> None:
    """Each change takes a look at each stream. A client with 900 calls may send 5,500 frames without use."""
    connection = http_connection()
    requests = b"".join(frame(1, 5, each, HEADERS_OF_PUT) for each in range(1, 2 * streams, 2))
    connection.receive(PREFACE + SETTINGS + requests, 1)
    sizes = itertools.cycle((b"\0\4\0\0\0\0", b"\0\4\0\1\0\0"))
    count = 0
    while not connection.receive(frame(4, 0, 0, next(sizes)), 1):
        count += 1
    assert frames_min < count < frames_max


def test_the_table_of_response_headers_stays_small_for_a_client_that_offers_4_gib() -> None:
    connection = LibraryConnection()
    connection.receive(PREFACE + frame(4, 0, 0, b"\0\1\xff\xff\xff\xff"), 1)
    assert connection._h2.encoder.header_table_size == 4_096


def test_a_frame_is_unfinished_since_its_own_beginning() -> None:
    """Not since the beginning of an earlier one: a busy connection always has some unfinished frame."""
    connection = opened()
    data = frame(0, 0, 1, bytes(100))
    connection.receive(data[:50], 10)
    assert connection.within_frame_since == 10
    connection.receive(data[50:] + data[:4], 20)
    assert connection.within_frame_since == 20
    connection.receive(data[4:8], 30)
    assert connection.within_frame_since == 20
    connection.receive(data[8:] + data[:20], 40)
    assert connection.within_frame_since == 40
    connection.receive(data[20:], 50)
    assert connection.within_frame_since is None


async def test_a_connection_with_too_much_unread_gets_nothing_more_until_it_reads(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd, grpc_client(etcd.address) as lazy:
        await etcd.put(b"a", bytes(1_000_000))
        lazy.reads = False
        calls = []
        for _ in range(80):
            calls.append(await lazy.open(f"{KV}/Range"))
            await calls[-1].send(make("RangeRequest", key=b"a"), is_last=True)
        while not (ended := [call for call in calls if call.status is not None]):  # Calls may overtake each other.
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CallFailed, match="must read") as refused:
            await ended[0].receive()
        assert refused.value.status == Status.RESOURCE_EXHAUSTED
        with pytest.raises(CallFailed, match="must read") as unknown:
            await lazy.call(f"{KV}/Put", make("PutRequest", key=b"c"))
        assert unknown.value.status == Status.UNAVAILABLE  # It is done, and may not look refused.
        assert (await etcd.range(b"c")).count == 1
        for call in calls:
            if call.status is None:
                await call.reset()
        lazy.reads = True
        lazy.h2.increment_flow_control_window(1 << 20)
        again = await lazy.call(f"{KV}/Range", make("RangeRequest", key=b"b"))
        assert again.count == 0


async def test_a_watch_whose_answers_are_not_read_takes_a_bounded_number_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.etcd.grpc.UNSENT_BYTES_MAX", 1)
    monkeypatch.setattr("kvstore.etcd.http_calls.RequestPace", partial(RequestPace, at_once=2 * STREAM_REQUESTS_MAX))
    async with serving(tmp_path / "data") as etcd, grpc_client(etcd.address) as lazy:
        lazy.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        stream = await lazy.open(f"{WATCH}/Watch")
        empty = make("WatchRequest", create_request=make("WatchCreateRequest", key=b"b", range_end=b"a"))
        for _ in range(STREAM_REQUESTS_MAX + 100):
            await stream.send(empty)
        lazy.h2.increment_flow_control_window(1 << 20, stream.stream_id)
        await lazy.flush()
        with pytest.raises(CallFailed, match="too many requests"):
            await read_all(stream)


async def test_requests_that_wait_for_a_watch_whose_answers_are_not_read_have_bounded_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a thousand requests may have 2 MiB, in 2 KiB of gzip, and a connection may have a thousand watches."""
    monkeypatch.setattr("kvstore.etcd.grpc.UNSENT_BYTES_MAX", 1)
    async with serving(tmp_path / "data") as etcd, grpc_client(etcd.address) as lazy:
        lazy.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        empty = make("WatchRequest", create_request=make("WatchCreateRequest", key=b"b" * 1_000_000, range_end=b"a"))
        streams = [await lazy.open(f"{WATCH}/Watch") for _ in range(3)]
        for stream in streams:
            for _ in range(8):
                await stream.send(empty)
        lazy.h2.increment_flow_control_window(1 << 20, streams[-1].stream_id)
        await lazy.flush()
        with pytest.raises(CallFailed, match="too many requests"):
            await read_all(streams[-1])


async def test_unary_requests_that_do_not_end_have_bounded_bytes(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        request = make("PutRequest", key=b"a", value=bytes(1_000_000))
        calls = []
        for _ in range(17):
            calls.append(await etcd.grpc.open(f"{KV}/Put"))
            await calls[-1].send(request)
        with pytest.raises(CallFailed, match="unfinished messages"):
            await calls[-1].receive()
        await calls[0].end()
        assert (await calls[0].receive()) is not None


async def test_requests_without_a_response_yet_have_bounded_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """900 requests of 1.4 MB, in 1.7 KB of gzip each, once took 4 GiB of a member."""
    monkeypatch.setattr("kvstore.etcd.grpc.RUNNING_BYTES_MAX", 1_500_000)
    lock = make("v3lockpb.LockRequest", name=b"lock")
    large = make("v3lockpb.LockRequest")
    large.ParseFromString(lock.SerializeToString() + b"\x7a\xc0\x84\x3d" + bytes(1_000_000))  # An unknown field.
    put = make("PutRequest", key=b"a", value=bytes(1_000_000))
    async with serving(tmp_path / "data") as etcd:
        await etcd.grpc.call("/v3lockpb.Lock/Lock", lock)
        waiting = await etcd.grpc.open("/v3lockpb.Lock/Lock")
        await waiting.send(large, is_last=True)
        with pytest.raises(CallFailed, match="too many requests"):
            await etcd.grpc.call(f"{KV}/Put", put)
        await waiting.reset()
        for _ in range(3):
            await etcd.grpc.call(f"{KV}/Put", put)


async def read_all(stream: Call) -> None:
    while await stream.receive() is not None:
        pass


def nested(depth: int) -> Message:
    found = make("TxnRequest")
    for _ in range(depth):
        outer = make("TxnRequest")
        outer.success.add().request_txn.CopyFrom(found)
        found = outer
    return found


def wide() -> Message:
    """A transaction of 2 MiB that puts many keys and deletes many ranges, in inner transactions."""
    found = make("TxnRequest")
    for outer in range(100):
        middle = found.success.add().request_txn
        for inner in range(24):
            last = middle.success.add().request_txn
            for number in range(60):
                last.success.add().request_put.key = b"%d %d" % (outer * 24 + inner, number)
    return found


@pytest.mark.parametrize("request_of", [lambda: nested(45), wide], ids=["deep", "wide"])
async def test_a_transaction_of_many_transactions_is_refused_at_once(tmp_path: Path, request_of: object) -> None:
    """Each level of the check once took twice the time of the level below: 45 levels, a year."""
    assert callable(request_of)
    async with serving(tmp_path / "data") as etcd:
        with pytest.raises(CallFailed, match="too many operations"):
            await etcd.grpc.call(f"{KV}/Txn", request_of())
        assert (await etcd.put(b"a")).header.revision == 2


async def test_a_thousand_invented_tokens_leave_no_clients_behind(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        calls = []
        for number in range(300):
            headers = [("token", f"somebody.{number:064x}")]
            calls.append(await etcd.grpc.open(f"{KV}/Put", headers=headers))
            await calls[-1].send(make("PutRequest", key=b"a"), is_last=True)
        for call in calls:
            with pytest.raises(CallFailed, match="invalid auth token"):
                await call.receive()
        async with Client([etcd.address]) as client:
            status = await client.status()
        assert status.client_connections < 10


async def test_abandoned_watches_and_locks_leave_nothing_behind(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd, Client([etcd.address]) as client:
        for _ in range(3):
            async with grpc_client(etcd.address) as leaving:
                for number in range(60):
                    watch = await leaving.open(f"{WATCH}/Watch")
                    create = make("WatchCreateRequest", key=b"%d" % number)
                    await watch.send(make("WatchRequest", create_request=create))
                    assert await watch.receive() is not None
                    lock = await leaving.open("/v3lockpb.Lock/Lock")
                    await lock.send(make("v3lockpb.LockRequest", name=b"lock"), is_last=True)
                assert (await client.status()).watches >= 60
        while (await client.status()).watches or (await lock_keys(etcd)) > 1:  # The first one owns the lock.
            await trio.testing.wait_all_tasks_blocked()


async def lock_keys(etcd: Etcd) -> int:
    return int((await etcd.range(b"lock/", b"lock0", count_only=True)).count)


def test_a_client_may_open_the_window_of_each_call() -> None:
    """As gRPC's C core does, also for calls that wait for a lock."""
    connection = opened()
    for each in range(3, 1_803, 2):
        call = frame(1, 5, each, HEADERS_OF_PUT) + frame(8, 0, each, b"\0\0\0\5") + frame(6, 1, 0, PING_BYTES)
        assert len(connection.receive(call, 1)) == 2


def test_a_client_may_abandon_many_calls_at_their_deadline() -> None:
    """A thousand calls may wait for a lock, or for a leader. Their client lost all other calls of the connection."""
    connection = opened()
    for first, last in ((3, 1_003), (1_003, 2_003)):
        ids = range(first, last, 2)
        begun = connection.receive(b"".join(frame(1, 5, each, HEADERS_OF_PUT) for each in ids), 1)
        assert len(begun) == 2 * len(ids)
        resets = b"".join(frame(3, 0, each, b"\0\0\0\x08") for each in ids)
        found = connection.receive(resets, 1_500_000_000 if first == 3 else 900_000_000)
        assert (len(found) == len(ids)) is (first == 3)


def test_who_abandons_calls_or_sends_frames_without_use_is_read_more_slowly() -> None:
    connection = opened()
    connection.receive(frame(6, 0, 0, PING_BYTES) * 50, 1)
    assert connection.take_pause() == 0
    connection.receive(frame(6, 0, 0, PING_BYTES) * 200, 1)
    assert 0.05 < connection.take_pause() < 0.11
    connection.receive(frame(3, 0, 1, b"\0\0\0\x08"), 1)
    assert 0.004 < connection.take_pause() < 0.006
    assert connection.take_pause() == 0


@pytest.mark.parametrize("first", [PREFACE[:10], PREFACE, PREFACE + frame(6, 0, 0, PING_BYTES), b"GET /hea"])
async def test_a_client_that_does_not_begin_in_time_loses_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    async with serving(tmp_path / "data") as etcd, await raw(etcd.address) as idle:
        await idle.send_all(PREFACE + SETTINGS)
        monkeypatch.setattr("kvstore.etcd.port.OPENING_SECONDS_MAX", 0.0)
        async with await raw(etcd.address) as stream:
            await stream.send_all(first)
            await read_to_end(stream)
        await idle.send_all(frame(6, 0, 0, PING_BYTES))  # A client that has begun may be idle for any time.
        while PING_BYTES not in await idle.receive_some(65_536):
            pass


async def test_a_stream_whose_window_stays_closed_ends_and_the_connection_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path / "data") as etcd, grpc_client(etcd.address) as lazy:
        lazy.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        await etcd.put(b"a", b"1")
        watch = await lazy.open(f"{WATCH}/Watch")
        await watch.send(make("WatchRequest", create_request=make("WatchCreateRequest", key=b"a")))
        unary = await lazy.open(f"{KV}/Range")
        await unary.send(make("RangeRequest", key=b"a"), is_last=True)
        monkeypatch.setattr("kvstore.etcd.grpc.STILL_SECONDS_MAX", 0.1)
        for call in (watch, unary):
            with pytest.raises(CallFailed, match="the stream has ended"):
                await call.receive()
        lazy.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
        assert (await lazy.call(f"{KV}/Range", make("RangeRequest", key=b"a"))).count == 1
        async with Client([etcd.address]) as client:
            assert (await client.status()).watches == 0


def test_a_stream_that_moves_is_not_still() -> None:
    connection = opened(frame(4, 0, 0, b"\0\4\0\0\0\0"))
    connection.send_data(1, b"message")
    assert connection.still_streams(1, 10) == []
    connection.receive(frame(8, 0, 1, b"\0\0\0\1"), 5)
    assert connection.still_streams(11, 10) == []
    assert connection.still_streams(21, 10) == []
    assert connection.still_streams(22, 10) == [1]
    connection.reset_stream(1)
    assert connection.still_streams(33, 10) == []
    assert connection.waiting_bytes == 0
    assert connection.take_output().endswith(frame(3, 0, 1, b"\0\0\0\2"))
