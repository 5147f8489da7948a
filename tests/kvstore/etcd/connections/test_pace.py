"""Requests of watches beyond the pace of their connection wait, and nothing else does."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path

import pytest

from kvstore.etcd.call import STREAM_REQUESTS_MAX
from kvstore.etcd.gateway import JSON_MESSAGES_MAX, GatewayCall, GatewayConnection
from kvstore.etcd.grpc import GrpcCall
from kvstore.etcd.pace import (
    JSON_REQUESTS_AT_ONCE,
    JSON_REQUESTS_PER_SECOND,
    WATCH_REQUESTS_AT_ONCE,
    WATCH_REQUESTS_PER_SECOND,
)
from kvstore.etcd.schema import make
from tests.kvstore.etcd.connections.test_calls import PUT, opened_with_stream
from tests.kvstore.etcd.member import KV, WATCH, http2, serving
from tests.process.etcd.attacks import DATA, HEADERS, RESET, call, frame, headers, post

__all__ = ["http2"]

pytestmark = pytest.mark.usefixtures("http2")

MS_NS = 1_000_000
SECOND_NS = 1_000 * MS_NS
START = 100 * SECOND_NS
STEP_NS = 10 * MS_NS
PER_STEP = WATCH_REQUESTS_PER_SECOND // 100

CREATE = make("WatchRequest", create_request=make("WatchCreateRequest", key=b"a"))
WHOLE = b"\0" + len(CREATE.SerializeToString()).to_bytes(4) + CREATE.SerializeToString()
MANY = 500


def packed(stream_id: int, count: int, flags: int = 0) -> bytes:
    """Many requests in one frame."""
    return frame(DATA, flags, stream_id, WHOLE * count)


def take_all(watch: GrpcCall | GatewayCall) -> list[object]:
    return [watch.inbox.take() for _ in range(len(watch.inbox))]


def test_many_requests_in_one_frame_are_taken_up_at_a_pace() -> None:
    connection, (watch,) = opened_with_stream(f"{WATCH}/Watch")
    pauses: list[None] = []
    connection.note_pause = lambda: pauses.append(None)
    connection.receive(packed(1, MANY - 1), START)
    assert (len(watch.inbox), connection.has_paused, len(pauses)) == (WATCH_REQUESTS_AT_ONCE, True, 1)
    connection.receive(packed(1, 1, flags=1), START + STEP_NS)
    assert len(watch.inbox) == WATCH_REQUESTS_AT_ONCE  # The requests that come meanwhile wait behind the others.
    connection.resume(START + STEP_NS)
    assert len(watch.inbox) == WATCH_REQUESTS_AT_ONCE + PER_STEP
    now, steps = START + STEP_NS, 1
    while connection.has_paused:
        now += STEP_NS
        steps += 1
        connection.resume(now)
    assert take_all(watch) == [CREATE] * MANY + [None]
    assert steps == (MANY - WATCH_REQUESTS_AT_ONCE) // PER_STEP
    assert not watch.is_ended


def test_streams_of_a_connection_share_its_pace_in_turns() -> None:
    connection, begun = opened_with_stream(f"{WATCH}/Watch")
    connection.receive(frame(HEADERS, 4, 3, headers(f"{WATCH}/Watch")), START)
    connection.receive(packed(1, MANY) + packed(3, MANY), START)
    for step in range(1, 11):
        connection.resume(START + step * STEP_NS)
    first, second = (len(each.inbox) for each in begun)
    assert (first, second) == (WATCH_REQUESTS_AT_ONCE + 5 * PER_STEP, 5 * PER_STEP)


def test_other_calls_of_the_connection_do_not_wait() -> None:
    connection, begun = opened_with_stream(f"{WATCH}/Watch")
    connection.receive(packed(1, MANY), START)
    connection.receive(call(3, f"{KV}/Put", PUT), START)
    assert [each.method.name for each in begun] == ["Watch", "Put"]
    assert connection.take_pause() == 0
    assert connection.within_request_since is None  # The client has sent whole messages.


def test_a_stream_that_has_ended_waits_no_more() -> None:
    connection, _ = opened_with_stream(f"{WATCH}/Watch")
    connection.receive(packed(1, MANY), START)
    connection.receive(frame(RESET, 0, 1, b"\0\0\0\x08"), START)
    assert not connection.has_paused
    connection.resume(START + SECOND_NS)
    assert connection._body_bytes == 0


def test_a_connection_with_many_bytes_of_waiting_requests_is_read_as_fast_as_they_are_taken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without this, the bound on unfinished messages would end the stream."""
    bytes_max, frame_bytes = 64 * 1024, 16 * 1024
    monkeypatch.setattr("kvstore.etcd.grpc.PACED_BYTES_MAX", bytes_max)
    connection, (watch,) = opened_with_stream(f"{WATCH}/Watch")
    now = START
    for _ in range(20):
        connection.receive(packed(1, frame_bytes // len(WHOLE)), now)
        read_again = now + connection.take_pause() * SECOND_NS
        while now < read_again:
            now += STEP_NS
            connection.resume(now)
            take_all(watch)
        assert not watch.is_ended
        assert connection._body_bytes < bytes_max + frame_bytes
    assert now - START > 10 * frame_bytes / len(WHOLE) / WATCH_REQUESTS_PER_SECOND * SECOND_NS


def test_requests_in_json_are_taken_up_at_a_pace() -> None:
    asked: list[GatewayCall] = []
    gateway = GatewayConnection(asked.append, lambda _: (HTTPStatus.OK, "", b""), lambda: True, lambda _: False)
    gateway.receive(
        post("/v3/watch", json.dumps({"create_request": {"key": "YQ=="}}).encode() * JSON_MESSAGES_MAX), START
    )
    (watch,) = asked
    assert len(watch.inbox) == JSON_REQUESTS_AT_ONCE
    for step in range(1, JSON_MESSAGES_MAX * SECOND_NS // JSON_REQUESTS_PER_SECOND // STEP_NS + 1):
        gateway.resume(START + step * STEP_NS)
    assert take_all(watch) == [CREATE] * JSON_MESSAGES_MAX + [None]
    assert not gateway.has_paused


async def test_all_watches_of_a_client_begin_although_they_are_more_than_may_wait(tmp_path: Path) -> None:
    count = STREAM_REQUESTS_MAX + 200
    async with serving(tmp_path / "data") as etcd:
        stream = await etcd.grpc.open(f"{WATCH}/Watch")
        await etcd.grpc.send_data(stream.stream_id, WHOLE * count, is_last=False)
        for number in range(count):
            response = await stream.receive()
            assert response is not None
            assert (response.watch_id, response.created) == (number, True)
        cancel = make("WatchRequest", cancel_request=make("WatchCancelRequest", watch_id=count - 1))
        await stream.send(cancel)
        last = await stream.receive()
        assert last is not None
        assert last.canceled
