"""A recorded run with somebody watching."""

from __future__ import annotations

import trio
from rich.console import Console

from harness.reports.report import Report
from harness.runs.live_view import show_live
from harness.runs.run import Progress, record_run
from harness.runs.settings import RunSettings


async def run_shown(settings: RunSettings, console: Console) -> Report:
    """Record a run and show it on `console` meanwhile. Raises what `record_run` raises."""
    progress = Progress(settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(show_live, progress, console)
        report = await record_run(progress)
        nursery.cancel_scope.cancel()
    return report
