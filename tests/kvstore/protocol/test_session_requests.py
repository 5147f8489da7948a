"""Requests of operators about sessions and limits, through whole members. Sessions are listed in pages and closed, and
limits are changed, all without a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.errors import Busy, Unsupported
from kvstore.limits import StoreLimits
from kvstore.protocol.commands import ChangeLimits, Put, RegisterSession
from kvstore.protocol.messages import (
    Code,
    Request,
    RequestKind,
    Response,
    SessionlessRequest,
    command_request,
    decode_request,
    encode_request,
)
from kvstore.protocol.results import PutResult
from kvstore.protocol.session_requests import (
    PAGE_SESSIONS_MAX,
    SessionPage,
    close_session_request,
    decode_closed,
    decode_limits,
    decode_sessions,
    limits_request,
    sessions_request,
)
from raft import INT64_MAX, ProtocolError, encode_item, frame
from tests.kvstore.support.in_memory_cluster import SECOND, Cluster, SimClient
from tests.kvstore.support.scripted_members import World


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, 3)
    cluster.leader()
    yield cluster
    for host in cluster.hosts.values():
        host.kill()


def register(cluster: Cluster, client: SimClient, count: int) -> None:
    """Register sessions that nobody uses, over this client's connection to the leader."""
    client.do(Put(b"here", b"1"))
    body = encode_request(10**6, command_request(RegisterSession(20 * SECOND)))
    leader = cluster.leader()
    (own_id,) = [own_id for own_id, member in client.connections.items() if member == leader]
    client.core.receive = lambda *_: None  # type: ignore[method-assign]  # It has not asked for these.
    cluster.hosts[leader].service.receive(client._serial + own_id, frame(body) * count)
    cluster.settle()


def pages_of(client: SimClient) -> list[SessionPage]:
    pages = [decode_sessions(client.ask(sessions_request(0, PAGE_SESSIONS_MAX)))]
    while pages[-1].more:
        pages.append(decode_sessions(client.ask(sessions_request(pages[-1].items[-1].session_id, INT64_MAX))))
    return pages


def test_sessions_are_listed_by_id_in_pages(cluster: Cluster) -> None:
    """The leader can serve other clients between two pages."""
    register(cluster, cluster.client(), 1202)
    cluster.wait(2)

    pages = pages_of(cluster.client(ttl_ns=0))

    assert [len(page.items) for page in pages] == [500, 500, 203]
    views = [view for page in pages for view in page.items]
    assert [view.session_id for view in views] == list(range(1, 1204))
    used, unused = views[0], views[1]
    assert (used.is_unused, used.results, used.results_bytes) == (False, 1, 128)
    assert (unused.is_unused, unused.results, unused.ttl_ns) == (True, 0, 20 * SECOND)
    assert 2 * SECOND <= pages[0].idle_ns(unused) <= 2.1 * SECOND
    assert unused.deadline - pages[0].leader_time == 20 * SECOND - pages[0].idle_ns(unused)


def test_a_session_is_closed_once_and_its_client_goes_on_with_another(cluster: Cluster) -> None:
    client, operator = cluster.client(), cluster.client(ttl_ns=0)
    client.do(Put(b"a", b"1"))
    session_id = client.core.session_id

    assert not decode_closed(operator.ask(close_session_request(session_id, only_unused=True)))
    assert decode_closed(operator.ask(close_session_request(session_id, only_unused=False)))
    assert not decode_closed(operator.ask(close_session_request(session_id, only_unused=False)))

    client.do(Put(b"a", b"2"))
    (page,) = pages_of(operator)
    assert [view.session_id for view in page.items] == [client.core.session_id] != [session_id]


def test_a_session_that_was_never_used_is_closed_as_such(cluster: Cluster) -> None:
    register(cluster, cluster.client(), 1)
    assert decode_closed(cluster.client(ttl_ns=0).ask(close_session_request(2, only_unused=True)))


def test_a_session_that_expires_meanwhile_is_told_as_not_closed(cluster: Cluster) -> None:
    """The entry that is to close the session first makes it expire, before the entry's commands run."""
    client, operator = cluster.client(ttl_ns=2 * SECOND), cluster.client(ttl_ns=0)
    client.do(Put(b"a", b"1"))
    operator.ask(limits_request())
    cluster.clients.remove(client)
    cluster.wait(3)

    assert not decode_closed(operator.ask(close_session_request(1, only_unused=False)))


def test_the_way_out_of_full_sessions_needs_none(cluster: Cluster) -> None:
    """Like any other client, an operator's client may ask for a session, but here it cannot get one."""
    cluster.client(ttl_ns=0).do(ChangeLimits(sessions_max=1))
    holder, operator = cluster.client(), cluster.client()
    holder.do(Put(b"a", b"1"))
    with pytest.raises(Busy, match="sessions_max is 1"):
        operator.do(Put(b"a", b"1"), seconds=2)

    view = decode_limits(operator.ask(limits_request()))
    assert (view.limits.sessions_max, view.used["sessions_max"]) == (1, 1)
    operator.ask(SessionlessRequest(RequestKind.COMMAND, ChangeLimits(sessions_max=2)))
    assert operator.do(Put(b"a", b"2")) == PutResult(3)
    assert decode_closed(operator.ask(close_session_request(1, only_unused=False)))


def test_what_is_used_of_each_limit_is_told_and_follows_the_state(cluster: Cluster) -> None:
    clients = [cluster.client() for _ in range(3)]
    operator = cluster.client(ttl_ns=0)
    for client in clients:
        client.do(Put(b"a", b"1"))
    assert decode_limits(operator.ask(limits_request())).used["sessions_max"] == 3

    clients[0].do(Put(b"b", b"22"))

    view = decode_limits(operator.ask(limits_request()))
    assert view.limits == StoreLimits()
    assert view.used == {
        "quota_bytes": 64 + 2 + 64 + 3,
        "sessions_max": 3,
        "results_per_session_max": 1,
        "results_bytes_per_session_max": 128,
        "results_bytes_max": 3 * 128,
        "deletions_max": 0,
    }


@pytest.mark.parametrize(
    "request_",
    [
        close_session_request(1, only_unused=False),
        SessionlessRequest(RequestKind.COMMAND, ChangeLimits(sessions_max=5)),
    ],
    ids=["close_session", "change_limits"],
)
def test_what_may_have_been_done_is_unknown_when_the_answer_is_lost(request_: Request) -> None:
    """The request has no request number in the log, so the client does not send it a second time."""
    world = World("s1", "s2", leader="s1", ttl_ns=60 * SECOND)
    world.core.submit(1, request_, world.now + 5 * SECOND)
    world.settle()
    assert (len(world["s1"].asked), world.sessions) == (1, 0)  # No session was registered for the request.

    world.crash("s1")

    assert world.outcome(1) == "unknown"


def test_a_member_of_an_older_build_says_that_it_does_not_know_the_request() -> None:
    world = World("s1", leader="s1")
    world.core.submit(1, limits_request(), world.now + 5 * SECOND)
    world.settle()
    world["s1"].answer(Code.UNSUPPORTED, "request kind 12")
    assert isinstance(world.ended[1].error, Unsupported)


@pytest.mark.parametrize(
    "items",
    [(10,), (10, -1, 5), (10, 0, "5"), (10, True, 5), (11,), (11, 1), (11, "1", True), (11, 1, 1), (11, None, False)],
)
def test_a_request_that_makes_no_sense_is_refused_as_such(cluster: Cluster, items: tuple[Any, ...]) -> None:
    judge = cluster.hosts[cluster.leader()].service._judge
    with pytest.raises(ProtocolError, match=f"request_id, {items[0]}, "):
        judge.decide(decode_request(encode_item((1, *items))))


@pytest.mark.parametrize(
    ("decode", "fields"),
    [
        (decode_sessions, ()),
        (decode_sessions, (1, 2, False)),
        (decode_sessions, (1, [[1, 2]], False)),
        (decode_sessions, (1, [[1, 2, 3, 4, 5, 6]], False)),
        (decode_sessions, (1, [[1, 2, "3", True, 5, 6]], False)),
        (decode_sessions, (1, [], True)),
        (decode_closed, ()),
        (decode_closed, (1,)),
        (decode_limits, ()),
        (decode_limits, ({"sessions_max": [1, 2]},)),
        (decode_limits, (dict.fromkeys(StoreLimits.names(), (1, None)),)),
        (decode_limits, (dict.fromkeys(StoreLimits.names(), (0, 1)),)),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(decode: Any, fields: tuple[Any, ...]) -> None:
    with pytest.raises(ProtocolError, match="s1"):
        decode(Response(1, 0, 1, 0, "s1", fields))
