"""A network that loses, delays, reorders and duplicates frames, with links that faults can cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from harness.sim.engine.event_queue import EventQueue
from harness.sim.engine.rng import stream
from harness.sim.plan.plan import CALM, NetworkPlan

Link = tuple[str, str]
"""(from, to)."""


class BlockedLinks:
    """Counts the faults that block each directed link. A link is open again when all its faults have ended."""

    def __init__(self) -> None:
        self._count: dict[Link, int] = {}

    def __contains__(self, link: Link) -> bool:
        return link in self._count

    def __bool__(self) -> bool:
        return bool(self._count)

    def add(self, links: Iterable[Link], count: int = 1) -> None:
        """Cut each of these links `count` times. Each of the `count` cuts needs a separate call of `remove`."""
        for link in links:
            self._count[link] = self._count.get(link, 0) + count

    def remove(self, links: Iterable[Link]) -> None:
        """Undo one cut of each link. Links without a cut do not change."""
        for link in links:
            left = self._count.get(link, 0) - 1
            if left > 0:
                self._count[link] = left
            else:
                self._count.pop(link, None)

    def clear(self) -> None:
        """End all cuts."""
        self._count.clear()


Deliver = Callable[[str, str, bytes], None]
"""Called with (from, to, frame) when a frame arrives."""


class SimNetwork:
    """All directed links between members. Each frame, even a lost one, uses the same number of random draws."""

    def __init__(self, seed: int, plan: NetworkPlan, queue: EventQueue, deliver: Deliver) -> None:
        self._seed, self.plan, self._queue, self._deliver = seed, plan, queue, deliver
        self._random: dict[Link, Random] = {}
        self._last_arrival: dict[Link, int] = {}
        self._blocked = BlockedLinks()  # The number of partitions that cut each direction now.
        self._extra_ns: dict[Link, int] = {}  # For each slow link, its extra delay.
        self._connections: dict[Link, int] = {}  # How often the connection of each link was replaced.
        self.covered: set[str] = set()

    def send(self, sender: str, receiver: str, frame: bytes) -> None:
        """Send one frame. The frame may arrive twice, once, or not at all."""
        link = (sender, receiver)
        random = self._random.get(link)
        if random is None:
            random = self._open(link)
        plan = self.plan
        draws = (random.random(), random.random(), random.random(), random.random())
        if link in self._blocked:
            return
        if draws[0] < plan.loss_rate:
            self.covered.add("a frame was lost")
            return
        self._carry(link, frame, draws[1], draws[2], in_order=plan.in_order)
        if draws[3] < plan.duplicate_rate:
            self.covered.add("a frame was duplicated")
            self._carry(link, frame, draws[2], draws[3] / plan.duplicate_rate, in_order=False)

    def _open(self, link: Link) -> Random:
        """Draw, at the first frame on a link, whether the link is slow. Returns the link's random stream."""
        random = stream(self._seed, f"net/{link[0]}>{link[1]}")
        self._random[link] = random
        slow = stream(self._seed, f"net/slow/{link[0]}>{link[1]}")
        if slow.random() < self.plan.slow_rate:
            self.slow_down(link, 1 + int(self.plan.slow_ns * slow.random()))
        return random

    def _carry(self, link: Link, frame: bytes, delay: float, late: float, *, in_order: bool) -> None:
        plan = self.plan
        arrival = self._queue.now + plan.delay_ns + int(plan.jitter_ns * delay * delay)
        if late < plan.late_rate:
            arrival += int(plan.late_ns * delay)
            self.covered.add("a frame was late")
        if self._extra_ns and link in self._extra_ns:
            arrival += self._extra_ns[link]
            self.covered.add("a frame took a slow link")
        last = self._last_arrival.get(link, 0)
        if in_order:
            arrival = max(arrival, last)
        elif arrival < last:
            self.covered.add("a frame overtook another")
        self._last_arrival[link] = max(arrival, last)
        self._queue.at(arrival, self._arrive, link, self._connections.get(link), frame)

    def _arrive(self, link: Link, connection: int | None, frame: bytes) -> None:
        if link in self._blocked:
            return
        if connection != self._connections.get(link):
            self.covered.add("a frame was lost with its connection")
            return
        self._deliver(link[0], link[1], frame)

    def cut(self, links: Iterable[Link], count: int = 1) -> None:
        """Block these directed links. Each of the `count` cuts needs a separate call of `mend`."""
        self._blocked.add(links, count)

    def mend(self, links: Iterable[Link]) -> None:
        """Undo one `cut` of each of these links. Links without a cut do not change."""
        self._blocked.remove(links)

    def is_cut(self, sender: str, receiver: str) -> bool:
        """True if the link from `sender` to `receiver` is blocked now."""
        return (sender, receiver) in self._blocked

    def reconnect(self, link: Link) -> None:
        """Replace the connection in this direction. Frames in flight on the old connection never arrive."""
        self._connections[link] = self._connections.get(link, 0) + 1
        self._last_arrival.pop(link, None)

    def slow_down(self, link: Link, extra_ns: int) -> None:
        """Increase the extra delay of each frame on this link by `extra_ns`. A negative number reduces the delay."""
        left = self._extra_ns.get(link, 0) + extra_ns
        if left > 0:
            self._extra_ns[link] = left
        else:
            self._extra_ns.pop(link, None)

    def heal(self) -> None:
        """End all cuts and faults. Frames in flight still arrive, however late."""
        self._blocked.clear()
        self._extra_ns.clear()
        self.plan = CALM
