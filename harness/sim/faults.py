"""What will go wrong in a run: a list of steps, drawn before it begins, so that any of them can be taken away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from harness.sim.streams import stream

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One step. `target` is a share of the members in order, or the leader of that moment; `shape` draws the rest."""

    at_ns: int
    kind: str  # One of KINDS.
    duration_ns: int
    target: float | None  # None: who leads then.
    shape: float


KINDS: dict[str, tuple[float, float]] = {
    # kind: (greatest rate per simulated second, longest duration in seconds)
    "kill": (0.6, 2.0),  # The process dies; what the operating system has taken survives.
    "lose power": (0.6, 2.0),  # What was not synced is settled by a draw.
    "lose power everywhere": (0.2, 1.0),
    "cut in two": (0.3, 3.0),
    "cut off": (0.4, 3.0),  # One member hears nobody and is heard by nobody.
    "cut one way": (0.4, 3.0),
    "pause": (0.3, 1.5),  # The process stands still and then goes on as if nothing had happened.
    "slow disk": (0.3, 2.0),
    "lose connection": (0.5, 0.0),
    "fail a sync": (0.3, 2.0),  # The next sync of the log fails, and those behind it lie; the process must stop.
    "full disk": (0.3, 3.0),  # No room for a while, or for a few bytes only.
    "bit rot": (0.4, 1.0),  # Power is lost, and one bit that had been proven durable changes.
}


def draw_faults(seed: int, until_ns: int) -> tuple[Fault, ...]:
    """The steps of a seed. Each kind has its own stream and is on or off as a whole (swarm testing)."""
    faults: list[Fault] = []
    for kind, (rate_max, duration_max) in KINDS.items():
        random = stream(seed, f"fault/{kind}")
        if random.random() < 0.4:
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


def cut_links(fault: Fault, target: str, members: Sequence[str]) -> list[tuple[str, str]]:
    """The directed links that a partition cuts."""
    others = [member for member in members if member != target]
    match fault.kind:
        case "cut off":
            return [(target, other) for other in others] + [(other, target) for other in others]
        case "cut one way":
            return [(target, other) if fault.shape < 0.5 else (other, target) for other in others]
        case "cut in two":
            random = Random(int(fault.shape * 2**53))
            side = {member for member in members if random.random() < 0.5} | {target}
            return [(a, b) for a in members for b in members if (a in side) != (b in side)]
    raise AssertionError(fault.kind)
