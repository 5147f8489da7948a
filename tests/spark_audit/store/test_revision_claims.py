"""The revision of an unknown write must fit the operations on all other keys, even if no response shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.audit.histories import SHAPES, generate, write
from spark_audit import check_rows
from spark_audit.local.job import audit
from spark_audit.store.gap_matching import choices_of, unmatched
from spark_audit.store.revision_claims import RevisionRange, UnplacedWrite
from spark_audit.testing.generate import Row
from spark_audit.verdict.verdict import Verdict
from tests.spark_audit.support.histories import History, write_lines


def _claimed_seven(call: int = 10) -> History:
    """A put of `x` with unknown outcome. A read shows that this put took revision 7."""
    h = History()
    h.put("first", 0, 5, 2, key="x")
    h.put("lost", call, None, key="x")
    h.get("lost", 40, 50, 8, key="x", mod_revision=7, version=2)
    return h


def histories() -> dict[str, list[Row]]:
    """The linearizable histories and the wrong histories of the tests below, by run."""
    made = {"early": _claimed_seven(31), "other": _claimed_seven(), "both": _claimed_seven(), "free": _hidden(True)}
    made |= {"not-free": _hidden(False), "keys-only": _claimed_seven(), "two-clocks": _claimed_seven(31)}
    made["early"].put("other", 20, 30, 8, key="y")
    made["other"].put("other", 20, 30, 7, key="y")
    made["both"].put("lost too", 11, None, key="y")
    made["both"].get("lost too", 40, 50, 8, key="y", mod_revision=7)
    made["keys-only"].put("other", 20, 30, 7, key="y")
    made["keys-only"].range({"x": ("lost", 7), "y": ("other", 7)}, 60, 70, 9)
    made["two-clocks"].put("other", 20, 30, 8, key="y", clock_id="unbounded")
    return {run_id: [{**row, "run_id": run_id} for row in h.rows] for run_id, h in made.items()}


def _violated(verdict: Verdict) -> set[str]:
    return {name for name, prop in verdict.properties.items() if prop.violated}


def test_a_revision_told_of_an_unknown_write_belongs_to_no_write_of_another_key() -> None:
    h = _claimed_seven()
    h.put("other", 20, 30, 6, key="y")
    assert check_rows(h.rows).status == "linearizable"

    h.rows[-1]["revision"] = 7
    verdict = check_rows(h.rows)

    assert _violated(verdict) == {"unique"}, verdict.to_json()
    assert verdict.properties["unique"].violated == 1
    assert "revision 7 is that of more than one change" in verdict.violations[0].words()
    assert [shown.op_id for shown in verdict.violations[0].operations] == [1, 3]


def test_one_revision_is_not_told_of_unknown_writes_of_two_keys() -> None:
    h = _claimed_seven()
    h.put("lost too", 11, None, key="y")
    h.get("lost too", 40, 50, 8, key="y", mod_revision=6)
    assert check_rows(h.rows).status == "linearizable"

    h.rows[-1]["output"]["mod_revision"] = 7
    verdict = check_rows(h.rows)

    assert _violated(verdict) == {"unique"}, verdict.to_json()
    assert [shown.op_id for shown in verdict.violations[0].operations] == [1, 3]


@pytest.mark.parametrize(("call", "violated"), [(30, False), (31, True)])
def test_a_revision_told_of_an_unknown_write_is_above_all_that_had_returned_before_its_call(
    call: int, violated: bool
) -> None:
    """Revision 8, of another key, was answered before the call of the write that then took revision 7."""
    h = _claimed_seven(call)
    h.put("other", 20, 30, 8, key="y")

    verdict = check_rows(h.rows)

    assert _violated(verdict) == ({"order"} if violated else set()), verdict.to_json()
    if violated:
        assert [shown.op_id for shown in verdict.violations[0].operations] == [3, 1]
        assert "had returned 1 µs before it was called" in verdict.violations[0].words()


def test_several_equal_unknown_writes_are_matched_with_revisions_in_the_order_of_their_calls() -> None:
    """By its value, either write may have had revision 4. But only the write that was called first can have it."""
    h = History()
    h.put("same", 0, None, key="x")
    h.put("same", 31, None, key="x")
    h.get("same", 35, 40, 5, key="x", mod_revision=4)
    h.put("other", 20, 30, 5, key="y")
    h.put("between", 41, 42, 6, key="x")
    h.get("same", 60, 70, 9, key="x", mod_revision=7)

    assert check_rows(h.rows).status == "linearizable"


def _hidden(free: bool) -> History:
    """The version shows that one unknown put took effect between revisions 2 and 5 of `x`. Revision 3 belongs to `y`.
    If not `free`, revision 4 belongs to a further key."""
    h = History()
    h.put("1", 0, 5, 2, key="x")
    h.put("hidden", 6, None, key="x")
    h.put("a", 10, 20, 3, key="y")
    h.put("b", 10, 20, 6 if free else 4, key="z")
    h.put("2", 10, 20, 5, key="x")
    h.get("2", 30, 40, 6, key="x", mod_revision=5, version=3)
    return h


def test_an_unknown_write_that_nobody_told_needs_a_revision_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a revision is free for the write, no replay is needed. If no revision is free, the replay finds a violation. A
    run that is too large for the replay is undecided."""
    assert check_rows(_hidden(False).rows).status == "violation"
    monkeypatch.setattr("spark_audit.store.replay.REPLAY_ROWS_MAX", 5)

    assert check_rows(_hidden(True).rows).status == "linearizable"
    verdict = check_rows(_hidden(False).rows)
    assert (verdict.status, verdict.properties["store"].undecided) == ("undecided", 1)
    assert "its 6 operations are more than 5" in verdict.undecided[0].reason


def _all_fit(writes: list[UnplacedWrite], taken: list[RevisionRange], reached: list[int]) -> bool:
    """True if every write can get a revision of its own."""
    return not unmatched(choices_of(writes, reached), taken)


def test_slots_take_each_other_s_places_only_within_their_bounds() -> None:
    def unplaced(low: int, high: int) -> UnplacedWrite:
        return UnplacedWrite("k", low, high, 0, "boot")

    assert _all_fit([unplaced(3, 9), unplaced(3, 4), unplaced(3, 4)], [(5, 6)], [1, 1, 1])
    assert not _all_fit([unplaced(3, 9), unplaced(3, 4), unplaced(3, 4)], [(5, 9)], [1, 1, 1])
    assert _all_fit([unplaced(3, 10), unplaced(3, 10)], [(5, 8)], [8, 1])
    # The second write comes after the first, so its revision is also above 4.
    assert not _all_fit([unplaced(3, 9), unplaced(3, 9)], [(6, 9)], [4, 1])
    assert not _all_fit([unplaced(3, 2)], [], [1])


def test_the_engine_that_reads_files_says_the_same(tmp_path: Path) -> None:
    """The test checks each run alone, and then all runs together with their rows in any order."""
    for run_id, rows in histories().items():
        here = check_rows(rows)
        there = audit([str(write_lines(tmp_path / run_id / "ops" / "a.jsonl", rows))])
        assert (here.status, here.violations, here.undecided) == (there.status, there.violations, there.undecided)
        assert here.properties == there.properties, run_id


def test_slots_change_what_they_have_for_one_that_finds_nothing() -> None:
    """The second write takes revision 3. The first write would fit there, but can have revision 7 in another gap."""
    first, second = UnplacedWrite("k", 3, 4, 0, "boot", ((7, 8),)), UnplacedWrite("l", 3, 3, 0, "boot")

    assert _all_fit([first, second], [(4, 6)], [1, 1])
    assert not _all_fit([first, second], [(4, 8)], [1, 1])
    assert not _all_fit([first, second], [(4, 6)], [8, 1])  # Revision 8 returned before the call of the first write.


def _counted_before_a_swap(free: int) -> list[Row]:
    """A version shows one unknown put of `x` before its revision 10. Every revision except `free` has another write."""
    h = History()
    h.put("1", 0, 5, 2, key="x")
    h.put("hidden", 6, None, key="x")
    h.put("2", 10, 60, 6, key="x")
    h.cas("3", "2", True, 10, 60, 8, key="x")
    h.put("4", 10, 60, 10, key="x")
    for revision in sorted({3, 4, 5, 7, 9} - {free}):
        h.put(f"other {revision}", 10, 60, revision, key="y")
    h.get("4", 70, 80, 10, key="x", mod_revision=10, version=5)
    return h.rows


@pytest.mark.parametrize(("free", "status"), [(4, "linearizable"), (9, "linearizable"), (7, "undecided")])
def test_a_write_that_only_a_version_counts_stands_at_any_place_where_nobody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str
) -> None:
    """An unknown write may not stand between another write and the compare-and-set that found this other write."""
    monkeypatch.setattr("spark_audit.store.replay.REPLAY_ROWS_MAX", 5)
    rows = _counted_before_a_swap(free)

    here = check_rows(rows)
    there = audit([str(write_lines(tmp_path / "run" / "ops" / "a.jsonl", rows))])

    assert (here.status, there.status) == (status, status)
    if status == "undecided":
        assert "the first is x" in here.undecided[0].reason
        assert here.undecided[0].reason == there.undecided[0].reason


def test_true_histories_with_unknown_writes_need_no_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_audit.store.replay.REPLAY_ROWS_MAX", 5)
    for seed, shape in enumerate(SHAPES):
        made = generate(replace(shape, keys=min(shape.keys, 20), unknown_share=0.01), 10_000, seed)
        verdict = audit([str(write(made, tmp_path / str(seed)))])
        assert verdict.status == "linearizable", (shape.name, verdict.undecided)


def test_one_revision_is_not_given_to_two_unknown_writes_by_what_they_were_compared_with() -> None:
    """Two compare-and-sets expected revision 5, but only one of the two unknown puts can have revision 5."""
    h = History()
    h.put("a", 0, None)
    h.cas("x", None, True, 10, 20, 6, expected_mod_revision=5)
    h.delete(True, 22, 25, 7)
    h.put("b", 30, None)
    h.cas("y", None, True, 40, 50, 8, expected_mod_revision=5)

    assert check_rows(h.rows).properties["keys"].violated == 1
