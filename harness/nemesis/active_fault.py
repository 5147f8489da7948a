"""One fault that is being carried out: its target, its victims, and its outcome."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from random import Random
from typing import Protocol

from harness.cluster.process import MemberProcess
from harness.cluster.proxy import Direction
from harness.cluster.proxy_network import ProxyNetwork
from harness.cluster.volumes import Volume
from harness.nemesis.schedule import Kind
from kvstore import Tls
from raft import Member


class Victims(Protocol):
    """The part of a cluster that faults use."""

    members: dict[str, MemberProcess]
    volumes: dict[str, Volume]
    network: ProxyNetwork | None

    endpoints: list[str]

    @property
    def tls(self) -> Tls | None: ...

    @property
    def leader_id(self) -> str | None: ...

    @property
    def silent(self) -> set[str]: ...

    def check_alive(self) -> None: ...

    async def start_new_member(self) -> Member: ...

    async def forget(self, node_id: str) -> None: ...


@dataclass(slots=True, kw_only=True)
class FaultRecord:
    """One fault as it was carried out.

    `stopped_ns`: the end of the fault; None before the end. A kill ends when the member is started again.
    """

    number: int
    kind: Kind
    target: str
    direction: Direction | None
    victims: list[str]
    leader_id: str | None  # The leader at the start of the fault, as the monitor knew it.
    started_ns: int
    stopped_ns: int | None = None
    outcome: dict[str, object] = field(default_factory=dict)  # Facts that are known only at the end of the fault.

    def to_json(self) -> dict[str, object]:
        """Return the fields of the event `fault_started`.

        The field `fault` has the kind of the fault, because every event has its own kind in the field `kind`.
        """
        fields = asdict(self)
        del fields["outcome"]
        return {"fault": fields.pop("kind"), **fields}

    def words(self) -> str:
        way = {"in": " (to it only)", "out": " (from it only)", "slow": " (late only)"}.get(self.direction or "", "")
        return f"{self.kind}{way} {self.target}: {', '.join(self.victims)}"


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """A fault under way.

    `seconds`: the planned duration. `random`: a random source for details, with a planned seed.
    """

    cluster: Victims
    record: FaultRecord
    seconds: float
    random: Random

    @property
    def members(self) -> list[MemberProcess]:
        return [self.cluster.members[node_id] for node_id in self.record.victims]

    @property
    def volumes(self) -> list[Volume]:
        return [self.cluster.volumes[node_id] for node_id in self.record.victims]
