"""Carries out a fault plan against a cluster, and writes down what it did to whom and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Protocol

import trio

from harness.cluster.process import MemberProcess
from harness.history import RunWriter
from harness.nemesis.network import SLOW_SECONDS, Network
from harness.nemesis.schedule import Direction, Kind, PlannedFault

_LEADER_WAIT_SECONDS = 3.0  # For "the leader" there must be one; if there is none for so long, any member will do.
_LOOK_SECONDS = 0.02


class Victims(Protocol):
    """What the nemesis needs of a cluster."""

    members: dict[str, MemberProcess]
    network: Network | None

    @property
    def leader_id(self) -> str | None: ...


@dataclass(slots=True, kw_only=True)
class FaultRecord:
    """One fault as it was carried out. `stopped_ns` is None while it lasts; for a kill it is the restart."""

    number: int
    kind: Kind
    target: str
    direction: Direction | None
    victims: list[str]
    leader_id: str | None  # Who led when it began, as far as we knew.
    started_ns: int
    stopped_ns: int | None = None

    def to_json(self) -> dict[str, object]:
        """As an event's fields; `kind` is the event's own there."""
        fields = asdict(self)
        return {"fault": fields.pop("kind"), **fields}

    def words(self) -> str:
        way = {"in": " (to it only)", "out": " (from it only)", "slow": " (late only)"}.get(self.direction or "", "")
        return f"{self.kind}{way} {self.target}: {', '.join(self.victims)}"


@dataclass(slots=True)
class Nemesis:
    """`run` carries out the plan, one fault after the other; when it ends, however it ends, nothing is left broken."""

    cluster: Victims
    writer: RunWriter
    plan: Sequence[PlannedFault]
    records: list[FaultRecord] = field(default_factory=list)
    current: FaultRecord | None = None

    async def run(self) -> None:
        begun = trio.current_time()
        for planned in self.plan:
            await trio.sleep_until(begun + planned.start_seconds)
            await self._carry_out(planned)

    @property
    def kills(self) -> int:
        """How many processes were ended by kill -9."""
        return sum(len(record.victims) for record in self.records if record.kind == "kill")

    async def _carry_out(self, planned: PlannedFault) -> None:
        leader_id = await self._leader_soon() if planned.target == "leader" else self.cluster.leader_id
        victims = self._choose(planned, leader_id)
        record = FaultRecord(
            number=planned.number,
            kind=planned.kind,
            target=planned.target,
            direction=planned.direction,
            victims=victims,
            leader_id=leader_id,
            started_ns=self.writer.clock.now_ns(),
        )
        self.records.append(record)
        self.current = record
        self.writer.event("fault_started", **record.to_json())
        try:
            with self._in_force(record):
                await trio.sleep(planned.duration_seconds)
        finally:
            record.stopped_ns = self.writer.clock.now_ns()
            self.current = None
            self.writer.event("fault_stopped", number=record.number, fault=record.kind, victims=victims)

    @contextmanager
    def _in_force(self, record: FaultRecord) -> Iterator[None]:
        members = [self.cluster.members[node_id] for node_id in record.victims]
        match record.kind:
            case "kill":
                for member in members:
                    member.kill()
                try:
                    yield
                finally:
                    for member in members:
                        member.start()
            case "pause":
                for member in members:
                    member.pause()
                try:
                    yield
                finally:
                    for member in members:
                        member.resume()
            case "partition":
                with self._partitioned(record):
                    yield

    @contextmanager
    def _partitioned(self, record: FaultRecord) -> Iterator[None]:
        assert self.cluster.network is not None, "partitions need a cluster whose links go through proxies"
        assert record.direction is not None, record
        slow = record.direction == "slow"
        flows = self.cluster.network.between(record.victims, record.direction)
        for flow in flows:
            if slow:
                flow.delay_seconds = SLOW_SECONDS
            else:
                flow.block()
        try:
            yield
        finally:
            for flow in flows:
                if slow:
                    flow.delay_seconds = 0.0
                else:
                    flow.unblock()

    def _choose(self, planned: PlannedFault, leader_id: str | None) -> list[str]:
        """Who it hits; a function of the plan's `pick`, the members and the leader."""
        random, names = Random(planned.pick), sorted(self.cluster.members)
        if planned.target == "all":
            return names
        if planned.target == "leader" and leader_id is not None:
            return [leader_id]
        count = max(1, (len(names) - 1) // 2) if planned.target == "minority" else 1
        return sorted(random.sample(names, count))

    async def _leader_soon(self) -> str | None:
        for _ in range(round(_LEADER_WAIT_SECONDS / _LOOK_SECONDS)):
            if self.cluster.leader_id is not None:
                break
            await trio.sleep(_LOOK_SECONDS)
        return self.cluster.leader_id
