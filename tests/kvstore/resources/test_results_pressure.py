"""Sessions that acknowledge no results can fill the store's space for results for at most a few seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.errors import Busy
from kvstore.limits import MIB
from kvstore.protocol.commands import ChangeLimits, Get, Put, RegisterSession, Txn, encode_command
from kvstore.protocol.messages import command_request, encode_client_hello, encode_request
from kvstore.protocol.results import PutResult
from kvstore.resources.results_pressure import CALM_LOOKS
from raft import encode_item, frame
from tests.kvstore.support.in_memory_cluster import SECOND, Cluster, SimClient

RESULTS_BYTES_MAX = 64 * MIB
HOLDERS = 8
"""This number of sessions reaches RESULTS_BYTES_MAX. Each session keeps 8 MiB and one more result."""


class Hoard:
    """A connection with sessions that have large kept results. The connection acknowledges no result and reads no
    answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._last_request_id = cluster, 0
        self._service = cluster.hosts["s1"].service
        self._service.connected(7)
        self._service.receive(7, frame(encode_client_hello()))

    def fill(self) -> None:
        """Register sessions. For each session, request more large results than it may keep, all in flight at once."""
        before = self._cluster.hosts["s1"].machine.sessions.next_id
        self._send([encode_request(self._id(), command_request(RegisterSession(60 * SECOND))) for _ in range(HOLDERS)])
        gets = []
        for session_id in range(before, before + HOLDERS):
            for number in range(1, 11):
                command = encode_command(Get(b"large"), session_id=session_id, request_no=number)
                gets.append(b"\x83" + encode_item(self._id()) + b"\x02" + command)
        self._send(gets)

    def _id(self) -> int:
        self._last_request_id += 1
        return self._last_request_id

    def _send(self, bodies: list[bytes]) -> None:
        self._service.receive(7, b"".join(map(frame, bodies)))
        self._cluster.settle()
        while out := self._service.take_output():
            for connection_id, data in out:
                self._service.sent(connection_id, len(data))
            self._cluster.settle()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    setting_up = cluster.client(ttl_ns=0)
    setting_up.do(ChangeLimits(results_bytes_max=RESULTS_BYTES_MAX))
    setting_up.do(Put(b"large", bytes(MIB)))
    yield cluster
    cluster.hosts["s1"].kill()


def kept_bytes(cluster: Cluster) -> int:
    return cluster.hosts["s1"].machine.sessions.results_bytes


def look(cluster: Cluster, seconds: int) -> None:
    """Let `seconds` seconds pass, and let the host do its periodic work in each second."""
    for _ in range(seconds):
        cluster.wait(1)
        cluster.hosts["s1"].service.expire_sessions()
        cluster.settle()


def test_who_holds_most_makes_room_when_the_results_of_all_are_at_their_bound(cluster: Cluster) -> None:
    """If this session were not closed, the results would stay as long as somebody keeps the sessions of the hoard
    alive."""
    honest = cluster.client()
    honest.do(Put(b"a", b"1"))
    Hoard(cluster).fill()
    assert kept_bytes(cluster) >= RESULTS_BYTES_MAX
    with pytest.raises(Busy, match="results_bytes_max"):
        honest.do(Put(b"a", b"2"), seconds=0.3)
    session_id = honest.core.session_id

    look(cluster, 2)

    assert kept_bytes(cluster) <= RESULTS_BYTES_MAX // 2
    assert isinstance(honest.do(Put(b"a", b"3"), seconds=0.5), PutResult)
    assert honest.core.session_id == session_id  # The honest session has few results, so it is not closed.


def test_who_acknowledges_before_the_second_look_is_left_alone(cluster: Cluster) -> None:
    honest, hoard = cluster.client(), Hoard(cluster)
    honest.do(Put(b"a", b"1"))
    hoard.fill()
    sessions = cluster.hosts["s1"].machine.sessions
    look(cluster, 1)
    for session_id in list(sessions.by_id):
        if session_id != honest.core.session_id:
            command = encode_command(Put(b"b", b"1"), session_id=session_id, request_no=20, acknowledged_up_to=10)
            hoard._send([b"\x83" + encode_item(hoard._id()) + b"\x02" + command])
    assert kept_bytes(cluster) < MIB

    look(cluster, 3)

    assert len(sessions.by_id) == HOLDERS + 1


def test_a_hoard_that_comes_again_and_again_keeps_no_put_out_for_long(cluster: Cluster) -> None:
    """After each hoard, only a few requests at a time are admitted for ten seconds. So the hoard does not reach the
    bound again."""
    honest, hoard = cluster.client(), Hoard(cluster)
    honest.do(Put(b"a", b"1"))
    waits: list[float] = []
    for second in range(20):
        hoard.fill()
        look(cluster, 1)
        began = cluster.now
        ticket = honest.submit(command_request(Put(b"a", b"%d" % second)), 3)
        for _ in range(3):
            if ticket not in honest.ended:
                hoard.fill()
                look(cluster, 1)
        assert ticket in honest.ended
        waits.append((cluster.now - began) / SECOND if honest.ended[ticket].error is None else 9.0)

    assert max(waits) <= 2, waits
    # The put only waits at the beginning, and each time when all requests are admitted again.
    assert waits.count(0.0) >= 17, waits


def test_commands_of_honest_clients_are_admitted_as_ever_once_it_is_calm(cluster: Cluster) -> None:
    Hoard(cluster).fill()
    look(cluster, 2)
    assert len(_many_reads_at_once(cluster, 100)) < 100
    look(cluster, CALM_LOOKS)
    assert len(_many_reads_at_once(cluster, 100)) == 100


def _many_reads_at_once(cluster: Cluster, count: int) -> list[int]:
    """Send `count` transactions together. Return those that were carried out at the first attempt."""
    client: SimClient = cluster.client()
    client.do(Put(b"small", b"1"))
    for ticket in range(1_000, 1_000 + count):
        client.core.submit(ticket, command_request(Txn(success=(Get(b"small"),))), cluster.now + SECOND)
    cluster.settle()
    return [ticket for ticket in client.ended if ticket >= 1_000]
