"""Carries out a fault plan against a cluster, and records each fault, its victims and its times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from random import Random

import trio

from harness.nemesis import disks, membership, processes
from harness.nemesis import partitions as links
from harness.nemesis.active_fault import ActiveFault, FaultRecord, Victims
from harness.nemesis.schedule import MEMBER_KINDS, Kind, PlannedFault
from harness.recording.history import RunWriter

# If there is no leader for this long, a fault that should hit the leader hits a random member.
_LEADER_WAIT_SECONDS = 3.0
_SETTLED_SECONDS_MAX = 3.0
_LOOK_SECONDS = 0.02

_CARRIED_OUT: dict[Kind, Callable[[ActiveFault], AbstractAsyncContextManager[None]]] = {
    "kill": processes.killed,
    "pause": processes.paused,
    "partition": links.partitioned,
    "restart": processes.restarted,
    "transfer": processes.handed_over,
    "disk-full": disks.full,
    "disk-error": disks.failing,
    "disk-hang": disks.hanging,
    "disk-slow": disks.slow,
    "power-loss": disks.without_power,
    "write-error": disks.failing_once,
    "boot-clock": processes.booted_at_another_time,
    "wall-clock": processes.told_another_date,
    "clock-jump": processes.jumped_ahead,
    "add": membership.added,
    "remove": membership.removed,
    "replace": membership.replaced,
    "disk-lies": membership.lied_to,
}


@dataclass(slots=True)
class Nemesis:
    """Carries out a plan. At the end of `run`, even after an error, all faults are undone.

    Faults run in two parallel lanes, each with one fault at a time: one for membership changes, one for all other
    faults. No two faults have the same victim at the same time.
    """

    cluster: Victims
    writer: RunWriter
    plan: Sequence[PlannedFault]
    records: list[FaultRecord] = field(default_factory=list)
    under_way: list[FaultRecord] = field(default_factory=list)

    async def run(self, seconds: float = math.inf) -> None:
        """Carry out the plan, but begin no fault later than `seconds` from now."""
        begun = trio.current_time()
        changes = [planned for planned in self.plan if planned.kind in MEMBER_KINDS]
        others = [planned for planned in self.plan if planned.kind not in MEMBER_KINDS]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._one_by_one, others, begun, begun + seconds)
            nursery.start_soon(self._one_by_one, changes, begun, begun + seconds)

    @property
    def current(self) -> FaultRecord | None:
        """The newest fault under way; None if no fault is under way."""
        return self.under_way[-1] if self.under_way else None

    @property
    def kills(self) -> int:
        """How many processes were killed by faults of kind `kill`."""
        return sum(len(record.victims) for record in self.records if record.kind == "kill")

    async def _one_by_one(self, plan: Sequence[PlannedFault], begun: float, over: float) -> None:
        for planned in plan:
            await trio.sleep_until(begun + planned.start_seconds)
            await self._settled()
            if trio.current_time() >= over:
                return
            await self._carry_out(planned)

    async def _carry_out(self, planned: PlannedFault) -> None:
        leader_id = await self._leader_soon() if planned.target == "leader" else self.cluster.leader_id
        # This check comes before the fault. After the fault, a member that had already ended by itself could look like
        # a victim.
        self.cluster.check_alive()
        record = FaultRecord(
            number=planned.number,
            kind=planned.kind,
            target=planned.target,
            direction=planned.direction,
            victims=self._choose(planned, leader_id),
            leader_id=leader_id,
            started_ns=self.writer.clock.now_ns(),
        )
        active = ActiveFault(self.cluster, record, planned.duration_seconds, Random(f"strike {planned.pick}"))
        self.records.append(record)
        self.under_way.append(record)
        self.writer.event("fault_started", **record.to_json())
        try:
            async with _CARRIED_OUT[planned.kind](active):
                await trio.sleep(planned.duration_seconds)
        finally:
            record.stopped_ns = self.writer.clock.now_ns()
            self.under_way.remove(record)
            fields = {"number": record.number, "fault": record.kind, "victims": record.victims, **record.outcome}
            self.writer.event("fault_stopped", **fields)

    def _choose(self, planned: PlannedFault, leader_id: str | None) -> list[str]:
        """Choose the victims of a fault, none of which is currently a victim of another fault."""
        if planned.kind == "add":
            return []
        hit = self._hit()
        # Members are in the order in which they joined.
        free = [node_id for node_id in self.cluster.members if node_id not in hit]
        if planned.target == "all":
            return sorted(free)
        if planned.target == "leader" and leader_id in free:
            return [leader_id]
        if planned.target == "eldest":
            return free[:1]
        # How many more members can be hit so that a majority of the cluster remains.
        minority = (len(self.cluster.members) - 1) // 2 - len(hit)
        count = max(1, minority) if planned.target == "minority" else 1
        return sorted(Random(planned.pick).sample(sorted(free), min(count, len(free))))

    async def _settled(self) -> None:
        """Wait, for at most a few seconds, until every member answers that is not a victim of a present fault.

        Because of this wait, the effects of two faults seldom overlap.
        """
        for _ in range(round(_SETTLED_SECONDS_MAX / _LOOK_SECONDS)):
            if not self.cluster.silent - self._hit():
                break
            await trio.sleep(_LOOK_SECONDS)

    def _hit(self) -> set[str]:
        return {node_id for record in self.under_way for node_id in record.victims}

    async def _leader_soon(self) -> str | None:
        for _ in range(round(_LEADER_WAIT_SECONDS / _LOOK_SECONDS)):
            if self.cluster.leader_id is not None:
                break
            await trio.sleep(_LOOK_SECONDS)
        return self.cluster.leader_id
