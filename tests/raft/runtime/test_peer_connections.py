"""The connections of a member follow the membership. New members are called. Removed members are informed and then
disconnected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random

import pytest
import trio

from raft import (
    AppendRejected,
    FrameSplitter,
    Hello,
    Identity,
    Member,
    MembershipChange,
    Role,
    decode_hello,
    decode_message,
    encode_message,
    frame,
)
from raft.runtime import PeerConnections
from raft.runtime.outbound import Outbound
from raft.runtime.peer_routes import STRANGERS_MAX
from tests.raft.support.core_fixture import heartbeat
from tests.raft.support.machines import CLUSTER_ID, Machine, a_listener, peer_hello, the_leader, until

pytestmark = pytest.mark.timeout(30)

IDENTITY = Identity(cluster_id=CLUSTER_ID, group_id=0, node_id="s1", incarnation_id=bytes(16))


def some_ways(**dial: str) -> PeerConnections:
    def way(peer_id: str, addresses: Callable[[], Sequence[str]]) -> Outbound:
        return Outbound(
            identity=IDENTITY,
            peer_id=peer_id,
            addresses=addresses,
            random=Random(1),
            hello=lambda *_: None,
            lost=lambda _: None,
        )

    return PeerConnections(way, dial)


def members(**addresses: str) -> list[Member]:
    return [Member(node_id, address) for node_id, address in addresses.items()]


# Ways, tested without sockets; a way is the connection to one peer, with its addresses


def test_there_is_a_way_to_each_wanted_peer_and_to_no_other() -> None:
    """The result does not depend on the peers that were wanted before. A peer that stays keeps its connection."""
    ways = some_ways()
    assert ways.want(members(s2="a:1", s3="a:2")) == []
    s3 = ways.all.get("s3")

    assert ways.want(members(s3="a:2", s4="a:3")) == ["s2"]

    assert sorted(ways.all) == ["s3", "s4"]
    assert ways.all.get("s3") is s3
    assert ways.all.get("s2") is None


def test_a_way_is_not_given_up_because_a_configuration_says_another_address() -> None:
    """The address in a configuration may be old, as on a member that catches up, or may announce a later move. The
    address of a connection that works is better evidence. When the peer moves, its connection breaks, and the next
    attempt uses the new address."""
    ways = some_ways()
    ways.want(members(s2="a:1"))
    way = ways.all.get("s2")

    ways.want(members(s2="b:1"))

    assert ways.all.get("s2") is way
    assert ways.addresses_of("s2") == ("b:1",)


def test_where_a_peer_was_found_is_tried_behind_where_it_is_said_to_be() -> None:
    """A configuration may have the new address before the peer moves. If the connection breaks before the move, the old
    address is the right one."""
    ways = some_ways()
    ways.want(members(s2="a:1"))
    way = ways.all.get("s2")
    assert way is not None
    way.works_at = "a:1"

    ways.want(members(s2="b:1"))

    assert ways.addresses_of("s2") == ("b:1", "a:1")


def test_the_word_of_a_peer_that_is_here_comes_before_the_configuration() -> None:
    """Either of the two addresses may be old, so both are tried. When the peer's connection ends, the address from its
    hello is no longer used."""
    ways = some_ways()
    ways.want(members(s2="a:1"))
    ways.on_inbound("s2", "b:1")
    assert ways.addresses_of("s2") == ("b:1", "a:1")

    ways.want(members(s2="b:1"))
    assert ways.addresses_of("s2") == ("b:1",)
    ways.want(members(s2="a:1"))
    ways.on_disconnect("s2")

    assert ways.addresses_of("s2") == ("a:1",)


def test_a_stranger_is_answered_at_its_own_word_while_it_is_here() -> None:
    """A joining member may not know the leader yet, but it must be able to answer the leader."""
    ways = some_ways()
    ways.want(members(s2="a:1"))

    ways.on_inbound("s9", "x:9")
    assert (sorted(ways.all), ways.addresses_of("s9")) == (["s2", "s9"], ("x:9",))
    ways.on_inbound("s8", "")  # s8 does not give its address.
    assert sorted(ways.all) == ["s2", "s9"]
    ways.on_disconnect("s9")

    assert sorted(ways.all) == ["s2"]


def test_a_stranger_that_becomes_a_member_keeps_its_way_when_it_hangs_up() -> None:
    """The way also stays if the peer calls from another address, because the member never changes a way that works."""
    ways = some_ways()
    ways.on_inbound("s9", "x:9")
    way = ways.all.get("s9")

    ways.want(members(s9="x:9"))
    ways.on_disconnect("s9")
    assert ways.all.get("s9") is way

    ways.on_inbound("s9", "elsewhere:9")
    assert ways.all.get("s9") is way
    assert ways.addresses_of("s9") == ("elsewhere:9", "x:9")


def test_the_own_route_counts_more_than_any_other_word() -> None:
    """`dial` may name a proxy between two members. Only this proxy is called, because the address in a peer's hello
    must not bypass it."""
    ways = some_ways(s2="proxy:1")
    ways.want(members(s2="a:1"))
    ways.on_inbound("s2", "b:1")

    assert ways.addresses_of("s2") == ("proxy:1",)


def test_strangers_that_are_answered_are_bounded() -> None:
    """STRANGERS_MAX is the bound, because anybody can call and each stranger costs a connection."""
    ways = some_ways()
    for number in range(STRANGERS_MAX + 5):
        ways.on_inbound(f"x{number}", f"x:{number}")

    assert len(ways.all) == STRANGERS_MAX


# Whole members, on loopback


class Room:
    """Members that run until the block ends. A joining member knows only the founders."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.machines: dict[str, Machine] = {}
        self.addresses: dict[str, str] = {}

    async def start(self, node_id: str, voters: Sequence[str]) -> Machine:
        listener, address = await a_listener()
        dial = {peer_id: known for peer_id, known in self.addresses.items() if peer_id in voters}
        machine = Machine(node_id, voters, listener, dial, own_address=address)
        self.machines[node_id], self.addresses[node_id] = machine, address
        await self._nursery.start(machine.driver.run)
        return machine

    def member(self, node_id: str) -> Member:
        return Member(node_id, self.addresses[node_id])

    async def change(self, leader: Machine, change: MembershipChange, ticket: int) -> None:
        leader.node.propose_change(change, ticket)
        leader.driver.wake()
        await leader.recorder.wait_for(lambda: any(each.ticket == ticket for each in leader.recorder.applied))

    def check(self) -> None:
        """Assert that the connections are those that the nodes want."""
        for machine in self.machines.values():
            if not machine.node.is_stopped:
                assert machine.transport.peer_ids >= {peer.node_id for peer in machine.node.peers}


async def test_one_member_becomes_three_and_another_three() -> None:
    """Each new member joins with an empty log. A ticket ends when its change is complete, and a removed member stops by
    itself."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            room = Room(nursery)
            s1 = await room.start("s1", ["s1"])
            await the_leader([s1])
            await room.change(s1, MembershipChange(update=(room.member("s1"),)), 900)
            for number, node_id in enumerate(("s2", "s3"), 901):
                joining = await room.start(node_id, ["s1"])
                assert joining.node.core.role is Role.FOLLOWER
                await room.change(s1, MembershipChange(add=(room.member(node_id),)), number)
                await until(lambda node=joining.node: node.core.last_applied == s1.node.core.last_index)  # type: ignore[misc]
                await until(lambda: _is_caught_up(s1))
                await room.change(s1, MembershipChange(promote=(node_id,)), number + 10)
            await until(lambda: all(len(each.transport.connected) == 2 for each in room.machines.values()))
            s1.propose("by three", 1)
            await until(lambda: all(each.machine.items == ["by three"] for each in room.machines.values()))
            room.check()

            await room.change(s1, MembershipChange(remove=("s1",)), 950)
            await until(lambda: s1.node.is_stopped)
            others = [room.machines["s2"], room.machines["s3"]]
            leader = await the_leader(others)
            await until(lambda: all(len(each.transport.connected) == 1 for each in others))
            await until(lambda: all(each.transport.peer_ids == _wanted(each) for each in others))
            leader.propose("without it", 2)
            await leader.recorder.wait_for(lambda: any(each.ticket == 2 for each in leader.recorder.applied))

            assert s1.node.is_removed
            assert s1.node.failure is None
            nursery.cancel_scope.cancel()


def _is_caught_up(leader: Machine) -> bool:
    status = leader.node.status()
    return all(peer.last_applied == status.last_index for peer in status.peers)


def _wanted(machine: Machine) -> set[str]:
    return {peer.node_id for peer in machine.node.peers}


async def test_who_was_away_while_it_was_removed_is_told_by_the_first_that_it_calls(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The refusal `removed` is final: the member stops and reports the reason. The member learns of its removal only
    from this refusal."""
    caplog.set_level(logging.WARNING, "raft.driver")
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            room = Room(nursery)
            s1 = await room.start("s1", ["s1"])
            await the_leader([s1])
            await room.start("s2", ["s1"])
            await room.change(s1, MembershipChange(add=(room.member("s2"),)), 900)
            await room.change(s1, MembershipChange(remove=("s2",)), 901)
            s3 = await room.start("s3", ["s1"])
            await room.change(s1, MembershipChange(add=(room.member("s3"),)), 902)
            await room.change(s1, MembershipChange(remove=("s3",)), 903)
            gone = [each for each in room.machines.values() if each is not s1]
            await until(lambda: all(each.node.is_stopped for each in gone))
            assert not s3.node.failure

            late = await room.start("s3", ["s1", "s3"])  # The state on its disk is from before its removal.
            await until(lambda: late.node.is_stopped)

            assert late.node.is_removed
            assert not late.node.core.is_removed
            assert any("was removed" in record.getMessage() for record in caplog.records)
            nursery.cancel_scope.cancel()


async def test_a_joining_member_waits_for_its_configuration_and_is_dialled_then() -> None:
    """The refusal `not_a_member` is temporary, so the joining member tries again. When it has become a member, the
    leader calls it immediately."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            room = Room(nursery)
            s1 = await room.start("s1", ["s1"])
            await the_leader([s1])
            s2 = await room.start("s2", ["s1"])
            assert s1.transport.peer_ids == frozenset()
            assert s2.transport.peer_ids == {"s1"}

            await room.change(s1, MembershipChange(add=(room.member("s2"),)), 900)
            await until(lambda: s2.node.core.configuration.learner_ids == ("s2",))

            assert s1.transport.peer_ids == {"s2"}
            assert s2.node.core.role is Role.FOLLOWER
            nursery.cancel_scope.cancel()


async def test_who_joins_answers_a_leader_that_it_heard_before_its_own_call_went_through() -> None:
    """The joining member already knows that this stranger is its leader. So it accepts the stranger's hello."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            joining = await Room(nursery).start("s9", ["s1"])
            listener, address = await a_listener()
            stream = await trio.open_tcp_stream("127.0.0.1", joining.transport.port)
            async with listener, stream:

                async def lead() -> None:
                    await stream.send_all(peer_hello("s2", peer_address=address))
                    await stream.receive_some()
                    while True:
                        await stream.send_all(frame(encode_message(0, heartbeat(3, (7, 2)))))
                        await trio.sleep(0.01)

                nursery.start_soon(lead)
                await until(lambda: joining.node.core.hears_a_leader)
                answers = await listener.accept()
                async with answers:
                    await answers.send_all(peer_hello("s2"))
                    hello, answer, *_ = await _frames(answers, 2)
                nursery.cancel_scope.cancel()  # The tasks that may be sending on the stream must end first.

        assert isinstance(decode_hello(hello), Hello)
        _, message = decode_message(answer)
        assert isinstance(message, AppendRejected)
        assert message.hint_index == 0


async def _frames(stream: trio.SocketStream, count: int) -> list[bytes]:
    """Read `count` frames or more. If the stream ends, the result may have fewer frames."""
    splitter, bodies = FrameSplitter(bytes_max=1 << 20), list[bytes]()
    while len(bodies) < count and (data := await stream.receive_some()):
        bodies += splitter.feed(data)
    return bodies
