"""The fast path of puts and ranges of one key: it takes only what it understands, and answers as the general path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore.etcd import handlers
from kvstore.etcd.backend import REQUEST_NS_MAX
from kvstore.etcd.call import CallHead
from kvstore.etcd.errors import DEADLINE, STOPPED, EtcdError, Status
from kvstore.etcd.fast_calls import (
    ARRIVAL_NS_MAX,
    BEGINS_MAX,
    CALLS_MAX,
    KEY_BYTES_MAX,
    RESPONSES_BYTES_MAX,
    REST_NS,
    SHORT_BYTES_MAX,
    CallBounds,
    FastCalls,
    key_in,
    key_value,
    put_in,
)
from kvstore.etcd.http2.connection import DataArrived, Headers, HttpEvent, RequestBegan, RequestEnded, StreamReset
from kvstore.etcd.member_facts import MemberFacts
from kvstore.etcd.schema import METHODS, Message, make
from kvstore.etcd.services import kv
from kvstore.etcd.wire_format import varint
from kvstore.limits import AdmissionLimits, ServiceLimits
from kvstore.protocol.commands import Get, Put, encode_command
from kvstore.protocol.results import KeyRecord, RangeResult
from kvstore.server.direct_requests import DirectRequests
from raft import MIB, RaftConfig
from tests.kvstore.etcd.grpc_client import CallFailed, GrpcClient
from tests.kvstore.etcd.member import KV, serving
from tests.kvstore.support.in_memory_cluster import Cluster, Sizes

LIMITS = AdmissionLimits()
PUT, RANGE, AUTH = f"{KV}/Put", f"{KV}/Range", "/etcdserverpb.Auth"
SECOND = 1_000_000_000
VALUES_MAX = RESPONSES_BYTES_MAX // MIB
"""The greatest number of values of 1 MiB in one step."""

keys = st.binary(max_size=KEY_BYTES_MAX + 3)
values = st.one_of(st.binary(max_size=300), st.integers(0, 20_000).map(bytes))
numbers = st.one_of(st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 2**62]), st.integers(0, 2**63 - 1))


def body_of(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return b"\0" + len(data).to_bytes(4) + data


# Requests.


@example(bytes(KEY_BYTES_MAX), b"1", {})
@example(bytes(KEY_BYTES_MAX + 1), b"1", {})
@example(b"k", b"", {})
@given(
    keys,
    values,
    st.fixed_dictionaries(
        {},
        optional={
            "lease": numbers,
            "prev_kv": st.just(True),
            "ignore_value": st.just(True),
            "ignore_lease": st.just(True),
        },
    ),
)
def test_a_put_of_a_key_and_a_value_is_read_as_the_general_path_reads_it(
    key: bytes, value: bytes, fields: dict[str, Any]
) -> None:
    asked = make("PutRequest", key=key, value=value, **fields)

    found = put_in(body_of(asked), LIMITS)

    is_usual = 0 < len(key) <= KEY_BYTES_MAX and value and not any(fields.values())
    assert found == ((key, encode_command(kv.put_of(asked))) if is_usual else None)


@example(bytes(KEY_BYTES_MAX), {})
@example(bytes(KEY_BYTES_MAX + 1), {})
@given(
    keys,
    st.fixed_dictionaries(
        {},
        optional={
            "range_end": st.binary(max_size=2),
            "limit": numbers,
            "revision": numbers,
            "serializable": st.booleans(),
            "keys_only": st.booleans(),
            "count_only": st.booleans(),
            "sort_order": st.integers(0, 2),
            "min_mod_revision": numbers,
        },
    ),
)
def test_a_range_of_one_key_is_read_as_the_general_path_reads_it(key: bytes, fields: dict[str, Any]) -> None:
    asked = make("RangeRequest", key=key, **fields)

    found = key_in(body_of(asked), LIMITS)

    is_usual = 0 < len(key) <= KEY_BYTES_MAX and not any(fields.values())
    assert found == (key if is_usual else None)


@given(st.binary(max_size=40), st.integers(0, 2**32))
def test_no_other_bytes_are_taken_for_a_call(data: bytes, seed: int) -> None:
    """Damaged messages, and messages of other forms: what is taken, protobuf reads in the same way."""
    random = Random(seed)
    damaged = bytearray(body_of(make("PutRequest", key=b"key", value=b"value")))
    damaged[random.randrange(len(damaged))] = random.randrange(256)
    for body in (data, bytes(damaged), b"\0" + len(data).to_bytes(4) + data):
        found = put_in(body, LIMITS)
        if found is not None:
            asked = make("PutRequest")
            asked.ParseFromString(body[5:])
            assert found == (asked.key, encode_command(kv.put_of(asked)))
        key = key_in(body, LIMITS)
        if key is not None:
            asked = make("RangeRequest")
            asked.ParseFromString(body[5:])
            assert asked == make("RangeRequest", key=key)


def test_a_call_above_the_bounds_of_the_store_is_left_to_the_general_path() -> None:
    limits = AdmissionLimits(key_bytes_max=3, value_bytes_max=5)

    assert put_in(body_of(make("PutRequest", key=b"abc", value=b"12345")), limits) is not None
    assert put_in(body_of(make("PutRequest", key=b"abcd", value=b"12345")), limits) is None
    assert put_in(body_of(make("PutRequest", key=b"abc", value=b"123456")), limits) is None
    assert key_in(body_of(make("RangeRequest", key=b"abc")), limits) == b"abc"
    assert key_in(body_of(make("RangeRequest", key=b"abcd")), limits) is None


# Responses.


@given(numbers)
def test_a_number_is_written_as_protobuf_writes_it(number: int) -> None:
    expected: bytes = make("ResponseHeader", revision=number).SerializeToString()
    assert b"\x18" + varint(number) == (expected or b"\x18\0")


@given(
    st.binary(min_size=1, max_size=KEY_BYTES_MAX),
    values,
    st.tuples(*[st.integers(1, 2**63 - 1)] * 3),
    st.one_of(st.just(0), numbers),
)
def test_a_record_is_written_as_protobuf_writes_it(
    key: bytes, value: bytes, revisions: tuple[int, int, int], lease_id: int
) -> None:
    item = KeyRecord(key, value, *revisions, lease_id)
    assert key_value(key, (value, *revisions, lease_id)) == kv.key_value(key, item).SerializeToString()


# Calls, on members without I/O.


def head_of(path: str) -> Headers:
    return ((b":path", path.encode()),)


def events_of(stream_id: int, message: Message) -> list[HttpEvent]:
    """A whole call."""
    path = PUT if message.DESCRIPTOR.name == "PutRequest" else RANGE
    return [
        RequestBegan(stream_id, head_of(path)),
        DataArrived(stream_id, body_of(message)),
        RequestEnded(stream_id),
    ]


class Desk:
    """The fast path of one connection to a member of a cluster, and everything that comes out of it."""

    def __init__(
        self, cluster: Cluster, node_id: str, connection_id: int = 7, bounds: CallBounds | None = None
    ) -> None:
        """`bounds`: those of the other connections to the same member."""
        host = cluster.hosts[node_id]
        self.cluster, self.host = cluster, host
        self.answers: dict[int, bytes] = {}
        self.errors: dict[int, EtcdError] = {}
        self.begun: dict[int, bytes] = {}
        self.is_whole: dict[int, bool] = {}
        self.waits = 0  # The number of times that calls began to wait.
        self.bounds = bounds or CallBounds()
        self.facts = MemberFacts(host.node, host.machine, "own", has_tls=False)
        self.calls = FastCalls(
            DirectRequests(host.service, connection_id, lambda: None),
            self.facts,
            self.bounds,
            answer=lambda stream_id, _, body: self.answers.update({stream_id: body}),
            fail=lambda stream_id, error: self.errors.update({stream_id: error}),
            begin=self.begin,
            note_waiting=self.note_waiting,
        )

    def begin(self, stream_id: int, _: CallHead, data: bytes, __: int, is_whole: bool) -> None:
        self.begun[stream_id] = data
        self.is_whole[stream_id] = is_whole

    def note_waiting(self) -> None:
        self.waits += 1

    def take(self, stream_id: int, message: Message, timeout_ns: int | None = None, token: str = "") -> list[HttpEvent]:
        """Let a whole call arrive. Returns what is left for the general path."""
        return self.take_all({stream_id: message}, timeout_ns, token)

    def take_all(self, calls: Mapping[int, Message], timeout_ns: int | None = None, token: str = "") -> list[HttpEvent]:
        """Let whole calls arrive together. Returns what is left for the general path."""
        events = [event for stream_id, message in calls.items() for event in events_of(stream_id, message)]
        return self.take_events(events, timeout_ns, token)

    def take_events(self, events: list[HttpEvent], timeout_ns: int | None = None, token: str = "") -> list[HttpEvent]:
        """Let events arrive. Returns what is left for the general path."""
        heads = {
            head_of(path): CallHead(METHODS[path], token, timeout_ns, needs_leader=False, is_packed=False)
            for path in (PUT, RANGE)
        }
        return self.calls.take(events, heads.get, self.cluster.now)

    def header(self, revision: int) -> Message:
        facts = self.facts
        return make(
            "ResponseHeader",
            cluster_id=facts.cluster_id,
            member_id=facts.member_id,
            revision=revision,
            raft_term=facts.term,
        )


PUT_OF_1 = make("PutRequest", key=b"k", value=b"1")
RANGE_OF_K = make("RangeRequest", key=b"k")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, 3)


@pytest.mark.fast_path
def test_puts_and_ranges_are_answered_as_the_general_path_answers_them(cluster: Cluster) -> None:
    desk = Desk(cluster, cluster.leader())

    puts = {n: make("PutRequest", key=b"%d" % (n % 6), value=b"v%d" % n) for n in range(1, 21, 2)}
    assert not desk.take_all(puts)
    cluster.settle()
    first = desk.host.machine.revision - 9
    assert desk.answers == {
        stream_id: body_of(make("PutResponse", header=desk.header(first + place)))
        for place, stream_id in enumerate(puts)
    }

    desk.answers.clear()
    wanted = {21: b"1", 23: b"3", 25: b"absent"}
    assert not desk.take_all({stream_id: make("RangeRequest", key=key) for stream_id, key in wanted.items()})
    cluster.settle()
    for stream_id, key in wanted.items():
        record = desk.host.machine.get(key).record
        items = () if record is None else (kv._key_record(key, record),)
        found = RangeResult(desk.host.machine.revision, items, more=False, count=len(items))
        response = kv.range_response(make("RangeRequest", key=key), found)
        response.header.CopyFrom(desk.header(found.revision))
        assert desk.answers[stream_id] == body_of(response)
    assert not desk.calls.calls
    desk.host.service.check()


def test_a_follower_leaves_all_calls_to_the_general_path(cluster: Cluster) -> None:
    leader_id = cluster.leader()
    desk = Desk(cluster, next(node_id for node_id in cluster.hosts if node_id != leader_id))

    assert desk.take(1, PUT_OF_1)
    assert desk.take(3, RANGE_OF_K)
    assert not desk.calls.calls


def test_a_call_with_a_token_is_left_to_the_general_path(cluster: Cluster) -> None:
    assert Desk(cluster, cluster.leader()).take(1, PUT_OF_1, token="ann.token")


@pytest.mark.fast_path
def test_a_put_whose_leader_is_deposed_ends_with_an_unknown_outcome(cluster: Cluster) -> None:
    """The put may be in the log of the next leader, so nothing sends it again. A range is made again."""
    leader_id = cluster.leader()
    desk = Desk(cluster, leader_id)
    cluster.cut.add(leader_id)
    assert not desk.take(1, PUT_OF_1)
    assert not desk.take(3, RANGE_OF_K)
    cluster.wait(10)
    cluster.cut.clear()
    cluster.wait(10)

    assert not desk.answers
    assert desk.begun == {3: body_of(RANGE_OF_K)}
    assert desk.errors[1].status == Status.UNAVAILABLE
    assert not desk.calls.calls
    desk.host.service.check()


@pytest.mark.fast_path
def test_a_put_that_was_certainly_refused_is_made_again_by_the_general_path(tmp_path: Path) -> None:
    """The general path tells the error, or finds the new leader."""
    bounds = RaftConfig(snapshot_bytes_per_second=1 << 40, reads_pending_max=2, pending_bytes_max=20)
    cluster = Cluster(tmp_path, 3, sizes=Sizes(raft=bounds))
    desk = Desk(cluster, cluster.leader())

    assert not desk.take_all(dict.fromkeys((1, 3, 5), PUT_OF_1) | dict.fromkeys((11, 13, 15), RANGE_OF_K))

    assert desk.begun == {5: body_of(PUT_OF_1), 15: body_of(RANGE_OF_K)}
    cluster.settle()
    assert desk.answers.keys() == {1, 3, 11, 13}
    assert not desk.errors


@pytest.mark.fast_path
def test_a_call_ends_at_its_deadline_and_its_late_response_is_dropped(cluster: Cluster) -> None:
    desk = Desk(cluster, cluster.leader())
    assert not desk.take(1, PUT_OF_1, timeout_ns=SECOND)
    assert not desk.take(3, PUT_OF_1)
    assert not desk.take(5, RANGE_OF_K)
    desk.calls.check_deadlines(cluster.now + SECOND - 1)
    assert not desk.errors

    desk.calls.check_deadlines(cluster.now + SECOND)
    assert desk.errors == {1: DEADLINE}
    desk.calls.check_deadlines(cluster.now + REQUEST_NS_MAX)
    assert [desk.errors[stream_id].status for stream_id in (3, 5)] == [Status.UNAVAILABLE] * 2
    assert "previous leader failure" in desk.errors[3].text
    assert "previous leader failure" not in desk.errors[5].text
    cluster.settle()

    assert not desk.answers
    assert desk.host.machine.get(b"k").record is not None


@pytest.mark.fast_path
def test_an_abandoned_call_is_forgotten(cluster: Cluster) -> None:
    desk = Desk(cluster, cluster.leader())
    assert not desk.take(1, PUT_OF_1)
    desk.calls.forget(1)
    desk.calls.forget(99)
    cluster.settle()

    assert not desk.answers
    assert not desk.errors


@pytest.mark.fast_path
def test_bounds_end_when_the_member_stops(cluster: Cluster) -> None:
    desk = Desk(cluster, cluster.leader())
    assert not desk.take(1, PUT_OF_1)
    assert not desk.take(3, RANGE_OF_K)
    assert not desk.take_events(events_of(5, PUT_OF_1)[:1])
    desk.calls.end_all(STOPPED)

    assert desk.errors == {1: STOPPED, 3: STOPPED, 5: STOPPED}
    assert not desk.calls.has_calls


@pytest.mark.fast_path
def test_a_connection_has_no_more_calls_than_any_other(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3, ServiceLimits(in_flight_max=2))
    desk = Desk(cluster, cluster.leader())

    assert not desk.take(1, PUT_OF_1)
    assert not desk.take(3, RANGE_OF_K)
    assert desk.take(5, PUT_OF_1)
    cluster.settle()
    assert not desk.take(7, PUT_OF_1)


@pytest.mark.fast_path
def test_the_parts_of_calls_may_come_mixed_and_one_by_one(cluster: Cluster) -> None:
    """Clients with many calls send the headers of several before the first message."""
    desk = Desk(cluster, cluster.leader())
    first, second = events_of(1, PUT_OF_1), events_of(3, RANGE_OF_K)

    for events in ([first[0], second[0]], [second[1], first[1], second[2]], [first[2]]):
        assert not desk.take_events(events)
        assert desk.calls.has_calls
    cluster.settle()

    assert desk.answers.keys() == {1, 3}
    assert not desk.calls.has_calls


@pytest.mark.fast_path
def test_a_call_that_comes_otherwise_than_usual_is_left_to_the_general_path_as_it_came(cluster: Cluster) -> None:
    desk = Desk(cluster, cluster.leader())
    began, data, ended = events_of(1, PUT_OF_1)
    assert isinstance(data, DataArrived)
    parts: list[HttpEvent] = [DataArrived(1, data.data[:3]), DataArrived(1, data.data[3:])]
    odd = [
        [began, *parts, ended],  # In two frames.
        [began, ended],  # Without a message.
        [began, DataArrived(1, data.data + b"x"), ended],
    ]
    for events in odd:
        assert desk.take_events(events) == events
        assert [left for event in events for left in desk.take_events([event])] == events
    assert not desk.take_events([began, data, StreamReset(1)])
    assert not desk.calls.has_calls


@pytest.mark.fast_path
def test_a_call_whose_message_does_not_come_is_left_to_the_general_path(cluster: Cluster) -> None:
    desk = Desk(cluster, cluster.leader())
    (first, _, ended), (second, data, _) = events_of(1, PUT_OF_1), events_of(3, PUT_OF_1)
    assert not desk.take_events([first, second, data])
    desk.calls.check_deadlines(cluster.now + ARRIVAL_NS_MAX - 1)
    assert not desk.begun

    desk.calls.check_deadlines(cluster.now + ARRIVAL_NS_MAX)

    assert desk.begun == {1: b"", 3: body_of(PUT_OF_1)}
    assert desk.is_whole == {1: False, 3: False}
    assert desk.take_events([ended]) == [ended]


@pytest.mark.fast_path
def test_a_member_that_loses_the_leadership_leaves_begun_calls_to_the_general_path(cluster: Cluster) -> None:
    leader_id = cluster.leader()
    desk = Desk(cluster, leader_id)
    events = events_of(1, PUT_OF_1)
    assert not desk.take_events(events[:2])
    cluster.cut.add(leader_id)
    cluster.wait(5)

    assert desk.take_events(events[2:]) == events


@pytest.mark.fast_path
def test_all_connections_together_have_a_bounded_number_of_calls(cluster: Cluster) -> None:
    desk = Desk(cluster, cluster.leader())
    desk.bounds.count = CALLS_MAX - 1  # Of other connections.

    assert not desk.take(1, PUT_OF_1)
    assert desk.take(3, PUT_OF_1)
    desk.calls.forget(1)
    assert not desk.take(5, PUT_OF_1)
    desk.calls.forget_all()
    assert not desk.take(7, PUT_OF_1)
    cluster.settle()
    assert not desk.take(9, RANGE_OF_K)
    desk.calls.end_all(STOPPED)
    assert desk.bounds.count == CALLS_MAX - 1


@pytest.mark.fast_path
def test_long_values_are_left_to_the_general_path(cluster: Cluster) -> None:
    """The general path sends them in steps. So does it with the next calls of such a connection."""
    cluster.client().do(Put(b"k", bytes(MIB)))
    desk = Desk(cluster, cluster.leader())
    streams = range(1, VALUES_MAX + 3)

    assert not desk.take_all(dict.fromkeys(streams, RANGE_OF_K))
    cluster.settle()

    assert list(desk.answers) == list(streams[:VALUES_MAX])
    assert list(desk.begun) == list(streams[VALUES_MAX:])
    assert desk.take(101, RANGE_OF_K)
    cluster.wait(REST_NS / SECOND)
    assert not desk.take(103, RANGE_OF_K)


@pytest.mark.fast_path
def test_long_values_of_all_connections_are_bounded_together(cluster: Cluster) -> None:
    """After a pause of the cluster, ranges of many connections are due at once. A connection that reads only short
    values notices nothing of the others."""
    client = cluster.client()
    client.do(Put(b"k", bytes(MIB)))
    client.do(Put(b"short", bytes(SHORT_BYTES_MAX)))
    bounds = CallBounds()
    first, second, third = (Desk(cluster, cluster.leader(), number, bounds) for number in (7, 8, 9))

    assert not first.take_all(dict.fromkeys(range(1, VALUES_MAX + 1), RANGE_OF_K))
    assert not second.take(1, RANGE_OF_K)
    assert not third.take(1, make("RangeRequest", key=b"short"))
    cluster.settle()

    assert [len(desk.answers) for desk in (first, second, third)] == [VALUES_MAX, 0, 1]
    assert second.begun.keys() == {1}
    assert second.take(3, RANGE_OF_K)
    assert not third.take(3, RANGE_OF_K)


@pytest.mark.fast_path
def test_calls_that_are_made_again_begin_in_steps(cluster: Cluster) -> None:
    """A leader that is deposed may have thousands of ranges. To begin them all at once would stop it for a second."""
    leader_id = cluster.leader()
    desk = Desk(cluster, leader_id)
    cluster.cut.add(leader_id)
    streams = range(1, 2 * BEGINS_MAX + 11)
    assert not desk.take_all(dict.fromkeys(streams, RANGE_OF_K))
    assert not desk.take(999, RANGE_OF_K, timeout_ns=SECOND)
    cluster.wait(5)
    assert list(desk.begun) == list(streams[:BEGINS_MAX])
    assert desk.waits == 1

    desk.calls.forget(streams[BEGINS_MAX])  # The client has abandoned it.
    desk.calls.check_deadlines(cluster.now)
    assert desk.errors.keys() >= {999}
    desk.calls.begin_waiting(cluster.now)
    desk.calls.begin_waiting(cluster.now)  # No time has passed.
    assert len(desk.begun) == 2 * BEGINS_MAX
    desk.calls.begin_waiting(cluster.now + 1)

    assert list(desk.begun) == [each for each in streams if each != streams[BEGINS_MAX]]
    assert not desk.calls.has_waiting
    assert not desk.calls.calls
    assert desk.bounds.count == 0


@pytest.mark.fast_path
def test_an_error_while_responses_are_written_ends_no_member(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(cluster, cluster.leader())

    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(desk.calls, "_answer", fails)
    assert not desk.take(1, PUT_OF_1)
    cluster.settle()

    assert "unexpected error" in caplog.text
    assert cluster.client().do(Get(b"k")).record is not None  # type: ignore[union-attr]


# On a real member.


async def responses(client: GrpcClient, calls: list[tuple[str, Message]]) -> list[Message]:
    found = [await call.receive() for call in await client.begin_whole(calls)]
    return [each for each in found if each is not None]


@pytest.mark.fast_path
async def test_whole_calls_of_a_client_take_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path / "data") as etcd:
        # The heads of these calls are new, so they take the general path.
        await responses(etcd.grpc, [(PUT, make("PutRequest", key=b"k", value=b"0")), (RANGE, RANGE_OF_K)])
        monkeypatch.setitem(handlers.UNARY, PUT, None)
        monkeypatch.setitem(handlers.UNARY, RANGE, None)

        range_of_nothing = make("RangeRequest", key=b"absent")
        found = await responses(etcd.grpc, [(PUT, PUT_OF_1), (PUT, PUT_OF_1), (RANGE, range_of_nothing)])
        (response,) = await responses(etcd.grpc, [(RANGE, RANGE_OF_K)])

    assert [each.header.revision for each in found[:2]] == [3, 4]
    assert not found[2].kvs
    (item,) = response.kvs
    assert (item.key, item.value, item.create_revision, item.mod_revision, item.version) == (b"k", b"1", 2, 4, 3)
    assert response.count == 1


@pytest.mark.fast_path
async def test_both_paths_find_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = bytes(range(KEY_BYTES_MAX))
    async with serving(tmp_path / "data") as etcd:
        await etcd.grant(60, 1 << 62)
        await etcd.put(b"empty")
        await etcd.put(b"leased", b"1", lease=1 << 62)
        await etcd.put(b"\xff\0", bytes(range(256)))
        await etcd.put(longest, b"2")
        await etcd.put(longest + b"\xff", b"3")
        found_keys = (b"empty", b"leased", b"\xff\0", longest, longest + b"\xff")
        asked = [(RANGE, make("RangeRequest", key=key)) for key in (*found_keys, b"absent")]
        await responses(etcd.grpc, asked[:1])

        by_fast_path = await responses(etcd.grpc, asked)
        monkeypatch.setattr(FastCalls, "take", lambda _, events, *__: events)
        by_general_path = await responses(etcd.grpc, asked)

    assert by_fast_path == by_general_path
    assert [item.key for each in by_fast_path for item in each.kvs] == list(found_keys)


@pytest.mark.fast_path
async def test_calls_that_differ_in_their_timeouts_take_the_fast_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients send the time that is left until the deadline of their caller."""
    async with serving(tmp_path / "data") as etcd:
        (call,) = await etcd.grpc.begin_whole([(RANGE, RANGE_OF_K)], [("grpc-timeout", "20000001u")])
        assert await call.receive() is not None
        monkeypatch.setitem(handlers.UNARY, RANGE, None)
        for number in range(100):
            (call,) = await etcd.grpc.begin_whole([(RANGE, RANGE_OF_K)], [("grpc-timeout", f"{20_000_000 - number}u")])
            assert await call.receive() is not None
        (call,) = await etcd.grpc.begin_whole([(RANGE, RANGE_OF_K)], [("grpc-timeout", "soon")])
        with pytest.raises(CallFailed, match="invalid grpc-timeout: soon"):
            await call.receive()


async def test_calls_without_a_token_are_refused_while_authentication_is_on(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as etcd:
        await responses(etcd.grpc, [(PUT, PUT_OF_1), (RANGE, RANGE_OF_K)])
        await etcd.grpc.call(f"{AUTH}/UserAdd", make("AuthUserAddRequest", name="root", password="secret"))
        await etcd.grpc.call(f"{AUTH}/RoleAdd", make("AuthRoleAddRequest", name="root"))
        await etcd.grpc.call(f"{AUTH}/UserGrantRole", make("AuthUserGrantRoleRequest", user="root", role="root"))
        await etcd.grpc.call(f"{AUTH}/AuthEnable", make("AuthEnableRequest"))
        for call in await etcd.grpc.begin_whole([(PUT, PUT_OF_1), (RANGE, RANGE_OF_K)]):
            with pytest.raises(CallFailed) as failed:
                await call.receive()
            assert failed.value.text == "etcdserver: user name is empty"
