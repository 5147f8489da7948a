"""Programs that write much at once: the puts of many callers leave in one piece, as under load.

What is alike and comes together goes by ways of its own, from the connection to the log and back: requests are taken,
batched, applied and answered as runs. The usual workers of a seed are too few, and each has its own moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from harness.sim.engine.rng import stream
from harness.sim.plan.plan import MILLISECOND_NS
from harness.workload.operation_generator import Planned
from kvstore import ClientLimits, Put, StoreLimits
from raft import RaftConfig

if TYPE_CHECKING:
    from harness.sim.plan.draw import Plan

CROWDED_SHARE = 0.15
"""Of the seeds with a service that are in no mood."""

SIZES = (5, 17, 20, 40)
EACH_EVERY_NS = 5 * MILLISECOND_NS
"""At most one put in so long: a large crowd writes less often."""

KEYS = [b"crowd-%02d" % number for number in range(20)]
"""Of one length, and few callers to each, so that what is unknown of one can be told from what is of the others."""


class Caller(Protocol):
    """One who has one operation open at a time."""

    number: int


C = TypeVar("C", bound=Caller)


def with_crowds(plan: Plan) -> Plan:
    """The plan, with callers that write at the same moments, if its seed has any; and room for them in most."""
    random = stream(plan.seed, "plan/crowds")
    if random.random() >= CROWDED_SHARE or not plan.load.with_service or not plan.mood.startswith("as drawn"):
        return plan
    load = replace(plan.load, crowd=random.choice(SIZES), clients=min(plan.load.clients, 2))
    lines = replace(load.lines, in_pieces=random.random() < 0.2)
    plan = replace(plan, load=replace(load, lines=lines))
    if random.random() < 0.2:
        return plan  # With its small bounds, if it has any.
    usual = ClientLimits()
    limits = replace(
        load.client_limits,
        calls_max=usual.calls_max,
        in_flight_max=usual.in_flight_max,
        open_numbers_max=usual.open_numbers_max,
    )
    usually = RaftConfig()
    raft = replace(
        plan.raft,
        batch_bytes_max=usually.batch_bytes_max,
        pending_bytes_max=usually.pending_bytes_max,
        proposals_pending_max=usually.proposals_pending_max,
        apply_commands_max=usually.apply_commands_max,
    )
    return replace(plan, load=replace(plan.load, client_limits=limits), raft=raft, store=StoreLimits())


class Crowd(Generic[C]):
    """Of one client. `write` begins a put of each of these callers, in one piece; `ended` is to be told of each."""

    def __init__(self, callers: Sequence[C], write: Callable[[Sequence[tuple[C, Planned]]], None]) -> None:
        self._write = write
        self._idle = list(callers)
        self._written = 0

    def act(self) -> None:
        """Whoever waits for nothing writes now."""
        callers, self._idle = self._idle, []
        self._write([(caller, self._put(caller.number)) for caller in callers])

    def ended(self, caller: C) -> None:
        """It has its answer, or could not begin."""
        self._idle.append(caller)

    def _put(self, number: int) -> Planned:
        self._written += 1
        return Planned(Put(KEYS[number % len(KEYS)], b"y%04d-%07d" % (number, self._written)))
