"""Ways to bend the plan of a seed towards what a defect needs, by name, so that a mutant can ask for one as data.

Most mutants need none: they are caught by plans as seeds draw them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from harness.mutants.mutant import DRAWN
from harness.sim.disk import DiskPlan
from harness.sim.fault import MILLISECOND_NS, SECOND_NS, Fault
from harness.sim.plan import Plan
from kvstore import StoreLimits
from storage import StorageLimits

MEMBERS = ("n1", "n2", "n3")
STRUCK_EVERY_MS = 300
LENGTH_MS = 6_000


def as_drawn(plan: Plan) -> Plan:
    """What the seed says."""
    return plan


def restless(plan: Plan) -> Plan:
    """Three members whose leader is struck several times a second, and programs that read and write all the time."""
    kinds = ("cut off", "kill", "pause", "lose power")
    faults = tuple(
        Fault(
            at_ns=at_ms * MILLISECOND_NS,
            kind=kinds[at_ms // STRUCK_EVERY_MS % len(kinds)],
            duration_ns=400 * MILLISECOND_NS,
            target=None,
            shape=0.5,
        )
        for at_ms in range(STRUCK_EVERY_MS, LENGTH_MS, STRUCK_EVERY_MS)
    )
    timers = replace(
        plan.raft,
        heartbeat_interval_ns=20 * MILLISECOND_NS,
        election_timeout_min_ns=60 * MILLISECOND_NS,
        election_timeout_max_ns=120 * MILLISECOND_NS,
        append_bytes_max=100,
        window_messages_max=2,
    )
    return replace(
        plan,
        members=MEMBERS,
        until_ns=LENGTH_MS * MILLISECOND_NS,
        disks={member: DiskPlan(sync_ns=MILLISECOND_NS) for member in MEMBERS},
        raft=timers,
        network=replace(
            plan.network, delay_ns=4 * MILLISECOND_NS, jitter_ns=8 * MILLISECOND_NS, late_rate=0.0, loss_rate=0.02
        ),
        load=replace(plan.load, with_service=False, clients=8, think_ns=3 * MILLISECOND_NS, read_share=0.6),
        faults=faults,
    )


def restless_clients(plan: Plan) -> Plan:
    """The same with clients of the service: some still talk to the old leader while others have found the new one."""
    bent = restless(plan)
    load = replace(bent.load, with_service=True, clients=4, workers=2, keys=2, session_ttl_ns=60 * SECOND_NS)
    return replace(bent, load=load, store=StoreLimits())


def restless_and_forgetful(plan: Plan) -> Plan:
    """The same with a snapshot every few entries and a log that keeps nothing for slow members."""
    bent = restless(plan)
    bounds = replace(bent.raft, snapshot_log_bytes=200, retention_bytes_max=100, snapshot_chunk_bytes=4_096)
    return replace(bent, raft=bounds, storage=StorageLimits(segment_bytes_max=300, ballast_bytes=0))


def restless_clients_and_forgetful(plan: Plan) -> Plan:
    """The same with clients of the service, whose sessions then live in snapshots, and some of which expire."""
    bent = restless_and_forgetful(plan)
    load = replace(bent.load, with_service=True, clients=4, workers=2, keys=4, session_ttl_ns=SECOND_NS)
    return replace(bent, load=load, store=StoreLimits())


def without_power(plan: Plan) -> Plan:
    """The same with large values, slow syncs, and power that fails again and again: frames of many sectors are torn."""
    bent = restless(plan)
    faults = tuple(replace(fault, kind="lose power", duration_ns=100 * MILLISECOND_NS) for fault in bent.faults)
    return replace(
        bent,
        faults=faults,
        disks={member: DiskPlan(sync_ns=10 * MILLISECOND_NS) for member in MEMBERS},
        load=replace(bent.load, value_bytes_max=8_000, read_share=0.0),
        storage=StorageLimits(ballast_bytes=0),
    )


SHAPES: Mapping[str, Callable[[Plan], Plan]] = {
    DRAWN: as_drawn,
    "restless": restless,
    "restless_clients": restless_clients,
    "restless_and_forgetful": restless_and_forgetful,
    "restless_clients_and_forgetful": restless_clients_and_forgetful,
    "without_power": without_power,
}
