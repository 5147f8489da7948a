"""Draws the access load of a seed: users whose rights change while they read, write and watch, at feature level 3."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from harness.sim.plan.draw_coordination import with_small_service
from harness.sim.plan.plan import MILLISECOND_NS, RAISE, SECOND_NS, AccessPlan, Plan

ACCESS_SHARE = 0.29
"""Share of the seeds with users, among the seeds that suit users: with a service, without a coordination load, and
without builds that change. About one in eight of all seeds has users."""

LEVEL = 3

RAISE_SHAPE = 0.99
"""The `shape` of the step in which an operator raises the level to 3."""

UNTIL_NS_MIN, UNTIL_NS_MAX = 3 * SECOND_NS, 6 * SECOND_NS


def with_access(plan: Plan, random: Random) -> Plan:
    """Add users to the plan if its seed draws them.

    The members begin with builds that know level 3, and an operator raises the level at once. A plan whose builds
    change, or that has a coordination load, stays as it is. A plan in which sessions expire at the times of puts also
    stays as it is, because it tests a path that members do not use while authentication is on.
    """
    if random.random() >= ACCESS_SHARE or not plan.load.with_service or plan.coordination.is_on:
        return plan
    if any(step.what != RAISE for step in plan.upgrades) or plan.profile.endswith("expiry at command time"):
        return plan
    access = AccessPlan(
        users=random.randint(2, 3),
        watchers=random.randint(1, 3),
        think_ns=int(20 * MILLISECOND_NS * 5 ** random.random()),
        change_ns=int(20 * MILLISECOND_NS * 8 ** random.random()),
    )
    until_ns = int(UNTIL_NS_MIN + (UNTIL_NS_MAX - UNTIL_NS_MIN) * random.random())
    return replace(with_small_service(plan, LEVEL, RAISE_SHAPE, until_ns), access=access)
