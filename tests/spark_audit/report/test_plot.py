"""The history over time: the counts of small buckets, and the windows of faults from events or from a schedule."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from spark_audit import Shape, Verdict, check_rows, generate
from spark_audit.local.page_material import gather_rows
from spark_audit.report.axis import LEFT, RIGHT, WIDTH
from spark_audit.report.faults import FAULTS_MAX, RunAbout
from spark_audit.report.material import (
    BUCKETS_MAX,
    LATENCY_BITS,
    PLOTS_MAX,
    SPAN_NS_MAX,
    Axis,
    Bucket,
    FaultWindow,
    Plot,
    rounded_latency,
)
from spark_audit.report.page import draw_page
from spark_audit.report.plot import draw_plot
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.pages import drawings, groups, span_of, title


def test_a_bucket_counts_by_return_what_ended_and_by_call_what_did_not() -> None:
    """There are eight buckets of 100 µs, from 0 to 799.999 µs."""
    h = History()
    h.put("a", 0, 99, 2)
    h.put("b", 110, 250, 3)
    h.put("c", 120, None)
    h.put("d", 130, 299).update(status="fail", output=None)
    h.get("a", 310, 320, 2, consistency="local")
    h.get("b", 330, 390, 3)
    h.get("b", 700, 799, 3)
    h.rows[-1]["return_ns"] += 999

    (plot,) = gather_rows(h.rows, Verdict()).plots

    assert (plot.axis.start_ns, plot.axis.width_ns, plot.axis.buckets) == (0, 100_000, 8)
    us = 1_000
    first, second, third, fourth, *empty, last = plot.buckets
    assert first == Bucket(completed=1, p50_ns=rounded_latency(99 * us), p99_ns=rounded_latency(99 * us))
    assert second == Bucket(unknown=1, lag=0)  # The put of b, called when revision 2 was the newest, got revision 3.
    assert third == Bucket(completed=1, failed=1, p50_ns=rounded_latency(140 * us), p99_ns=rounded_latency(140 * us))
    assert fourth == Bucket(
        completed=2, p50_ns=rounded_latency(10 * us), p99_ns=rounded_latency(60 * us), lag=0, local_lag=1
    )
    assert set(empty) == {Bucket()}
    assert (last.completed, last.lag) == (1, 0)


def test_percentiles_are_those_of_the_nearest_rank_rounded_down_by_less_than_two_percent() -> None:
    h = History()
    for number in range(1, 101):
        h.put("v", number, number * 20, number + 1)
        h.rows[-1] |= {"call_ns": 0, "return_ns": number * 1_000, "client": f"c{number}"}

    (plot,) = gather_rows(h.rows, Verdict()).plots

    (last,) = plot.buckets[-1:]
    mine = [number for number in range(1, 101) if plot.axis.bucket(number * 1_000) == plot.axis.buckets - 1]
    p50, p99 = (mine[-(-len(mine) * q // 100) - 1] * 1_000 for q in (50, 99))
    assert last.p50_ns == rounded_latency(p50)
    assert last.p99_ns == rounded_latency(p99)


@pytest.mark.parametrize("latency", [0, 1, 2**LATENCY_BITS - 1, 1_000, 123_456_789, 2**62 + 12345])
def test_a_rounded_latency_is_at_most_two_percent_below(latency: int) -> None:
    rounded = rounded_latency(latency)

    assert rounded <= latency < rounded * 1.016 + 1
    assert rounded_latency(rounded) == rounded


@pytest.mark.parametrize(
    ("span", "operations"), [(0, 1), (1, 10**9), (7, 5), (10**9, 100), (10**10 + 7, 10**7), (SPAN_NS_MAX, 3)]
)
def test_an_axis_holds_its_first_and_last_stamp_and_has_no_more_buckets_than_a_screen_can_show(
    span: int, operations: int
) -> None:
    axis = Axis.over("r", "", 1_000, 1_000 + span, operations)

    assert axis.bucket(1_000) == 0
    assert axis.bucket(1_000 + span) == axis.buckets - 1 < BUCKETS_MAX


def test_clocks_that_cannot_be_compared_have_plots_of_their_own() -> None:
    h = History()
    h.put("a", 0, 10, 2, clock_id="one")
    h.put("b", 1, 11, 3, clock_id="two")
    h.put("c", 10**9, 10**9 + 10, 4, clock_id="three")
    about = {"by-hand": RunAbout(frozenset({"one", "two"}))}
    verdict = check_rows(h.rows)

    plots = gather_rows(h.rows, verdict, about).plots

    assert [(plot.axis.clock, sum(bucket.completed for bucket in plot.buckets)) for plot in plots] == [
        ("", 2),
        ("three", 1),
    ]
    assert "clock three" in draw_page(verdict, gather_rows(h.rows, verdict, about))


def test_runs_with_violations_are_plotted_first_and_the_others_counted() -> None:
    rows = []
    for number in range(PLOTS_MAX + 3):
        h = History(run_id=f"run-{number:02}")
        h.put("a", 0, 10, 2)
        h.get("a" if number < 10 else "never", 20, 30, 2, mod_revision=2)
        rows += h.rows
    verdict = check_rows(rows)

    material = gather_rows(rows, verdict)

    assert [plot.axis.run_id for plot in material.plots] == ["run-10", *(f"run-{n:02}" for n in range(PLOTS_MAX - 1))]
    assert material.plots_left_out == 3
    assert "and 3 more" in draw_page(verdict, material)


def test_stamps_that_no_axis_can_hold_are_left_out() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 20, 30, 3)
    h.rows[1] |= {"call_ns": SPAN_NS_MAX + 5, "return_ns": SPAN_NS_MAX + 6}

    material = gather_rows(h.rows, Verdict())

    assert material.plots == ()
    assert material.plots_left_out == 1


def _events(folder: Path, *events: object) -> None:
    lines = (event if isinstance(event, str) else json.dumps(event) for event in events)
    (folder / "events.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def test_faults_are_those_that_the_events_tell_with_their_victims(tmp_path: Path) -> None:
    started = {"kind": "fault_started", "fault": "partition", "target": "leader", "direction": "in", "victims": ["n2"]}
    _events(
        tmp_path,
        {"at_ns": 5, "kind": "load_started"},
        {**started, "at_ns": 11, "number": 0, "started_ns": 10},
        {"at_ns": 20, "kind": "fault_stopped", "number": 0},
        {**started, "at_ns": 30, "number": 1},
    )
    header = {"schedule": [{"start_seconds": 0.0, "duration_seconds": 1.0, "kind": "kill", "target": "leader"}]}

    faults = RunAbout.of(tmp_path, header).faults(0)

    words = "partition leader, frames to it lost: n2"
    assert faults == (FaultWindow(10, 20, words), FaultWindow(30, None, words))


def test_without_events_faults_are_those_of_the_schedule_from_the_first_call_on(tmp_path: Path) -> None:
    schedule = [
        {"number": 0, "start_seconds": 1.5, "duration_seconds": 0.5, "kind": "kill", "target": "leader"},
        {"start_seconds": "soon", "duration_seconds": 1, "kind": "pause"},
        {"start_seconds": float("nan"), "duration_seconds": 1, "kind": "pause"},
        "nonsense",
    ]

    faults = RunAbout.of(tmp_path, {"schedule": schedule}).faults(1_000)

    assert faults == (FaultWindow(1_500_001_000, 2_000_001_000, "kill leader (as planned)"),)


def test_events_that_cannot_be_read_are_no_faults_and_no_error(tmp_path: Path) -> None:
    _events(tmp_path, '{"kind": "fault_started", ', '["fault_started"]', {"kind": "fault_started", "number": "x"})

    assert RunAbout.of(tmp_path, {"schedule": 7}).faults(0) == ()
    assert RunAbout.of(tmp_path / "nowhere", {}).faults(0) == ()


def test_no_more_fault_windows_are_drawn_than_a_picture_can_hold(tmp_path: Path) -> None:
    _events(tmp_path, *({"kind": "fault_started", "at_ns": n, "number": n} for n in range(FAULTS_MAX + 50)))

    assert len(RunAbout.of(tmp_path, {}).faults(0)) == FAULTS_MAX


def test_faults_are_shaded_where_they_were_and_violations_marked() -> None:
    faults = (FaultWindow(250, 500, "kill leader: n1"), FaultWindow(900, None, "pause"), FaultWindow(-9, -5, "before"))
    plot = Plot(Axis("r", "", 0, 10, 100), (Bucket(completed=3, p50_ns=5, p99_ns=9),) * 100, faults)

    drawing = fromstring(draw_plot(plot, [(400, "violation 1: get #5")]))

    one, other = groups(drawing, "fault")
    wide = WIDTH - LEFT - RIGHT
    assert title(one).startswith("kill leader: n1")
    assert span_of(one) == pytest.approx((LEFT + wide * 0.25, LEFT + wide * 0.5))
    assert span_of(other) == pytest.approx((LEFT + wide * 0.9, WIDTH - RIGHT))
    (mark,) = groups(drawing, "violation")
    assert title(mark) == "violation 1: get #5"
    assert len(groups(drawing, "slice")) == 100


def test_a_generated_history_is_counted_to_the_last_operation() -> None:
    rows = generate(Shape(operations=5_000, unknown_share=0.02, local_share=0.2), 4)
    verdict = check_rows(rows)

    (plot,) = gather_rows(rows, verdict).plots

    assert sum(bucket.completed for bucket in plot.buckets) == verdict.operations - verdict.unknown
    assert sum(bucket.unknown for bucket in plot.buckets) == verdict.unknown
    assert all(not bucket.lag for bucket in plot.buckets)  # It is linearizable.
    assert any(bucket.local_lag for bucket in plot.buckets)
    assert len(drawings(draw_page(verdict, gather_rows(rows, verdict)))) == 1
