"""The service against clients that send bad frames or bad requests, against too many clients, and against slow
clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cbor2
import pytest

from kvstore.errors import ResultCode
from kvstore.limits import ServiceLimits
from kvstore.protocol.commands import Delete, Get, Put, RegisterSession, Txn
from kvstore.protocol.messages import (
    Code,
    Consistency,
    Request,
    Response,
    command_request,
    decode_response,
    encode_client_hello,
    encode_request,
    members_request,
    read_request,
)
from raft import (
    FRAME_BYTES_MAX_CLIENT,
    FrameSplitter,
    Hello,
    HelloRole,
    Refusal,
    decode_hello,
    encode_item,
    frame,
)
from tests.kvstore.support.in_memory_cluster import Cluster


class RawClient:
    """One connection to the service of a single member, byte by byte."""

    def __init__(self, cluster: Cluster, connection_id: int = 1, *, greets: bool = True) -> None:
        self.cluster, self.connection_id = cluster, connection_id
        self.service = cluster.hosts["s1"].service
        self.bodies: list[bytes] = []
        self.is_closed = False
        self.reads = True  # If False, the client never reads the bytes that it gets.
        self._splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self.service.connected(connection_id)
        if greets:
            self.send(frame(encode_client_hello()))
            assert isinstance(decode_hello(self.bodies.pop(0)), Hello)

    def send(self, data: bytes) -> None:
        self.service.receive(self.connection_id, data)
        self.cluster.settle()
        self.fetch()

    def ask(self, body: bytes) -> Response:
        self.send(frame(body))
        return decode_response(self.bodies.pop(0))

    def fetch(self) -> None:
        for connection_id, data in self.service.take_output():
            assert connection_id == self.connection_id
            self.bodies += self._splitter.feed(data)
            if self.reads:
                self.service.sent(connection_id, len(data))
        self.is_closed |= self.connection_id in self.service.take_closed()

    def last_words(self) -> list[object]:
        """The malformed-frame response, undecoded."""
        items = cbor2.loads(self.bodies.pop())
        assert isinstance(items, list)
        return items


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    yield cluster
    cluster.hosts["s1"].kill()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,  # A length far above the bound.
        b"\0\0\0\0",  # An empty frame.
        frame(b"\xff\xff\xff"),  # This is not CBOR.
        frame(encode_item("not an array")),
        frame(encode_item([1])),
        frame(encode_item([0, 1])),  # Request id 0.
        frame(encode_item([1, 2, 3])),  # A command that is no array.
        frame(encode_item([1, 3, 1])),  # A read without a body.
        frame(encode_item([1, 5, -1, 0])),  # A log index below 0.
        frame(encode_request(1, members_request()) + b"\0"),  # Bytes after the item.
        frame(cbor2.dumps([1, 4, 1.5])),  # A float.
        frame(b"\x9f\x01\x01\xff"),  # Indefinite length.
    ],
)
def test_a_frame_that_makes_no_sense_ends_its_connection_with_the_reason(cluster: Cluster, data: bytes) -> None:
    """The member sends an error frame, closes that connection, and serves the others.

    See docs/reference/specification.md#712-requests-from-outside.
    """
    bad, good = RawClient(cluster, 1), RawClient(cluster, 2)

    bad.send(data)

    words = bad.last_words()
    assert words[:2] == [0, Code.MALFORMED]
    assert isinstance(words[5], str)
    assert len(words[5]) > 10
    assert bad.is_closed
    bad.service.disconnected(1)
    assert good.ask(encode_request(1, members_request())).code == Code.OK


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", frame(b"\xff"), frame(encode_item(["HWM"]))])
def test_a_stranger_is_refused_before_it_is_served(cluster: Cluster, data: bytes) -> None:
    """The first frame must be a hello. Any other frame gets a refusal that states this rule."""
    stranger = RawClient(cluster, greets=False)

    stranger.send(data)

    assert isinstance(decode_hello(stranger.bodies.pop()), Refusal)
    assert stranger.is_closed


def test_a_peer_on_the_client_port_is_told_so(cluster: Cluster) -> None:
    """An operator may easily confuse the ports, so the refusal names this mistake."""
    stranger = RawClient(cluster, greets=False)
    identity = cluster.identities["s1"]
    hello = Hello(
        cluster_id=identity.cluster_id,
        group_id=0,
        node_id="s2",
        incarnation_id=identity.incarnation_id,
        role=HelloRole.PEER,
    )

    stranger.send(frame(hello.encode()))

    refusal = decode_hello(stranger.bodies.pop())
    assert isinstance(refusal, Refusal)
    assert "peer port" in refusal.text


def test_clients_over_the_bound_are_refused_politely(tmp_path: Path) -> None:
    """If there are `connections_max` clients already, a further client gets a refusal and is not left without an
    answer."""
    cluster = Cluster(tmp_path, 1, ServiceLimits(connections_max=1))
    RawClient(cluster, 1)

    second = RawClient(cluster, 2, greets=False)
    second.fetch()

    refusal = decode_hello(second.bodies.pop())
    assert isinstance(refusal, Refusal)
    assert (refusal.code, second.is_closed) == ("busy", True)


def test_an_unknown_request_is_unsupported_and_the_connection_goes_on(cluster: Cluster) -> None:
    """A newer client must be able to find out which requests this member does not know."""
    client = RawClient(cluster)

    assert client.ask(encode_item([7, 99])).code == Code.UNSUPPORTED
    assert client.ask(encode_request(8, members_request())).request_id == 8


@pytest.mark.parametrize(
    "command",
    [[0, 0, 0], [0, 0, 0, 1, b"k"], [0, 0, 0, 77], [0, -1, 0, 1, b"k", b"v"], [5, 1, 1, 1, b"k", b"v"], [0, 0, 0, "x"]],
)
def test_a_malformed_command_is_refused_at_admission(cluster: Cluster, command: list[object]) -> None:
    """Decoded shapes are validated before any entry is proposed, and the connection stays open."""
    client = RawClient(cluster)
    last_index = cluster.hosts["s1"].node.core.last_index

    response = client.ask(encode_item([1, 2, command]))

    assert response.code == ResultCode.INVALID_REQUEST
    assert cluster.hosts["s1"].node.core.last_index == last_index
    assert client.ask(encode_request(2, members_request())).code == Code.OK


def test_extra_items_of_a_request_are_ignored(cluster: Cluster) -> None:
    """Arrays grow only at their end (docs/reference/specification.md#73-growth)."""
    client = RawClient(cluster)

    assert client.ask(encode_item([1, 1, "new", 2])).code == Code.OK


def test_what_is_proposed_are_the_very_bytes_of_the_client(cluster: Cluster) -> None:
    """The member does not encode the command a second time, no matter how long the request id before it is."""
    client = RawClient(cluster)
    for request_id in (1, 30, 300, 70_000, 2**40):
        key = b"k%d" % request_id
        response = client.ask(encode_request(request_id, command_request(Put(key, b"v"))))
        assert (response.request_id, response.code) == (request_id, Code.OK)

    found = client.ask(encode_request(1, read_request(Get(b"k70000"), Consistency.LINEARIZABLE)))
    assert found.fields[0][1][0] == b"v"


def test_every_response_names_revision_consistency_and_node(cluster: Cluster) -> None:
    """Refusals also contain these three values (docs/reference/specification.md#711-responses)."""
    client = RawClient(cluster)
    client.ask(encode_request(1, command_request(Put(b"a", b"1"))))

    read = client.ask(encode_request(2, read_request(Get(b"a"), Consistency.LINEARIZABLE)))
    local = client.ask(encode_request(3, read_request(Get(b"a"), Consistency.LOCAL)))
    lease = client.ask(encode_request(4, read_request(Get(b"a"), Consistency.LEASE)))

    assert [(r.revision, r.consistency, r.node_id) for r in (read, local)] == [(2, 1, "s1"), (2, 3, "s1")]
    assert (lease.code, lease.revision, lease.node_id) == (Code.UNSUPPORTED, 2, "s1")


def test_requests_in_flight_are_bounded_and_the_rest_is_served_later(tmp_path: Path) -> None:
    """When `in_flight_max` requests are open, received frames wait and the member reads no more. In the end every
    request is answered."""
    cluster = Cluster(tmp_path, 1, ServiceLimits(in_flight_max=4))
    cluster.leader()
    client = RawClient(cluster)
    requests = [frame(encode_request(i, command_request(Put(b"k%d" % i, b"v")))) for i in range(1, 11)]

    client.service.receive(1, b"".join(requests))
    assert client.service.open_requests == 4
    assert not client.service.wants_input(1)

    cluster.settle()
    client.fetch()
    assert sorted(decode_response(body).request_id for body in client.bodies) == list(range(1, 11))
    assert client.service.wants_input(1)


def test_a_client_that_takes_no_answers_is_read_no_further(tmp_path: Path) -> None:
    """When `unsent_bytes_max` bytes are unsent, the member leaves the client's bytes in the socket, so memory does not
    grow. The member serves the client again when the client reads."""
    cluster = Cluster(tmp_path, 1, ServiceLimits(unsent_bytes_max=1000))
    cluster.leader()
    client = RawClient(cluster)
    client.ask(encode_request(1, command_request(Put(b"big", bytes(600)))))
    client.reads = False
    read = read_request(Get(b"big"), Consistency.LOCAL)

    client.send(b"".join(frame(encode_request(i, read)) for i in range(1, 21)))

    assert len(client.bodies) == 2
    assert not client.service.wants_input(1)
    client.service.sent(1, sum(len(frame(body)) for body in client.bodies))
    client.fetch()
    assert len(client.bodies) == 4


READ_BIG = read_request(Get(b"big"), Consistency.LINEARIZABLE)


@pytest.mark.parametrize("request_of_it", [READ_BIG, command_request(Txn((), (Get(b"big"),)))])
def test_what_a_client_takes_no_answers_to_is_answered_no_further(tmp_path: Path, request_of_it: Request) -> None:
    """Thousands of requests in flight may each have a large answer. No answer may be encoded before there is room for
    it."""
    cluster = Cluster(tmp_path, 1, ServiceLimits(unsent_bytes_max=1000))
    cluster.leader()
    client = RawClient(cluster)
    client.ask(encode_request(1, command_request(Put(b"big", bytes(600)))))
    client.reads = False

    client.send(b"".join(frame(encode_request(i, request_of_it)) for i in range(1, 21)))

    assert len(client.bodies) == 2
    assert not client.service.wants_input(1)
    while len(client.bodies) < 20:
        taken = len(client.bodies)
        client.service.sent(1, sum(len(frame(body)) for body in client.bodies[-2:]))
        cluster.settle()
        client.fetch()
        assert len(client.bodies) == taken + 2
    assert sorted(decode_response(body).request_id for body in client.bodies) == list(range(1, 21))
    client.service.sent(1, sum(len(frame(body)) for body in client.bodies[-2:]))
    assert client.service.wants_input(1)


def test_a_bounded_read_whose_answer_had_to_wait_for_room_is_judged_by_its_age_of_then(tmp_path: Path) -> None:
    """A client that reads slowly must not get a state that has become too old while the answer waited."""
    cluster = Cluster(tmp_path, 1, ServiceLimits(unsent_bytes_max=1000))
    cluster.leader()
    client = RawClient(cluster)
    client.ask(encode_request(1, command_request(Put(b"big", bytes(600)))))
    client.ask(encode_request(2, READ_BIG))  # The leader proves the age of its state by this read.
    client.reads = False
    bounded = read_request(Get(b"big"), Consistency.BOUNDED, max_staleness_ms=50)
    client.send(b"".join(frame(encode_request(i, bounded)) for i in range(11, 16)))
    before = len(client.bodies)

    cluster.wait(1)
    client.service.sent(1, client.service._connections[1].unsent_bytes)
    client.fetch()

    assert {decode_response(body).code for body in client.bodies[before:]} == {Code.TOO_STALE}


def test_a_client_that_has_gone_gets_nothing_and_harms_nobody(cluster: Cluster) -> None:
    """A put that a client sent before it disconnected is carried out."""
    client = RawClient(cluster, 1)
    client.service.receive(1, frame(encode_request(1, command_request(Put(b"a", b"1")))))
    client.service.disconnected(1)

    cluster.settle()

    assert client.service.take_output() == []
    assert cluster.hosts["s1"].machine.get(b"a").record is not None


def test_a_repeated_request_gets_the_kept_result_with_its_revision(cluster: Cluster) -> None:
    """The result is returned unchanged, with its original revision
    (docs/reference/specification.md#92-judging-a-request)."""
    client = RawClient(cluster)
    registered = client.ask(encode_request(1, command_request(RegisterSession(10**10))))
    session_id = registered.fields[0][1]
    put = command_request(Put(b"a", b"1"))

    first = client.ask(encode_request(2, put, session_id=session_id, request_no=1))
    client.ask(encode_request(3, command_request(Delete(b"a"))))
    again = client.ask(encode_request(4, put, session_id=session_id, request_no=1))

    assert (first.code, again.code) == (Code.OK, Code.OK)
    assert (again.revision, again.fields) == (first.revision, first.fields)
    assert cluster.hosts["s1"].machine.get(b"a").record is None


def test_a_follower_names_the_leader_and_its_client_address(tmp_path: Path) -> None:
    """NotLeader means that the request certainly had no effect at this member. It also names the leader."""
    cluster = Cluster(tmp_path, 3)
    leader = cluster.leader()
    cluster.wait(0.2)
    follower = cluster.hosts[next(node_id for node_id in cluster.hosts if node_id != leader)]
    follower.service.connected(1)
    follower.service.receive(1, frame(encode_client_hello()))
    follower.service.receive(1, frame(encode_request(1, command_request(Put(b"a", b"1")))))

    ((_, data),) = follower.service.take_output()
    _, body = FrameSplitter(FRAME_BYTES_MAX_CLIENT).feed(data)
    response = decode_response(body)

    assert response.code == Code.NOT_LEADER
    assert response.fields == (leader, f"{leader}:1")
