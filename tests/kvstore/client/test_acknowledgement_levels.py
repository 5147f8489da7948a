"""Acknowledgement levels on the whole way from a client to members and back.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.client.acknowledged_calls import read_accepted, read_fate, read_in_sync
from kvstore.client.client import _PUT_READERS, _read_put
from kvstore.client.core import SILENT_REQUESTS_MAX
from kvstore.errors import (
    NotCommitted,
    NotEnoughInSync,
    OperationFailed,
    QuotaExceeded,
    UnderReplicated,
    Unsupported,
)
from kvstore.limits import ServiceLimits, StoreLimits
from kvstore.protocol.commands import ChangeLimits, Get, Put, RaiseFeatureLevel
from kvstore.protocol.messages import (
    Code,
    EntryFate,
    Request,
    command_request,
    encode_request,
    encode_response,
    outcome_request,
    read_log_request,
)
from kvstore.protocol.results import Accepted, GetResult, PutResult
from kvstore.server.mark_waits import STALE_ENTRIES_MIN
from raft import Acknowledge, frame
from tests.kvstore.support.in_memory_cluster import SECOND, Cluster, SimClient

IN_SYNC_LAG_SECONDS = 1.0


def put(key: bytes, level: Acknowledge) -> Request:
    return command_request(Put(key, b"value"), level)


def others(cluster: Cluster) -> list[str]:
    return [node_id for node_id in cluster.hosts if node_id != cluster.leader()]


def value_of(client: SimClient, key: bytes) -> bytes | None:
    found = client.do(Get(key))
    assert isinstance(found, GetResult)
    return None if found.record is None else found.record.value


def at_level_2(cluster: Cluster, **limits: int) -> SimClient:
    client = cluster.client()
    client.do(RaiseFeatureLevel(2))
    if limits:
        client.do(ChangeLimits(**limits))
    return client


def accepted(client: SimClient, key: bytes) -> Accepted:
    return read_accepted(client.ask(put(key, Acknowledge.LEADER)))


def fate(client: SimClient, entry: Accepted, wait_ms: int = 0) -> EntryFate:
    return read_fate(client.ask(outcome_request(entry.index, entry.term, wait_ms=wait_ms)))


def test_each_level_has_its_own_answer(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()

    assert read_in_sync(client.ask(put(b"a", Acknowledge.IN_SYNC)), _read_put) == PutResult(2, None, ("s1", "s2", "s3"))
    assert _read_put(client.ask(put(b"b", Acknowledge.MAJORITY))) == PutResult(3)
    entry = accepted(client, b"c")
    assert entry.term == cluster.hosts[cluster.leader()].node.core.term
    client.ask(put(b"d", Acknowledge.NONE))
    assert [value_of(client, key) for key in (b"a", b"b", b"c", b"d")] == [b"value"] * 4
    assert fate(client, entry) is EntryFate.COMMITTED


def test_the_usual_level_has_the_usual_bytes(tmp_path: Path) -> None:
    """A write of level MAJORITY is encoded without a level, so an older member can read the request."""
    request = command_request(Put(b"k", b"v"), Acknowledge.MAJORITY)
    assert encode_request(7, request) == encode_request(7, command_request(Put(b"k", b"v")))


def test_a_write_that_only_the_leader_has_is_accepted_and_not_visible(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    cluster.cut = set(others(cluster))

    entry = accepted(client, b"k")
    assert fate(client, entry) is EntryFate.OPEN
    assert cluster.hosts[cluster.leader()].machine.revision == 2

    cluster.cut = set()
    assert fate(client, entry, wait_ms=2_000) is EntryFate.COMMITTED
    assert value_of(client, b"k") == b"value"


def test_an_accepted_write_that_an_election_cuts_is_lost_and_told_so(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    old = cluster.leader()
    cluster.cut = {old}
    entry = accepted(client, b"lost")
    cluster.wait(3)
    assert cluster.leader() != old

    assert fate(client, entry, wait_ms=2_000) is EntryFate.LOST
    assert value_of(client, b"lost") is None


def test_an_entry_beyond_the_end_of_the_new_leaders_log_is_lost_without_further_writes(tmp_path: Path) -> None:
    """The terms of a log never fall. So if a committed entry at a lower index has the new term, the uncommitted entry
    is lost."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    old = cluster.leader()
    cluster.cut = {old}
    entries = [accepted(client, b"lost %d" % number) for number in range(5)]
    cluster.wait(3)
    assert cluster.hosts[cluster.leader()].node.core.last_index < entries[-1].index
    assert {fate(client, entry, wait_ms=1_000) for entry in entries} == {EntryFate.LOST}


def test_an_outcome_that_stays_open_is_answered_after_the_wait(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    term = cluster.hosts[cluster.leader()].node.core.term
    began = cluster.now
    assert fate(client, Accepted(1_000, term), wait_ms=700) is EntryFate.OPEN
    assert 0.7 <= (cluster.now - began) / SECOND <= 0.9


def test_a_wait_that_is_longer_than_the_patience_of_the_client_does_not_end_its_connection(tmp_path: Path) -> None:
    """The member answers pings, so the client knows that the member is alive."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    connections = dict(client.connections)
    term = cluster.hosts[cluster.leader()].node.core.term
    ticket = client.submit(outcome_request(1_000, term, wait_ms=8_000), seconds=20)
    cluster.wait(7)
    assert ticket not in client.ended
    leader = cluster.hosts[cluster.leader()].service
    assert leader.open_requests == 1
    leader.check()
    assert client.connections == connections
    cluster.wait(2)
    assert read_fate(client._response(ticket, 1)) is EntryFate.OPEN


def test_in_sync_waits_once_for_a_dead_member_and_not_for_ever(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    dead = others(cluster)[0]
    cluster.kill(dead)

    began = cluster.now
    first = read_in_sync(client.ask(put(b"a", Acknowledge.IN_SYNC)), _read_put)
    assert IN_SYNC_LAG_SECONDS * 0.9 <= (cluster.now - began) / SECOND <= IN_SYNC_LAG_SECONDS * 1.3
    began = cluster.now
    second = read_in_sync(client.ask(put(b"b", Acknowledge.IN_SYNC)), _read_put)
    assert (cluster.now - began) / SECOND <= 0.1
    assert first.acknowledged_by == second.acknowledged_by == tuple(sorted(cluster.hosts))


def test_with_too_few_in_sync_a_write_is_refused_and_a_read_goes_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    client = at_level_2(cluster, min_in_sync=3)
    client.ask(put(b"a", Acknowledge.IN_SYNC))
    cluster.kill(others(cluster)[0])
    cluster.wait(2)
    leader = cluster.hosts[cluster.leader()].node
    last_index = leader.core.last_index

    with pytest.raises(NotEnoughInSync, match="min_in_sync is 3") as refused:
        client.ask(put(b"b", Acknowledge.IN_SYNC))
    assert refused.value.in_sync == tuple(sorted(cluster.hosts))
    assert isinstance(refused.value, OperationFailed)
    assert leader.core.last_index == last_index
    assert value_of(client, b"a") == b"value"
    assert value_of(client, b"b") is None
    client.do(Put(b"c", b"1"))  # A write of level MAJORITY needs only a majority.


def test_a_write_that_too_few_hold_in_the_end_has_its_result_and_a_warning(tmp_path: Path) -> None:
    """The member leaves the set of members in sync after the entry was appended, so the write cannot be undone."""
    cluster = Cluster(tmp_path, 3)
    client = at_level_2(cluster, min_in_sync=3)
    client.ask(put(b"a", Acknowledge.IN_SYNC))
    cluster.kill(others(cluster)[0])

    response = client.ask(put(b"b", Acknowledge.IN_SYNC))
    with pytest.raises(UnderReplicated) as told:
        read_in_sync(response, _read_put)
    holders = tuple(sorted(cluster.hosts))
    assert (told.value.acknowledged_by, told.value.min_in_sync) == (holders, 3)
    assert isinstance(told.value.result, PutResult)
    assert told.value.result.acknowledged_by == holders
    assert value_of(client, b"b") == b"value"


def test_a_write_that_the_store_refuses_is_refused_at_level_in_sync_too(tmp_path: Path) -> None:
    """A refused write has no effect, so no member needs a copy."""
    cluster = Cluster(tmp_path, 3)
    client = at_level_2(cluster, min_in_sync=3, quota_bytes=1)
    cluster.kill(others(cluster)[0])
    with pytest.raises(QuotaExceeded):
        client.ask(put(b"b", Acknowledge.IN_SYNC))


def test_a_repeated_write_of_level_in_sync_is_carried_out_once_and_acknowledged_by_all(tmp_path: Path) -> None:
    """The answer was lost with the connection. A kept result does not prove any copies, so the repeated request waits
    again."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    slow = others(cluster)[0]
    cluster.cut = {slow}
    ticket = client.submit(put(b"a", Acknowledge.IN_SYNC))
    assert ticket not in client.ended
    revision = cluster.hosts[cluster.leader()].machine.revision
    for connection_id in list(client.connections):
        client._hang_up(connection_id)
        client.core.disconnected(connection_id, "cable pulled")
    cluster.cut = set()
    result = read_in_sync(client._response(ticket, 5), _read_put)
    assert result == PutResult(revision, None, ("s1", "s2", "s3"))
    assert cluster.hosts[cluster.leader()].machine.revision == revision


def test_level_none_is_not_answered_even_if_it_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    for number in range(3 * SILENT_REQUESTS_MAX):
        client.submit(command_request(Put(b"" if number % 2 else b"key", b"v"), Acknowledge.NONE))
    cluster.wait(0.1)
    assert value_of(client, b"key") == b"v"
    assert cluster.hosts[cluster.leader()].machine.revision == 2 + 3 * SILENT_REQUESTS_MAX // 2
    assert all(not host.node.open_requests for host in cluster.hosts.values())


def test_unread_requests_of_level_none_are_bounded(tmp_path: Path) -> None:
    """While a member reads no bytes, a client sends at most as many bytes as the bound allows."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    (connection,) = [each for each in client.core._connections.values() if each.address == f"{cluster.leader()}:1"]
    client.core.take_effects()
    for number in range(2 * SILENT_REQUESTS_MAX):
        client.core.submit(10_000 + number, put(b"key", Acknowledge.NONE), cluster.now + SECOND)
        client.core._advance()
    assert connection.silent_unread == SILENT_REQUESTS_MAX


def test_a_member_that_knows_no_levels_keeps_its_connection_and_later_writes_are_refused(tmp_path: Path) -> None:
    """An older build answers each request of an unknown kind, even if the client expects no answer."""
    cluster = Cluster(tmp_path, 1)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    (connection,) = client.core._connections.values()
    core = client.core
    core.submit(1_000, put(b"key", Acknowledge.NONE), cluster.now + SECOND)
    core.submit(1_001, put(b"key", Acknowledge.NONE), cluster.now + SECOND)
    assert {ended.ticket: ended.error for ended in core.take_effects().ended} == {1_000: None, 1_001: None}
    for request_id in (core._last_request_id - 1, core._last_request_id):
        refusal = encode_response(request_id, Code.UNSUPPORTED, 2, 0, "s1", ("request kind 19",))
        core.receive(connection.connection_id, frame(refusal))

    with pytest.raises(Unsupported, match="level NONE"):
        client.ask(put(b"key", Acknowledge.NONE))
    assert list(core._connections.values()) == [connection]
    client.do(Put(b"after", b"1"))


def test_an_answer_to_a_silent_request_other_than_a_refusal_of_its_kind_ends_the_connection(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    (connection,) = client.core._connections.values()
    client.core.submit(1_000, put(b"key", Acknowledge.NONE), cluster.now + SECOND)
    client.core.take_effects()
    client.core.receive(
        connection.connection_id, frame(encode_response(client.core._last_request_id, Code.OK, 2, 0, "s1", ([1],)))
    )
    assert not client.core._connections


def test_the_ids_of_silent_requests_are_forgotten_once_the_member_has_read_them(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    (connection,) = client.core._connections.values()
    for _ in range(3 * SILENT_REQUESTS_MAX + 10):
        client.submit(put(b"key", Acknowledge.NONE))
        assert len(connection.silent_ids) <= SILENT_REQUESTS_MAX
    assert len(connection.silent_ids) == 10


def test_an_unknown_level_and_a_level_of_a_session_command_are_refused(tmp_path: Path) -> None:
    """The request counts as unsupported, because a newer client may send such a request to an older member."""
    from kvstore.protocol.commands import KeepAlive, encode_command
    from tests.kvstore.server.test_service import RawClient

    cluster = Cluster(tmp_path, 1)
    cluster.leader()
    client = RawClient(cluster)
    command = encode_command(Put(b"k", b"v"))
    assert client.ask(b"\x84\x01\x13\x07" + command).code == Code.UNSUPPORTED
    assert client.ask(b"\x84\x02\x13\x03" + encode_command(KeepAlive(), session_id=1)).code == Code.UNSUPPORTED


def test_a_log_page_above_the_mark_waits_for_the_mark(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    mark = cluster.hosts[cluster.leader()].node.core.commit_index
    follower = f"{others(cluster)[0]}:1"

    ticket = client.submit(read_log_request(mark + 1, 0, follower, wait_ms=5_000), seconds=10)
    cluster.wait(1)
    assert ticket not in client.ended
    client.do(Put(b"next", b"1"))
    cluster.wait(0.2)
    page = client._response(ticket, 1)
    assert page.fields[0][0][0] == mark + 1

    with pytest.raises(NotCommitted):
        client.ask(read_log_request(mark + 100, 0, follower, wait_ms=300))


def test_a_log_page_waits_on_while_the_leader_changes(tmp_path: Path) -> None:
    """Every member can read its own log, whether it leads or not. Only the outcome of an entry must come from a
    leader."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    old = cluster.leader()
    index = cluster.hosts[old].node.core.commit_index + 3
    tickets = [
        client.submit(read_log_request(index, 0, f"{node_id}:1", wait_ms=30_000), seconds=40)
        for node_id in cluster.hosts
    ]
    cluster.cut = {old}
    cluster.wait(3)
    assert cluster.leader() != old
    assert not client.ended.keys() & set(tickets)

    cluster.cut = set()
    for _ in range(3):
        client.do(Put(b"next", b"1"))
    for ticket in tickets:
        assert client._response(ticket, 1).fields[0][0][0] == index


def test_requests_that_wait_for_the_mark_are_bounded_over_all_connections(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1, ServiceLimits(mark_waits_max=2))
    clients = [cluster.client() for _ in range(3)]
    for client in clients:
        client.do(Put(b"before", b"1"))
    waiting = [client.submit(read_log_request(1_000, 0, "s1:1", wait_ms=2_000), seconds=10) for client in clients]
    service = cluster.hosts["s1"].service
    assert len(service._mark_waits) == 2
    service.check()

    cluster.wait(5)
    for client, ticket in zip(clients, waiting, strict=True):
        # The third client was refused at first, and tried again.
        assert isinstance(client.ended[ticket].error, NotCommitted)
    assert len(service._mark_waits) == 0


def test_waits_that_are_over_leave_nothing_behind(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    node, waits = cluster.hosts["s1"].node, cluster.hosts["s1"].service._mark_waits
    for _ in range(200):
        client.submit(read_log_request(node.core.commit_index + 1, 0, "s1:1", wait_ms=60_000), seconds=100)
        client.do(Put(b"next", b"1"))
    assert len(waits) == 0
    assert len(waits._by_index) + len(waits._by_until) <= STALE_ENTRIES_MIN + 4


def test_a_connection_that_ends_takes_its_waits_with_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    client = cluster.client()
    client.do(Put(b"before", b"1"))
    client.submit(read_log_request(1_000, 0, "s1:1", wait_ms=60_000), seconds=100)
    cluster.wait(0.1)
    assert len(cluster.hosts["s1"].service._mark_waits) == 1
    for connection_id in list(client.connections):
        client._hang_up(connection_id)
    assert len(cluster.hosts["s1"].service._mark_waits) == 0


def test_min_in_sync_is_one_by_default() -> None:
    """With this limit, level IN_SYNC accepts any number of members in sync."""
    assert StoreLimits().min_in_sync == 1
    assert set(_PUT_READERS) == set(Acknowledge)
