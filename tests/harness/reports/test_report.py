"""The arithmetic of a run's summary, on histories small enough to count by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.reports.percentile import percentile
from harness.reports.report import Report, summarize
from harness.reports.tables import faults_words, show_report, verdict_words
from harness.runs.soak import SoakTotal
from tests.harness.support.reports import (
    ABOUT,
    EVERY_KEY_READ,
    HEALED,
    MS,
    SAME,
    STOPPED,
    a_fault,
    a_kill,
    a_row,
    an_event,
    the_report,
)


@pytest.mark.parametrize(
    ("ordered", "share", "rank"),
    [
        ([1.0], 0.5, 1),
        ([1.0, 2.0], 0.5, 1),
        ([1.0, 2.0, 3.0], 0.5, 2),
        (list(range(1, 101)), 0.99, 99),
        ([5.0], 0.99, 5),
        ([float(n) for n in range(1, 101)], 0.999, 100),
    ],
)
def test_a_percentile_is_the_nearest_rank(ordered: list[float], share: float, rank: float) -> None:
    """A percentile is the smallest value that at least `share` of all values do not exceed."""
    assert percentile(ordered, share) == rank
    assert sum(value <= rank for value in ordered) >= share * len(ordered)


def test_unavailability_ends_with_a_write_that_was_called_after_the_fault() -> None:
    """The dead leader's last message may acknowledge a write that was open at the kill. Such an acknowledgement does
    not show a recovery."""
    rows = [
        a_row("put", 990, 1001),  # This put was called before the kill, so it does not count.
        a_row("get", 1002, 1003),  # A read does not count.
        a_row("put", 1005, 1700, "unknown"),
        a_row("put", 1010, 1650),
        a_row("put", 1600, 1610),  # The first acknowledgement.
    ]
    report = the_report(rows, *a_kill(1, 1000))
    (fault,) = report.faults
    assert fault.unavailable_seconds == pytest.approx(0.61)
    assert fault.at_seconds == pytest.approx(1.0)
    assert fault.lasted_seconds == pytest.approx(0.5)
    assert report.kills == 1


def test_writes_that_never_come_back_are_not_called_available() -> None:
    report = the_report([a_row("put", 1, 2)], *a_kill(1, 1000))
    assert report.faults[0].unavailable_seconds is None


def test_operations_are_counted_by_kind_and_end() -> None:
    rows = [
        a_row("put", 0, 10),
        a_row("put", 0, None, "unknown", error="outcome_unknown"),
        a_row("get", 0, 30, "fail", error="unavailable"),
        a_row("get", 0, 4, consistency="local"),
        a_row("get", 0, 8, consistency="linearizable"),
        a_row("get", 1900, 1999) | {"client": "final"},
    ]
    report = the_report(rows)
    assert report.by_status == {"ok": 4, "fail": 1, "unknown": 1}
    assert report.by_operation["put"] == {"ok": 1, "fail": 0, "unknown": 1}
    assert report.errors == {"outcome_unknown": 1, "unavailable": 1}
    assert report.operations_per_second == 2.5  # Five operations in two seconds; the final reads do not count as load.
    assert report.reads is not None
    assert (report.reads.count, report.reads.p50_ms) == (1, 8.0)  # Local, final and failed reads are left out.
    assert report.final_reads == 1


def test_the_first_leader_is_no_leader_change() -> None:
    leaders = [an_event(at, "leader_changed", leader_id=f"n{at}", term=at) for at in (1, 2, 3)]
    assert the_report([], *leaders).leader_changes == 2
    assert the_report([]).leader_changes == 0


def test_a_run_is_sound_only_if_healed_and_of_one_state() -> None:
    """The members' hashes show the loss of a write even if no client has read the key."""
    rows = [a_row("put", 0, 10), *EVERY_KEY_READ]
    different = an_event(2200, "state_hashes", agree=False, index=9, hashes={"n1": "aa", "n2": "bb"})
    assert the_report(rows, HEALED, SAME, STOPPED).sound
    assert not the_report(rows, HEALED, different, STOPPED).sound
    assert not the_report(rows, SAME, STOPPED).sound
    assert not the_report(rows, HEALED, STOPPED).sound


def test_a_run_is_sound_only_if_every_key_was_read_at_its_end() -> None:
    """A key without a final read was not judged, so its value may be lost."""
    unread = EVERY_KEY_READ[0] | {"status": "unknown"}
    report = the_report([a_row("put", 0, 10), unread, EVERY_KEY_READ[1]], HEALED, SAME, STOPPED)
    assert not report.sound
    assert verdict_words(report) == "keys read at the end: 1 of 2"
    assert not the_report([a_row("put", 0, 10)], HEALED, SAME, STOPPED).sound


def test_a_run_in_which_nothing_was_acknowledged_is_not_sound() -> None:
    """If the store is empty, the reads at the end cannot contradict anything."""
    report = the_report([a_row("put", 0, None, "unknown"), *EVERY_KEY_READ], HEALED, SAME, STOPPED)
    assert not report.sound
    assert verdict_words(report) == "no operation of the load was acknowledged"


def test_a_run_is_sound_only_if_its_members_stopped_as_asked_at_its_end() -> None:
    """A run fails if a member crashes during its stop, or must be killed."""
    rows = [a_row("put", 0, 10), *EVERY_KEY_READ]
    crashed = STOPPED | {"exit_codes": {"n1": 0, "n2": -9}}
    report = the_report(rows, HEALED, SAME, crashed)
    assert (report.sound, verdict_words(report)) == (False, "asked to stop at the end, members ended so: {'n2': -9}")
    report = the_report(rows, HEALED, SAME)
    assert (report.sound, verdict_words(report)) == (False, "the exit codes of the members are not known")


def test_the_longest_gap_is_between_acknowledgements() -> None:
    rows = [a_row("put", 0, 100), a_row("put", 100, 900), a_row("put", 50, 150)]
    assert the_report(rows).longest_write_gap_seconds == pytest.approx(0.75)


def test_a_fault_lasts_for_writes_until_the_next_one_of_its_lane() -> None:
    """The report gives the longest time without an acknowledgement during a fault. A concurrent membership change does
    not end the fault."""
    # Each put is acknowledged after a millisecond.
    rows = [a_row("put", at, at + 1) for at in (990, 1199, 1299, 1499, 1999)]
    change = an_event(1250, "fault_started", started_ns=1250 * MS, number=9, fault="replace", target="eldest",
                      direction=None, victims=["n2"], leader_id="n1")  # fmt: skip
    done = an_event(1400, "fault_stopped", number=9, fault="replace", victims=["n2"], removed="n2", added="n4")
    ready = an_event(0, "cluster_ready", members={"n1": "a", "n2": "b"})
    events = sorted([ready, *a_kill(1, 1000), change, done, *a_kill(2, 1600)], key=lambda event: event["at_ns"])
    report = the_report(rows, *events)

    silences = {(fault.kind, fault.number): fault.longest_silence_seconds for fault in report.faults}
    assert silences == {("kill", 1): 0.2, ("replace", 9): 0.5, ("kill", 2): 0.4}
    assert report.founders_left == ("n1",)
    by_kind = {(each.fault, each.hit): (each.count, each.median_ms, each.worst_ms) for each in report.unavailability}
    assert by_kind == {("kill", "others"): (2, 200.0, 400.0), ("replace", "others"): (1, 500.0, 500.0)}


def test_a_fault_that_was_not_carried_out_is_told_and_has_no_effect() -> None:
    """One fault was skipped, and one fault found no member to hit. A fault that only asks the cluster for a change
    needs no victim."""
    rows = [a_row("put", at, at + 1) for at in (100, 700, 1200)]
    skipped = a_fault("add", 2, 600, skipped="there are 7 members already")
    nobody_hit = a_fault("pause", 3, 1200)
    added = a_fault("add", 4, 1300, added="n4")
    events = sorted([*a_kill(1, 0), *skipped, *nobody_hit, *added], key=lambda event: event["at_ns"])
    about = ABOUT | {"schedule": [{"number": number} for number in range(1, 8)]}
    report = summarize(about, rows, [an_event(0, "load_started"), *events, an_event(2000, "load_ended")], Path("there"))

    assert (report.faults_planned, report.faults_carried_out, report.faults_skipped) == (7, 2, 2)
    assert faults_words(report) == "2 of 7 planned were carried out, 2 skipped, 3 not begun before the load was over"
    assert [(each.fault, each.count) for each in report.unavailability] == [("add", 1), ("kill", 1)]
    why = [fault.skipped for fault in report.faults]
    assert why == [None, "there are 7 members already", "every member was already hit by another fault", None]
    assert [fault.longest_silence_seconds for fault in report.faults] == [0.799, None, None, 0.7]
    assert SoakTotal([report]).count("pause") == 0
    assert "there are 7 members already" in what_is_shown(report)


def what_is_shown(report: Report) -> str:
    console = Console(file=io.StringIO(), width=200)
    show_report(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_reads_are_summed_up_by_the_way_in_which_they_were_answered() -> None:
    rows = [
        a_row("get", 0, 4, consistency="linearizable"),
        a_row("range", 0, 6, consistency="linearizable"),
        a_row("get", 0, 1, consistency="lease"),
        a_row("get", 0, 2, consistency="local"),
        a_row("get", 0, 9, "fail"),
        a_row("put", 0, 8),
    ]
    report = the_report(rows)

    assert report.reads is not None
    assert (report.reads.count, report.reads.worst_ms) == (2, 6)
    assert {way: each.p50_ms for way, each in report.reads_by_way.items()} == {"lease": 1, "local": 2}


def test_a_run_in_which_a_member_stood_a_fault_wrongly_is_not_sound() -> None:
    """In one run a member continued after a failed write of its log. In another run it answered a read with a state
    that was older than stated."""
    well = [HEALED, SAME, STOPPED]
    told = a_row("put", 0, 10, revision=5, op_id=1)
    stale = a_row("get", 500, 501, revision=4, op_id=2, consistency="bounded", age_ms=100)
    (began, _) = a_kill(1, 100)
    wrong = an_event(600, "fault_stopped", number=1, finding="n1 went on")

    assert the_report([told, *EVERY_KEY_READ], *well).sound
    found = the_report([told, *EVERY_KEY_READ], began, wrong, *well)
    assert (found.sound, found.findings) == (False, ("fault 1, kill: n1 went on",))
    old = the_report([told, stale, *EVERY_KEY_READ], *well)
    assert (old.sound, old.older_than_they_say) == (False, (2,))
    assert "OLDER THAN THEY SAY (operations 2)" in verdict_words(old)


def test_writes_are_counted_by_level_and_entries_by_their_last_outcome() -> None:
    def a_question(call_ms: int, index: int, outcome: str) -> dict[str, Any]:
        answer = {"answer": json.dumps({"outcome": outcome})}
        return a_row("outcome", call_ms, call_ms + 1, request=f'{{"index":{index},"term":1}}', output=answer)

    rows = [
        a_row("put", 1, 2),
        a_row("put", 3, None, "unknown", acknowledge="leader", accepted_index=4, accepted_term=1),
        a_row("put", 3, None, "unknown", acknowledge="none"),
        a_row("put", 3, 4, acknowledge="in_sync", under_replicated=True),
        a_question(5, 4, "open"),
        a_question(7, 4, "lost"),
        a_question(7, 5, "committed"),
    ]
    report = summarize(ABOUT | {"levels": "leader=1"}, rows, [], Path("there"))

    assert {level: sum(counts.values()) for level, counts in report.writes_by_level.items()} == {
        "in_sync": 1, "leader": 1, "majority": 1, "none": 1,
    }  # fmt: skip
    assert report.writes_by_level["leader"] == {"ok": 0, "fail": 0, "unknown": 1}
    assert (report.accepted, report.under_replicated) == (1, 1)
    assert report.outcomes == {"lost": 1, "committed": 1}
    printed = io.StringIO()
    show_report(report, Console(file=printed, width=200))
    assert "writes at level leader" in printed.getvalue()
    assert "1 writes; entries by outcome: 1 lost, 1 committed" in printed.getvalue()
    assert "under-replicated writes" in printed.getvalue()


def test_a_run_without_levels_has_no_facts_about_them() -> None:
    report = the_report([a_row("put", 1, 2)])
    assert (report.writes_by_level, report.outcomes) == ({}, {})
    printed = io.StringIO()
    show_report(report, Console(file=printed, width=200))
    assert "level" not in printed.getvalue()
