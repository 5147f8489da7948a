"""grpcio with messages made by hand: the bytes of answers, the codes and texts of errors, and streams.

The clients of etcd turn an error into a value of their language by its exact text, so a text is part of the interface.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.process.etcd.messages import Message, message

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install grpcio")

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

SECONDS = 20.0
TOKENS_OFF = "etcdserver: authentication is not enabled"
PUT, RANGE, DELETE, TXN, COMPACT = (
    f"/etcdserverpb.KV/{name}" for name in ("Put", "Range", "DeleteRange", "Txn", "Compact")
)
GRANT, REVOKE, TIME_TO_LIVE, KEEP_ALIVE, LEASES = (
    f"/etcdserverpb.Lease/Lease{name}" for name in ("Grant", "Revoke", "TimeToLive", "KeepAlive", "Leases")
)
WATCH = "/etcdserverpb.Watch/Watch"

HEADER, KEY, VALUE = 1, 1, 2

NO_LEASE = 123_456_789_012
"""The id of no lease: members number the leases of all tests from 1 on."""
CLUSTER_ID, MEMBER_ID, REVISION, TERM = 1, 2, 3, 4  # Fields of a header.


class Channel:
    """A connection to a member."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint)

    def call(self, method: str, *fields: tuple[int, int | bytes], seconds: float = SECONDS, **options: Any) -> Message:
        """The answer to one request."""
        return Message(self._channel.unary_unary(method)(message(*fields), timeout=seconds, **options))

    def error(self, method: str, *fields: tuple[int, int | bytes], **options: Any) -> tuple[str, str]:
        """The code and the text of a request that must fail."""
        with pytest.raises(grpc.RpcError) as raised:
            self.call(method, *fields, **options)
        return raised.value.code().name, raised.value.details()

    def stream(self, method: str, requests: Iterator[bytes]) -> Any:
        """The answers to a stream of requests. The stream ends with an error after a time."""
        return self._channel.stream_stream(method)(requests, timeout=SECONDS)

    def put(self, key: bytes, value: bytes = b"v", *more: tuple[int, int | bytes]) -> int:
        """Put a value. Returns the revision."""
        return self.call(PUT, (KEY, key), (VALUE, value), *more).part(HEADER).number(REVISION)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


class Watching:
    """A stream of watches. Requests are sent when the test says so."""

    def __init__(self, channel: Channel) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers = channel.stream(WATCH, iter(self._requests.get, None))

    def create(self, *fields: tuple[int, int | bytes]) -> None:
        self._requests.put(message((1, message(*fields))))

    def cancel(self, watch_id: int) -> None:
        self._requests.put(message((2, message((1, watch_id)))))

    def ask_progress(self) -> None:
        self._requests.put(message((3, b"")))

    def answer(self) -> Message:
        return Message(next(self._answers))

    def end(self) -> None:
        self._answers.cancel()
        self._requests.put(None)


WATCH_ID, CREATED, CANCELED, COMPACT_REVISION, CANCEL_REASON, FRAGMENTED, EVENTS = 2, 3, 4, 5, 6, 7, 11
START, PROGRESS, FILTERS, PREV_KV, ASKED_ID, FRAGMENT = 3, 4, 5, 6, 7, 8  # Fields of a request to create a watch.


@pytest.fixture
def channel(etcd_endpoint: str) -> Iterator[Channel]:
    channel = Channel(etcd_endpoint)
    yield channel
    channel.close()


@pytest.fixture
def watching(channel: Channel) -> Iterator[Watching]:
    watching = Watching(channel)
    yield watching
    watching.end()


@pytest.fixture
def key(prefix: str) -> bytes:
    return f"{prefix}k".encode()


def put_op(key: bytes) -> bytes:
    return message((2, message((KEY, key))))


def range_op(key: bytes) -> bytes:
    return message((1, message((KEY, key))))


def delete_op(key: bytes, end: bytes) -> bytes:
    return message((3, message((KEY, key), (2, end))))


def test_an_answer_has_a_header_and_the_key_as_it_is(channel: Channel, key: bytes) -> None:
    revision = channel.put(key, b"\x00\xff")

    answer = channel.call(RANGE, (KEY, key))

    header = answer.part(HEADER)
    assert header.numbers == {CLUSTER_ID, MEMBER_ID, REVISION, TERM}
    assert header.number(REVISION) == revision
    (found,) = answer.parts(2)
    assert (found.bytes(1), found.number(2), found.number(3), found.number(4), found.bytes(5), found.number(6)) == (
        key, revision, revision, 1, b"\x00\xff", 0,
    )  # fmt: skip
    assert answer.numbers == {HEADER, 2, 4}, "`more` is false, and so is not there"
    assert answer.number(4) == 1


def test_members_have_their_own_ids_and_one_cluster(etcd_endpoints: Sequence[str]) -> None:
    channels = [Channel(endpoint) for endpoint in etcd_endpoints]
    headers = [channel.call(RANGE, (KEY, b"any")).part(HEADER) for channel in channels]
    listed = channels[0].call("/etcdserverpb.Cluster/MemberList")
    for channel in channels:
        channel.close()

    assert len({header.number(CLUSTER_ID) for header in headers}) == 1
    assert {header.number(MEMBER_ID) for header in headers} == {each.number(1) for each in listed.parts(2)}
    assert {each.bytes(4).decode() for each in listed.parts(2)} == {f"http://{each}" for each in etcd_endpoints}


ERRORS: list[tuple[str, bytes, str, str]] = [
    (RANGE, b"", "INVALID_ARGUMENT", "etcdserver: key is not provided"),
    (PUT, message((VALUE, b"v")), "INVALID_ARGUMENT", "etcdserver: key is not provided"),
    (DELETE, b"", "INVALID_ARGUMENT", "etcdserver: key is not provided"),
    (TXN, message((1, message((2, 1)))), "INVALID_ARGUMENT", "etcdserver: key is not provided"),
    (TXN, message((2, put_op(b""))), "INVALID_ARGUMENT", "etcdserver: key is not provided"),
    (TXN, message((3, range_op(b""))), "INVALID_ARGUMENT", "etcdserver: key is not provided"),
    (TXN, message((2, b"")), "INVALID_ARGUMENT", "etcdserver: key not found"),
    (PUT, message((KEY, b"x"), (VALUE, b"v"), (5, 1)), "INVALID_ARGUMENT", "etcdserver: value is provided"),
    (PUT, message((KEY, b"x"), (3, 7), (6, 1)), "INVALID_ARGUMENT", "etcdserver: lease is provided"),
    (PUT, message((KEY, b"absent"), (5, 1)), "INVALID_ARGUMENT", "etcdserver: key not found"),
    (PUT, message((KEY, b"x"), (3, NO_LEASE)), "NOT_FOUND", "etcdserver: requested lease not found"),
    (PUT, message((KEY, b"x"), (VALUE, bytes(1_600_000))), "INVALID_ARGUMENT", "etcdserver: request is too large"),
    (
        RANGE, message((KEY, b"x"), (4, 1 << 62)), "OUT_OF_RANGE",
        "etcdserver: mvcc: required revision is a future revision",
    ),
    (COMPACT, message((1, 1 << 62)), "OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision"),
    (
        TXN, b"".join(message((2, put_op(b"%d" % i))) for i in range(129)), "INVALID_ARGUMENT",
        "etcdserver: too many operations in txn request",
    ),
    (
        TXN, b"".join(message((1, message((3, b"x")))) for _ in range(129)), "INVALID_ARGUMENT",
        "etcdserver: too many operations in txn request",
    ),
    (
        TXN, message((2, put_op(b"x")), (2, put_op(b"x"))), "INVALID_ARGUMENT",
        "etcdserver: duplicate key given in txn request",
    ),
    (
        TXN, message((2, put_op(b"x")), (2, delete_op(b"w", b"y"))), "INVALID_ARGUMENT",
        "etcdserver: duplicate key given in txn request",
    ),
    (
        TXN, message((2, put_op(b"x")), (2, message((4, message((2, put_op(b"x"))))))), "INVALID_ARGUMENT",
        "etcdserver: duplicate key given in txn request",
    ),
    (GRANT, message((1, 9_000_000_001)), "OUT_OF_RANGE", "etcdserver: too large lease TTL"),
    (REVOKE, message((1, NO_LEASE)), "NOT_FOUND", "etcdserver: requested lease not found"),
    ("/etcdserverpb.Auth/Authenticate", message((1, b"u"), (2, b"p")), "FAILED_PRECONDITION", TOKENS_OFF),
    ("/etcdserverpb.Auth/UserAdd", b"", "INVALID_ARGUMENT", "etcdserver: user name is empty"),
    ("/etcdserverpb.Auth/AuthEnable", b"", "FAILED_PRECONDITION", "etcdserver: root user does not exist"),
    ("/etcdserverpb.Cluster/MemberRemove", message((1, 5)), "NOT_FOUND", "etcdserver: member not found"),
    ("/etcdserverpb.Maintenance/HashKV", message((1, 1 << 62)), "OUT_OF_RANGE",
     "etcdserver: mvcc: required revision is a future revision"),
    ("/v3lockpb.Lock/Lock", message((1, b"l"), (2, NO_LEASE)), "UNKNOWN", "etcdserver: requested lease not found"),
    ("/v3electionpb.Election/Leader", message((1, b"no-such")), "UNKNOWN", "election: no leader"),
    ("/v3electionpb.Election/Resign", b"", "UNKNOWN", '"leader" field must be provided'),
    ("/etcdserverpb.KV/Nope", b"", "UNIMPLEMENTED", "unknown method Nope for service etcdserverpb.KV"),
    ("/etcdserverpb.Nope/Range", b"", "UNIMPLEMENTED", "unknown service etcdserverpb.Nope"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "request_bytes", "code", "words"), ERRORS)
def test_errors(etcd_endpoint: str, method: str, request_bytes: bytes, code: str, words: str) -> None:
    channel = grpc.insecure_channel(etcd_endpoint)
    try:
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary(method)(request_bytes, timeout=SECONDS)
    finally:
        channel.close()
    assert (raised.value.code().name, raised.value.details()) == (code, words)


def test_a_request_that_is_no_message(etcd_endpoint: str) -> None:
    channel = grpc.insecure_channel(etcd_endpoint)
    try:
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary(RANGE)(b"\x0a\xff", timeout=SECONDS)
    finally:
        channel.close()
    assert raised.value.code().name == "INTERNAL"
    assert raised.value.details().startswith("grpc: error unmarshalling request: ")


def test_a_message_beyond_two_mebibytes(channel: Channel) -> None:
    code, words = channel.error(PUT, (KEY, b"x"), (VALUE, bytes(2_200_000)))

    assert code == "RESOURCE_EXHAUSTED"
    assert words == "grpc: received message larger than max (2200008 vs. 2097152)"


def test_a_large_value_within_the_limit(channel: Channel, key: bytes) -> None:
    """It is larger than the window of a stream in HTTP/2, so both sides must grant more."""
    value = bytes(range(256)) * 5000

    channel.put(key, value)

    assert channel.call(RANGE, (KEY, key)).parts(2)[0].bytes(5) == value


def test_an_answer_of_many_megabytes(etcd_endpoint: str, channel: Channel, prefix: str) -> None:
    """Requests are limited, answers are not: a range may be larger than all of its puts."""
    for number in range(4):
        channel.put(f"{prefix}{number}".encode(), bytes(1_000_000))
    asked = message((KEY, prefix.encode()), (2, f"{prefix}~".encode()))

    with grpc.insecure_channel(etcd_endpoint, options=[("grpc.max_receive_message_length", -1)]) as without_limit:
        answer = Message(without_limit.unary_unary(RANGE)(asked, timeout=SECONDS))

    assert [len(each.bytes(5)) for each in answer.parts(2)] == [1_000_000] * 4


def test_unknown_fields_are_ignored(channel: Channel, key: bytes) -> None:
    """A newer client may ask for more than the server knows."""
    channel.put(key, b"v", (99, b"new"), (100, 7))

    assert channel.call(RANGE, (KEY, key), (77, 1)).number(4) == 1


def test_a_token_of_nobody_is_refused(channel: Channel) -> None:
    """Even while there are no users in force."""
    assert channel.error(RANGE, (KEY, b"x"), metadata=[("token", "no such token")]) == (
        "UNAUTHENTICATED",
        "etcdserver: invalid auth token",
    )


def test_a_comparison_of_a_lease_and_of_a_range(channel: Channel, prefix: str) -> None:
    """A comparison with an end must hold for every key in the range, and holds for an empty range unless it is of a
    value."""
    lease = channel.call(GRANT, (1, 600)).number(2)
    first, second = f"{prefix}a".encode(), f"{prefix}b".encode()
    channel.put(first, b"v", (3, lease))
    channel.put(second, b"v")

    def holds(*comparison: tuple[int, int | bytes]) -> bool:
        return bool(channel.call(TXN, (1, message(*comparison))).number(2))

    equal, greater = (1, 0), (1, 1)
    of_lease, of_value, of_version = (2, 4), (2, 3), (2, 0)
    end = (64, f"{prefix}z".encode())
    assert holds(equal, of_lease, (3, first), (8, lease))
    assert not holds(equal, of_lease, (3, second), (8, lease))
    assert not holds(equal, of_lease, (3, first), end, (8, lease))
    assert holds(equal, of_value, (3, first), end, (7, b"v"))
    assert holds(equal, of_version, (3, first), end, (4, 1))
    channel.put(second, b"w")
    assert not holds(equal, of_value, (3, first), end, (7, b"v"))
    assert holds(greater, of_version, (3, first), end, (4, 0))
    empty = (3, f"{prefix}x".encode())
    assert holds(equal, of_version, empty, end, (4, 0))
    assert not holds(equal, of_version, empty, end, (4, 1))
    assert not holds(equal, of_value, empty, end, (7, b""))


def test_a_transaction_inside_a_transaction(channel: Channel, prefix: str) -> None:
    """The inner comparison sees what the transaction has written before. All is one revision."""
    a, b, c = (f"{prefix}{name}".encode() for name in "abc")
    inner = message((1, message((1, 0), (2, 0), (3, a), (4, 0))), (2, put_op(b)), (3, put_op(c)))

    answer = channel.call(TXN, (2, put_op(a)), (2, message((4, inner))))

    first, second = answer.parts(3)
    revision = answer.part(HEADER).number(REVISION)
    assert first.part(2).part(HEADER).number(REVISION) == revision
    assert first.part(2).part(HEADER).numbers == {REVISION}
    nested = second.part(4)
    branch = b if nested.number(2) else c
    assert channel.call(RANGE, (KEY, branch)).parts(2)[0].number(3) == revision


def test_a_range_by_revisions(channel: Channel, prefix: str) -> None:
    revisions = [channel.put(f"{prefix}{name}".encode()) for name in "abcd"]
    limits = {"min_mod": 10, "max_mod": 11, "min_create": 12, "max_create": 13}

    def keys(**bounds: int) -> str:
        fields = [(limits[name], bound) for name, bound in bounds.items()]
        answer = channel.call(RANGE, (KEY, prefix.encode()), (2, f"{prefix}~".encode()), *fields)
        return "".join(each.bytes(1).decode().removeprefix(prefix) for each in answer.parts(2))

    assert keys(min_mod=revisions[2]) == "cd"
    assert keys(max_mod=revisions[1]) == "ab"
    assert keys(min_create=revisions[1], max_create=revisions[2]) == "bc"


def test_leases(channel: Channel, key: bytes) -> None:
    """A client may choose the id. A lease that is not there has a time to live of -1, and 0 in a keep-alive."""
    asked = 77_001
    granted = channel.call(GRANT, (1, 600), (2, asked))
    assert (granted.number(2), granted.number(3), granted.bytes(4)) == (asked, 600, b"")
    assert channel.error(GRANT, (1, 600), (2, asked)) == ("FAILED_PRECONDITION", "etcdserver: lease already exists")
    channel.put(key, b"v", (3, asked))
    told = channel.call(TIME_TO_LIVE, (1, asked), (2, 1))
    assert (told.number(2), told.number(4), told.bytes(5)) == (asked, 600, key)
    assert 590 <= told.number(3) <= 600
    assert told.part(HEADER).numbers == {CLUSTER_ID, MEMBER_ID, REVISION, TERM}
    assert asked in [each.number(1) for each in channel.call(LEASES).parts(2)]

    beats = channel.stream(KEEP_ALIVE, iter([message((1, asked)), message((1, asked + 1)), message((1, asked))]))
    answers = [Message(beat) for beat in beats]
    assert [(each.number(2), each.number(3)) for each in answers] == [(asked, 600), (asked + 1, 0), (asked, 600)]
    assert answers[1].numbers == {HEADER, 2}

    channel.call(REVOKE, (1, asked))
    gone = channel.call(TIME_TO_LIVE, (1, asked))
    assert (gone.number(2), gone.signed(3), gone.number(4)) == (asked, -1, 0)
    assert channel.call(RANGE, (KEY, key)).number(4) == 0


def test_a_deadline_ends_what_waits(channel: Channel, prefix: str) -> None:
    """A lock that another holds is waited for until the time is over. The key of the one who waited is gone then, so
    it cannot get the lock later."""
    name = f"{prefix}lock".encode()
    held = channel.call("/v3lockpb.Lock/Lock", (1, name))
    lease = channel.call(GRANT, (1, 600)).number(2)

    assert channel.error("/v3lockpb.Lock/Lock", (1, name), (2, lease), seconds=0.5)[0] == "DEADLINE_EXCEEDED"

    waiters = name + b"/", name + b"0"
    while channel.call(RANGE, (KEY, waiters[0]), (2, waiters[1])).number(4) > 1:
        pass
    channel.call("/v3lockpb.Lock/Unlock", (1, held.bytes(2)))
    assert channel.call(RANGE, (KEY, waiters[0]), (2, waiters[1])).number(4) == 0


def test_the_key_of_a_lock_names_its_lease(channel: Channel, prefix: str) -> None:
    name = f"{prefix}lock".encode()
    lease = channel.call(GRANT, (1, 600)).number(2)

    held = channel.call("/v3lockpb.Lock/Lock", (1, name), (2, lease))
    again = channel.call("/v3lockpb.Lock/Lock", (1, name), (2, lease))

    assert held.bytes(2) == again.bytes(2) == name + b"/%x" % lease
    assert channel.call(RANGE, (KEY, held.bytes(2))).parts(2)[0].number(6) == lease


def test_an_election(channel: Channel, prefix: str) -> None:
    service = "/v3electionpb.Election/"
    name = f"{prefix}election".encode()
    lease = channel.call(GRANT, (1, 600)).number(2)

    leader = channel.call(f"{service}Campaign", (1, name), (2, lease), (3, b"ann")).part(2)
    assert (leader.bytes(1), leader.bytes(2), leader.number(4)) == (name, name + b"/%x" % lease, lease)
    assert channel.call(f"{service}Leader", (1, name)).part(2).bytes(5) == b"ann"
    handle = message((1, leader.bytes(1)), (2, leader.bytes(2)), (3, leader.number(3)), (4, lease))
    channel.call(f"{service}Proclaim", (1, handle), (2, b"bob"))
    assert channel.call(f"{service}Leader", (1, name)).part(2).bytes(5) == b"bob"
    channel.call(f"{service}Resign", (1, handle))
    assert channel.error(f"{service}Leader", (1, name)) == ("UNKNOWN", "election: no leader")
    assert channel.error(f"{service}Proclaim", (1, handle), (2, b"x")) == ("UNKNOWN", "election: not leader")


def test_leadership_is_moved_by_the_leader(etcd_endpoints: Sequence[str]) -> None:
    channels = [Channel(endpoint) for endpoint in etcd_endpoints]
    move, status = "/etcdserverpb.Maintenance/MoveLeader", "/etcdserverpb.Maintenance/Status"
    try:
        states = [channel.call(status) for channel in channels]
        answers = {
            channel.error(move, (1, 5))
            if state.part(HEADER).number(MEMBER_ID) == state.number(4)
            else ("follower", *channel.error(move, (1, 5)))
            for channel, state in zip(channels, states, strict=True)
        }
    finally:
        for channel in channels:
            channel.close()
    assert answers == {
        ("FAILED_PRECONDITION", "etcdserver: bad leader transferee"),
        ("follower", "FAILED_PRECONDITION", "etcdserver: not leader"),
    }


def test_health(channel: Channel) -> None:
    assert channel.call("/grpc.health.v1.Health/Check").number(1) == 1


def test_a_watch_is_confirmed_before_its_events(channel: Channel, watching: Watching, key: bytes) -> None:
    """The header of the confirmation has the revision from which on the watch sees everything."""
    watching.create((KEY, key), (PREV_KV, 1))
    created = watching.answer()
    assert created.numbers == {HEADER, CREATED}
    first = channel.put(key, b"one")
    channel.call(DELETE, (KEY, key))

    assert created.part(HEADER).number(REVISION) == first - 1
    events = events_of(watching, 2)
    put, deletion = events
    assert put.numbers == {2}, "the type of a put is 0, and so is not there"
    assert (put.part(2).bytes(5), put.part(2).number(3)) == (b"one", first)
    assert (deletion.number(1), deletion.part(3).bytes(5)) == (1, b"one")
    assert deletion.part(2).numbers == {1, 3}
    assert deletion.part(2).number(3) == first + 1


def test_a_stream_has_many_watches(channel: Channel, watching: Watching, prefix: str) -> None:
    """Ids begin at 0. A client may choose one; a second watch of that id is refused, and the stream goes on."""
    names = [f"{prefix}{name}".encode() for name in "abc"]
    watching.create((KEY, names[0]))
    watching.create((KEY, names[1]))
    watching.create((KEY, names[2]), (ASKED_ID, 50))
    watching.create((KEY, names[2]), (ASKED_ID, 50))
    answers = [watching.answer() for _ in range(4)]

    assert [each.signed(WATCH_ID) for each in answers] == [0, 1, 50, -1]
    assert [each.number(CANCELED) for each in answers] == [0, 0, 0, 1]
    assert [each.number(CREATED) for each in answers] == [1] * 4
    assert answers[3].bytes(CANCEL_REASON) == b"mvcc: duplicate watch ID provided on the WatchStream"
    for name, watch_id in zip(names, (0, 1, 50), strict=True):
        channel.put(name)
        answer = watching.answer()
        assert (answer.number(WATCH_ID), answer.parts(EVENTS)[0].part(2).bytes(1)) == (watch_id, name)


def test_a_cancelled_watch_shows_nothing_more(channel: Channel, watching: Watching, key: bytes) -> None:
    """The cancellation of an unknown watch has no answer."""
    watching.create((KEY, key))
    watching.create((KEY, key))
    assert [watching.answer().number(CREATED) for _ in range(2)] == [1, 1]
    watching.cancel(99)
    watching.cancel(0)
    cancelled = watching.answer()
    assert cancelled.numbers == {HEADER, CANCELED}
    channel.put(key)
    answer = watching.answer()
    assert (answer.number(WATCH_ID), len(answer.parts(EVENTS))) == (1, 1)


def test_filters_of_a_watch(channel: Channel, watching: Watching, key: bytes) -> None:
    no_put, no_delete = 0, 1
    watching.create((KEY, key), (FILTERS, no_put), (START, channel.put(key)))
    watching.create((KEY, key), (FILTERS, no_delete))
    assert [watching.answer().number(CREATED) for _ in range(2)] == [1, 1]
    channel.call(DELETE, (KEY, key))
    deletion = watching.answer()
    channel.put(key)
    put = watching.answer()

    assert (deletion.number(WATCH_ID), [each.number(1) for each in deletion.parts(EVENTS)]) == (0, [1])
    assert (put.number(WATCH_ID), [each.number(1) for each in put.parts(EVENTS)]) == (1, [0])


def test_progress_is_told_on_the_stream(channel: Channel, watching: Watching, key: bytes) -> None:
    """The answer is for all watches of the stream: its id is -1."""
    revision = channel.put(key)
    watching.create((KEY, key))
    watching.answer()
    watching.ask_progress()

    answer = watching.answer()

    assert answer.signed(WATCH_ID) == -1
    assert answer.part(HEADER).number(REVISION) >= revision
    assert answer.numbers == {HEADER, WATCH_ID}


def test_a_large_answer_of_a_watch_comes_in_fragments(channel: Channel, watching: Watching, prefix: str) -> None:
    """A client that cannot receive large messages asks for it. All fragments but the last say that more follows."""
    revisions = [channel.put(f"{prefix}{number}".encode(), bytes(1_000_000)) for number in range(4)]
    watching.create((KEY, prefix.encode()), (2, f"{prefix}~".encode()), (START, revisions[0]), (FRAGMENT, 1))
    assert watching.answer().number(CREATED) == 1

    answers = [watching.answer()]
    while len(revisions) > sum(len(answer.parts(EVENTS)) for answer in answers):
        answers.append(watching.answer())

    assert [event.part(2).number(3) for answer in answers for event in answer.parts(EVENTS)] == revisions
    assert all(sum(len(each.part(2).bytes(5)) for each in answer.parts(EVENTS)) <= 2_000_000 for answer in answers)
    assert answers[-1].number(FRAGMENTED) == 0


def test_a_watch_of_an_empty_range_is_refused(watching: Watching, key: bytes) -> None:
    watching.create((KEY, key), (2, b"\x01"))

    answer = watching.answer()

    assert (answer.number(CREATED), answer.number(CANCELED), answer.signed(WATCH_ID)) == (1, 1, -1)
    assert answer.bytes(CANCEL_REASON) == b"mvcc: watcher range is empty"


def test_a_watch_of_compacted_revisions_is_created_and_cancelled(own_endpoints: Sequence[str]) -> None:
    """The cancellation tells the compacted revision, from which a client can begin again. It has no text."""
    channel = Channel(own_endpoints[0])
    revisions = [channel.put(b"k") for _ in range(3)]
    channel.call(COMPACT, (1, revisions[1]), (2, 1))
    watching = Watching(channel)
    try:
        watching.create((KEY, b"k"), (START, revisions[0]))
        created, cancelled = watching.answer(), watching.answer()
        watching.create((KEY, b"k"), (START, revisions[1]))
        again, events = watching.answer(), watching.answer()
    finally:
        watching.end()
        channel.close()

    assert (created.number(CREATED), created.number(CANCELED)) == (1, 0)
    assert (cancelled.number(CANCELED), cancelled.number(COMPACT_REVISION)) == (1, revisions[1])
    assert cancelled.bytes(CANCEL_REASON) == b""
    assert again.number(CREATED) == 1
    assert [each.part(2).number(3) for each in events.parts(EVENTS)] == revisions[1:]


def test_a_watch_from_revision_1_has_all_changes(channel: Channel, watching: Watching, key: bytes) -> None:
    """A client that has read an empty store continues from its revision, which is 1."""
    revisions = [channel.put(key) for _ in range(2)]
    watching.create((KEY, key), (START, 1))

    assert watching.answer().number(CREATED) == 1
    assert [each.part(2).number(3) for each in events_of(watching, 2)] == revisions


def test_two_hundred_streams_at_once(channel: Channel, prefix: str) -> None:
    """A client may have more streams on a connection than the 100 that some servers of HTTP/2 permit."""
    watchings = [Watching(channel) for _ in range(200)]
    try:
        for watching in watchings:
            watching.create((KEY, prefix.encode()))
        assert {watching.answer().number(CREATED) for watching in watchings} == {1}
        revision = channel.put(prefix.encode())
        assert {watching.answer().parts(EVENTS)[0].part(2).number(3) for watching in watchings} == {revision}
    finally:
        for watching in watchings:
            watching.end()


def test_a_snapshot_is_a_stream_of_blobs(etcd_endpoint: str) -> None:
    with grpc.insecure_channel(etcd_endpoint) as channel:
        stream: Callable[..., Iterator[bytes]] = channel.unary_stream("/etcdserverpb.Maintenance/Snapshot")
        blobs = [Message(each) for each in stream(b"", timeout=SECONDS)]

    sizes = [len(blob.bytes(3)) for blob in blobs]
    assert sum(sizes) > 0
    assert blobs[-1].number(2) == 0, "nothing remains"


def events_of(watching: Watching, count: int) -> list[Message]:
    events: list[Message] = []
    while len(events) < count:
        events += watching.answer().parts(EVENTS)
    return events
