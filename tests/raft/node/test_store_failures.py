"""A damaged or failed store stops its node in order: every waiting caller gets an error with the reason."""

from __future__ import annotations

from typing import Never

import pytest

from raft import NodeStopped, StoreFailed
from tests.raft.support.node_cluster import MS, OneNode, World, a_single_leader


class Damaged(StoreFailed):
    """The error of a log whose bytes have changed."""


def raises(*_: object, **__: object) -> Never:
    raise Damaged("1.wal: damaged at byte 9")


def stopped_with(member: OneNode) -> str:
    assert isinstance(member.node.failure, NodeStopped)
    assert isinstance(member.node.failure.__cause__, Damaged)
    return member.node.failure.reason


@pytest.mark.parametrize("call", ["append", "sync"])
def test_a_log_that_takes_nothing_more_stops_the_node(call: str) -> None:
    s1 = a_single_leader()
    setattr(s1.log, call, raises)
    s1.propose("lost", 1)

    s1.flush()
    s1.flush()

    assert stopped_with(s1) == "using what is stored or was sent failed: 1.wal: damaged at byte 9"
    assert [*(end.ticket for end in s1.unknown), *(end.ticket for end in s1.refused)] == [1]
    assert s1.applied == []
    with pytest.raises(NodeStopped):
        s1.propose("more", 2)


def test_an_entry_that_is_not_what_was_written_stops_the_node_that_was_to_send_it() -> None:
    """The leader's memory no longer has the entries that an absent peer lacks. So the leader reads them from disk and
    verifies them."""
    world = World(log_cache_bytes_max=1)
    leader = world.elect()
    away = world.followers()[0]
    world.cut_off = {away.node_id}
    for ticket in range(5):
        leader.propose(ticket, ticket)
        world.exchange()
    leader.log.read = raises  # type: ignore[method-assign]
    world.cut_off = set()

    world.now += 200 * MS
    while leader.node.failure is None and world.now < 5_000 * MS:
        world.now += 10 * MS
        for member in world.members.values():
            member.tick_to(world.now)
        world.exchange()

    assert stopped_with(leader) == "using what is stored or was sent failed: 1.wal: damaged at byte 9"
