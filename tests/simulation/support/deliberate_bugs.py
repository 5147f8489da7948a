"""Two small bugs that a test puts into the production code of its own process, and a plan that shows them.

All bugs are in the catalogue `harness/mutants/catalogue`. This module imports submodules, because it patches code in
them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import raft.core.elections
import raft.core.outbox
from harness.sim.plan.plan import DiskPlan, Fault, Plan
from raft import Message, PreVoteRequest, VoteRequest


def frequent_elections(plan: Plan) -> Plan:
    """A plan with three members. A fault hits the leader several times per second, and programs read and write all the
    time."""
    kinds = ("cut off", "kill", "pause", "lose power")
    faults = tuple(
        Fault(at_ns=at_ms * 1_000_000, kind=kinds[at_ms // 300 % 4], duration_ns=400_000_000, target=None, shape=0.5)
        for at_ms in range(300, 6_000, 300)
    )
    load = replace(plan.load, with_service=False, clients=8, think_ns=3_000_000, read_share=0.6)
    network = replace(plan.network, delay_ns=4_000_000, jitter_ns=8_000_000, loss_rate=0.02)
    timers = replace(
        plan.raft,
        heartbeat_interval_ns=20_000_000,
        election_timeout_min_ns=60_000_000,
        election_timeout_max_ns=120_000_000,
        append_bytes_max=100,
        window_messages_max=2,
    )
    return replace(
        plan,
        members=("n1", "n2", "n3"),
        until_ns=6_000_000_000,
        disks={member: DiskPlan(sync_ns=1_000_000) for member in ("n1", "n2", "n3")},
        raft=timers,
        network=network,
        load=load,
        faults=faults,
    )


def messages_do_not_wait_for_the_sync(patch: pytest.MonkeyPatch) -> None:
    send = raft.core.outbox.Outbox.send

    def at_once(self: raft.core.outbox.Outbox, peer_id: str, message: Message, *, after: int = 0) -> None:
        send(self, peer_id, message, after=min(after, 0))

    patch.setattr(raft.core.outbox.Outbox, "send", at_once)


def votes_go_to_logs_that_are_behind(patch: pytest.MonkeyPatch) -> None:
    def always(self: raft.core.elections.Elections, request: PreVoteRequest | VoteRequest) -> bool:
        return True

    patch.setattr(raft.core.elections.Elections, "_is_up_to_date", always)
