"""Many runs in a row, alternately with three and five members, until enough processes were killed; then one audit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.errors import BadInput
from harness.nemesis.capabilities import ANY_MACHINE, Capabilities
from harness.nemesis.schedule import Kind, plan_faults
from harness.recording.history import write_json
from harness.reports.report import Report
from harness.reports.tables import faults_words, verdict_words
from harness.runs.audit import AuditResult, audit
from harness.runs.live_view import run_shown
from harness.runs.settings import RunSettings
from harness.runs.signals import run_until_signal
from harness.workload.levels import NO_LEVELS, LevelShares
from harness.workload.read_modes import USUAL_READ_MODES, ReadModes
from harness.workload.service_shares import NO_SERVICES, ServiceShares

_NODES = (3, 5)
_VIOLATION = 3
_RUNS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """The settings of a soak. Raises BadInput if its runs would never kill a process."""

    out: Path
    kills: int
    seconds: float
    kinds: tuple[Kind, ...]
    interval_seconds: float
    seed: int
    clients: int
    keys: int
    operations_per_second: float
    in_flight: int
    audit: bool
    read_modes: ReadModes = USUAL_READ_MODES
    services: ServiceShares = NO_SERVICES
    levels: LevelShares = NO_LEVELS
    machine: Capabilities = ANY_MACHINE

    def __post_init__(self) -> None:
        if not any(fault.kind == "kill" for fault in self.run(0).plan):
            raise BadInput("these runs would never kill anything", "use --faults all or kill, and longer --seconds")

    def run(self, number: int) -> RunSettings:
        """The settings of run `number`, counted from 0."""
        seed = self.seed + number
        return RunSettings(
            out=self.out / f"seed-{seed}",
            nodes=_NODES[number % len(_NODES)],
            seconds=self.seconds,
            seed=seed,
            plan=plan_faults(seed=seed, seconds=self.seconds, kinds=self.kinds, interval_seconds=self.interval_seconds),
            clients=self.clients,
            keys=self.keys,
            in_flight=self.in_flight,
            operations_per_second=self.operations_per_second,
            read_modes=self.read_modes,
            services=self.services,
            levels=self.levels,
            machine=self.machine,
        )


@dataclass(slots=True)
class SoakTotal:
    """All runs, and the audit of all of them together (None if no audit was requested)."""

    reports: list[Report] = field(default_factory=list)
    verdict: AuditResult | None = None

    @property
    def kills(self) -> int:
        return sum(report.kills for report in self.reports)

    @property
    def exit_code(self) -> int:
        if not all(report.sound for report in self.reports):
            return _VIOLATION
        return self.verdict.exit_code if self.verdict is not None else 0

    def count(self, kind: str) -> int:
        """Return how many faults of a kind were carried out."""
        faults = (fault for report in self.reports for fault in report.faults)
        return sum(fault.kind == kind and fault.skipped is None for fault in faults)

    def to_json(self) -> dict[str, object]:
        return {
            "runs": len(self.reports),
            "kills": self.kills,
            "faults_planned": sum(report.faults_planned for report in self.reports),
            "faults_carried_out": sum(report.faults_carried_out for report in self.reports),
            "faults_skipped": sum(report.faults_skipped for report in self.reports),
            "pauses": self.count("pause"),
            "partitions": self.count("partition"),
            "operations": sum(report.operations for report in self.reports),
            "leader_changes": sum(report.leader_changes for report in self.reports),
            "unsound": [report.folder for report in self.reports if not report.sound],
            "audit": self.verdict.to_json() if self.verdict is not None else None,
            "exit_code": self.exit_code,
            "reports": [report.to_json() for report in self.reports],
        }


def run_soak(soak: Soak, console: Console) -> SoakTotal:
    """Record runs until `soak.kills` processes were killed or a run is not sound. Writes OUT/soak.json."""
    total = SoakTotal()
    for number in range(_RUNS_MAX):
        settings = soak.run(number)
        report = run_until_signal(lambda settings=settings: run_shown(settings, console))  # type: ignore[misc]
        total.reports.append(report)
        console.print(
            f"run {number + 1}, seed {settings.seed}, {settings.nodes} members: {report.operations:,} operations, "
            f"{report.kills} kills ({total.kills} of {soak.kills}), faults: {faults_words(report)}; "
            f"{report.leader_changes} leader changes: {verdict_words(report)}",
            highlight=False,
        )
        if total.kills >= soak.kills or not report.sound:
            break
    if soak.audit:
        console.print(f"auditing {len(total.reports)} runs …", highlight=False)
        total.verdict = audit([Path(report.folder) for report in total.reports])
    write_json(soak.out / "soak.json", total.to_json())
    return total


def show_soak(total: SoakTotal, console: Console) -> None:
    """Print the totals."""
    sums = total.to_json()
    table = Table(box=None, show_header=False, pad_edge=False)
    for name in (
        "runs",
        "kills",
        "faults_planned",
        "faults_carried_out",
        "faults_skipped",
        "pauses",
        "partitions",
        "operations",
        "leader_changes",
    ):
        table.add_row(name.replace("_", " "), f"{sums[name]:,}")
    unsound = [report for report in total.reports if not report.sound]
    table.add_row("runs that did not end well", str(len(unsound)))
    for report in unsound:
        table.add_row("", f"{report.folder}: {verdict_words(report)}")
    if total.verdict is not None:
        table.add_row("audit", f"{total.verdict.words} ({total.verdict.seconds:.0f} s)")
    console.print(table)
    if total.verdict is not None and total.verdict.exit_code != 0:
        console.print(total.verdict.output, highlight=False, markup=False)
