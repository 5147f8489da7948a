"""The settings of a run, which are checked before any process is started."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from harness.cluster.cluster import NODES_MAX, READY_SECONDS
from harness.cluster.member_options import MemberOptions
from harness.errors import BadInput
from harness.nemesis.capabilities import ANY_MACHINE, NO_JUMPS, Capabilities
from harness.nemesis.schedule import DISK_KINDS, REPLACING_KINDS, TAMPERED_KINDS, PlannedFault
from harness.workload.levels import NO_LEVELS, LevelShares, min_in_sync_of
from harness.workload.operation_generator import KEYS_MAX
from harness.workload.read_modes import USUAL_READ_MODES, ReadModes
from harness.workload.service_shares import NO_SERVICES, ServiceShares
from harness.workload.workers import HASTY_SHARE
from raft import MEMBERS_MAX

SECONDS_MAX = 24 * 3600.0
CLIENTS_MAX = 500  # All clients run in the process of the harness.
# The most requests that one client has in flight (`kvstore.ClientLimits.in_flight_max`).
IN_FLIGHT_MAX = 1_024
FORMATS = ("jsonl", "parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of one run. Raises BadInput for impossible settings."""

    out: Path
    nodes: int = 5
    seconds: float = 30.0
    seed: int = 1
    plan: tuple[PlannedFault, ...] = ()
    clients: int = 12
    keys: int = 24
    in_flight: int = 1
    bulk: int = 0
    ops_format: str = "jsonl"
    operations_per_second: float = 0.0
    hasty_share: float = HASTY_SHARE
    read_modes: ReadModes = USUAL_READ_MODES  # Reads in bulks ignore the read modes and are linearizable.
    services: ServiceShares = NO_SERVICES  # The workers of services besides the other load.
    levels: LevelShares = NO_LEVELS  # The acknowledgement levels of the writes.
    small_storage: bool = True
    ready_seconds: float = READY_SECONDS
    machine: Capabilities = ANY_MACHINE  # The means of this machine to make the faults of the plan.
    # The kinds of strangers (`harness.strangers.crowd.KINDS`) that attack the members during `stranger_windows`.
    strangers: tuple[str, ...] = ()
    # The times with strangers: (from, until) in seconds since the start of the load.
    stranger_windows: tuple[tuple[float, float], ...] = ()
    is_inspected: bool = False  # Measure the resources of members, and check that members answer their operators.
    descriptors_max: int | None = None  # The limit of open files of each member; None: the limit of the harness.
    tls: bool = False  # All connections of members and clients have TLS, with certificates on both sides.

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("--nodes", self.nodes, 1, NODES_MAX),
            ("--seconds", self.seconds, 1, SECONDS_MAX),
            ("--clients", self.clients, 1, CLIENTS_MAX),
            ("--keys", self.keys, 1, KEYS_MAX),
            ("--in-flight", self.in_flight, 1, IN_FLIGHT_MAX),
            ("--bulk", self.bulk, 0, IN_FLIGHT_MAX),
        ):
            if not low <= value <= high:
                raise BadInput(f"{name} {value} is out of range", f"it goes from {low} to {high:.0f}")
        if self.operations_per_second < 0:
            raise BadInput("--rate is negative", "0 means as fast as the answers come")
        if self.bulk and (self.in_flight > 1 or self.operations_per_second):
            raise BadInput("--bulk goes as fast as it can, one bulk at a time", "leave out --in-flight and --rate")
        assert self.ops_format in FORMATS, self.ops_format
        borders = [border for window in self.stranger_windows for border in window]
        assert borders == sorted(borders), self.stranger_windows
        for fault in self.plan:
            assert fault.kind not in DISK_KINDS or self.machine.file_system is not None, "look at the machine first"
        if self.lease_reads and any(fault.kind == "clock-jump" for fault in self.plan):
            raise BadInput("clock-jump cannot be made here", NO_JUMPS)
        newcomers = sorted({fault.kind for fault in self.plan if fault.kind in REPLACING_KINDS})
        if newcomers and self.nodes >= MEMBERS_MAX:
            raise BadInput(
                f"--nodes {self.nodes} leaves no room for {' and '.join(newcomers)}",
                f"a new member joins before the old one leaves, and a group has at most {MEMBERS_MAX} members: "
                f"use --nodes {MEMBERS_MAX - 1} or fewer, or leave these faults out",
            )
        if self.tls and (self.strangers or self.is_inspected):
            raise BadInput("strangers and probes of operators do not speak TLS", "leave out --tls")
        if self.nodes == 1 and any(fault.kind == "partition" for fault in self.plan):
            raise BadInput("one member cannot be partitioned from itself", "use --nodes 3, or --faults kill,pause")

    @property
    def proxied(self) -> bool:
        """True if the connections between members go through proxies.

        Only a plan with partitions has proxies, because proxies cost time.
        """
        return any(fault.kind == "partition" for fault in self.plan)

    @property
    def lease_reads(self) -> bool:
        """True if leaders may answer reads by lease. Leaders may do this only if clients request lease reads."""
        return self.read_modes.lease > 0 and not self.bulk

    @property
    def member_options(self) -> MemberOptions:
        """The options of the members.

        Members get volumes or faked clocks only if the plan needs them, because both cost time.
        """
        kinds = {fault.kind for fault in self.plan}
        return MemberOptions(
            small_storage=self.small_storage,
            lease_reads=self.lease_reads,
            file_system=self.machine.file_system if kinds & set(DISK_KINDS) else None,
            faketime=self.machine.faketime if "wall-clock" in kinds else None,
            tampered=bool(kinds & set(TAMPERED_KINDS)),
            has_metrics=bool(self.strangers) or self.is_inspected,
            descriptors_max=self.descriptors_max,
        )

    @property
    def min_in_sync(self) -> int | None:
        """The replicated limit `min_in_sync` that the run sets before its load; None: the run does not set it."""
        return min_in_sync_of(self.nodes) if self.levels.in_sync else None

    def about(self) -> dict[str, object]:
        """The settings as fields of run.json."""
        return {
            "seed": self.seed,
            "nodes": self.nodes,
            "seconds": self.seconds,
            "clients": self.clients,
            "keys": self.keys,
            "in_flight": self.in_flight,
            "bulk": self.bulk,
            "operations_per_second": self.operations_per_second,
            "hasty_share": self.hasty_share,
            "read_ways": str(self.read_modes),
            "services": str(self.services),
            **self._about_levels(),
            **({"tls": True} if self.tls else {}),  # Without TLS, run.json has no field for it, as in earlier versions.
            "lease_reads": self.lease_reads,
            "small_storage": self.small_storage,
            "strangers": self.strangers,
            "stranger_windows": self.stranger_windows,
            "descriptors_max": self.descriptors_max,
            "unavailable_faults": self.machine.unavailable,
            "schedule": [fault.to_json() for fault in self.plan],
            "versions": {
                "highwatermark": version("highwatermark"),
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.release()}",
            },
        }

    def _about_levels(self) -> dict[str, object]:
        if not self.levels:
            return {}  # Without levels, run.json has no field for levels, as in earlier versions.
        about: dict[str, object] = {"levels": str(self.levels)}
        return about if self.min_in_sync is None else {**about, "min_in_sync": self.min_in_sync}
