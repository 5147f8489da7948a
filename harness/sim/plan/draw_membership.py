"""Draws membership changes, lost disks with spare machines, upgrades, and former folders of machines.

Each function `with_…` adds one of these features to the plans of some seeds, with a separate random stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

from harness.sim.engine.rng import stream
from harness.sim.plan.plan import (
    ADD,
    BACK,
    LOSS,
    MICROSECOND_NS,
    MILLISECOND_NS,
    PROMOTE,
    RAISE,
    REMOVE,
    REPLACE,
    ROLL,
    SECOND_NS,
    ChangeStep,
    DiskPlan,
    Fault,
    Plan,
    UpgradeStep,
    names_new_voters,
)
from harness.sim.plan.profiles import AS_DRAWN, in_order, lease_faults, syncing_in
from raft import MEMBERS_MAX


def draw_disk(seed: int, machine: str) -> DiskPlan:
    """Draw a disk, from a fast drive to a drive that takes ten milliseconds per sync and stalls now and then."""
    random = stream(seed, f"plan/disk/{machine}")
    return DiskPlan(
        sync_ns=int(50 * MICROSECOND_NS * 200 ** random.random()),
        stall_ns=int(400 * MILLISECOND_NS * random.random()),
        stall_rate=0.02 * random.random() if random.random() < 0.4 else 0.0,
    )


def disks_for(plan: Plan, machines: Iterable[str]) -> dict[str, DiskPlan]:
    """Return a disk for each machine: the disk in the plan, or else a disk that is drawn from the seed."""
    return {machine: plan.disks.get(machine) or draw_disk(plan.seed, machine) for machine in machines}


CHANGED_SHARE = 0.25
"""Share of the seeds with membership changes."""

CUT_OFF_SHARE = 0.25
"""Share of the changes whose leader is cut off once it has begun the change."""

SILENCED_SHARE = 0.4
"""Share of the removed followers that are cut off before they can hear of their removal."""


def with_changes(plan: Plan, random: Random) -> Plan:
    """Add membership changes, and machines outside the first configuration, to the plans of some seeds.

    These runs have no damage, because the damage budget is computed for a cluster whose members never change. For the
    same reason no member stays dead.
    """
    if random.random() >= CHANGED_SHARE:
        return plan
    founders = len(plan.members)
    count = min(founders + random.randrange(1, 5), MEMBERS_MAX)
    machines = tuple(f"n{number}" for number in range(1, count + 1))
    steps = max(3, int(random.random() * 14))
    kinds = [random.choices((ADD, PROMOTE, REMOVE, REPLACE), (4, 4, 3, 2))[0] for _ in range(steps)]
    kinds[0] = random.choice((ADD, REMOVE))
    moments = sorted(random.random() for _ in kinds)
    return replace(
        plan,
        members=machines,
        founders=founders,
        disks=disks_for(plan, machines),
        changes=tuple(
            ChangeStep(
                at_ns=int(plan.until_ns * moment),
                what=kind,
                shape=random.random(),
                cut_off_ns=int(4 * random.random() * plan.raft.election_timeout_max_ns)
                if random.random() < CUT_OFF_SHARE
                else 0,
            )
            for moment, kind in zip(moments, kinds, strict=True)
        ),
        silenced_rate=SILENCED_SHARE,
        heal=replace(plan.heal, dead=(), returns=False),
    )


LOSSES_SHARE = 0.12
"""Share of the seeds that lose disks, among the seeds without other membership changes."""

VOTERS_MIN = 3

LOSSES_MAX = 3

SPARES_MAX = 3

LAST_LOSS_SHARE = 0.8
"""Losses end at this share of the time in which faults happen. A later loss would leave no time for a replacement."""


def with_losses(plan: Plan, random: Random) -> Plan:
    """Add lost disks, and spare machines to replace their members, to the plans of some seeds.

    All losses together must leave a quorum, and `DiskLoss.allows` checks this. These runs have no other damage, and no
    member stays dead.
    """
    founders = len(plan.members)
    if random.random() >= LOSSES_SHARE or plan.changes or founders < VOTERS_MIN:
        return plan
    count = min(founders + random.randrange(SPARES_MAX + 1), MEMBERS_MAX)
    machines = tuple(f"n{number}" for number in range(1, count + 1))
    losses = [
        Fault(
            at_ns=int(plan.until_ns * LAST_LOSS_SHARE * random.random()),
            kind=LOSS,
            duration_ns=int(SECOND_NS * 0.5 * random.random()),
            target=None if random.random() < 0.5 else random.random() * founders / count,
            shape=random.random(),
        )
        for _ in range(random.randrange(1, LOSSES_MAX + 1))
    ]
    return replace(
        plan,
        members=machines,
        founders=founders,
        disks=disks_for(plan, machines),
        faults=tuple(sorted([*plan.faults, *losses], key=lambda fault: fault.at_ns)),
        heal=replace(plan.heal, dead=(), returns=False),
    )


UPGRADED_SHARE = 0.2
"""Share of the seeds with upgrades."""

OBSERVED_SHARE = 0.5
"""In this share of the seeds with upgrades and without other joining machines, one more machine joins, and stays a
learner until the faults end.
"""


def with_upgrades(plan: Plan, random: Random) -> Plan:
    """Add upgrades to the plans of some seeds."""
    if random.random() >= UPGRADED_SHARE:
        return plan
    kinds = [ROLL, *random.choices((ROLL, RAISE, BACK), (3, 5, 3), k=random.randrange(2, 9))]
    moments = sorted(random.random() for _ in kinds)
    steps = [
        UpgradeStep(at_ns=int(plan.until_ns * moment), what=what, shape=random.random())
        for moment, what in zip(moments, kinds, strict=True)
    ]
    return replace(plan, upgrades=tuple(steps))


def with_observer(plan: Plan, random: Random) -> Plan:
    """Add a learner to some plans with upgrades.

    The learner is not promoted before the faults end, and roll-outs may skip it.

    Such plans also get a roll-out of a newer build, and two later attempts to raise the level. As in
    `with_changes`, these runs have no damage and no member stays dead.
    """
    founders = len(plan.members)
    if random.random() >= OBSERVED_SHARE or not plan.upgrades or plan.founders or founders == MEMBERS_MAX:
        return plan
    observer = f"n{founders + 1}"
    moments = [(0.25, ROLL), *((0.4 + 0.5 * random.random(), RAISE) for _ in range(2))]
    asked = [
        UpgradeStep(at_ns=int(plan.until_ns * moment), what=what, shape=0.4 + 0.6 * random.random())
        for moment, what in moments
    ]
    joins = ChangeStep(at_ns=int(plan.until_ns * 0.3 * random.random()), what=ADD, shape=0.5)
    return replace(
        plan,
        members=(*plan.members, observer),
        founders=founders,
        disks=disks_for(plan, (*plan.members, observer)),
        changes=(joins,),
        upgrades=tuple(sorted([*plan.upgrades, *asked], key=lambda step: step.at_ns)),
        heal=replace(plan.heal, dead=(), returns=False),
    )


MADE_ANEW_SHARE = 0.6
"""In seeds whose membership changes name the folders of new voters, this share of the machines outside the first
configuration has a former folder.
"""


def with_former_folders(plan: Plan, random: Random) -> Plan:
    """Give some joining machines a former folder, which at most half of the voters know, if the plan allows it."""
    voters = plan.voters
    if not plan.changes or len(voters) < 2 or not names_new_voters(plan.seed):
        return plan
    former = {
        machine: tuple(sorted(random.sample(voters, random.randint(1, len(voters) // 2))))
        for machine in plan.members[len(voters) :]
        if random.random() < MADE_ANEW_SHARE
    }
    return replace(plan, former_folders=former)


LAST_VOTER_REMOVAL_SHARE = 0.06
"""Share of the seeds that get `with_last_voter_removal`, among those without a profile, membership changes or upgrades.
"""


LAST_VOTER_REMOVAL = "last voter removal"


PART_FIRST_NS, PART_EVERY_NS = 300 * MILLISECOND_NS, 500 * MILLISECOND_NS


PART_ADDED_NS, PART_PROMOTED_NS = 150 * MILLISECOND_NS, 300 * MILLISECOND_NS
"""The times in each round at which the next machine is added, and at which it becomes a voter."""


FIRST, LAST = 0.4, 0.99
"""Values of `shape` with which a step chooses the first or the last of its candidates."""


def with_last_voter_removal(plan: Plan, random: Random) -> Plan:
    """In each round, let the leader of two voters remove itself, and crash the other voter at the moment at which it
    becomes the only voter.

    From then on each of the two could believe that it has a majority. The leader could believe so because of the
    answers that it has received, the other voter because it is alone. Only the promises of the other voter before its
    crash prevent it from leading too early. Later in the round, the next machine replaces the old leader.
    """
    if random.random() >= LAST_VOTER_REMOVAL_SHARE or plan.profile != AS_DRAWN or plan.changes or plan.upgrades:
        return plan
    plan = lease_faults(plan, random)
    machines = tuple(f"n{number}" for number in range(1, MEMBERS_MAX + 1))
    changes, faults = list[ChangeStep](), list[Fault]()
    for place in range(MEMBERS_MAX - 2):
        at_ns = PART_FIRST_NS + place * PART_EVERY_NS
        changes += [
            ChangeStep(at_ns=at_ns, what=REMOVE, shape=FIRST),
            ChangeStep(at_ns=at_ns + PART_ADDED_NS, what=ADD, shape=FIRST),
            ChangeStep(at_ns=at_ns + PART_PROMOTED_NS, what=PROMOTE, shape=LAST),
        ]
        faults += _dies(at_ns, (place + 1.5) / len(machines), random)
    return replace(
        plan,
        profile=f"{AS_DRAWN}, {LAST_VOTER_REMOVAL}",
        members=machines,
        founders=2,
        until_ns=PART_FIRST_NS + (MEMBERS_MAX - 2) * PART_EVERY_NS,
        disks=syncing_in(MILLISECOND_NS, replace(plan, disks=disks_for(plan, machines))),
        faults=in_order(faults),
        changes=tuple(changes),
        priorities={},
        patience={},
        leaseless=(),
        heal=replace(plan.heal, dead=(), returns=False),
    )


def _dies(at_ns: int, target: float, random: Random) -> list[Fault]:
    """Let the voter before `target` lead, and crash `target`, if possible in the sync that makes it the only voter.

    The crashed member starts again before any promise has ended. The change always removes the first voter by name, so
    the leader must be the voter whose name sorts first.
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
