"""A page puts stamps on one time axis if they come from one clock, or from clocks with an error bound."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest
from click.testing import CliRunner

from harness.recording.clock import RunClock
from harness.recording.history import RunWriter
from spark_audit.cli import cli
from tests.spark_audit.support.histories import History, write_lines
from tests.spark_audit.support.pages import drawings, groups, span_of, title

SEVERAL_AXES = "These stamps are of several clocks that cannot be compared"


def _page_of(run: Path) -> str:
    page = run.with_name("page.html")
    result = CliRunner().invoke(cli, ["check", str(run), "--engine", "local", "--html", str(page)])
    assert result.exit_code == 3, result.output
    return page.read_text(encoding="utf-8")


def _bars(drawing: Element) -> dict[int, tuple[float, float]]:
    found = [*groups(drawing, "guilty"), *groups(drawing, "neighbour")]
    return {int(str(group.get("data-op"))): span_of(group) for group in found}


def test_a_violation_in_a_recorded_run_is_marked_in_the_plot_of_the_run(tmp_path: Path) -> None:
    """The clock of a recorded run has the error bound 0."""
    writer = RunWriter(tmp_path / "run", run_id="r", clock=RunClock(), ops_format="jsonl", about={})
    for value, output in (("a", {"succeeded": True}), ("b", {"succeeded": True}), ("a", {"found": True, "value": "a"})):
        asked = {"op": "get"} if "found" in output else {"op": "put", "value": value}
        op_id = writer.call({"client": "c", **asked, "key": "k", "call_ns": writer.clock.now_ns()})
        writer.end(op_id, status="ok", output=output, return_ns=writer.clock.now_ns())
    writer.finish()

    _, plot = drawings(_page_of(tmp_path / "run"))

    (mark,) = groups(plot, "violation")
    assert title(mark).startswith("violation 1: ")


@pytest.mark.parametrize("bound_ns", [0, 1_000, None])
def test_bars_of_two_clocks_share_an_axis_if_the_errors_of_both_are_bounded(
    tmp_path: Path, bound_ns: int | None
) -> None:
    h = History()
    h.put("a", 0, 10, 2, clock_id="one")
    h.put("b", 20, 30, 3, clock_id="two")
    h.get("a", 40, 60, 3, mod_revision=2, clock_id="one")
    write_lines(tmp_path / "run" / "ops" / "rows.jsonl", h.rows)
    clocks = [{"clock_id": "one", "error_bound_ns": 0}, {"clock_id": "two", "error_bound_ns": bound_ns}]
    (tmp_path / "run" / "run.json").write_text(json.dumps({"format": 1, "run_id": h.run_id, "clocks": clocks}))

    page = _page_of(tmp_path / "run")

    every = drawings(page)
    scene, plots = every[0], [drawing for drawing in every if not groups(drawing, "guilty")]
    bars = _bars(scene)
    if bound_ns is None:
        assert SEVERAL_AXES in page
        assert len(plots) == 2
        assert bars[0][0] == bars[1][0]  # The first bar of each clock begins at the left.
    else:
        assert SEVERAL_AXES not in page
        assert len(plots) == 1
        assert bars[0][1] < bars[1][0] < bars[1][1] < bars[2][0]
    assert all(groups(plot, "violation") for plot in plots)
    # The text occurs twice: above the scene and above the plot.
    assert page.count("if they are less than 1 µs apart") == (2 if bound_ns else 0)
