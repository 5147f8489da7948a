"""The hash of a state and other long answers are computed in slices, so that other requests wait at most for one
slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from kvstore import open_node
from kvstore.protocol.commands import (
    ChangeLimits,
    CloseSession,
    CompareAndSet,
    Delete,
    Get,
    Put,
    Range,
    RegisterSession,
    Txn,
    encode_command,
)
from kvstore.protocol.messages import (
    Code,
    Consistency,
    command_request,
    decode_response,
    encode_request,
    read_log_request,
    read_request,
)
from kvstore.protocol.messages import status_request as status_of_member
from kvstore.protocol.status import MemberStatus, status_from_map
from kvstore.server.connections import Connection
from kvstore.server.state_hashes import WAITING_MAX, WAITING_PER_CONNECTION_MAX
from kvstore.server.work_budget import FEW_REQUESTS, FLOOD_UNITS_PER_TURN, REQUESTS_PER_TURN
from kvstore.store.digest import SLICE_PARTS
from raft import FRAME_BYTES_MAX_CLIENT, FrameSplitter, frame
from tests.kvstore.server.test_service import RawClient
from tests.kvstore.support.in_memory_cluster import Cluster
from tests.kvstore.support.machine_fixture import SECOND, Fed

KEYS = 1_000
WITH_HASH = status_of_member(with_hash=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One member with KEYS keys: its hash takes several slices."""
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    host = cluster.hosts["s1"]
    for first in range(0, KEYS, 100):
        writes = tuple(Put(b"%06d" % (first + i), b"v" * 40) for i in range(100))
        host.node.propose(encode_command(Txn((), writes)), 10_000_000 + first)
        cluster.settle()
    assert host.machine.status().keys == KEYS
    yield cluster
    host.kill()


class Paced(RawClient):
    """A client that passes its bytes to the service. The test decides when the service continues."""

    def send(self, data: bytes) -> None:
        if not self.is_closed and not self.service.is_greeted(self.connection_id):
            super().send(data)
            return
        self.service.receive(self.connection_id, data)
        self.fetch()

    def ask_for_hash(self, request_id: int = 1) -> None:
        self.send(frame(encode_request(request_id, WITH_HASH)))

    def statuses(self) -> list[MemberStatus]:
        """The statuses in the answers since the last call."""
        bodies, self.bodies = self.bodies, []
        return [status_from_map(decode_response(body).fields[0]) for body in bodies]


def work_to_the_end(client: Paced) -> int:
    """Let the service work until it has nothing to do. Return the number of slices."""
    slices = 0
    while client.service.has_work:
        client.service.work()
        slices += 1
    client.fetch()
    return slices


@pytest.mark.parametrize("seed", range(8))
def test_a_hash_in_slices_is_that_of_the_moment_at_which_it_began(seed: int) -> None:
    """Writes, deletions, and sessions that acknowledge or end between the slices do not change the hash."""
    random, fed = Random(seed), Fed(deletions_max=60)
    sessions = [fed.register(1_000 * SECOND, time=1) for _ in range(5)]
    numbers = dict.fromkeys(sessions, 0)

    def act() -> None:
        key, session = b"%04d" % random.randrange(900), random.choice(sessions)
        numbers[session] += 1
        no, ack = numbers[session], max(0, numbers[session] - random.randrange(1, 40))
        match random.randrange(8):
            case 0 | 1:
                fed.item(Delete(key), session, no, ack, time=2)
            case 2:
                fed.item(Get(key), session, no, ack, time=2)
            case 3 if random.random() < 0.05:
                fed.item(CloseSession(), sessions[0], time=2)
            case 4 if random.random() < 0.1:
                fed.item(ChangeLimits(deletions_max=random.randrange(20, 80)), time=2)
            case _:
                fed.item(Put(key, b"v" * random.randrange(30)), session, no, ack, time=2)

    fed.feed([encode_command(Put(b"%04d" % i, b"old")) for i in range(800)], time=2)
    for _ in range(100):
        act()
    expected, hashing = fed.machine.state_hash(), fed.machine.begin_state_hash()
    slices = 1
    while hashing.step():
        slices += 1
        for _ in range(random.randrange(12)):
            act()

    assert hashing.result == expected
    assert slices > 3 * 800 // SLICE_PARTS
    assert fed.machine._store.views == []
    assert fed.machine._sessions.views == []


def test_no_request_walks_the_store_where_it_is_received(cluster: Cluster) -> None:
    """Nothing is computed before the host's next turn. Then each turn computes one slice, and writes are carried out in
    between."""
    client, other = Paced(cluster, 1), Paced(cluster, 2)
    for request_id in range(1, WAITING_PER_CONNECTION_MAX + 1):
        client.ask_for_hash(request_id)

    assert client.bodies == []
    slices = 0
    while client.service.has_work:
        client.service.work()
        slices += 1
        other.service.receive(2, frame(encode_request(slices, command_request(Put(b"other", b"%d" % slices)))))
        for host in cluster.hosts.values():
            effects = host.node.take_effects()
            host.service.complete(effects.completions, effects.events)
            host.node.begin_sync()
            host.files.run()
    assert slices >= 3 * KEYS // SLICE_PARTS
    assert {decode_response(data).code for data in _bodies_of(other)} == {Code.OK}


def _bodies_of(client: Paced) -> list[bytes]:
    """The bodies of everything that the service has to send to this client."""
    client.cluster.settle()
    bodies = []
    for connection_id, data in client.service.take_output():
        if connection_id == client.connection_id:
            bodies += client._splitter.feed(data)
    return bodies


def test_the_hash_belongs_to_the_index_of_its_answer(cluster: Cluster) -> None:
    """The state changes while its hash is computed. The hash belongs to one moment. A later request gets the hash of a
    later moment."""
    host, client, other = cluster.hosts["s1"], Paced(cluster, 1), Paced(cluster, 2)
    expected = {host.node.core.last_applied: host.machine.state_hash()}
    client.ask_for_hash()
    client.service.work()
    host.node.propose(encode_command(Put(b"new", b"v")), 99)
    while host.node.core.last_applied in expected:
        effects = host.node.take_effects()
        host.service.complete(effects.completions, effects.events)
        host.node.begin_sync()
        host.files.run()
    expected[host.node.core.last_applied] = host.machine.state_hash()
    other.service.receive(2, frame(encode_request(1, WITH_HASH)))

    work = 0
    while client.service.has_work:
        client.service.work()
        work += 1
    answers = {}
    for connection_id, data in client.service.take_output():
        (body,) = (client if connection_id == 1 else other)._splitter.feed(data)
        answers[connection_id] = status_from_map(decode_response(body).fields[0])

    first, second = answers[1], answers[2]
    assert first.last_applied < second.last_applied
    assert {first.last_applied: first.state_hash, second.last_applied: second.state_hash} == expected
    client.service.sent(1, client.service._connections[1].unsent_bytes)
    client.service.check()


def test_the_same_state_is_hashed_once(cluster: Cluster) -> None:
    """A request for the hash that comes during the computation waits for its result. Later requests are answered
    immediately."""
    client = Paced(cluster, 1)
    client.ask_for_hash(1)
    client.service.work()
    client.ask_for_hash(2)
    work_to_the_end(client)
    first, second = client.statuses()

    client.ask_for_hash(3)
    (third,) = client.statuses()

    assert not client.service.has_work
    assert first.state_hash == second.state_hash == third.state_hash == cluster.hosts["s1"].machine.state_hash()


def test_who_waits_for_a_hash_is_bounded(cluster: Cluster) -> None:
    """There is one bound per connection and one for all connections. A request beyond a bound is refused as `busy`, and
    may be repeated."""
    clients = [Paced(cluster, number) for number in range(1, WAITING_MAX // WAITING_PER_CONNECTION_MAX + 2)]
    service = clients[0].service
    asking = b"".join(frame(encode_request(i, WITH_HASH)) for i in range(1, WAITING_PER_CONNECTION_MAX + 2))
    for client in clients:
        service.receive(client.connection_id, asking)
        while not service._hashes.is_under_way or service._backlogged:
            service.complete(())  # The first turn was used up by the refusals.
    refused = {}
    for connection_id, data in service.take_output():
        bodies = clients[connection_id - 1]._splitter.feed(data)
        refused[connection_id] = [decode_response(body).code for body in bodies]

    assert all(codes[0] == Code.BUSY for codes in refused.values())
    assert [len(refused[client.connection_id]) for client in clients[:-1]] == [1] * (len(clients) - 1)
    assert len(refused[clients[-1].connection_id]) == WAITING_PER_CONNECTION_MAX + 1
    service.check()


def test_a_client_that_leaves_is_waited_for_no_more(cluster: Cluster) -> None:
    """The computation continues, and its hash is then ready for the next client."""
    client, other = Paced(cluster, 1), Paced(cluster, 2)
    client.ask_for_hash()
    client.service.disconnected(1)
    assert work_to_the_end(other) > 1

    other.ask_for_hash()

    assert [status.state_hash for status in other.statuses()] == [cluster.hosts["s1"].machine.state_hash()]


@pytest.mark.parametrize(
    "body",
    [
        encode_request(5, status_of_member()),
        encode_request(5, read_request(Range(), Consistency.LOCAL)),
    ],
)
def test_a_flood_of_costly_requests_is_served_a_few_a_turn(cluster: Cluster, body: bytes) -> None:
    """Each turn serves some of the requests. Other clients are served in between, and all requests are answered in the
    end."""
    client, other = Paced(cluster, 1), Paced(cluster, 2)
    client.send(frame(body) * 200)
    assert 0 < len(client.bodies) <= FLOOD_UNITS_PER_TURN
    assert not client.service.wants_input(1)
    turns = 0
    while client.service.has_work:
        before = len(client.bodies)
        client.service.work()
        client.fetch()
        turns += 1
        assert len(client.bodies) - before <= max(FLOOD_UNITS_PER_TURN, FEW_REQUESTS)
        if turns == 3:
            other.service.receive(2, frame(encode_request(1, command_request(Put(b"k", b"v")))))
            assert other.service.open_requests == 1

    cluster.settle()
    assert len(client.bodies) == 200
    assert turns >= 180 // FLOOD_UNITS_PER_TURN
    assert client.service.wants_input(1)


def test_costly_requests_of_many_connections_take_turns(cluster: Cluster) -> None:
    """The connections are served in turn, so no connection waits until another one's flood is over."""
    clients = [Paced(cluster, number) for number in range(1, 6)]
    service = clients[0].service
    request = frame(encode_request(5, status_of_member()))
    for client in clients:
        service.receive(client.connection_id, request * 100)
    answered: set[int] = set()
    for _ in range(len(clients)):
        service.work()
        answered |= {connection_id for connection_id, _ in service.take_output()}

    assert answered == {1, 2, 3, 4, 5}


def test_one_costly_request_does_not_wait_for_the_floods_of_others(cluster: Cluster) -> None:
    """A client that sends one request at a time is served in the next turn, no matter how many clients send
    hundreds."""
    flooding, modest = [Paced(cluster, number) for number in range(1, 6)], Paced(cluster, 6)
    request = frame(encode_request(5, status_of_member()))
    for client in flooding:
        client.service.receive(client.connection_id, request * 100)
    modest.service.receive(modest.connection_id, request)

    modest.service.work()

    assert modest.connection_id in {connection_id for connection_id, _ in modest.service.take_output()}


def test_a_flood_that_waits_for_its_next_slice_delays_nobody_else(cluster: Cluster) -> None:
    """Between two slices, commands are accepted and single reads are answered immediately."""
    flooding, modest = [Paced(cluster, number) for number in range(1, 4)], Paced(cluster, 4)
    service, page = modest.service, frame(encode_request(5, read_log_request(1, 0)))
    for client in flooding:
        service.receive(client.connection_id, page * 100)
    assert service.has_work

    service.receive(4, frame(encode_request(1, command_request(Txn(success=(Put(b"k", b"v"),))))))
    assert service.open_requests == 1
    service.receive(4, frame(encode_request(2, read_request(Range(), Consistency.LOCAL))))
    assert 4 in {connection_id for connection_id, _ in service.take_output()}


def test_an_answer_to_others_looks_at_no_flood_that_waits_for_its_slice(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the service answers other clients, it does not search the flooding connections, no matter how many there
    are. Each slice serves the next few flooding connections in turn."""
    flooding = [Paced(cluster, number) for number in range(1, 31)]
    service, page = flooding[0].service, frame(encode_request(5, read_log_request(1, 0)))
    for client in flooding:
        service.receive(client.connection_id, page * 20)
    served: list[int] = []
    serve = service._serve

    def noting(connection: Connection, run_max: int) -> None:
        served.append(connection.connection_id)
        serve(connection, run_max)

    monkeypatch.setattr(service, "_serve", noting)

    service.complete(())
    service.work(floods=False)
    assert served == []
    slices = 0
    while service.has_work:
        service.work()
        slices += 1
        assert len(served) <= slices * FLOOD_UNITS_PER_TURN
    assert set(served[:30]) == set(range(1, 31)), "they take turns"


def _compare_and_set(request_id: int) -> bytes:
    return encode_request(request_id, command_request(CompareAndSet(b"k", b"v", 1)))


def _register(request_id: int) -> bytes:
    return encode_request(request_id, command_request(RegisterSession(60 * SECOND)))


def _read_one(request_id: int) -> bytes:
    return encode_request(request_id, read_request(Get(b"k"), Consistency.LOCAL))


@pytest.mark.parametrize("request_of", [_compare_and_set, _register, _read_one])
def test_hundreds_of_requests_without_a_fast_path_are_taken_up_a_few_a_turn(
    cluster: Cluster, request_of: Callable[[int], bytes]
) -> None:
    """Each request takes some 25 µs. The remaining requests wait only for the next turn, and other clients are served
    in between."""
    service, count = Paced(cluster, 1).service, 5 * REQUESTS_PER_TURN // 2
    Paced(cluster, 2)
    answered = {1: 0, 2: 0}

    def taken_up() -> int:
        for connection_id, data in service.take_output():
            service.sent(connection_id, len(data))
            answered[connection_id] += len(FrameSplitter(FRAME_BYTES_MAX_CLIENT).feed(data))
        return service.open_requests + sum(answered.values())

    service.receive(1, b"".join(frame(request_of(i)) for i in range(1, count + 1)))
    assert taken_up() == REQUESTS_PER_TURN
    assert service.has_urgent_work
    service.receive(2, frame(request_of(1)))
    assert taken_up() == REQUESTS_PER_TURN + 1
    service.work(floods=False)
    assert taken_up() == 2 * REQUESTS_PER_TURN + 1
    service.work(floods=False)
    assert taken_up() == count + 1
    assert not service.has_work


def test_a_follower_refuses_hundreds_of_requests_a_few_a_turn(tmp_path: Path) -> None:
    """The bound per turn also applies to requests for which a leader has a fast path."""
    cluster = Cluster(tmp_path, 3)
    leader = cluster.leader()
    if leader == "s1":
        cluster.hosts["s1"].node.transfer_leadership(None)
        cluster.settle()
    client = Paced(cluster)
    client.send(b"".join(frame(encode_request(i, command_request(Put(b"k", b"v")))) for i in range(1, 301)))

    assert len(client.bodies) == REQUESTS_PER_TURN
    work_to_the_end(client)
    assert {decode_response(body).code for body in client.bodies} == {Code.NOT_LEADER}
    assert len(client.bodies) == 300


def test_large_linearizable_reads_are_answered_a_few_a_turn(cluster: Cluster) -> None:
    """One read round makes all these reads ready at the same time. Each turn makes as many pages as its time allows."""
    client = Paced(cluster, 1)
    host = cluster.hosts["s1"]
    reads = [frame(encode_request(i, read_request(Range(), Consistency.LINEARIZABLE))) for i in range(1, 41)]

    client.service.receive(1, b"".join(reads))
    while not client.service.has_work:
        effects = host.node.take_effects()
        host.service.complete(effects.completions, effects.events)
        host.node.begin_sync()
        host.files.run()
    client.fetch()
    assert 0 < len(client.bodies) <= FLOOD_UNITS_PER_TURN
    client.service.check()

    work_to_the_end(client)
    assert sorted(decode_response(body).request_id for body in client.bodies) == list(range(1, 41))
    client.service.check()


@pytest.mark.timeout(60)
async def test_a_running_member_hashes_beside_its_other_work(tmp_path: Path) -> None:
    """Writes come before, between and after the slices. A flood of costly requests is answered without further
    input."""
    async with open_node(tmp_path / "data", bootstrap=True) as store, trio.open_nursery() as nursery:
        await store.put_many({b"%05d" % i: b"v" * 100 for i in range(3_000)}.items())
        found: list[MemberStatus] = []

        async def ask() -> None:
            found.append(await store.status(state_hash=True))

        for _ in range(3):
            nursery.start_soon(ask)
            await store.put("k", "v")
        for _ in range(60):
            nursery.start_soon(store.status)
        while len(found) < 3:
            await store.put("k", "v")
        assert all(len(status.state_hash) == 32 for status in found)
        mine = await store.status(state_hash=True)
        again = await store.status(state_hash=True)
        assert (mine.last_applied, mine.state_hash) == (again.last_applied, again.state_hash)
