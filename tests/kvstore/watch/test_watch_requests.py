"""Watches at the service, byte by byte: which requests are refused, how requests are answered, and when a connection
counts as in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.errors import ResultCode
from kvstore.limits import ServiceLimits
from kvstore.protocol.commands import ChangeLimits, Compact, Put, RaiseFeatureLevel, Range
from kvstore.protocol.messages import (
    Code,
    Consistency,
    RequestKind,
    command_request,
    decode_response,
    encode_client_hello,
    encode_request,
    read_request,
)
from kvstore.protocol.watches import (
    NO_FLAGS,
    Cancelled,
    Created,
    Events,
    MessageKind,
    Progress,
    WatchMessage,
    WatchSpec,
    decode_message,
    progress_body,
    unwatch_body,
    watch_request,
    window_body,
)
from raft import ProtocolError, encode_item, frame
from tests.kvstore.server.test_service import RawClient
from tests.kvstore.support.in_memory_cluster import Cluster

WATCH = 13


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    client = cluster.client()
    client.do(RaiseFeatureLevel(2))
    client.core.close()
    cluster.settle()
    cluster.clients.clear()
    yield cluster
    for host in cluster.hosts.values():
        host.kill()


def watch_body(watch_id: int, start: bytes = b"", end: bytes | None = None, window: int = 1 << 20) -> bytes:
    return encode_request(watch_id, watch_request(WatchSpec(start, end, 0, NO_FLAGS, window)))


def put_body(request_id: int, key: bytes = b"a", value: bytes = b"v") -> bytes:
    return encode_request(request_id, command_request(Put(key, value)))


def messages(client: RawClient, watch_id: int) -> list[WatchMessage]:
    """Remove and return the messages about a watch; other responses stay."""
    client.fetch()
    responses = [decode_response(body) for body in client.bodies]
    client.bodies = [body for body, each in zip(client.bodies, responses, strict=True) if each.request_id != watch_id]
    return [decode_message(each) for each in responses if each.request_id == watch_id]


def test_a_watch_is_answered_at_once_then_with_events_and_at_its_end_with_a_reason(cluster: Cluster) -> None:
    client = RawClient(cluster)
    client.send(frame(watch_body(7)))
    assert messages(client, 7) == [Created(2)]

    client.send(frame(put_body(8)))
    client.send(frame(progress_body(7)))
    client.send(frame(unwatch_body(7)))
    events, progress, end = messages(client, 7)

    assert isinstance(events, Events)
    assert [change.revision for change in events.changes] == [2]
    assert progress == Progress(2)
    assert end == Cancelled("unwatched", 2)
    assert [decode_response(body).request_id for body in client.bodies] == [8], "only the put has a response beside"


def test_a_watch_is_no_open_request_but_its_connection_is_in_use(cluster: Cluster) -> None:
    """A watch does not count as an unanswered request, and a connection with a watch is not closed for another
    connection."""
    client = RawClient(cluster)
    assert client.service.is_idle(1)

    client.send(frame(watch_body(7)))
    client.service.check()
    assert client.service.open_requests == 0
    assert not client.service.is_idle(1)
    client.send(frame(unwatch_body(7)))

    assert client.service.is_idle(1)


def test_requests_about_a_watch_that_has_ended_are_ignored(cluster: Cluster) -> None:
    """The member may have cancelled the watch while the requests were on their way."""
    client = RawClient(cluster)
    for body in (unwatch_body(7), window_body(7, 10), progress_body(7)):
        client.send(frame(body))

    assert client.bodies == []
    assert not client.is_closed


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ((), "a watch request is"),
        ((b"a", None, 0, 0), "a watch request is"),
        (("a", None, 0, 0, 1), "range of a watch"),
        ((b"a", 1, 0, 0, 1), "range of a watch"),
        ((b"a", None, -1, 0, 1), "numbers"),
        ((b"a", None, 0, True, 1), "numbers"),
        ((b"a", None, 0, 0, None), "numbers"),
        ((b"a", None, 0, 16, 1), "flags"),
        ((b"a", None, 0, 6, 1), "neither puts nor deletions"),
    ],
)
def test_a_malformed_watch_ends_only_its_connection(cluster: Cluster, items: tuple[Any, ...], words: str) -> None:
    client = RawClient(cluster)
    client.send(frame(encode_item((7, WATCH, *items))))

    assert client.is_closed
    assert words in str(client.last_words()[5])
    assert client.service.watches.count == 0
    assert RawClient(cluster, 3).ask(put_body(1)).code == Code.OK


@pytest.mark.parametrize(
    ("start", "end", "window", "reason"),
    [
        (b"b", b"a", 1, "out_of_range"),
        (b"a", b"a", 1, "out_of_range"),
        (b"a", None, 0, "out_of_range"),
        (bytes(1_026), None, 1, "key_too_long"),
    ],
)
def test_a_senseless_watch_is_refused_with_a_reason(
    cluster: Cluster, start: bytes, end: bytes | None, window: int, reason: str
) -> None:
    client = RawClient(cluster)
    response = client.ask(watch_body(7, start, end, window))

    assert (response.code, response.fields[0]) == (ResultCode.INVALID_REQUEST, reason)
    assert not client.is_closed


def test_an_id_of_an_open_watch_cannot_be_used_for_another_one(cluster: Cluster) -> None:
    client = RawClient(cluster)
    client.send(frame(watch_body(7)))
    client.bodies.clear()

    client.send(frame(watch_body(7, b"b")))

    assert client.is_closed
    assert "belongs to a watch" in str(client.last_words()[5])
    assert client.service.watches.count == 0, "the watches of a closed connection are gone"


def test_a_watch_needs_feature_level_2_and_a_history(tmp_path: Path, cluster: Cluster) -> None:
    old_cluster = Cluster(tmp_path / "old", 1)
    old = RawClient(old_cluster)
    assert old.ask(watch_body(7)).code == Code.NOT_LEADER  # Nobody leads, so nobody knows the level in force.
    old_cluster.leader()
    old_cluster.wait(0.1)
    refusal = old.ask(watch_body(8))
    assert refusal.code == Code.UNSUPPORTED
    assert "hwm upgrade" in refusal.fields[0]

    client = RawClient(cluster)
    client.ask(encode_request(1, command_request(ChangeLimits(history_bytes_max=0))))
    refusal = client.ask(watch_body(7))
    assert refusal.code == Code.UNSUPPORTED
    assert "history_bytes_max" in refusal.fields[0]


def test_a_watch_from_a_compacted_revision_is_refused_with_the_oldest_one(cluster: Cluster) -> None:
    client = RawClient(cluster)
    for number in range(3):
        client.ask(put_body(number + 1))
    client.ask(encode_request(4, command_request(Compact(4))))

    response = client.ask(encode_request(7, watch_request(WatchSpec(b"", None, 3))))

    assert (response.code, response.fields) == (ResultCode.REVISION_COMPACTED, (3, 4))


def test_a_connection_that_does_not_read_is_sent_a_bounded_amount_and_still_gets_other_answers(
    tmp_path: Path,
) -> None:
    """In etcd (#15402), large reads starved a watch on the same connection, and the watch starved the reads."""
    cluster = Cluster(tmp_path / "other", 1, ServiceLimits(unsent_bytes_max=4 << 20))
    cluster.client().do(RaiseFeatureLevel(2))
    cluster.clients.clear()
    client = RawClient(cluster)
    client.send(frame(watch_body(7, window=1 << 40)))
    client.reads = False
    for number in range(20):
        client.send(frame(put_body(100 + number, b"%d" % number, bytes(300_000))))
    unsent = client.service._connections[1].unsent_bytes
    assert 1 << 18 <= unsent < 1 << 20

    whole_range = Range(b"", None, bytes_max=1 << 20)
    client.send(frame(encode_request(200, read_request(whole_range, Consistency.LOCAL))))
    client.fetch()
    assert 200 in [decode_response(body).request_id for body in client.bodies]

    client.reads = True
    client.service.sent(1, client.service._connections[1].unsent_bytes)
    cluster.settle()
    client.fetch()
    while client.service.has_work:
        cluster.settle()
        client.fetch()
    seen = [each for each in messages(client, 7) if isinstance(each, Events)]
    assert [change.revision for each in seen for change in each.changes] == list(range(2, 22))


def test_a_follower_tells_of_what_it_has_applied(tmp_path: Path) -> None:
    """A follower completes no request, but its watches get each change at once."""
    cluster = Cluster(tmp_path / "three", 3)
    client = cluster.client()
    client.do(RaiseFeatureLevel(2))
    cluster.settle()
    follower = next(node_id for node_id in cluster.hosts if node_id != cluster.leader())
    service = cluster.hosts[follower].service
    service.connected(1)
    service.receive(1, frame(encode_client_hello()) + frame(watch_body(7)))
    wanted: list[int] = []
    service.work_wanted = lambda: wanted.append(service.watches.count)

    client.submit(command_request(Put(b"a", b"1")))
    cluster.wait(0.5)

    assert cluster.hosts[follower].machine.revision == 2
    assert wanted, "the service asks for a turn when the machine has changed"
    assert service.watches._revision == 2


def test_the_numbers_of_the_requests_and_messages_are_fixed() -> None:
    """Members and clients of different builds exchange these numbers."""
    kinds = (RequestKind.WATCH, RequestKind.UNWATCH, RequestKind.WATCH_WINDOW, RequestKind.WATCH_PROGRESS)
    assert [int(kind) for kind in kinds] == [13, 14, 15, 16]
    assert [int(kind) for kind in MessageKind] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (9,),
        (1,),
        (1, 0),
        (1, "a"),
        (2, 1, True, ()),
        (2, 1, 1, ((b"a", 5),)),
        (2, -1, True, ((b"a", 5),)),
        (2, 1, True, ((b"a", 6),)),
        (2, 1, True, ((b"a", 5), (b"a", 4))),
        (2, 1, True, (("a", 5),)),
        (2, 1, True, ((b"a", (b"v", 1, 5, 1)),)),
        (2, 1, True, ((b"a", ("v", 1, 5, 1, 0)),)),
        (4, 1, 1),
        (4, "compacted", None),
    ],
)
def test_a_senseless_message_is_a_protocol_error(fields: tuple[Any, ...]) -> None:
    response = decode_response(encode_item((7, 0, 5, 0, "s1", *fields)))

    with pytest.raises(ProtocolError, match="watch"):
        decode_message(response)
