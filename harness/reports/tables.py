"""Prints reports as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from harness.reports.report import STATUSES, FaultEffect, Latency, Report

_WAY_WORDS = {"lease": "by lease", "follower": "on followers", "bounded": "of bounded age"}
_SHOWN_MAX = 5


def show_report(report: Report, console: Console) -> None:
    """Print the whole summary of a run."""
    console.print(_operations(report))
    if report.faults:
        console.print(_faults(report))
        console.print(_unavailability(report))
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim")
    facts.add_column()
    for name, value in _facts(report):
        facts.add_row(name, value)
    console.print(facts)


def verdict_words(report: Report) -> str:
    """Return in words that the run is sound, or the reason why the run is not sound."""
    if report.sound:
        return "healed; every key read; all members hold the same state"
    problems = []
    if not report.finished:
        problems.append("the recording is not complete")
    if not report.healed:
        problems.append("the cluster was not healed")
    elif not report.every_key_read:
        problems.append(_keys_read(report))
    if not report.acknowledged:
        problems.append("no operation of the load was acknowledged")
    if report.state_hashes_agree is False:
        problems.append("THE MEMBERS' STATES DIFFER")
    elif report.state_hashes_agree is None:
        problems.append("the members' states were not compared")
    if report.finished and report.exit_codes is None:
        problems.append("the exit codes of the members are not known")
    if report.older_than_they_say:
        first = ", ".join(map(str, report.older_than_they_say[:_SHOWN_MAX]))
        problems.append(f"{len(report.older_than_they_say)} BOUNDED READS ARE OLDER THAN THEY SAY (operations {first})")
    problems.extend((*report.changes_not_made, *report.findings))
    return "; ".join(problems)


def _keys_read(report: Report) -> str:
    if report.keys is None:
        return "the number of keys is not known"
    return f"keys read at the end: {report.final_reads:,} of {report.keys:,}"


def _operations(report: Report) -> Table:
    table = Table(title="Operations", title_justify="left", box=None, pad_edge=False, header_style="dim")
    table.add_column("operation")
    for status in STATUSES:
        table.add_column(status, justify="right")
    for name, counts in report.by_operation.items():
        table.add_row(name, *(f"{counts[status]:,}" for status in STATUSES))
    table.add_row("all", *(f"{report.by_status[status]:,}" for status in STATUSES), style="bold")
    return table


def _faults(report: Report) -> Table:
    table = Table(title="Faults", title_justify="left", box=None, pad_edge=False, header_style="dim")
    table.add_column("at", justify="right")
    table.add_column("fault")
    table.add_column("members")
    table.add_column("lasted", justify="right")
    table.add_column("next acknowledged write", justify="right")
    for fault in report.faults:
        table.add_row(
            f"{fault.at_seconds:.1f} s",
            fault_words(fault),
            ", ".join(fault.victims),
            "…" if fault.lasted_seconds is None else f"{fault.lasted_seconds:.2f} s",
            _next_write(fault),
        )
    return table


def _next_write(fault: FaultEffect) -> str:
    if fault.skipped is not None:
        return f"not carried out: {fault.skipped}"
    return "never" if fault.unavailable_seconds is None else f"after {fault.unavailable_seconds * 1000:,.0f} ms"


def faults_words(report: Report) -> str:
    """Return in words how many planned faults were carried out, were skipped, or never began."""
    words = [f"{report.faults_carried_out:,} of {report.faults_planned:,} planned were carried out"]
    if report.faults_skipped:
        words.append(f"{report.faults_skipped:,} skipped")
    if left := report.faults_planned - report.faults_carried_out - report.faults_skipped:
        words.append(f"{left:,} not begun before the load was over")
    return ", ".join(words)


def _unavailability(report: Report) -> Table:
    table = Table(
        title="Longest time without an acknowledged write, by kind of fault",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    table.add_column("fault")
    table.add_column("hit")
    for name in ("times", "median", "p90", "worst"):
        table.add_column(name, justify="right")
    for each in report.unavailability:
        times = (f"{value:,.0f} ms" for value in (each.median_ms, each.p90_ms, each.worst_ms))
        table.add_row(each.fault, f"the {each.hit}", str(each.count), *times)
    for kind, reason in report.unavailable_faults.items():
        table.add_row(kind, f"unavailable: {reason}", style="yellow")
    return table


def fault_words(fault: FaultEffect) -> str:
    way = {"in": " (one way: to it)", "out": " (one way: from it)", "slow": " (late frames)"}
    return f"{fault.kind} {fault.target}{way.get(fault.direction or '', '')}"


def _facts(report: Report) -> list[tuple[str, str]]:
    facts = [
        ("load", f"{report.load_seconds:.1f} s, {report.clients} clients, {report.operations_per_second:,.0f} ops/s"),
        ("reads by a round", _latency(report.reads)),
        *((f"reads {_WAY_WORDS.get(way, way)}", _latency(each)) for way, each in report.reads_by_way.items()),
        ("writes", _latency(report.writes)),
    ]
    if report.longest_write_gap_seconds is not None:
        facts.append(("longest time without a write", f"{report.longest_write_gap_seconds * 1000:,.0f} ms"))
    if report.faults_planned:
        facts.append(("faults", faults_words(report)))
    facts.append(("leader changes", f"{report.leader_changes} ({report.kills} processes killed with kill -9)"))
    if any(fault.outcome.get("removed") for fault in report.faults):
        left = ", ".join(report.founders_left) or "none: every one was replaced or removed"
        facts.append(("members that were there from the beginning", left))
    facts += _level_facts(report)
    if report.errors:
        facts.append(
            ("errors reported to clients", ", ".join(f"{count:,} {name}" for name, count in report.errors.items()))
        )
    facts.append(("end", verdict_words(report)))
    if report.state_hash_index is not None:
        hashes = sorted(set(report.state_hashes.values()))
        facts.append(("state", f"{', '.join(h[:16] + '…' for h in hashes)} at index {report.state_hash_index:,}"))
    facts.append(("seed", str(report.seed)))
    facts.append(("files", report.folder))
    return facts


def _level_facts(report: Report) -> list[tuple[str, str]]:
    if not report.writes_by_level:
        return []
    facts = [
        (f"writes at level {level}", ", ".join(f"{counts[status]:,} {status}" for status in STATUSES))
        for level, counts in report.writes_by_level.items()
    ]
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in report.outcomes.items()) or "none was asked for"
    facts.append(("accepted by the leader alone", f"{report.accepted:,} writes; entries by outcome: {told}"))
    if report.under_replicated:
        facts.append(("under-replicated writes", f"{report.under_replicated:,}"))
    return facts


def _latency(latency: Latency | None) -> str:
    if latency is None:
        return "none acknowledged"
    return f"p50 {latency.p50_ms:.1f} ms, p99 {latency.p99_ms:.1f} ms, worst {latency.worst_ms:,.0f} ms"
