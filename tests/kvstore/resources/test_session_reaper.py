"""A client that registers sessions without using them locks nobody out. The tests use whole members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvstore.cli.daemon.serve import serve_command
from kvstore.client.client_limits import ClientLimits
from kvstore.errors import Busy, InvalidRequest
from kvstore.member.config import MemberConfig
from kvstore.protocol.commands import ChangeLimits, Get, KeepAlive, Put, RegisterSession, command_body, encode_command
from kvstore.protocol.messages import Consistency, command_request, encode_client_hello, encode_request, read_request
from kvstore.protocol.results import PutResult
from kvstore.protocol.validation import admit_body
from raft import encode_item, frame
from tests.kvstore.support.in_memory_cluster import SECOND, Cluster

SESSIONS_MAX = 40
TTL_NS = 60 * SECOND


class Flood:
    """A connection that registers sessions, and reads no answer."""

    def __init__(self, cluster: Cluster, connection_id: int) -> None:
        self._cluster, self._connection_id, self._last_request_id = cluster, connection_id, 0
        service = cluster.hosts[cluster.leader()].service
        service.connected(connection_id)
        service.receive(connection_id, frame(encode_client_hello()))

    def register(self, count: int) -> None:
        """Register all sessions at once, as a pipelining client does."""
        data = b""
        for _ in range(count):
            self._last_request_id += 1
            data += frame(encode_request(self._last_request_id, command_request(RegisterSession(TTL_NS))))
        self._send(data)

    def touch(self, session_ids: range) -> None:
        """Keep sessions alive. Any client that knows the id of a session may do this."""
        data = b""
        for session_id in session_ids:
            self._last_request_id += 1
            command = encode_command(KeepAlive(), session_id=session_id)
            data += frame(b"\x83" + encode_item(self._last_request_id) + b"\x02" + command)
        self._send(data)

    def _send(self, data: bytes) -> None:
        service = self._cluster.hosts[self._cluster.leader()].service
        service.receive(self._connection_id, data)
        self._cluster.settle()
        for connection_id, out in service.take_output():
            service.sent(connection_id, len(out))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    cluster.client(ttl_ns=0).do(ChangeLimits(sessions_max=SESSIONS_MAX))
    yield cluster
    for host in cluster.hosts.values():
        host.kill()


def sessions_of(cluster: Cluster) -> list[int]:
    return list(cluster.hosts[cluster.leader()].machine.sessions.by_id)


def filled(cluster: Cluster) -> Flood:
    """A store that is full of sessions that were never used."""
    flood = Flood(cluster, 7)
    flood.register(SESSIONS_MAX)  # The sessions are registered together, before any registration is applied.
    while len(sessions_of(cluster)) < SESSIONS_MAX:
        cluster.wait(1)
        flood.register(1)
    return flood


def test_a_store_full_of_sessions_that_nobody_uses_takes_a_writer_at_once(cluster: Cluster) -> None:
    """If unused sessions made no room, they would block others for their whole time to live, even if members were
    restarted."""
    filled(cluster)
    first = sessions_of(cluster)[0]
    cluster.wait(1)
    began = cluster.now

    assert cluster.client().do(Put(b"a", b"1")) == PutResult(2)

    assert cluster.now - began < SECOND / 10
    assert len(sessions_of(cluster)) == SESSIONS_MAX
    assert first not in sessions_of(cluster)  # Only the oldest session was closed to make room.
    assert first + 1 in sessions_of(cluster)


def test_a_session_that_was_used_makes_no_room(cluster: Cluster) -> None:
    clients = [cluster.client() for _ in range(SESSIONS_MAX)]
    for number, client in enumerate(clients):
        cluster.wait(0.2)
        client.do(Put(b"%d" % number, b"1"))
    before = sessions_of(cluster)

    with pytest.raises(Busy, match="sessions_max is 40"):
        cluster.client().do(Put(b"a", b"1"), seconds=3)

    assert sessions_of(cluster) == before
    clients[0].do(Put(b"b", b"1"))
    assert clients[0].core.session_id == before[0]


def test_a_session_in_its_grace_period_makes_no_room_and_the_refusal_costs_no_entry(cluster: Cluster) -> None:
    """The client of a session that was just opened may be about to use it. A refused client tries again, and
    succeeds when the oldest session is one second old."""
    flood = filled(cluster)
    cluster.wait(1)
    for number in range(SESSIONS_MAX):  # Now other sessions, all just registered, take the places.
        Flood(cluster, 100 + number).register(1)
    first, last_index = sessions_of(cluster)[0], cluster.hosts["s1"].node.core.last_index

    flood.register(5)
    assert cluster.hosts["s1"].node.core.last_index == last_index
    client, began = cluster.client(), cluster.now
    client.do(Put(b"a", b"1"))

    assert SECOND * 9 // 10 < cluster.now - began < 2 * SECOND
    assert first not in sessions_of(cluster)


def test_keeping_an_unused_session_alive_does_not_make_it_younger(cluster: Cluster) -> None:
    """If a keep-alive made a session younger, a flood would need only one more cheap request for each session."""
    flood = filled(cluster)
    ids = sessions_of(cluster)
    flood.register(1)  # This makes the leader look at the unused sessions.
    for _ in range(12):
        cluster.wait(0.1)
        flood.touch(range(ids[0], ids[-1] + 1))

    cluster.client().do(Put(b"a", b"1"), seconds=0.3)

    assert ids[0] not in sessions_of(cluster)


@pytest.mark.parametrize("connections", [3, 30])
def test_a_flood_without_end_keeps_an_honest_client_out_for_a_few_seconds_at_most(
    cluster: Cluster, connections: int
) -> None:
    """In a grace period, 3 connections cannot take all places. 30 connections can take all of them, but they do not get
    every place that becomes free."""
    filled(cluster)
    cluster.wait(1)
    floods = [Flood(cluster, 100 + number) for number in range(connections)]
    waited = []
    for _ in range(5):
        client, began = cluster.client(), cluster.now
        ticket = client.submit(command_request(Put(b"a", b"1")), 10)
        while ticket not in client.ended:
            for flood in floods:
                flood.register(20)
            cluster.wait(0.01)
        assert client.ended[ticket].error is None
        assert isinstance(client.result(client.submit(command_request(Put(b"b", b"2")))), PutResult)
        waited.append((cluster.now - began) / SECOND)

    assert max(waited) < (0.2 if connections == 3 else 3), waited


def test_a_new_leader_makes_room_as_well(tmp_path: Path) -> None:
    """Only the command that closes a session is replicated, so all members agree on it."""
    cluster = Cluster(tmp_path, 3)
    cluster.client(ttl_ns=0).do(ChangeLimits(sessions_max=SESSIONS_MAX))
    filled(cluster)
    cluster.kill(cluster.leader())
    cluster.wait(2)

    cluster.client().do(Put(b"a", b"1"))

    cluster.wait(0.3)
    assert len({host.machine.state_hash() for host in cluster.hosts.values()}) == 1
    assert len(sessions_of(cluster)) == SESSIONS_MAX


def test_whose_session_made_room_registers_another_one(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is slower than the grace period loses a round trip, but no command."""
    slow = cluster.client(limits=ClientLimits(attempt_timeout_ns=10 * SECOND))
    slow.submit(read_request(Get(b"a"), Consistency.LINEARIZABLE))  # After this read the client knows the leader.
    files, late = cluster.hosts["s1"].files, list[tuple[int, bytes]]()
    files.is_held = True
    ticket = slow.submit(command_request(Put(b"slow", b"1")), 30)
    monkeypatch.setattr(slow.core, "receive", lambda *told: late.append(told))
    files.is_held = False
    cluster.settle()
    (its_session,) = sessions_of(cluster)
    filled(cluster)
    cluster.wait(1)
    cluster.client().do(Put(b"a", b"1"))
    assert its_session not in sessions_of(cluster)

    monkeypatch.undo()
    for connection_id, data in late:
        slow.core.receive(connection_id, data)

    assert isinstance(slow.result(ticket), PutResult)
    assert slow.core.session_id in sessions_of(cluster)


def test_the_longest_time_to_live_is_an_option_of_the_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader applies its own option. Sessions of an hour are for clients that sleep."""
    given: list[MemberConfig] = []
    monkeypatch.setattr("kvstore.cli.daemon.serve.serve", lambda config, _: given.append(config))

    for options in ([], ["--session-ttl-max", "3600"]):
        assert CliRunner().invoke(serve_command, [str(tmp_path), *options]).exit_code == 0

    body = command_body(RegisterSession(3600 * SECOND))
    with pytest.raises(InvalidRequest, match="the bound is 300000000000"):
        admit_body(body, given[0].service.admission)
    admit_body(body, given[1].service.admission)
