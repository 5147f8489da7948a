"""Faults of the leader near the expiry of a lease of keys: the leader crashes, is cut off, pauses, or hands over."""

from __future__ import annotations

from harness.sim.checks.coverage import STRUCK
from harness.sim.engine.rng import stream
from harness.sim.faults.context import FaultyWorld
from harness.sim.plan.plan import MILLISECOND_NS, SECOND_NS, Fault

KINDS_AT_EXPIRY = ("kill", "lose power", "pause", "cut off", "stop", "transfer")


class ExpiryFaults:
    """Injects one fault each time a lease is about to expire because its owner no longer renews it."""

    def __init__(self, world: FaultyWorld) -> None:
        self._world = world
        self._random = stream(world.plan.seed, "fault/expiry")

    def expiry_is_near(self) -> None:
        """Inject a fault of a random kind into the leader now."""
        random = self._random
        duration_ns = int(100 * MILLISECOND_NS + random.random() ** 2 * SECOND_NS)
        kind, now = random.choice(KINDS_AT_EXPIRY), self._world.queue.now
        self._world.cover(STRUCK)
        self._world.inject(Fault(at_ns=now, kind=kind, duration_ns=duration_ns, target=None, shape=random.random()))
