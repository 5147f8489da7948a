"""Connections between simulated clients and members can be opened, cut, mended, given up, or half-open."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from harness.sim.engine.event_queue import EventQueue
from harness.sim.faults.clients import minority
from harness.sim.plan.plan import ConnectionsPlan, Fault
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.process import ProcessScheduler
from kvstore import Service

TO_MEMBER, TO_CLIENT = ("c0", "n1"), ("n1", "c0")
SEEDS = range(40)


class Server:
    """The part of a member and its service that a connection needs. The service answers each piece of bytes in
    capitals."""

    def __init__(self, queue: EventQueue) -> None:
        self.node_id, self.life, self.is_up = "n1", 1, True
        self.scheduler = ProcessScheduler(queue)
        self.service = self
        self.has_room = True
        self.connections: ClientConnections
        self.seen: list[bytes] = []
        self.output: list[tuple[int, bytes]] = []
        self.gone: list[int] = []

    def serve(self, life: int, what: str, action: Callable[[Any], None], content: bytes = b"") -> None:
        del life, what, content
        action(self)
        self.connections.flushed(cast(Any, self), cast(Service, self))

    def connected(self, server_id: int) -> None:
        self.output.append((server_id, b"hello"))

    def receive(self, server_id: int, data: bytes) -> None:
        assert self.has_room
        self.seen.append(data)
        self.output.append((server_id, data.upper()))

    def disconnected(self, server_id: int) -> None:
        self.gone.append(server_id)

    def wants_input(self, server_id: int) -> bool:
        return self.has_room

    def sent(self, server_id: int, byte_count: int) -> None:
        pass

    def take_output(self) -> list[tuple[int, bytes]]:
        taken, self.output = self.output, []
        return taken

    def take_closed(self) -> list[int]:
        return []


class Port(Server):
    """A port of the same machine at another address."""

    def serve(self, life: int, what: str, action: Callable[[Any], None], content: bytes = b"") -> None:
        del life, what, content
        action(self)
        self.connections.port_flushed(cast(Any, self), cast(Any, self))


class Caller:
    """The part of a client that a connection needs."""

    name = "c0"

    def __init__(self) -> None:
        self.told: list[str] = []
        self.heard: list[bytes] = []

    def connected(self, connection_id: int) -> None:
        self.told.append("connected")

    def receive(self, connection_id: int, data: bytes) -> None:
        self.heard.append(data)

    def disconnected(self, connection_id: int, reason: str) -> None:
        self.told.append(reason)


class Wire:
    """One client, one member, and the connections between them."""

    def __init__(self, *, seed: int = 1) -> None:
        self.queue = EventQueue()
        self.server, self.client = Server(self.queue), Caller()
        self.covered: set[str] = set()
        world = SimpleNamespace(
            plan=SimpleNamespace(seed=seed), queue=self.queue, members={"n1": self.server}, cover=self.covered.add
        )
        self.connections = self.server.connections = ClientConnections(cast(Any, world), ConnectionsPlan())

    def dial(self, connection_id: int = 1) -> None:
        self.connections.dial(cast(Any, self.client), connection_id, "n1:1")

    def say(self, *pieces: bytes, connection_id: int = 1) -> None:
        for piece in pieces:
            self.connections.send(cast(Any, self.client), connection_id, piece)

    def run(self) -> None:
        while len(self.queue):
            self.queue.step()


def a_wire(*, seed: int = 1) -> Wire:
    wire = Wire(seed=seed)
    wire.dial()
    wire.run()
    assert (wire.client.told, wire.client.heard) == (["connected"], [b"hello"])
    return wire


def test_bytes_arrive_in_order_and_are_answered() -> None:
    """In this test no connection is cut."""
    wire = a_wire()

    wire.say(b"a", b"b", b"c")
    wire.run()

    assert wire.server.seen == [b"a", b"b", b"c"]
    assert wire.client.heard[1:] == [b"A", b"B", b"C"]


def test_behind_a_cut_bytes_wait_and_arrive_in_order_when_it_is_mended_or_the_connection_was_given_up() -> None:
    """TCP sends the bytes again. The operating systems at the two ends decide how long it does so."""
    ends = set()
    for seed in SEEDS:
        wire = a_wire(seed=seed)
        wire.connections.cut([TO_MEMBER])
        wire.say(b"a", b"b")
        wire.run()
        assert wire.server.seen == []

        wire.connections.mend([TO_MEMBER])
        wire.say(b"c")
        wire.run()

        assert wire.server.seen in ([b"a", b"b", b"c"], [b"a", b"b"], [])
        ends.add((len(wire.server.seen), "reset" in wire.client.told))

    assert (3, False) in ends  # The connection continues.
    assert any(told for _, told in ends)  # The client's end gave the connection up.
    assert any(count < 3 and not told for count, told in ends)  # The client does not know of the end.


def test_a_cut_towards_the_client_keeps_the_answers_but_not_the_requests() -> None:
    """The member carries out the client's request, but the client does not learn of it."""
    wire = a_wire()
    wire.connections.cut([TO_CLIENT])

    wire.say(b"a")
    wire.run()

    assert wire.server.seen == [b"a"]
    assert wire.client.heard == [b"hello"]


def test_nobody_gets_a_connection_through_a_cut_and_cuts_add_up() -> None:
    """Each cut must be mended without a further event."""
    wire = Wire()
    wire.connections.cut([TO_MEMBER])
    wire.connections.cut([TO_MEMBER])
    wire.dial()

    wire.connections.mend([TO_MEMBER])
    wire.run()
    assert wire.client.told == []

    wire.connections.heal()
    wire.run()
    assert wire.client.told == ["connected"]
    wire.connections.mend([TO_MEMBER])  # The mend comes too late, because all links were healed before it.
    wire.say(b"a")
    wire.run()
    assert wire.server.seen == [b"a"]


def test_a_client_that_hangs_up_behind_a_cut_is_still_there_for_the_member() -> None:
    """The member sees an open connection until the cut is mended. This is how half-open connections arise."""
    wire = a_wire()
    wire.connections.cut([TO_MEMBER])

    wire.connections.hang_up(cast(Any, wire.client), 1)
    wire.run()
    assert wire.server.gone == []

    wire.connections.heal()
    wire.run()
    assert wire.server.gone == [1]


def test_a_connection_that_hangs_says_nothing_even_when_all_is_healed_but_the_next_one_works() -> None:
    """A firewall that has forgotten a connection has the same effect: neither end ever learns that the connection has
    ended."""
    wire = a_wire()
    wire.connections.hang(cast(Any, wire.server), side=0)

    wire.say(b"a")
    wire.connections.heal()
    wire.run()
    assert wire.server.seen == []
    assert wire.client.told == ["connected"]

    wire.dial(2)
    wire.run()
    wire.say(b"b", connection_id=2)
    wire.run()
    assert wire.server.seen == [b"b"]


def test_a_slow_member_reads_each_piece_when_it_gets_round_to_it_and_only_what_it_has_room_for() -> None:
    """Bytes that the process has not read yet stay in the socket."""
    wire = a_wire()
    wire.server.scheduler.service_ns = 10_000_000
    wire.say(b"a", b"b")
    while not wire.server.seen:
        wire.queue.step()
    assert wire.queue.now >= 10_000_000

    wire.server.has_room = False  # `receive` asserts that the server has room.
    wire.run()
    assert wire.server.seen == [b"a"]

    wire.server.has_room = True
    wire.connections.flushed(cast(Any, wire.server), cast(Service, wire.server))
    wire.run()
    assert wire.server.seen == [b"a", b"b"]


def test_a_minority_has_fewer_than_half_of_the_members_and_a_client() -> None:
    """If an old leader served reads, a client on its side would get stale reads."""
    for count in (2, 3, 4, 5):
        members = [f"n{number}" for number in range(1, count + 1)]
        sizes = set()
        for number in range(100):
            fault = Fault(at_ns=0, kind="", duration_ns=1, target=0.0, shape=number / 100)
            side, clients = minority(fault, "n1", members, ["c0", "c1"])
            assert "n1" in side
            assert len(set(side)) == len(side)
            assert 1 <= len(clients) <= 2
            sizes.add(len(side))
        assert sizes == set(range(1, max(2, (count - 1) // 2 + 1)))


def test_a_port_beside_the_service_has_connections_of_its_own() -> None:
    """The faults between a client and a machine hit the port of this machine, too."""
    wire = Wire()
    port = Port(wire.queue)
    port.connections = wire.connections
    wire.connections.ports = {"n1:2": cast(Any, port)}
    wire.connections.dial(cast(Any, wire.client), 1, "n1:2")
    wire.run()

    wire.say(b"a")
    wire.run()
    assert (wire.server.seen, port.seen, wire.client.heard) == ([], [b"a"], [b"hello", b"A"])

    wire.connections.cut([TO_MEMBER])
    wire.say(b"b")
    wire.run()
    assert port.seen == [b"a"]
    wire.connections.mend([TO_MEMBER])
    wire.connections.hang(cast(Any, wire.server), side=0)
    wire.say(b"c")
    wire.run()
    assert b"c" not in port.seen
