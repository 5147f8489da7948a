"""gRPC on HTTP/2: methods, errors, metadata and the bounds of a connection."""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path

import h2.exceptions
import pytest
import trio

from kvstore import Client, open_node
from kvstore.etcd.errors import Status
from kvstore.etcd.schema import make
from tests.kvstore.etcd.grpc_client import CallFailed, grpc_client
from tests.kvstore.etcd.member import KV, WATCH, http2, serving

__all__ = ["http2"]

pytestmark = pytest.mark.usefixtures("http2")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etcdserverpb.KV/RangeStream", "unknown method RangeStream for service etcdserverpb.KV"),
        ("/nobody.Here/Call", "unknown service nobody.Here"),
    ],
)
async def test_an_unknown_method_is_not_implemented(tmp_path: Path, path: str, text: str) -> None:
    async with serving(tmp_path / "data") as etcd:
        call = await etcd.grpc.open(path, response="etcdserverpb.PutResponse")
        with pytest.raises(CallFailed) as failed:
            await call.receive()
        assert (failed.value.status, failed.value.text) == (Status.UNIMPLEMENTED, text)


async def test_messages_may_be_compressed_with_gzip_and_with_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        with pytest.raises(CallFailed) as failed:
            await etcd.grpc.call(f"{KV}/Put", make("PutRequest", key=b"a"), headers=[("grpc-encoding", "snappy")])
        assert failed.value.status == Status.UNIMPLEMENTED
        for value, status in ((b"1" * 10_000, None), (bytes(3_000_000), Status.INTERNAL)):
            packed = gzip.compress(make("PutRequest", key=b"a", value=value).SerializeToString())
            call = await etcd.grpc.open(f"{KV}/Put", headers=[("grpc-encoding", "gzip")])
            await etcd.grpc.send_data(call.stream_id, b"\1" + len(packed).to_bytes(4) + packed, is_last=True)
            if status is None:
                assert await call.receive() is not None
            else:
                with pytest.raises(CallFailed) as failed:
                    await call.receive()
                assert failed.value.status == status


async def test_a_malformed_message_ends_only_its_call(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        for data, status in (
            (b"\0\0\0\0\2\xff\xff", Status.INTERNAL),  # Not a message.
            (b"\0\0\0\0\5ab", Status.INTERNAL),  # The end is missing.
            (b"\0\xff\xff\xff\xff", Status.RESOURCE_EXHAUSTED),  # 4 GiB are announced.
            (b"\1\0\0\0\0", Status.UNIMPLEMENTED),  # Compressed, although no encoding was named.
            (b"\0\0\0\0\0\0\0\0\0\0", Status.INTERNAL),  # Two messages.
            (b"", Status.INTERNAL),  # None.
        ):
            call = await etcd.grpc.open(f"{KV}/Put")
            await etcd.grpc.send_data(call.stream_id, data, is_last=True)
            with pytest.raises(CallFailed) as failed:
                await call.receive()
            assert failed.value.status == status, data
        assert (await etcd.put(b"a")).header.revision == 2


async def test_a_message_may_come_byte_by_byte(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        call = await etcd.grpc.open(f"{KV}/Put")
        data = make("PutRequest", key=b"a", value=b"1").SerializeToString()
        for byte in b"\0" + len(data).to_bytes(4) + data:
            await etcd.grpc.send_data(call.stream_id, bytes([byte]), is_last=False)
        await call.end()
        assert await call.receive() is not None


async def test_large_values_go_through_small_windows(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        value = bytes(range(256)) * 3_000  # 768,000 bytes; the window of the test's client has 65,535.
        await etcd.put(b"a", value)
        found = [await etcd.range(b"a") for _ in range(3)]
        assert {each.kvs[0].value for each in found} == {value}


async def test_a_client_that_opens_no_window_keeps_only_its_own_answers_waiting(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd, grpc_client(etcd.address) as lazy:
        await etcd.put(b"a", bytes(900_000))
        lazy.reads = False
        call = await lazy.open(f"{KV}/Range")
        await call.send(make("RangeRequest", key=b"a"), is_last=True)
        assert len((await etcd.range(b"a")).kvs[0].value) == 900_000
        await call.reset()


async def test_calls_of_a_stopping_member_end_with_its_reason(tmp_path: Path) -> None:
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            may_stop, began = trio.Event(), trio.Event()
            texts: list[str] = []

            async def run(*, task_status: trio.TaskStatus[str]) -> None:
                async with serving(tmp_path / "data") as etcd:
                    task_status.started(etcd.address)
                    await may_stop.wait()

            address = await nursery.start(run)

            async def watch() -> None:
                async with grpc_client(address) as client:
                    stream = await client.open(f"{WATCH}/Watch")
                    await stream.send(make("WatchRequest", create_request=make("WatchCreateRequest", key=b"a")))
                    await stream.receive()
                    began.set()
                    with pytest.raises(CallFailed) as failed:
                        await stream.receive()
                    texts.append(failed.value.text)

            nursery.start_soon(watch)
            await began.wait()
            may_stop.set()
    assert texts == ["etcdserver: server stopped"]


async def read_to_end(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    while more := await stream.receive_some(65_536):
        data += more
    return data


async def raw(address: str) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream_id.to_bytes(4) + payload


SETTINGS = frame(4, 0, 0, b"")
HEADERS_OF_PUT = bytes.fromhex("8386") + b"\x44\x14/etcdserverpb.KV/Put\x41\x01a\x5f\x10application/grpc"


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(b"PRI nonsense that is no preface at all", id="no preface"),
        pytest.param(PREFACE + b"\xff" * 200, id="garbage after the preface"),
        pytest.param(PREFACE + SETTINGS + frame(0, 0, 1, b"data"), id="data on a stream that was never opened"),
        pytest.param(PREFACE + SETTINGS + frame(8, 0, 0, b"\0\0\0\0"), id="a window update of nothing"),
        pytest.param(PREFACE + SETTINGS + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 2, id="a window that overflows"),
        pytest.param(PREFACE + SETTINGS + frame(6, 0, 0, b"12345678") * 1_200, id="a flood of pings"),
        pytest.param(PREFACE + SETTINGS * 1_200, id="a flood of settings"),
        pytest.param(PREFACE + SETTINGS + frame(1, 4, 2, HEADERS_OF_PUT), id="an even stream"),
        pytest.param(
            PREFACE + SETTINGS + frame(1, 4, 3, HEADERS_OF_PUT) + frame(1, 4, 1, HEADERS_OF_PUT), id="a stream id falls"
        ),
        pytest.param(
            PREFACE + SETTINGS + frame(1, 0, 1, HEADERS_OF_PUT) + frame(9, 0, 1, b"\0\1a\1b") * 5_000,
            id="headers without end",
        ),
        pytest.param(
            PREFACE
            + SETTINGS
            + frame(1, 4, 1, HEADERS_OF_PUT + b"\x40\x01n\x7f\x81\x1f" + b"v" * 4_096 + b"\xbe" * 9_000),
            id="headers that are small when packed",
        ),
        pytest.param(
            PREFACE
            + SETTINGS
            + b"".join(
                frame(1, 4, stream_id, HEADERS_OF_PUT) + frame(3, 0, stream_id, b"\0\0\0\x08")
                for stream_id in range(1, 1_001, 2)
            ),
            id="a flood of calls that are reset",
        ),
        pytest.param(
            PREFACE + SETTINGS + frame(1, 4, 1, HEADERS_OF_PUT) + frame(0, 0, 1, b"") * 1_200,
            id="a flood of empty data",
        ),
        pytest.param(PREFACE + SETTINGS + b"\xff\xff\xff\0\0\0\0\0\1", id="a frame of 16 MiB"),
    ],
)
async def test_an_attacker_loses_the_connection_and_nobody_else_notices(tmp_path: Path, attack: bytes) -> None:
    async with serving(tmp_path / "data") as etcd:
        attacker = await raw(etcd.address)
        async with attacker:
            with suppress(trio.BrokenResourceError):
                await attacker.send_all(attack)
                await read_to_end(attacker)  # Until the member closes the connection.
        assert (await etcd.put(b"a")).header.revision == 2


async def test_a_connection_has_a_bounded_number_of_calls(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await etcd.put(b"a")
        assert etcd.grpc.h2.remote_settings.max_concurrent_streams == 1_000
        for _ in range(1_000):
            await etcd.grpc.open(f"{KV}/Put")
        with pytest.raises(h2.exceptions.TooManyStreamsError):
            await etcd.grpc.open(f"{KV}/Put")


async def test_the_stores_own_clients_are_served_at_the_same_port(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd, Client([etcd.address]) as client:
        await etcd.put(b"a", b"1")
        assert (await client.get("a")).value == b"1"


async def test_a_member_without_the_port_tells_once_that_a_client_speaks_http(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.fail_after(30):
        async with open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store:
            for data in (PREFACE + SETTINGS, b"GET /version HTTP/1.1\r\n\r\n"):
                async with await raw(store.client_address) as stream:
                    await stream.send_all(data)
                    with suppress(trio.BrokenResourceError):
                        await read_to_end(stream)
    told = [each.getMessage() for each in caplog.records if "speaks HTTP" in each.getMessage()]
    assert len(told) == 1
    assert "without --etcd" in told[0]
