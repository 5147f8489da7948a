"""A run with strangers during a part of the time, and a comparison of the latencies with and without strangers.

Strangers are processes that send nonsense (`harness.strangers`). Windows with strangers alternate with quiet windows.
Members, clients, rate and kills are the same throughout, so that gradual changes (the size of the log, the pace of the
machine) affect both kinds of windows.

The run passes if it is sound and its history is linearizable. Members must also answer their operators, prevent a
second process from opening a data folder, and keep their resident memory within RSS_BYTES_MAX. The 99th percentile of
the honest clients' latencies with strangers may be at most P99_RATIO_MAX times the percentile without strangers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.errors import BadInput
from harness.nemesis.capabilities import ANY_MACHINE
from harness.nemesis.schedule import PlannedFault
from harness.recording.history import read_events, read_rows, write_json
from harness.reports.percentile import percentile
from harness.reports.report import Report
from harness.reports.tables import verdict_words
from harness.runs.audit import audit
from harness.runs.live_view import run_shown
from harness.runs.settings import RunSettings
from harness.runs.signals import run_until_signal
from harness.strangers.crowd import KINDS

P99_RATIO_MAX = 3.0
"""The bound on a ratio: the 99th percentile of the honest clients' latency with strangers, divided by the same
percentile without strangers."""

RSS_BYTES_MAX = 768 * 2**20
"""The bound on one member's resident memory. The bound is the sum of the member's size without a load (60 MiB), the
bounds on all incomplete frames and all unread answers, and the sizes of the log and of the answers in flight.
"""

DESCRIPTORS_MAX = 1_024
"""The soft and the hard limit of open files of each member. Shells and service managers usually set this soft limit."""

_MEMBERS, _KEYS = 3, 24
_OPERATIONS_PER_SECOND = 150.0
_KILL_EVERY_SECONDS = 30.0
_DOWN_SECONDS = (0.2, 1.5)
_VISIT_SECONDS_MAX = 600.0
_QUIET_SHARE, _QUIET_SECONDS_MAX = 0.25, 75.0
# A window does not count the operations that are called within this time after the window's start.
_SETTLING_SECONDS = 3.0
_VIOLATION = 3

KIND_NAMES = tuple(kind.name for kind in KINDS)
"""The names of all kinds of strangers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Latencies of the honest operations that ended `ok`, in milliseconds; 0 if there are none."""

    operations: int
    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, milliseconds: Iterable[float]) -> Latencies:
        ordered = sorted(milliseconds)
        p50_ms, p99_ms = (round(percentile(ordered, share), 3) if ordered else 0.0 for share in (0.5, 0.99))
        return cls(operations=len(ordered), p50_ms=p50_ms, p99_ms=p99_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileWindow:
    """A part of the run with or without strangers. The times are times of the history's clock."""

    strangers: bool
    from_ns: int
    until_ns: int
    latencies: Latencies


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileResult:
    """The result of a run with strangers.

    `windows`: in order of time. `quiet` and `hostile`: latencies over all windows without and with strangers.
    `audit_exit_code`: 0 if the history is linearizable.
    """

    seed: int
    clients: int
    seconds: float
    windows: tuple[HostileWindow, ...]
    quiet: Latencies
    hostile: Latencies
    operations: int
    by_status: dict[str, int]
    kills: int
    leader_changes: int
    sound: bool
    words: str
    rss_bytes_peak: int
    descriptors_peak: int
    operator_checks: dict[str, int]
    operator_failures: tuple[str, ...]
    operator_worst_ms: float
    intruder: dict[str, int]
    stranger_counts: dict[str, int]
    audit_words: str
    audit_exit_code: int

    @property
    def p99_ratio(self) -> float:
        """The 99th percentile with strangers, divided by the 99th percentile without strangers; infinite if one of the
        two is missing."""
        if not self.quiet.operations or not self.hostile.operations:
            return math.inf
        return self.hostile.p99_ms / self.quiet.p99_ms

    @property
    def findings(self) -> tuple[str, ...]:
        """The reasons why the run does not pass; empty if it passes."""
        found = []
        if not self.sound:
            found.append(f"the run did not end well: {self.words}")
        if self.rss_bytes_peak > RSS_BYTES_MAX:
            found.append(f"a member took {self.rss_bytes_peak / 2**20:,.0f} MiB of {RSS_BYTES_MAX / 2**20:,.0f}")
        if self.operator_failures:
            found.append(f"operators got no answer: {'; '.join(self.operator_failures[:3])}")
        if self.intruder.get("let in"):
            found.append(f"a second process was let into a folder {self.intruder['let in']} times")
        if not self.stranger_counts:
            found.append("no stranger came")
        if self.p99_ratio > P99_RATIO_MAX:
            found.append(f"the 99th percentile is {self.p99_ratio:.1f} times that without strangers")
        if self.audit_exit_code != 0:
            found.append(f"the audit: {self.audit_words}")
        return tuple(found)

    @property
    def exit_code(self) -> int:
        return _VIOLATION if self.findings else 0

    def to_json(self) -> dict[str, object]:
        bounds = {"p99_ratio_max": P99_RATIO_MAX, "rss_bytes_max": RSS_BYTES_MAX, "descriptors_max": DESCRIPTORS_MAX}
        ratio = None if math.isinf(self.p99_ratio) else round(self.p99_ratio, 2)
        return {**asdict(self), **bounds, "p99_ratio": ratio, "findings": self.findings, "exit_code": self.exit_code}


def run_hostile(
    *, out: Path, seconds: float, seed: int, clients: int, kinds: Sequence[str], console: Console
) -> HostileResult:
    """Record and audit a run in which strangers of these kinds are present for `seconds` in all.

    Writes OUT/hostile.json; OUT itself is the folder of the run. Raises BadInput for an unknown kind.
    """
    if unknown := [kind for kind in kinds if kind not in KIND_NAMES]:
        raise BadInput(f"there are no strangers of kind {unknown[0]!r}", f"the kinds are {', '.join(KIND_NAMES)}")
    settings = _settings(out, stranger_seconds=seconds, seed=seed, clients=clients, strangers=tuple(kinds))
    report = run_until_signal(lambda: run_shown(settings, console))
    verdict = audit([out])
    result = _result(report, settings, audit_words=verdict.words, audit_exit_code=verdict.exit_code)
    write_json(out / "hostile.json", result.to_json())
    return result


def show_hostile(result: HostileResult, console: Console) -> None:
    """Print the result for a person."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("window", "operations", "p50 ms", "p99 ms"):
        table.add_column(name, justify="left" if name == "window" else "right")
    rows = [
        (f"{(window.until_ns - window.from_ns) / 1e9:,.0f} s {_with(window.strangers)}", window.latencies)
        for window in result.windows
    ]
    for name, latencies in (*rows, (f"all {_with(False)}", result.quiet), (f"all {_with(True)}", result.hostile)):
        table.add_row(name, f"{latencies.operations:,}", f"{latencies.p50_ms:,.1f}", f"{latencies.p99_ms:,.1f}")
    console.print(table)
    checks = sum(result.operator_checks.values())
    for words in (
        f"{result.operations:,} operations, {result.kills} kills, {result.leader_changes} changes of the leader",
        f"at most {result.rss_bytes_peak / 2**20:,.0f} MiB and {result.descriptors_peak:,} descriptors of a member",
        f"operators got in {checks - len(result.operator_failures):,} of {checks:,} times, "
        f"after {result.operator_worst_ms:,.0f} ms at most",
        *(f"  {name}: {count:,}" for name, count in sorted(result.stranger_counts.items())),
        f"audit: {result.audit_words}",
    ):
        console.print(words, highlight=False)
    for words in result.findings:
        console.print(f"FOUND: {words}", highlight=False, markup=False)


def _with(strangers: bool) -> str:
    return "with strangers" if strangers else "without strangers"


def visits(stranger_seconds: float) -> tuple[tuple[float, float], ...]:
    """Plan the visits of strangers: (start, end) of each visit, in seconds since the start of the load.

    The visits last `stranger_seconds` in all. All visits are equally long, at most _VISIT_SECONDS_MAX. There is a quiet
    window before the first visit, between visits, and after the last visit. A quiet window is a quarter as long as a
    visit, but at most _QUIET_SECONDS_MAX.
    """
    count = math.ceil(stranger_seconds / _VISIT_SECONDS_MAX)
    visit_seconds = stranger_seconds / count
    quiet_seconds = _quiet_seconds(visit_seconds)
    starts = [quiet_seconds + number * (visit_seconds + quiet_seconds) for number in range(count)]
    return tuple((start, start + visit_seconds) for start in starts)


def _quiet_seconds(visit_seconds: float) -> float:
    return min(_QUIET_SHARE * visit_seconds, _QUIET_SECONDS_MAX)


def windows_of(
    events: Iterable[Mapping[str, Any]], rows: Iterable[Mapping[str, Any]]
) -> tuple[tuple[HostileWindow, ...], Latencies, Latencies]:
    """Return (all windows of a recorded run, latencies in its quiet windows, latencies in its windows with strangers).

    An operation belongs to the window in which it was called. An operation that was called within _SETTLING_SECONDS
    after the window's start belongs to no window.
    """
    borders: list[tuple[int, bool]] = []  # The changes: (time in ns, whether strangers are present from then on).
    end_ns = 0
    for event in events:
        match event["kind"]:
            case "load_started" | "strangers_left":
                borders.append((int(event["at_ns"]), False))
            case "strangers_came":
                borders.append((int(event["at_ns"]), True))
            case "load_ended":
                end_ns = int(event["at_ns"])
    settling_ns = int(_SETTLING_SECONDS * 1e9)
    starts = [at_ns for at_ns, _ in borders]
    found: list[list[float]] = [[] for _ in borders]
    for row in rows:
        place = bisect_right(starts, row["call_ns"]) - 1
        if row["status"] == "ok" and place >= 0 and starts[place] + settling_ns <= row["call_ns"] < end_ns:
            found[place].append((row["return_ns"] - row["call_ns"]) / 1e6)
    windows = tuple(
        HostileWindow(strangers=strangers, from_ns=at_ns, until_ns=until_ns, latencies=Latencies.of(milliseconds))
        for (at_ns, strangers), until_ns, milliseconds in zip(borders, [*starts[1:], end_ns], found, strict=True)
    )
    quiet, hostile = (
        Latencies.of(
            one
            for (_, strangers), milliseconds in zip(borders, found, strict=True)
            if strangers is wanted
            for one in milliseconds
        )
        for wanted in (False, True)
    )
    return windows, quiet, hostile


def _settings(
    out: Path, *, stranger_seconds: float, seed: int, clients: int, strangers: tuple[str, ...]
) -> RunSettings:
    stranger_windows = visits(stranger_seconds)
    seconds = stranger_windows[-1][1] + stranger_windows[0][0]
    return RunSettings(
        out=out,
        nodes=_MEMBERS,
        seconds=seconds,
        seed=seed,
        plan=_kills(seconds, seed),
        clients=clients,
        keys=_KEYS,
        operations_per_second=_OPERATIONS_PER_SECOND,
        small_storage=False,
        machine=ANY_MACHINE,
        strangers=strangers,
        stranger_windows=stranger_windows,
        is_inspected=True,
        descriptors_max=DESCRIPTORS_MAX,
    )


def _kills(seconds: float, seed: int) -> tuple[PlannedFault, ...]:
    """Plan kills: every third kill hits a random member, and all others hit the leader.

    No kill hits all members at once. Such an outage would slow down so many operations that these operations alone
    would determine the 99th percentile.
    """
    random = Random(f"kills {seed}")
    return tuple(
        PlannedFault(
            number=number,
            start_seconds=(number - 0.5) * _KILL_EVERY_SECONDS,
            duration_seconds=random.uniform(*_DOWN_SECONDS),
            kind="kill",
            target="random" if number % 3 == 0 else "leader",
            direction=None,
            pick=random.getrandbits(32),
        )
        for number in range(1, int(seconds / _KILL_EVERY_SECONDS) + 1)
    )


def _result(report: Report, settings: RunSettings, *, audit_words: str, audit_exit_code: int) -> HostileResult:
    events: list[Any] = read_events(settings.out)
    last: dict[str, dict[str, Any]] = {str(event["kind"]): event for event in events}
    peaks, checks = last.get("resource_peaks", {}), last.get("operator_checks", {})
    windows, quiet, hostile = windows_of(events, read_rows(settings.out))
    strangers: Counter[str] = Counter()
    for event in events:
        if event["kind"] == "strangers_left":
            strangers.update(event["counts"])
    return HostileResult(
        seed=settings.seed,
        clients=settings.clients,
        seconds=settings.seconds,
        windows=windows,
        quiet=quiet,
        hostile=hostile,
        operations=report.operations,
        by_status=report.by_status,
        kills=report.kills,
        leader_changes=report.leader_changes,
        sound=report.sound,
        words=verdict_words(report),
        rss_bytes_peak=max(peaks.get("rss_bytes", {}).values(), default=0),
        descriptors_peak=max(peaks.get("descriptors", {}).values(), default=0),
        operator_checks=checks.get("counts", {}),
        operator_failures=tuple(checks.get("failures", ())),
        operator_worst_ms=checks.get("worst_ms", 0.0),
        intruder=last.get("folder_intruder", {}).get("counts", {}),
        stranger_counts=dict(strangers),
        audit_words=audit_words,
        audit_exit_code=audit_exit_code,
    )
