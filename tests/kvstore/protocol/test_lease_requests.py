"""Whole members receive the requests about leases, and the leader answers them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.protocol.commands import LeaseGrant, Put, RaiseFeatureLevel
from kvstore.protocol.lease_requests import (
    PAGE_LEASE_KEYS_MAX,
    PAGE_LEASES_MAX,
    LeaseView,
    decode_lease,
    decode_leases,
    lease_request,
    leases_request,
    read_lease,
    read_leases,
)
from kvstore.protocol.messages import Response
from kvstore.server.lease_responses import lease_fields, leases_fields
from kvstore.store.leases import Leases
from raft import ProtocolError
from tests.kvstore.support.in_memory_cluster import SECOND, Cluster


def test_the_leader_tells_of_all_leases_and_of_one(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    cluster.leader()
    client = cluster.client(ttl_ns=0)
    client.do(RaiseFeatureLevel(2))
    assert decode_leases(client.ask(leases_request(0, 0))).items == ()
    for lease_id, seconds in ((7, 60), (3, 90)):
        client.do(LeaseGrant(lease_id, seconds * SECOND))
    for key in (b"b", b"a"):
        client.do(Put(key, b"1", 7))
    cluster.wait(10)

    page = decode_leases(client.ask(leases_request(0, 500)))
    assert [(each.lease_id, each.ttl_ns, each.keys) for each in page.items] == [
        (3, 90 * SECOND, 0),
        (7, 60 * SECOND, 2),
    ]
    assert not page.more
    remaining = [page.remaining_ns(each) for each in page.items]
    assert 79 * SECOND < remaining[0] < 81 * SECOND
    assert 49 * SECOND < remaining[1] < 51 * SECOND

    found, more = decode_lease(client.ask(lease_request(7, b"", 1_000)), 7)
    assert found is not None
    assert (found.keys, found.ttl_ns, more) == ((b"a", b"b"), 60 * SECOND, False)
    assert 49 * SECOND < found.remaining_ns < 51 * SECOND
    assert decode_lease(client.ask(lease_request(8, b"", 1_000)), 8) == (None, False)


def test_pages_have_each_lease_and_each_key_once() -> None:
    leases = Leases()
    for lease_id in range(1, 1_301):
        leases.grant(lease_id * 7 % 1_301, 10, 0)  # The leases were not granted in the order of their ids.
    leases.by_id[5].keys = {b"%04d" % number for number in range(2_345)}

    after_id, found = 0, list[int]()
    while True:
        _, rows, more = leases_fields(leases, 1, (after_id, 10**6))
        assert len(rows) <= PAGE_LEASES_MAX
        found += [row[0] for row in rows]
        if not more:
            break
        after_id = found[-1]
    assert found == list(range(1, 1_301))

    keys = list[bytes]()
    while True:
        _, _, _, page, more = lease_fields(leases, 1, (5, keys[-1] if keys else b"", 10**6))
        assert len(page) <= PAGE_LEASE_KEYS_MAX
        keys += page
        if not more:
            break
    assert keys == sorted(leases.by_id[5].keys)


def test_a_lease_shows_the_end_of_the_grace_after_an_election() -> None:
    leases = Leases()
    leases.grant(1, 10, 0)
    leases.hold_until = 25

    assert leases_fields(leases, 12, (0, 1)) == (12, [(1, 10, 25, 0)], False)
    assert lease_fields(leases, 12, (1, b"", 1)) == (12, 10, 25, [], False)


@pytest.mark.parametrize("items", [(), (0,), (0, -1), ("0", 1), (True, 1)])
def test_a_malformed_request_for_leases_is_refused(items: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError, match="a leases request is"):
        read_leases(items)


@pytest.mark.parametrize("items", [(), (1, b""), (1, "", 1), (-1, b"", 1), (1, b"", None)])
def test_a_malformed_request_for_a_lease_is_refused(items: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError, match="a lease request is"):
        read_lease(items)


@pytest.mark.parametrize(
    "fields",
    [(), (1, [(1, 2, 3)], False), (1, [(1, 2, 3, "4")], False), (1, [], True), (1, [], 0), (-1, [], False), (1, 2, 3)],
)
def test_nonsense_about_leases_is_refused(fields: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError, match="list of leases"):
        decode_leases(Response(1, 0, 1, 0, "s1", fields))


@pytest.mark.parametrize(
    "fields", [(), (1,), (1, 2), (1, 2, 3, ["a"], False), (1, 2, 3, [], True), (1, -2, 3, [], False), (1, 2, 3, 4, 5)]
)
def test_nonsense_about_a_lease_is_refused(fields: tuple[object, ...]) -> None:
    with pytest.raises(ProtocolError, match=r"no lease|invalid lease"):
        decode_lease(Response(1, 0, 1, 0, "s1", fields), 1)


def test_a_page_tells_what_is_left() -> None:
    page = decode_leases(Response(1, 0, 1, 0, "s1", (100, [(1, 50, 120, 2), (2, 50, 90, 0)], False)))

    assert page.items == (LeaseView(1, 50, 120, 2), LeaseView(2, 50, 90, 0))
    assert [page.remaining_ns(each) for each in page.items] == [20, 0]
