"""What will go wrong in a run: a list of steps, drawn before it begins, so that any of them can be taken away."""

from __future__ import annotations

from random import Random

from harness.sim.engine.rng import stream
from harness.sim.faults.clients import CLIENT_KINDS
from harness.sim.faults.clocks import CLOCK_KINDS
from harness.sim.faults.disks import DISK_KINDS
from harness.sim.faults.network import NETWORK_KINDS
from harness.sim.faults.processes import PROCESS_KINDS
from harness.sim.plan.plan import SECOND_NS, Fault, Kinds

KINDS: Kinds = {**PROCESS_KINDS, **CLOCK_KINDS, **NETWORK_KINDS, **CLIENT_KINDS, **DISK_KINDS}
"""All kinds of all families."""


def draw_faults(seed: int, until_ns: int) -> tuple[Fault, ...]:
    """The steps of a seed. Each kind has its own stream and is on or off as a whole (swarm testing).

    How many kinds are on differs from seed to seed: from hardly any, which show clearly what they do, to most.
    """
    on_share = 0.05 + 0.75 * stream(seed, "fault").random()
    faults: list[Fault] = []
    for kind, (rate_max, duration_max) in KINDS.items():
        if not rate_max:
            continue  # Something else draws it.
        random = stream(seed, f"fault/{kind}")
        if random.random() >= on_share:
            continue
        rate = rate_max * random.random()
        at = random.expovariate(rate) * SECOND_NS
        while at < until_ns:
            faults.append(draw_fault(random, kind, int(at), duration_max))
            at += random.expovariate(rate) * SECOND_NS
    return tuple(sorted(faults, key=lambda fault: (fault.at_ns, fault.kind)))


def draw_fault(random: Random, kind: str, at_ns: int, duration_max: float) -> Fault:
    """One step of `kind`: half of them aim at the leader, short ones are as likely as long ones."""
    short = random.random() < 0.5
    span = duration_max * SECOND_NS * random.random() * (0.1 if short else 1.0)
    target = None if random.random() < 0.5 else random.random()
    return Fault(at_ns=at_ns, kind=kind, duration_ns=int(span), target=target, shape=random.random())
