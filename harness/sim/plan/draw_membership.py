"""Draws what happens to the membership: changes, lost disks and their spares, upgrades, and machines made anew.

Each function adds one of these to a plan if its seed has it, from a random stream of its own.
"""

from __future__ import annotations

from dataclasses import replace

from harness.sim.engine.rng import stream
from harness.sim.plan.plan import (
    ADD,
    BACK,
    LOSS,
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
from raft import MEMBERS_MAX

CHANGED_SHARE = 0.25
"""Share of the seeds."""

CUT_OFF_SHARE = 0.25
"""Share of the changes."""

SILENCED_SHARE = 0.4
"""Share of the removals of a follower in which it is cut off before it can hear of its removal."""


def with_changes(plan: Plan, disks: dict[str, DiskPlan]) -> Plan:
    """The plan, with machines that are no members yet and steps that change who is, if its seed has any.

    `disks` has one for each machine that there may be. Damage is left out of these runs: its budget is a minority of a
    cluster that has the same members for ever; and nobody stays dead, for the same reason.
    """
    random = stream(plan.seed, "plan/changes")
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
        disks={machine: plan.disks.get(machine, disks[machine]) for machine in machines},
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
"""Share of the seeds without other membership changes."""

VOTERS_MIN = 3

LOSSES_MAX = 3

SPARES_MAX = 3

LAST_LOSS_SHARE = 0.8
"""Losses end at this share of the time in which faults happen: later there is no time left for a replacement."""


def with_losses(plan: Plan, disks: dict[str, DiskPlan]) -> Plan:
    """The plan, with disks that are lost and machines to take the place of their members, if its seed has any.

    `disks` has one for each machine that there may be. Other damage is left out, and nobody stays dead: what there is
    of both must leave a quorum, and is counted in one place only (`DiskLoss.allows`).
    """
    random = stream(plan.seed, "plan/losses")
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
        disks={machine: plan.disks.get(machine, disks[machine]) for machine in machines},
        faults=tuple(sorted([*plan.faults, *losses], key=lambda fault: fault.at_ns)),
        heal=replace(plan.heal, dead=(), returns=False),
    )


UPGRADED_SHARE = 0.2
"""Share of the seeds."""

OBSERVED_SHARE = 0.5
"""Share of the seeds with upgrades and without other machines in which one more machine joins, and stays a learner."""


def with_upgrades(plan: Plan) -> Plan:
    """The plan, with upgrades if its seed has any."""
    random = stream(plan.seed, "plan/upgrades")
    if random.random() >= UPGRADED_SHARE:
        return plan
    kinds = [ROLL, *random.choices((ROLL, RAISE, BACK), (3, 5, 3), k=random.randrange(2, 9))]
    moments = sorted(random.random() for _ in kinds)
    steps = [
        UpgradeStep(at_ns=int(plan.until_ns * moment), what=what, shape=random.random())
        for moment, what in zip(moments, kinds, strict=True)
    ]
    return replace(plan, upgrades=tuple(steps))


def with_observer(plan: Plan, disks: dict[str, DiskPlan]) -> Plan:
    """The plan, with a machine that watches: a learner that nobody promotes, and whom a roll-out may forget.

    The level is asked for behind the first of the builds that know more, and again. `disks` has one for each machine
    that there may be. As in `with_changes` damage is left out, and nobody stays dead.
    """
    random, founders = stream(plan.seed, "plan/observer"), len(plan.members)
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
        disks={**plan.disks, observer: disks[observer]},
        changes=(joins,),
        upgrades=tuple(sorted([*plan.upgrades, *asked], key=lambda step: step.at_ns)),
        heal=replace(plan.heal, dead=(), returns=False),
    )


MADE_ANEW_SHARE = 0.6
"""Share of the machines outside the first configuration, in seeds whose members change and whose new voters are named.
"""


def with_former_folders(plan: Plan) -> Plan:
    """The plan, with machines that were made anew, if its seed has any. Never has everybody met the first folder."""
    random = stream(plan.seed, "plan/former folders")
    voters = plan.voters
    if not plan.changes or len(voters) < 2 or not names_new_voters(plan.seed):
        return plan
    former = {
        machine: tuple(sorted(random.sample(voters, random.randint(1, len(voters) // 2))))
        for machine in plan.members[len(voters) :]
        if random.random() < MADE_ANEW_SHARE
    }
    return replace(plan, former_folders=former)
