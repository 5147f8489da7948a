"""Settings at odds: members of one cluster that were not all started with the same ones, as amid a rolling change.

In half of the seeds in which leaders read by lease. One member has more patience than the others: its time-outs of
elections are several times as long. And some members do not read by lease when they lead, though they promise what
others need for it. In the mood that is about leases the patient one is made the leader again and again, and cut off for
longer than the others wait: if it takes its own settings for what they have promised, it reads on while others lead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from harness.sim.plan.plan import SECOND_NS, Fault

if TYPE_CHECKING:
    from harness.sim.plan.plan import Plan

PATIENCE = (2, 3, 5)
"""How many times as long the time-outs of a patient member are."""

STRUCK_MOOD = "leased"


def with_odds(plan: Plan, random: Random) -> Plan:
    """The plan, with some members' settings other than the rest's. Only where leaders read by lease."""
    is_at_odds, place, times = random.random() < 0.5, random.randrange(len(plan.members)), random.choice(PATIENCE)
    leaseless = [member for member in plan.members if random.random() < 0.3]
    if not plan.raft.lease_reads or not is_at_odds or len(plan.members) == 1:
        return plan
    patient = plan.members[place]
    plan = replace(plan, patience={patient: times}, leaseless=tuple(each for each in leaseless if each != patient))
    if plan.mood != STRUCK_MOOD:
        return plan
    until_ns = 3 * SECOND_NS
    return replace(plan, until_ns=until_ns, faults=tuple(_strikes(plan, place, until_ns)))


def _strikes(plan: Plan, place: int, until_ns: int) -> Iterator[Fault]:
    """The patient member takes over, and is cut off until the others have long elected somebody else."""
    times, wait_ns = plan.patience[plan.members[place]], plan.raft.election_timeout_max_ns
    target = (place + 0.5) / len(plan.members)
    for at_ns in range(3 * wait_ns, until_ns, (times + 5) * wait_ns):
        yield Fault(at_ns=at_ns, kind="take over", duration_ns=0, target=target, shape=0.0)
        cut_at_ns = at_ns + 2 * wait_ns
        yield Fault(at_ns=cut_at_ns, kind="cut off", duration_ns=times * wait_ns, target=target, shape=0.0)
