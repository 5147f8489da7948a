"""Draws the clients of etcd of a seed, which a plan has only if it is asked for them: they need the extra `etcd`.

A seed must mean the same run on every machine, with or without the libraries of this extra. Therefore `draw_plan` gives
no seed clients of etcd, and `draw_etcd_plan` gives them to every seed.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from harness.sim.engine.rng import stream
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.draw_coordination import LEVEL, RAISE_SHAPE, with_small_service
from harness.sim.plan.plan import MILLISECOND_NS, NO_ACCESS, NO_COORDINATION, SECOND_NS, EtcdPlan, Plan

UNTIL_NS_MIN, UNTIL_NS_MAX = 4 * SECOND_NS, 7 * SECOND_NS


def draw_etcd_plan(seed: int) -> Plan:
    """Return the plan of a seed with clients of etcd."""
    return with_etcd(draw_plan(seed), stream(seed, "plan/etcd"))


def with_etcd(plan: Plan, random: Random) -> Plan:
    """Add clients of etcd to the plan, and a service if it has none.

    They take the place of a coordination load and of users. The members have builds that know level 2, which do not
    change, and an operator raises the level at once.
    """
    until_ns = int(UNTIL_NS_MIN + (UNTIL_NS_MAX - UNTIL_NS_MIN) * random.random())
    small = with_small_service(plan, LEVEL, RAISE_SHAPE, until_ns)
    return replace(small, coordination=NO_COORDINATION, access=NO_ACCESS, etcd=draw_clients(random))


def draw_clients(random: Random) -> EtcdPlan:
    """Draw the numbers of clients and programs, and their behaviour."""
    return EtcdPlan(
        clients=random.randint(1, 3),
        workers=random.randint(1, 3),
        keepers=random.randint(0, 2),
        watchers=random.randint(1, 3),
        think_ns=int(15 * MILLISECOND_NS * 10 ** random.random()),
        patience_ns=int(SECOND_NS * random.choice((0.3, 1.0, 3.0))),
        compact_share=random.choice((0.0, 0.0, 0.2)),
        lockers=random.randint(0, 4),
    )
