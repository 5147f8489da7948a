"""The last voter: the leader of two removes itself, and the other one dies in the moment in which it is to be alone.

From then on each of them would be a majority: the leader of what it has heard, the other one of itself. What keeps
them apart is what the other one promised before it died. It is not alone for long: the next machine takes the leader's
place.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from harness.sim.engine.rng import stream
from harness.sim.plan.coincidences import AS_DRAWN
from harness.sim.plan.plan import ADD, MILLISECOND_NS, PROMOTE, REMOVE, ChangeStep, Fault
from harness.sim.plan.profiles import in_order, leased, syncing_in
from raft import MEMBERS_MAX

if TYPE_CHECKING:
    from harness.sim.plan.plan import DiskPlan, Plan

PARTED_SHARE = 0.06
"""Of the seeds as drawn in which nobody else changes the members, or upgrades them."""

PARTED = "parted"

FIRST_NS, EVERY_NS = 300 * MILLISECOND_NS, 500 * MILLISECOND_NS
ADDED_NS, PROMOTED_NS = 150 * MILLISECOND_NS, 300 * MILLISECOND_NS
"""Of each round: when the next machine comes, and when it becomes a voter."""

FIRST, LAST = 0.4, 0.99
"""Of those of whom a step chooses one."""


def with_partings(plan: Plan, disks: dict[str, DiskPlan]) -> Plan:
    """The plan, or if its seed has any another one of leases and partings. `disks`: of each machine that may be."""
    random = stream(plan.seed, "plan/partings")
    if random.random() >= PARTED_SHARE or plan.mood != AS_DRAWN or plan.changes or plan.upgrades:
        return plan
    plan = leased(plan, random)
    machines = tuple(sorted(disks))
    changes, faults = list[ChangeStep](), list[Fault]()
    for place in range(MEMBERS_MAX - 2):
        at_ns = FIRST_NS + place * EVERY_NS
        changes += [
            ChangeStep(at_ns=at_ns, what=REMOVE, shape=FIRST),
            ChangeStep(at_ns=at_ns + ADDED_NS, what=ADD, shape=FIRST),
            ChangeStep(at_ns=at_ns + PROMOTED_NS, what=PROMOTE, shape=LAST),
        ]
        faults += _dies(at_ns, (place + 1.5) / len(machines), random)
    return replace(
        plan,
        mood=f"{AS_DRAWN}, {PARTED}",
        members=machines,
        founders=2,
        until_ns=FIRST_NS + (MEMBERS_MAX - 2) * EVERY_NS,
        disks=syncing_in(MILLISECOND_NS, replace(plan, disks=disks)),
        faults=in_order(faults),
        changes=tuple(changes),
        priorities={},
        patience={},
        leaseless=(),
        heal=replace(plan.heal, dead=(), returns=False),
    )


def _dies(at_ns: int, target: float, random: Random) -> list[Fault]:
    """Amid the sync of what makes it the only one, at best, and back before any promise is over.

    Who takes the leader's place leads from then on, so each leader's name is lower than the other one's.
    """
    dies_ns = at_ns + int((2 + 5 * random.random()) * MILLISECOND_NS)
    kind, back_ns = random.choice(("kill", "kill", "lose power")), int((1 + 9 * random.random()) * MILLISECOND_NS)
    return [
        Fault(
            at_ns=at_ns - 50 * MILLISECOND_NS,
            kind="take over",
            duration_ns=0,
            target=target - 1 / MEMBERS_MAX,
            shape=0.0,
        ),
        Fault(at_ns=dies_ns, kind=kind, duration_ns=back_ns, target=target, shape=random.random()),
    ]
