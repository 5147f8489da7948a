"""Shows the progress of a run: as a table that is redrawn on a terminal, or as a line every 2 s on other outputs."""

from __future__ import annotations

import trio
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.reports.percentile import percentile
from harness.reports.report import STATUSES, Report
from harness.runs.run import Progress, record_run
from harness.runs.settings import RunSettings

_REFRESH_SECONDS = 0.25
_LINE_SECONDS = 2.0
STATUS_STYLE = {"ok": "green", "fail": "yellow", "unknown": "magenta"}


class _Rate:
    """Measures the operations per second during about the last second."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []

    def per_second(self, total: int) -> float:
        now = trio.current_time()
        recent = [sample for sample in self._samples if sample[0] > now - 1.0]
        self._samples = [*(recent or self._samples[-1:]), (now, total)]
        since, before = self._samples[0]
        return (total - before) / (now - since) if now > since else 0.0


async def show_live(progress: Progress, console: Console) -> None:
    """Show `progress` until cancelled."""
    rate = _Rate()
    if not console.is_terminal:
        while True:
            await trio.sleep(_LINE_SECONDS)
            console.print(_line(progress, rate), highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(_table(progress, rate), refresh=True)
            await trio.sleep(_REFRESH_SECONDS)


def _headline(progress: Progress, rate: _Rate) -> Text:
    text = Text(f"{progress.phase}", style="bold")
    workload = progress.workload
    if workload is None:
        return text
    tally = workload.tally
    text.append(f"  {tally.total:,} operations, {rate.per_second(tally.total):,.0f}/s", style="not bold")
    for status in STATUSES:
        text.append(f"  {tally.by_status[status]:,} {status}", style=f"not bold {STATUS_STYLE[status]}")
    if tally.recent_ms:
        text.append(f"  p50 {percentile(sorted(tally.recent_ms), 0.5):.1f} ms", style="not bold")
    return text


def _fault(progress: Progress) -> Text:
    nemesis = progress.nemesis
    if nemesis is None or not nemesis.plan:
        return Text("no faults planned", style="dim")
    done = f"fault {len(nemesis.records)} of {len(nemesis.plan)}"
    if nemesis.current is None:
        return Text(f"{done}; all is well now", style="dim")
    return Text(f"{done}: {nemesis.current.words()}", style="bold red")


def _table(progress: Progress, rate: _Rate) -> Group:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("member", "role", "term", "last", "high-water mark", "applied", "low-water mark"):
        table.add_column(name, justify="left" if name in ("member", "role") else "right")
    cluster = progress.cluster
    for node_id, member in sorted(cluster.members.items()) if cluster is not None else ():
        view = cluster.monitor.views.get(node_id) if cluster is not None else None
        if not member.running:
            table.add_row(node_id, Text("killed", style="bold red"))
        elif member.paused:
            table.add_row(node_id, Text("paused", style="bold red"))
        elif view is None:
            table.add_row(node_id, Text("silent", style="yellow"))
        else:
            role = Text(view.role, style="bold green" if view.role == "leader" else "")
            marks = (view.term, view.last_index, view.commit_index, view.last_applied, view.low_watermark)
            table.add_row(node_id, role, *(f"{mark:,}" for mark in marks))
    return Group(_headline(progress, rate), _fault(progress), table)


def _line(progress: Progress, rate: _Rate) -> str:
    cluster = progress.cluster
    leader = cluster.leader_id if cluster is not None else None
    term = cluster.monitor.term if cluster is not None else 0
    who = f"leader {leader or 'none'}, term {term}" if cluster is not None else ""
    return f"{_headline(progress, rate).plain}  | {who} | {_fault(progress).plain}"


async def run_shown(settings: RunSettings, console: Console) -> Report:
    """Record a run, and show its progress on `console`. Raises the errors of `record_run`."""
    progress = Progress(settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(show_live, progress, console)
        report = await record_run(progress)
        nursery.cancel_scope.cancel()
    return report
