"""Requests that arrive together get the same responses as requests that arrive one by one. Most requests that arrive
together take the fast path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.limits import AdmissionLimits, ServiceLimits
from kvstore.protocol.commands import Delete, Get, Put, Range, RegisterSession, encode_command
from kvstore.protocol.messages import (
    Code,
    Consistency,
    Response,
    command_request,
    decode_response,
    encode_request,
    read_request,
)
from raft import RaftConfig, flatten, frame
from tests.kvstore.server.test_service import RawClient
from tests.kvstore.support.in_memory_cluster import Cluster

TTL_NS = AdmissionLimits().session_ttl_ns_max


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    yield cluster
    cluster.hosts["s1"].kill()


def requests_under(session_id: int) -> list[bytes]:
    """Puts, gets of present and absent keys, requests of another shape, and requests that are refused, in turn."""
    bodies = []
    for number in range(1, 40):
        key = b"k%d" % (number % 7)
        request_id = number * 4_000  # Ids of different sizes.
        if number % 5 == 0:
            reads: list[Get | Range] = [Get(b"always"), Get(b"never"), Range(b"always", limit=1), Get(b"always")]
            for place, read in enumerate(reads):
                bodies.append(encode_request(request_id + place, read_request(read, Consistency.LINEARIZABLE)))
            continue
        command = Delete(key) if number % 6 == 0 else Put(b"" if number % 11 == 0 else key, b"v" * number)
        request = command_request(command)
        bodies.append(encode_request(request_id, request, session_id=session_id, request_no=number))
    return bodies


def answers(
    cluster: Cluster, connection_id: int, *, together: bool = False, in_pieces: bool = False
) -> list[tuple[object, ...]]:
    """The answers by request id, without the revisions, which differ between two rounds of the same requests."""
    client = RawClient(cluster, connection_id)
    client.ask(encode_request(1, command_request(Put(b"always", b"there"))))
    for number in range(7):
        client.ask(encode_request(1, command_request(Delete(b"k%d" % number))))
    session_id = client.ask(encode_request(1, command_request(RegisterSession(TTL_NS)))).fields[0][1]
    frames = [frame(body) for body in requests_under(session_id)]
    for data in [b"".join(frames)] if together else frames:
        if in_pieces:
            client.send(data[:7])
        client.send(data[7:] if in_pieces else data)
    responses = sorted(map(decode_response, client.bodies))
    assert len(responses) == len(frames)
    return [without_revisions(response) for response in responses]


def without_revisions(response: Response) -> tuple[object, ...]:
    fields = response.fields
    if response.code == Code.OK and fields[0][0] == 2:
        record = fields[0][1]
        fields = (fields[0][0], record and record[0])
    elif response.code == Code.OK and fields[0][0] == 4:
        fields = tuple(item[:2] for item in fields[0][1])
    elif response.code == Code.OK:
        fields = tuple(fields[0][:2])  # The answer to a deletion of an absent key contains the revision of its absence.
    return (response.request_id, response.code, response.consistency, response.node_id, fields)


def test_many_requests_in_one_read_are_answered_as_each_alone(cluster: Cluster) -> None:
    assert answers(cluster, 1, together=True) == answers(cluster, 2, together=False)


def test_a_request_in_one_piece_is_answered_as_one_in_two_pieces(cluster: Cluster) -> None:
    assert answers(cluster, 1) == answers(cluster, 2, in_pieces=True)


def test_the_end_of_a_frame_that_looks_like_a_whole_one_is_none(cluster: Cluster) -> None:
    client = RawClient(cluster)
    inner = frame(encode_request(9, command_request(Put(b"never", b"there"))))
    outer = frame(encode_request(8, command_request(Put(b"k", inner))))

    client.send(outer[: -len(inner)])
    client.send(inner)

    assert [decode_response(body).request_id for body in client.bodies] == [8]
    found = [encode_request(1, read_request(Get(key), Consistency.LINEARIZABLE)) for key in (b"never", b"k")]
    client.bodies.clear()
    assert client.ask(found[0]).fields[0][1] is None
    assert client.ask(found[1]).fields[0][1][0] == inner


@pytest.mark.parametrize("length_bytes", [b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_a_lone_frame_of_an_impossible_length_ends_its_connection(cluster: Cluster, length_bytes: bytes) -> None:
    client = RawClient(cluster)

    client.send(length_bytes)

    assert client.is_closed
    assert client.last_words()[1] == Code.MALFORMED


def test_lone_requests_that_follow_each_other_wait_at_the_bound_and_are_answered_in_order(cluster: Cluster) -> None:
    client = RawClient(cluster)
    service = cluster.hosts["s1"].service
    service.limits = ServiceLimits(in_flight_max=3)

    for number in range(1, 9):
        service.receive(1, frame(encode_request(number, command_request(Put(b"k", b"v")))))
    assert service.open_requests == 3
    assert not service.wants_input(1)

    cluster.settle()
    client.fetch()
    assert [decode_response(body).request_id for body in client.bodies] == list(range(1, 9))


def test_what_is_told_of_many_tickets_is_answered_as_if_told_of_each(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow twin answers each ticket on the general path."""
    quick = answers(cluster, 1, together=True)
    service = cluster.hosts["s1"].service
    complete = service.complete
    monkeypatch.setattr(service, "complete", lambda told, events: complete(list(flatten(told)), events))

    assert answers(cluster, 2, together=True) == quick


def test_a_bad_frame_behind_good_ones_ends_its_connection_after_they_were_taken_up(cluster: Cluster) -> None:
    bad, good = RawClient(cluster, 1), RawClient(cluster, 2)
    put = encode_request(7, command_request(Put(b"k", b"v")))
    cut, rest = frame(put[:-1]), frame(put[-1:])

    bad.send(frame(put) + cut + rest)

    codes = [decode_response(body).code for body in bad.bodies if body[1] == 7]
    assert bad.is_closed
    assert codes == [Code.OK]
    assert good.ask(encode_request(8, read_request(Get(b"k"), Consistency.LINEARIZABLE))).fields[0][1][0] == b"v"


def test_at_a_bound_as_many_of_a_read_are_taken_as_would_be_one_by_one(cluster: Cluster) -> None:
    client = RawClient(cluster)
    session_id = client.ask(encode_request(1, command_request(RegisterSession(TTL_NS)))).fields[0][1]
    cluster.hosts["s1"].node._config = RaftConfig(proposals_pending_max=5)
    commands = [encode_command(Put(b"k", b"v"), session_id=session_id, request_no=n) for n in range(1, 9)]

    client.send(b"".join(frame(b"\x83%c\x02" % n + command) for n, command in enumerate(commands, start=1)))

    responses = sorted(map(decode_response, client.bodies))
    assert [response.code for response in responses] == [Code.OK] * 5 + [Code.BUSY] * 3


def test_a_connection_is_never_given_more_than_it_may_have_in_flight(cluster: Cluster) -> None:
    client = RawClient(cluster)
    service = cluster.hosts["s1"].service
    service.limits = ServiceLimits(in_flight_max=3)
    session_id = client.ask(encode_request(1, command_request(RegisterSession(TTL_NS)))).fields[0][1]
    commands = [encode_command(Put(b"k", b"v"), session_id=session_id, request_no=n) for n in range(1, 9)]

    service.receive(1, b"".join(frame(b"\x83%c\x02" % n + command) for n, command in enumerate(commands, start=1)))
    assert service.open_requests == 3

    cluster.settle()
    client.fetch()
    assert sorted(decode_response(body).request_id for body in client.bodies) == list(range(1, 9))
