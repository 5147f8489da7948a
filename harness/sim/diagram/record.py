"""Records a run for a diagram: events on members and clients, and the bytes that were sent between the events.

The recorder tracks bytes by object identity. This works because the object that is put into the queue is also the
object that arrives. Only a run for a diagram has a recorder (`harness.sim.recorded_run`), so the recording costs other
runs nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.sim.engine.event_queue import Action, EventQueue
from harness.sim.world.client_connections import ClientConnections, ClientEnd
from harness.sim.world.context import MachineView, World
from harness.sim.world.network import SimNetwork
from raft import Effects, Node, decode_message

FLIGHTS_MAX = 20_000
"""How many of the newest messages are remembered. A picture of the end of a run needs no more."""

UNLABELLED = ("commit_advanced", "low_watermark_advanced")
"""Trace events that are too frequent for a label. They appear only in the tooltip of the diagram event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagramEvent:
    """An event at `place`, which is a member or a client.

    `labels`: short texts beside the drawn event. `words`: the text of the tooltip.
    """

    number: int
    time_ns: int
    place: str
    role: str
    labels: tuple[str, ...]
    words: str


@dataclass(slots=True, kw_only=True)
class Flight:
    """Bytes sent at event `sender`.

    `due_ns` is None if the bytes were lost at once. `received` is the event of the arrival, or None if the bytes have
    not arrived.
    """

    sender: int
    receiver: str
    content: bytes
    due_ns: int | None = None
    received: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The end of a run.

    `faults`: (time in ns, words). `downs`: (member, from, to) with times in ns; `to` is None if the member is down at
    the end.
    """

    title: str
    places: tuple[str, ...]
    events: list[DiagramEvent]
    flights: list[Flight]
    faults: list[tuple[int, str]]
    downs: list[tuple[str, int, int | None]]
    end_ns: int
    violation: str | None


class ObservedQueue(EventQueue):
    """An event queue that calls `scheduled` for each event with bytes, which are then in flight."""

    __slots__ = ("scheduled",)

    scheduled: Callable[[int, bytes], None]

    def at(self, time_ns: int, action: Action, *arguments: Any) -> None:
        """See EventQueue."""
        super().at(time_ns, action, *arguments)
        for argument in arguments:
            if isinstance(argument, bytes):
                self.scheduled(time_ns, argument)


class Recorder:
    """Remembers the last events of a run, and the bytes sent between them. The run has to use the `queue` of this
    recorder.
    """

    def __init__(self, *, last: int) -> None:
        self._events: deque[DiagramEvent] = deque(maxlen=last)
        self._number = 0
        # The flights that have not ended, by the `id` of their bytes.
        self._flights: OrderedDict[int, Flight] = OrderedDict()
        self._all_flights: deque[Flight] = deque(maxlen=FLIGHTS_MAX)
        self._faults: list[tuple[int, str]] = []
        self._down_since: dict[str, int] = {}
        self._downs: list[tuple[str, int, int | None]] = []
        self._seen: dict[str, tuple[str, int, int]] = {}  # Role, term and commit index of each member, so far.
        self._receiver = ""  # The receiver of the frame that is being sent now.
        self.queue = ObservedQueue()
        self.queue.scheduled = self._scheduled
        self._members: Mapping[str, MachineView] = {}

    def follow(self, world: World, connections: ClientConnections | None) -> None:
        """Record this run from now on. `connections`: the client connections of the run; None if it has no clients."""
        self._members = world.members
        self._observe_network(world.network)
        if connections is not None:
            self._observe_clients(connections)

    def picture(self, title: str, violation: str | None) -> Picture:
        """Return the recorded end of the run. `title` and `violation` become parts of the picture."""
        clients = sorted({event.place for event in self._events} - set(self._members))
        downs = [*self._downs, *((node_id, since, None) for node_id, since in self._down_since.items())]
        return Picture(
            title=title,
            places=(*self._members, *clients),
            events=list(self._events),
            flights=list(self._all_flights),
            faults=self._faults,
            downs=downs,
            end_ns=self.queue.now,
            violation=violation,
        )

    # -- what is observed

    def note(
        self, member: MachineView, node: Node, what: str, content: bytes, message: object, effects: Effects
    ) -> None:
        """Record one event on one machine."""
        core = node.core
        self._see_who_is_up()
        before = self._seen.get(member.node_id)
        now = (core.role.value, core.term, core.commit_index)
        self._seen[member.node_id] = now
        labels = [event.name for event in effects.events if event.name not in UNLABELLED]
        if before is None or before[:2] != now[:2]:
            labels.insert(0, f"{core.role.value} t{core.term}")
        if before is not None and before[2] != now[2]:
            labels.append(f"commit {core.commit_index}")
        told = "".join(f"\n  {event.name} {event.fields}" for event in effects.events)
        out = "".join(f"\n  to {peer_id}: {sent}" for peer_id, sent in effects.send)
        came = what if message is None else f"{what}: {message}"
        self._event(member.node_id, core.role.value, tuple(labels), f"{member.state_words()}\n{came}{told}{out}")
        self._arrived(content)

    def note_client(self, name: str, content: bytes) -> None:
        """Record that a client was answered."""
        self._event(name, "", (), "is answered")
        self._arrived(content)

    def note_world(self, what: str) -> None:
        """Record a fault, or another change of the simulated world."""
        self._faults.append((self.queue.now, what))
        self._see_who_is_up()

    def _observe_network(self, network: SimNetwork) -> None:
        send = network.send

        def sent(sender: str, receiver: str, frame: bytes) -> None:
            self._begin_flight(receiver, frame)
            send(sender, receiver, frame)
            self._receiver = ""

        network.send = sent  # type: ignore[method-assign]

    def _observe_clients(self, connections: ClientConnections) -> None:
        send = connections.send

        def sent(client: ClientEnd, connection_id: int, data: bytes) -> None:
            self._event(client.name, "", (), f"sends {len(data)} bytes")
            send(client, connection_id, data)

        connections.send = sent  # type: ignore[method-assign]

    # -- inside

    def _event(self, place: str, role: str, labels: tuple[str, ...], words: str) -> None:
        self._number += 1
        self._events.append(
            DiagramEvent(
                number=self._number, time_ns=self.queue.now, place=place, role=role, labels=labels, words=words
            )
        )

    def _begin_flight(self, receiver: str, content: bytes) -> Flight:
        self._receiver = receiver
        flight = Flight(sender=self._number, receiver=receiver, content=content)
        self._flights[id(content)] = flight
        self._all_flights.append(flight)
        if len(self._flights) > FLIGHTS_MAX:
            self._flights.popitem(last=False)
        return flight

    def _scheduled(self, time_ns: int, content: bytes) -> None:
        """Record bytes in flight.

        Bytes on client connections are first recorded here, and their receiver is not known yet.
        """
        flight = self._flights.get(id(content))
        if flight is None:
            flight = self._begin_flight("", content)
        if flight.received is None:
            flight.due_ns = time_ns

    def _arrived(self, content: bytes) -> None:
        flight = self._flights.get(id(content)) if content else None
        if flight is None:
            return
        if flight.received is not None:  # These bytes are a duplicate of bytes that have already arrived.
            flight = Flight(sender=flight.sender, receiver=flight.receiver, content=content, due_ns=flight.due_ns)
            self._all_flights.append(flight)
        flight.received = self._number

    def _see_who_is_up(self) -> None:
        now = self.queue.now
        for node_id, member in self._members.items():
            if member.is_up and node_id in self._down_since:
                self._downs.append((node_id, self._down_since.pop(node_id), now))
            elif not member.is_up and node_id not in self._down_since:
                self._down_since[node_id] = now
                self._seen.pop(node_id, None)


def label_of(flight: Flight) -> str:
    """The kind of a message between members; empty for bytes of clients."""
    if not flight.receiver:
        return ""
    return type(decode_message(flight.content)[1]).__name__
