"""Ranges wait for their turns, and a long range has the same response as a short one."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kvstore.etcd.coroutines import RunningHandler
from kvstore.etcd.range_gate import ALLOWANCE, COST_PER_SECOND, LONG_RANGES_AT_ONCE, PAGES_AT_ONCE, RangeGate, TurnGate
from kvstore.etcd.schema import Message, make
from tests.kvstore.etcd.grpc_client import CallFailed, grpc_client
from tests.kvstore.etcd.member import KV, Etcd
from tests.kvstore.etcd.test_gateway import gateway, text


class Clock:
    """A clock that the test sets."""

    now = 0

    def __call__(self) -> int:
        return self.now


class Visitor:
    """A handler that enters a gate, and stays until `go_on`."""

    def __init__(self, gate: TurnGate, origin: object, log: list[object]) -> None:
        self._may_leave = False
        self._stay = TurnGate(lambda _: self._may_leave)
        self.handler = RunningHandler(self._visit(gate, origin, log), lambda *_: None)
        self.handler.start()

    async def _visit(self, gate: TurnGate, origin: object, log: list[object]) -> None:
        async with gate.place(origin):
            log.append(origin)
            async with self._stay.place(None):
                pass

    def go_on(self) -> None:
        self._may_leave = True
        self._stay.admit()


def test_connections_take_turns_however_many_of_their_ranges_wait() -> None:
    log: list[object] = []
    gate = TurnGate(lambda inside: inside < 1)
    first = Visitor(gate, "first", log)
    crowd = [Visitor(gate, "crowd", log) for _ in range(3)]
    honest = Visitor(gate, "honest", log)
    for visitor in (first, crowd[0], honest, *crowd[1:]):
        visitor.go_on()
    assert log == ["first", "crowd", "honest", "crowd", "crowd"]


def test_a_place_is_free_again_after_a_handler_was_cancelled_inside_or_outside() -> None:
    log: list[object] = []
    gate = TurnGate(lambda inside: inside < 1)
    inside, outside, last = (Visitor(gate, name, log) for name in ("inside", "outside", "last"))
    outside.handler.cancel()
    inside.handler.cancel()
    assert log == ["inside", "last"]
    last.handler.cancel()
    Visitor(gate, "next", log)
    assert log[-1] == "next"


def test_ten_thousand_handlers_that_leave_at_once_follow_one_another_without_recursion() -> None:
    log: list[object] = []
    gate = TurnGate(lambda inside: inside < 1)
    visitors = [Visitor(gate, "one", log) for _ in range(10_000)]
    for visitor in reversed(visitors):
        visitor.go_on()
    assert len(log) == 10_000


def test_pages_are_bounded_at_once_and_come_one_by_one_when_the_allowance_is_used_up() -> None:
    clock, log = Clock(), list[object]()
    gate = RangeGate(clock)
    visitors = [Visitor(gate.pages, number, log) for number in range(PAGES_AT_ONCE + 4)]
    assert len(log) == PAGES_AT_ONCE
    opens_in = [gate.opens_in]  # None: time alone opens nothing.
    gate.charge(ALLOWANCE + COST_PER_SECOND)
    for visitor in visitors:
        visitor.go_on()
    assert len(log) == PAGES_AT_ONCE
    assert [*opens_in, gate.opens_in] == [None, 1.0]
    clock.now += 1_000_000_000
    gate.admit()
    assert len(log) == PAGES_AT_ONCE + 4
    waiting = [Visitor(gate.pages, number, log) for number in range(2)]
    assert len(log) == PAGES_AT_ONCE + 5
    waiting[0].go_on()
    assert len(log) == PAGES_AT_ONCE + 6


def test_long_ranges_are_bounded_at_once() -> None:
    log: list[object] = []
    gate = RangeGate(Clock())
    visitors = [Visitor(gate.long_ranges, number, log) for number in range(LONG_RANGES_AT_ONCE + 1)]
    assert len(log) == LONG_RANGES_AT_ONCE
    visitors[0].go_on()
    assert len(log) == LONG_RANGES_AT_ONCE + 1


def test_those_that_wait_for_a_turn_go_on_one_after_the_other() -> None:
    gate, log = RangeGate(Clock()), list[int]()

    async def step(number: int) -> None:
        await gate.turn()
        log.append(number)

    for number in range(2):
        RunningHandler(step(number), lambda *_: None).start()
    seen = [list(log)]
    while gate.opens_in is not None:
        gate.admit()
        seen.append(list(log))
    assert seen == [[], [0], [0, 1]]


MORE: list[dict[str, Any]] = [{}, {"min_mod_revision": 5}, {"keys_only": True}, {"count_only": True}]
REQUESTS: list[dict[str, Any]] = [
    {"sort_target": target, "sort_order": order, "limit": limit, **more}
    for target, order, limit, more in product((0, 3, 4), (0, 1, 2), (0, 4), MORE)
]


async def test_a_long_range_has_the_response_of_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(tmp_path / "data") as (etcd, http):
        for number in (3, 8, 1, 6, 0, 7, 2, 9, 4, 5):
            await etcd.put(b"k%d" % number, b"%d" % (number % 4))
        short = [await etcd.range(b"k", b"l", **fields) for fields in REQUESTS]
        json_fields = {"key": text(b"k"), "range_end": text(b"l")}
        short_json = await http.post("/v3/kv/range", **json_fields)
        monkeypatch.setattr("kvstore.etcd.services.kv.PAGE_ITEMS_MAX", 3)
        for fields, expected in zip(REQUESTS, short, strict=True):
            assert await etcd.range(b"k", b"l", **fields) == expected, fields
        assert await http.post("/v3/kv/range", **json_fields) == short_json
        monkeypatch.setattr("kvstore.etcd.services.kv.RANGE_BYTES_MAX", 400)
        with pytest.raises(CallFailed, match="more than 400 bytes"):
            await etcd.range(b"k", b"l")


async def test_a_long_range_waits_while_others_are_made_and_a_get_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.etcd.range_gate.LONG_RANGES_AT_ONCE", 0)
    async with gateway(tmp_path / "data") as (etcd, _):
        await fill(etcd)
        call = await etcd.grpc.open(f"{KV}/Range")
        await call.send(range_request(b"k", b"l"), is_last=True)
        assert (await etcd.range(b"k1")).count == 1
        assert call.status is None
        monkeypatch.setattr("kvstore.etcd.range_gate.LONG_RANGES_AT_ONCE", 1)
        assert len((await etcd.range(b"k", b"l")).kvs) == 4
        found = await call.receive()
        assert found is not None
        assert len(found.kvs) == 4


async def test_a_long_response_goes_out_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the client opens all of its windows at once."""
    monkeypatch.setattr("kvstore.etcd.http2.output.STEP_BYTES_MAX", 20_000)
    monkeypatch.setattr("kvstore.etcd.gateway.OUTPUT_STEP_BYTES", 20_000)
    async with gateway(tmp_path / "data") as (etcd, http):
        await fill(etcd)
        await etcd.grpc.call(f"{KV}/Range", range_request(b"k0"))
        etcd.grpc.h2.increment_flow_control_window(1 << 30)
        etcd.grpc.h2.update_settings({4: 1 << 30})
        await etcd.grpc.flush()
        assert len((await etcd.range(b"k", b"l")).kvs) == 4
        status, found = await http.post("/v3/kv/range", key=text(b"k"), range_end=text(b"l"))
        assert (status, len(found["kvs"])) == (200, 4)


async def fill(etcd: Etcd) -> None:
    for number in range(4):
        await etcd.put(b"k%d" % number, bytes(500_000))


def range_request(key: bytes, range_end: bytes = b"") -> Message:
    return make("RangeRequest", key=key, range_end=range_end)


async def test_a_connection_with_an_unread_long_response_waits_for_the_next_one_until_it_reads(tmp_path: Path) -> None:
    async with gateway(tmp_path / "data") as (etcd, _), grpc_client(etcd.address) as lazy:
        for number in range(12):
            await etcd.put(b"k%02d" % number, bytes(500_000))
        lazy.reads = False
        lazy.h2.increment_flow_control_window(1 << 24)  # Of the connection; those of its streams stay small.
        calls = [await lazy.open(f"{KV}/Range") for _ in range(2)]
        for call in calls:
            await call.send(range_request(b"k", b"l"), is_last=True)
        assert len((await etcd.range(b"k", b"l")).kvs) == 12  # Other connections do not wait.
        assert (calls[0]._body != b"", calls[1]._body) == (True, b"")
        lazy.reads = True
        for call in calls:
            lazy.h2.increment_flow_control_window(1 << 24, call.stream_id)
        await lazy.flush()
        for call in calls:
            found = await call.receive()
            assert found is not None
            assert len(found.kvs) == 12
