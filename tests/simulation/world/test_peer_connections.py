"""A simulated member sends frames only to the peers that its production transport would reach."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.sim.engine.errors import Violation
from harness.sim.engine.event_queue import EventQueue
from harness.sim.world.peer_connections import HUNG_UP, NO_WAY, PAUSE_NS_MAX, PAUSE_NS_MIN, PAUSED, PeerConnections
from raft import Member as Peer
from raft import PeerRefused


class World:
    """Two machines. `refuses` is a pair: the machine that refuses a hello, and the machine that sent this hello."""

    def __init__(self) -> None:
        self.queue = EventQueue()
        self.covered = set[str]()
        self.refuses: tuple[str, str] | None = None
        self.may = True
        self.connected = list[tuple[str, str]]()
        self.cut = list[tuple[str, str]]()
        self.lost = list[tuple[str, str]]()
        self.told = list[tuple[str, str, str]]()
        self.network = SimpleNamespace(reconnect=self.cut.append)
        self.plan = SimpleNamespace(network=SimpleNamespace(delay_ns=5))
        self.members = {node_id: self._machine(node_id) for node_id in ("n1", "n2")}

    def _machine(self, node_id: str) -> Any:
        machine: Any = SimpleNamespace(node_id=node_id, life=1)
        machine.lose_connection = lambda peer_id: self.lost.append((node_id, peer_id))
        machine.connections = PeerConnections(cast(Any, self), cast(Any, machine))
        return machine

    def cover(self, name: str) -> None:
        self.covered.add(name)

    def send_refusal(self, caller: Any, peer_id: str, code: str) -> None:
        self.told.append((caller.node_id, peer_id, code))

    def may_refuse(self, code: str, sender: str, *, by: str) -> bool:
        return self.may

    def connect(self, caller: Any, called: Any) -> None:
        self.connected.append((caller.node_id, called.node_id))
        if self.refuses is not None:
            raise PeerRefused(self.refuses[1], "not_a_member", "it is not a member")

    def frame(self, sender: str, receiver: str) -> bool:
        return bool(self.members[receiver].connections.take(self.members[sender]))

    def connections(self, node_id: str) -> PeerConnections:
        return cast(PeerConnections, self.members[node_id].connections)

    def sleep(self, ns: int) -> None:
        self.queue.after(ns, lambda: None)
        while len(self.queue):
            self.queue.step()


def wanting(*peer_ids: str) -> Any:
    return SimpleNamespace(peers=[Peer(peer_id) for peer_id in peer_ids])


def test_frames_leave_to_whom_the_node_wants_and_to_whoever_has_called() -> None:
    world = World()
    assert not world.connections("n1").lead_to("n2")
    assert NO_WAY in world.covered

    assert world.frame("n2", "n1")
    assert world.connections("n1").lead_to("n2")
    world.connections("n1").hung_up("n2")
    assert not world.connections("n1").lead_to("n2")

    world.connections("n1").want(wanting("n2"))
    assert world.connections("n1").lead_to("n2")


def test_two_hellos_come_before_the_first_frame_of_a_connection_and_no_other() -> None:
    world = World()

    assert [world.frame("n2", "n1"), world.frame("n2", "n1")] == [True, True]
    assert world.connected == [("n2", "n1")]
    world.connections("n1").hung_up("n2")
    assert world.frame("n2", "n1")

    assert world.connected == [("n2", "n1")] * 2


def test_who_is_refused_calls_again_after_pauses_that_double() -> None:
    world = World()
    world.refuses = ("n1", "n2")
    calls = list[int]()
    while world.queue.now < 8 * PAUSE_NS_MAX:
        seen = len(world.connected)
        assert not world.frame("n2", "n1")
        if len(world.connected) > seen:
            calls.append(world.queue.now)
        world.sleep(PAUSE_NS_MIN // 2)

    gaps = [after - before for before, after in pairwise(calls)]
    assert gaps[:4] == [PAUSE_NS_MIN, 2 * PAUSE_NS_MIN, 4 * PAUSE_NS_MIN, 8 * PAUSE_NS_MIN]
    assert max(gaps) == PAUSE_NS_MAX
    assert PAUSED in world.covered


def test_who_is_called_by_whom_it_waits_for_waits_no_longer() -> None:
    """If a peer calls, the peer is up. The peer now accepts our hello, even if it refused our hello before."""
    world = World()
    world.refuses = ("n1", "n2")
    assert not world.frame("n2", "n1")
    world.refuses = None

    assert world.frame("n1", "n2")
    assert world.frame("n2", "n1")


def test_a_caller_that_refuses_was_there_all_the_same() -> None:
    world = World()
    world.refuses = ("n1", "n2")
    assert not world.frame("n2", "n1")
    world.refuses = ("n1", "n2")  # n2 accepts the call of n1, but n1 refuses the hello of n2.
    assert not world.frame("n1", "n2")
    world.refuses = None

    assert world.frame("n2", "n1")


def test_who_is_wanted_no_more_is_hung_up_on_in_both_directions() -> None:
    world = World()
    world.connections("n1").want(wanting("n2"))
    assert world.frame("n2", "n1")

    world.connections("n1").want(wanting())
    world.sleep(10)

    assert HUNG_UP in world.covered
    assert sorted(world.cut) == [("n1", "n2"), ("n2", "n1")]
    assert sorted(world.lost) == [("n1", "n2"), ("n2", "n1")]
    assert not world.connections("n1").lead_to("n2")


def test_a_refusal_for_which_nobody_has_a_reason_is_a_violation() -> None:
    world = World()
    world.refuses, world.may = ("n1", "n2"), False

    with pytest.raises(Violation, match="peers understand each other"):
        world.frame("n2", "n1")
