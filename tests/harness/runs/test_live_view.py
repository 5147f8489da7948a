"""The display of a run, while the run lasts."""

from __future__ import annotations

import io
from pathlib import Path

import trio
from rich.console import Console

from harness.nemesis.active_fault import FaultRecord
from harness.nemesis.injection import Nemesis
from harness.nemesis.schedule import plan_faults
from harness.recording.clock import RunClock
from harness.recording.history import RunWriter
from harness.runs.live_view import show_live
from harness.runs.run import Progress
from harness.runs.settings import RunSettings
from harness.workload.workers import Workload
from tests.harness.support.nemesis import a_cluster


async def what_is_shown(progress: Progress, *, terminal: bool) -> str:
    """The first output of the display."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, color_system=None)
    with trio.move_on_after(10) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(show_live, progress, console)
            while "operations" not in out.getvalue():
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert not scope.cancelled_caught
    return out.getvalue()


def a_progress(folder: Path) -> Progress:
    """The progress of a run under load with a paused leader, before any member has reported anything."""
    plan = plan_faults(seed=1, seconds=20, kinds=("kill", "pause"), interval_seconds=2)
    writer = RunWriter(folder / "run", run_id="r", clock=RunClock(), ops_format="jsonl", about={})
    writer.close()
    cluster = a_cluster(folder)
    progress = Progress(RunSettings(out=folder / "run", plan=plan), phase="under load", cluster=cluster)
    progress.workload = Workload(writer=writer, endpoints=[], seed=1, clients=12, keys=3)
    progress.workload.tally.by_status.update(ok=1234, unknown=5)
    progress.nemesis = nemesis = Nemesis(cluster, writer, plan)
    pause = FaultRecord(
        number=1, kind="pause", target="leader", direction=None, victims=["n2"], leader_id="n2", started_ns=1
    )
    nemesis.records.append(pause)
    nemesis.under_way.append(pause)
    return progress


async def test_a_terminal_shows_counts_faults_and_a_row_for_each_member(tmp_path: Path) -> None:
    shown = await what_is_shown(a_progress(tmp_path), terminal=True)
    assert "1,234 ok" in shown
    assert "5 unknown" in shown
    assert "pause leader: n2" in shown
    assert "high-water mark" in shown
    for node_id in ("n1", "n2", "n3", "n4", "n5"):
        assert f"{node_id}      killed" in shown  # No member was ever started.


async def test_a_pipe_gets_whole_lines_and_no_control_characters(tmp_path: Path) -> None:
    """The display also works if the output is not a terminal."""
    shown = await what_is_shown(a_progress(tmp_path), terminal=False)
    assert "1,234 ok" in shown
    assert "\x1b" not in shown
    assert shown.endswith("\n")
