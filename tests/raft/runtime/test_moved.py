"""Members find a peer at its real address, even if the address in a configuration or in the peer's hello is too old or
too new."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raft import Identity, Member, MembershipChange
from raft.runtime.outbound import Outbound
from tests.raft.support.machines import CLUSTER_ID, Machine, a_listener, peer_hello, the_leader, until

pytestmark = pytest.mark.timeout(30)


async def a_dead_address() -> str:
    """Return an address at which nobody listens."""
    listener, address = await a_listener()
    await listener.aclose()
    return address


async def start(nursery: trio.Nursery, node_id: str, addresses: Mapping[str, str]) -> tuple[Machine, str]:
    """Start a member with the configuration `addresses`, which listens at another address. The member's hello names the
    address at which it listens."""
    listener, own = await a_listener()
    return await start_at(nursery, node_id, addresses, listener), own


async def start_at(
    nursery: trio.Nursery, node_id: str, addresses: Mapping[str, str], listener: trio.SocketListener
) -> Machine:
    own = f"127.0.0.1:{listener.socket.getsockname()[1]}"
    machine = Machine(node_id, list(addresses), listener, own_address=own, addresses=addresses)
    await nursery.start(machine.driver.run)
    return machine


async def change(leader: Machine, wanted: MembershipChange, ticket: int) -> None:
    leader.node.propose_change(wanted, ticket)
    leader.driver.wake()
    await leader.recorder.wait_for(lambda: any(each.ticket == ticket for each in leader.recorder.applied))


async def test_who_joins_with_an_old_snapshot_answers_a_leader_that_has_moved_since() -> None:
    """The joining member's configuration has the leader's old address. The leader calls the joining member, and the
    leader's hello contains the new address."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            old = await a_dead_address()
            s1, new = await start(nursery, "s1", {"s1": old})
            await the_leader([s1])
            await change(s1, MembershipChange(update=(Member("s1", new),)), 900)

            s9, own = await start(nursery, "s9", {"s1": old})
            await change(s1, MembershipChange(add=(Member("s9", own),)), 901)
            await until(lambda: s9.node.core.last_applied == s1.node.core.last_index)

            assert s9.transport.connected == {"s1"}
            nursery.cancel_scope.cancel()


async def test_two_of_three_elect_a_leader_though_one_of_them_missed_the_move_of_the_other() -> None:
    """The third member is down, but two of three are a majority."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            old, down = await a_dead_address(), await a_dead_address()
            (first, new), (third, at) = await a_listener(), await a_listener()
            s1 = await start_at(nursery, "s1", {"s1": new, "s2": down, "s3": at}, first)
            s3 = await start_at(nursery, "s3", {"s1": old, "s2": down, "s3": at}, third)

            leader = await the_leader([s1, s3])

            leader.propose("by two", 1)
            await until(lambda: all(each.machine.items == ["by two"] for each in (s1, s3)))
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("count", [2, 3])
async def test_a_leader_whose_new_address_is_told_before_it_moves_goes_on_leading(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The other members' connections to the leader work. No process listens at the new address yet."""
    caplog.set_level(logging.INFO, "raft.driver")
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            listeners = {f"s{number}": await a_listener() for number in range(1, count + 1)}
            addresses = {node_id: address for node_id, (_, address) in listeners.items()}
            machines = [await start_at(nursery, each, addresses, listeners[each][0]) for each in listeners]
            leader = await the_leader(machines)
            await until(lambda: all(len(each.transport.connected) == count - 1 for each in machines))
            term = leader.node.core.term

            node_id = leader.identity.node_id
            await change(leader, MembershipChange(update=(Member(node_id, await a_dead_address()),)), 900)
            leader.propose("after that", 1)
            await until(lambda: all(each.machine.items == ["after that"] for each in machines))

            assert leader.node.core.leading_term == term
            nursery.cancel_scope.cancel()
    assert "stepped_down" not in caplog.text


class Answering:
    """Peers at separate addresses. Each peer answers a hello with its own hello."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.streams: list[tuple[str, trio.SocketStream]] = []

    async def at(self, node_id: str) -> str:
        listener, address = await a_listener()

        async def answer(stream: trio.SocketStream) -> None:
            await stream.receive_some()
            # The stream is noted before the hello leaves: the caller may be connected before `send_all` returns.
            self.streams.append((address, stream))
            await stream.send_all(peer_hello(node_id))
            await trio.sleep_forever()

        await self._nursery.start(trio.serve_listeners, answer, [listener])
        return address


def outbound_to(*addresses: str) -> Outbound:
    return Outbound(
        identity=Identity(cluster_id=CLUSTER_ID, group_id=0, node_id="s1", incarnation_id=bytes(16)),
        peer_id="s2",
        addresses=lambda: addresses,
        random=Random(1),
        hello=lambda *_: None,
        lost=lambda _: None,
    )


async def test_an_address_that_is_somebody_elses_now_is_left_for_the_next_one() -> None:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            answering = Answering(nursery)
            others, at = await answering.at("s7"), await answering.at("s2")
            outbound = outbound_to(others, await a_dead_address(), at)
            nursery.start_soon(outbound.run)

            await until(lambda: outbound.is_connected)

            assert outbound.works_at == at
            assert [address for address, _ in answering.streams] == [others, at]
            nursery.cancel_scope.cancel()


async def test_an_address_that_says_nothing_is_left_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost machine does not refuse connections, so an attempt may take up to CONNECT_SECONDS_MAX. An attempt may take
    longer if there is no other address."""
    monkeypatch.setattr("raft.runtime.outbound.CONNECT_SECONDS_MAX", 0.05)
    monkeypatch.setattr("raft.runtime.outbound.HANDSHAKE_SECONDS_MAX", 1000.0)
    open_tcp_stream = trio.open_tcp_stream

    async def open_slowly(host: str, port: int) -> trio.SocketStream:
        if host == "gone":
            await trio.sleep_forever()
        return await open_tcp_stream(host, port)

    monkeypatch.setattr(trio, "open_tcp_stream", open_slowly)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            at = await Answering(nursery).at("s2")
            outbound = outbound_to("gone:1", at)
            nursery.start_soon(outbound.run)

            await until(lambda: outbound.is_connected)

            assert outbound.works_at == at
            nursery.cancel_scope.cancel()


async def test_who_has_moved_is_dialled_at_its_new_address_when_its_old_connection_breaks() -> None:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            answering = Answering(nursery)
            old, new = await answering.at("s2"), await answering.at("s2")
            known = [old]
            outbound = outbound_to()
            outbound._addresses = lambda: known
            nursery.start_soon(outbound.run)
            await until(lambda: outbound.is_connected)

            known[:] = [new, old]
            await wait_all_tasks_blocked()
            assert outbound.works_at == old
            await answering.streams[0][1].aclose()
            await until(lambda: outbound.works_at == new)

            nursery.cancel_scope.cancel()
