"""The client's state machine and the service of whole members, connected directly. Both sides are production code."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.errors import Compacted, InvalidRequest, NotCommitted, TransferRefused, Unsupported
from kvstore.protocol.commands import (
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    Get,
    Put,
    Range,
    Target,
    Txn,
    encode_command,
)
from kvstore.protocol.messages import Consistency, command_request, read_log_request, status_request, transfer_request
from kvstore.protocol.results import CompareAndSetResult, DeleteResult, GetResult, PutResult, RangeResult, TxnResult
from kvstore.protocol.status import status_from_map
from tests.kvstore.support.in_memory_cluster import SECOND, Cluster


def test_a_single_member_serves_at_once(tmp_path: Path) -> None:
    """A member without peers elects itself, and commits with its own sync."""
    client = Cluster(tmp_path, 1).client()

    put = client.do(Put(b"a", b"1"))
    found = client.do(Get(b"a"))

    assert put == PutResult(2)
    assert isinstance(found, GetResult)
    assert found.record is not None
    assert (found.record.value, found.record.version) == (b"1", 1)


def test_every_operation_comes_back_as_its_own_result(tmp_path: Path) -> None:
    """The test has every form of a transaction, with its answer (docs/reference/specification.md#84-transactions)."""
    client = Cluster(tmp_path, 3).client()

    assert client.do(CompareAndSet(b"a", b"1", 0)) == CompareAndSetResult(2, True)
    failed = client.do(CompareAndSet(b"a", b"2", b"other"))
    assert isinstance(failed, CompareAndSetResult)
    assert failed.record is not None
    assert (failed.succeeded, failed.record.value) == (False, b"1")
    txn = client.do(
        Txn(
            (Compare(b"a", Target.VERSION, Comparison.EQUAL, 1),),
            (Put(b"b", b"2"), Get(b"b"), Range()),
            (Delete(b"a"),),
        )
    )
    assert isinstance(txn, TxnResult)
    assert [type(result) for result in txn.results] == [PutResult, GetResult, RangeResult]
    listing = client.do(Range())
    assert isinstance(listing, RangeResult)
    assert [(item.key, item.value) for item in listing.items] == [(b"a", b"1"), (b"b", b"2")]
    assert client.do(Delete(b"a")) == DeleteResult(4, True)


def test_a_command_that_breaks_a_rule_is_refused_at_admission_with_its_reason(tmp_path: Path) -> None:
    """The command is checked before any entry is proposed, so the log does not grow."""
    cluster = Cluster(tmp_path, 1)
    client = cluster.client()
    client.do(Put(b"a", b"1"))
    last_index = cluster.hosts["s1"].node.core.last_index

    with pytest.raises(InvalidRequest, match="at least one byte"):
        client.do(Put(b"", b"1"))
    with pytest.raises(InvalidRequest, match="value is too long"):
        client.do(Put(b"a", bytes(1024 * 1024 + 1)))

    assert cluster.hosts["s1"].node.core.last_index == last_index


def test_a_lease_read_is_refused_with_a_typed_error(tmp_path: Path) -> None:
    """This store does not offer lease reads, and never answers a lease read as if it were another kind of read."""
    client = Cluster(tmp_path, 1).client()

    with pytest.raises(Unsupported, match="lease"):
        client.do(Get(b"a"), consistency=Consistency.LEASE)


def test_no_write_is_lost_or_done_twice_when_the_leader_dies_with_many_in_flight(tmp_path: Path) -> None:
    """The client repeats each open request under its session and number. So each write happens once, and its key has
    version 1."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"first", b"x"))
    for round_no in range(4):
        leader = cluster.leader()
        client._last_ticket += 1
        tickets = []
        # The requests are submitted without a flush in between. So some requests are proposed, and none is answered.
        for number in range(50):
            client._last_ticket += 1
            key = b"r%d/%02d" % (round_no, number)
            request = command_request(Put(key, b"v"))
            client.core.submit(client._last_ticket, request, cluster.now + 10 * SECOND)
            tickets.append(client._last_ticket)
        client.flush()
        cluster.hosts[leader].node.take_effects()  # The requests are proposed, but no peer gets the entries.
        cluster.kill(leader)
        for ticket in tickets:
            assert isinstance(client.result(ticket, 10), PutResult)
        cluster.start(leader)
        cluster.wait(0.5)

    listing = client.do(Range())
    assert isinstance(listing, RangeResult)
    assert len(listing.items) == 4 * 50 + 1
    assert {item.version for item in listing.items} == {1}
    assert listing.revision == 1 + 4 * 50 + 1


def test_a_deposed_leader_answers_session_requests_at_once_and_they_succeed_elsewhere(tmp_path: Path) -> None:
    """A leader that steps down answers that the outcome is unknown, and the client retries immediately."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"a", b"1"))
    leader = cluster.leader()
    cluster.cut.add(leader)

    ticket = client.submit(command_request(Put(b"a", b"2")), seconds=10)
    assert client.result(ticket, 10) == PutResult(3)

    cluster.cut.clear()
    cluster.wait(1)
    found = client.do(Get(b"a"))
    assert isinstance(found, GetResult)
    assert found.record is not None
    assert (found.record.value, found.record.version) == (b"2", 2)


def test_without_a_majority_writes_end_within_their_deadline(tmp_path: Path) -> None:
    """Only one of three members is left. A write ends as a failure or as unknown. It neither succeeds nor waits
    forever."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"a", b"1"))
    survivor = next(node_id for node_id in cluster.hosts if node_id != cluster.leader())
    for node_id in list(cluster.hosts):
        if node_id != survivor:
            cluster.kill(node_id)

    ticket = client.submit(command_request(Put(b"a", b"2")), seconds=2)
    cluster.wait(2.1)

    assert client.ended[ticket].response is None
    assert "deadline" in str(client.ended[ticket].error)


def test_local_reads_are_served_by_any_member_and_labelled(tmp_path: Path) -> None:
    """A member answers from its applied state, without a leader
    (docs/reference/specification.md#811-consistency-of-reads)."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"a", b"1"))
    cluster.wait(0.2)
    leader = cluster.leader()
    survivor = next(node_id for node_id in cluster.hosts if node_id != leader)
    for node_id in list(cluster.hosts):
        if node_id != survivor:
            cluster.kill(node_id)
    fresh = cluster.client()

    found = fresh.do(Get(b"a"), consistency=Consistency.LOCAL)

    assert isinstance(found, GetResult)
    assert found.record is not None
    response = fresh.ended[1].response
    assert response is not None
    assert (response.consistency, response.node_id) == (Consistency.LOCAL, survivor)


def test_the_committed_log_can_be_read_and_nothing_above_the_mark(tmp_path: Path) -> None:
    """A reader of the log gets entries up to commit_index. Above commit_index the answer is NotCommitted, and below
    first_index it is Compacted.

    See docs/reference/specification.md#66-reading-the-log.
    """
    cluster = Cluster(tmp_path, 1)
    client = cluster.client(ttl_ns=0)
    client.do(Put(b"a", b"1"))
    core = cluster.hosts["s1"].node.core

    ticket = client.submit(read_log_request(1, 0))
    response = client.ended[ticket].response
    assert response is not None
    rows, commit_index = response.fields
    assert commit_index == core.commit_index
    assert [row[0] for row in rows] == list(range(1, commit_index + 1))
    assert encode_command(Put(b"a", b"1")) in rows[-1][3]

    above = client.submit(read_log_request(commit_index + 1, 0))
    assert isinstance(client.ended[above].error, NotCommitted)
    below = client.submit(read_log_request(0, 0))
    assert isinstance(client.ended[below].error, Compacted)


def test_status_tells_the_marks_and_equal_states_have_equal_hashes(tmp_path: Path) -> None:
    """`hwm status` shows role, term, marks and lag. The harness compares the hashes."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"a", b"1"))
    cluster.wait(0.3)

    found = []
    for node_id in cluster.hosts:
        ticket = client.submit(status_request(f"{node_id}:1", with_hash=True))
        response = client.ended[ticket].response
        assert response is not None
        found.append(status_from_map(response.fields[0]))

    assert {status.node_id for status in found} == set(cluster.hosts)
    assert len({status.state_hash for status in found}) == 1
    assert {status.lag for status in found} == {0}
    assert sorted(status.role for status in found) == ["follower", "follower", "leader"]
    assert all(status.low_watermark <= status.commit_index <= status.last_index for status in found)


def test_a_session_survives_the_leader_and_keep_alives_count(tmp_path: Path) -> None:
    """No write comes for longer than the session's time to live, but the client itself keeps the session alive."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client(ttl_ns=3 * SECOND)
    client.do(Put(b"a", b"1"))
    session_id = client.core.session_id

    cluster.kill(cluster.leader())
    cluster.wait(8)
    client.do(Put(b"a", b"2"))

    assert client.core.session_id == session_id


def test_sessions_of_clients_that_are_gone_expire_though_nobody_writes(tmp_path: Path) -> None:
    """Sessions expire only when an entry is applied, so an idle leader proposes an entry when an expiry is due.

    See docs/reference/specification.md#812-leader-time.
    """
    cluster = Cluster(tmp_path, 3)
    client = cluster.client(ttl_ns=2 * SECOND)
    client.do(Put(b"a", b"1"))
    cluster.clients.remove(client)  # The client no longer exists, so it keeps no session alive.

    cluster.wait(3)
    service = cluster.hosts[cluster.leader()].service
    assert {host.machine.status().sessions for host in cluster.hosts.values()} == {1}
    service.expire_sessions()
    service.expire_sessions()  # An entry for the expiry is already under way, so no second one is proposed.
    assert service.open_requests == 1
    cluster.settle()
    cluster.wait(0.2)

    assert {host.machine.status().sessions for host in cluster.hosts.values()} == {0}
    assert service.open_requests == 0
    last_index = cluster.hosts[cluster.leader()].node.core.last_index
    service.expire_sessions()
    cluster.settle()
    assert cluster.hosts[cluster.leader()].node.core.last_index == last_index


# Leadership transfer


def test_a_leader_hands_over_when_a_client_asks_for_it(tmp_path: Path) -> None:
    """The named member takes over the leadership. No write fails, because a write that comes during the transfer is
    sent to the next leader."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"a", b"1"))
    leader_id = cluster.leader()
    wanted_id = max(cluster.hosts.keys() - {leader_id})

    begun = client.ask(transfer_request(wanted_id, f"{leader_id}:1"))

    assert begun.fields == (wanted_id,)
    client.do(Put(b"a", b"2"))
    assert cluster.leader() == wanted_id


def test_a_member_that_does_not_lead_or_is_named_itself_has_nothing_to_hand_over(tmp_path: Path) -> None:
    """If a request is repeated because its answer was lost, it must not start a second transfer."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    client.do(Put(b"a", b"1"))
    leader_id = cluster.leader()
    follower_id = min(cluster.hosts.keys() - {leader_id})

    assert client.ask(transfer_request(None, f"{follower_id}:1")).fields == (None,)
    assert client.ask(transfer_request(leader_id, f"{leader_id}:1")).fields == (None,)
    assert cluster.leader() == leader_id


def test_a_transfer_that_cannot_work_is_refused_with_its_reason(tmp_path: Path) -> None:
    """The client learns which members exist, and that nothing has changed."""
    cluster = Cluster(tmp_path, 3)
    client = cluster.client()
    leader_id = cluster.leader()

    with pytest.raises(TransferRefused, match="s9 is not another voter; the other voters are: s") as refused:
        client.ask(transfer_request("s9", f"{leader_id}:1"))

    assert refused.value.reason == "not_a_peer"
