"""A history that is audited in parts gets the same verdict as the whole history. This is true for all cuts and all
faults.

With `HWM_AUDIT_HISTORIES=N`, N histories of each sort are tried.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from spark_audit import ALL_FAULTS, MalformedHistory, Shape, Verdict, check_rows, generate, inject
from spark_audit.follow.follow import Run, RunCarry, follow
from spark_audit.follow.key import KeyCarry, KeyPart, close, past
from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import rank
from spark_audit.history.operation import operation_of
from spark_audit.history.range_set import RangeSet
from spark_audit.history.rows import FIELDS
from spark_audit.key.witness import witness
from spark_audit.testing.generate import Row
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.simulated_store import FAULTS as STORE_FAULTS
from tests.spark_audit.support.simulated_store import Mix, history

SEEDS = range(int(os.environ.get("HWM_AUDIT_HISTORIES", "12")))
_LEFT_OUT: Row = dict.fromkeys(name for name, _ in FIELDS)
CLOCKS = ({"clock_id": "boot", "error_bound_ns": 0},)


class FollowState:
    """A follower that gets rows in parts, and counts how many rows it reads again."""

    def __init__(self) -> None:
        self.read: list[Row] = []
        self.again = 0
        self.carry = RunCarry()

    def take(self, rows: Sequence[Row], *, settled_ns: int = 0, final: bool = False) -> Verdict:
        rows = [{**_LEFT_OUT, **row} for row in rows]
        self.read += rows
        verdict = Verdict(engine="parts")
        run = Run(self.read[0]["run_id"], CLOCKS, self._again)
        follow(run, self.carry, rows, settled_ns=settled_ns, final=final, verdict=verdict)
        return verdict

    def _again(self) -> Iterator[Row]:
        self.again += 1
        return iter(self.read)


def _comparable(verdict: Verdict) -> dict[str, Any]:
    fields = verdict.to_dict()
    for name in ("engine", "seconds", "keys_by_method"):
        del fields[name]
    for name in ("violations", "undecided"):
        fields[name] = sorted(json.dumps(found, sort_keys=True) for found in fields[name])
    return fields


def _in_parts(rows: Sequence[Row], random: Random) -> tuple[Verdict, FollowState]:
    """Rows arrive when their operations return, and some rows arrive much later. The rows are cut at random, and the
    follower sometimes waits too short a time for late rows."""
    end = max(row["call_ns"] for row in rows)
    slow = random.choice((0, 0, end // 50))
    arrival = [
        ((row["return_ns"] or row["call_ns"] + end // 20) + random.randint(0, slow), i) for i, row in enumerate(rows)
    ]
    arrived = [rows[i] for _, i in sorted(arrival)]
    settled = random.choice((0, end // 50, end // 10))
    followed = FollowState()
    places = sorted(random.sample(range(1, len(rows)), min(len(rows) - 1, random.randint(1, 8))))
    for start, stop in zip([0, *places], places, strict=False):
        _assert_is_of_what_is_closed(followed.take(arrived[start:stop], settled_ns=settled), followed)
    return followed.take(arrived[places[-1] :], settled_ns=settled, final=True), followed


def _assert_is_of_what_is_closed(verdict: Verdict, followed: FollowState) -> None:
    cut = followed.carry.cut
    mine = [row for row in followed.read if row["status"] != "ok" or rank(row)[:3] < (cut[0], 1, cut[1])]
    if any(row["status"] == "ok" for row in mine):
        assert _comparable(verdict) == _comparable(check_rows(mine, clocks=CLOCKS))
    else:
        assert verdict.exit_code == 4


def _assert_same(rows: Sequence[Row], random: Random) -> FollowState:
    parts, followed = _in_parts(rows, random)
    whole = check_rows(rows, clocks=CLOCKS)
    assert _comparable(parts) == _comparable(whole)
    return followed


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_of_a_true_history_are_judged_as_the_whole(seed: int) -> None:
    random = Random(seed)
    shape = Shape(
        operations=random.randint(20, 400), keys=random.randint(1, 8), clients=random.randint(1, 8),
        unknown_share=random.choice((0.0, 0.02, 0.1)), local_share=random.choice((0.0, 0.1)),
        delete_share=random.choice((0.0, 0.1)), multi_key_share=random.choice((0.0, 0.0, 0.1)),
    )  # fmt: skip
    _assert_same(generate(shape, seed), random)


@pytest.mark.parametrize("seed", [seed if seed < 5 else pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS])
def test_a_fault_is_found_in_parts_as_in_the_whole(seed: int) -> None:
    """The fault and the cut are at random places. So the fault may be before the cut, after it, or across it."""
    random = Random(seed)
    shape = Shape(
        operations=random.randint(40, 200), keys=random.randint(1, 5), unknown_share=random.choice((0.0, 0.05)),
        local_share=0.05, multi_key_share=0.1 * (seed % 4 == 0), append_share=0.2 * (seed % 4 == 1),
    )  # fmt: skip
    tried = 0
    for fault in ALL_FAULTS:
        try:
            rows, _ = inject(generate(shape, seed), fault, seed)
        except ValueError:
            continue  # The fault cannot be put into this history.
        _assert_same(rows, random)
        tried += 1
    assert tried >= 5


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", [None, *STORE_FAULTS])
def test_parts_of_a_small_store_with_many_unknown_writes_are_judged_as_the_whole(fault: str | None, seed: int) -> None:
    random = Random(seed)
    multi_key = random.random() < 0.3
    mix = Mix(
        operations=random.randint(20, 120), keys=random.randint(1, 4), unknown=random.choice((0.05, 0.15)),
        txn=0.15 * multi_key, listing=0.1 * multi_key, local=random.choice((0.0, 0.1)),
    )  # fmt: skip
    _assert_same(history(mix, random, fault), random)


def test_an_unknown_write_that_is_seen_only_behind_the_cut_is_carried_over_it() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("x", 20, None)
    h.put("b", 30, 40, 3, key="other")
    followed = FollowState()
    assert followed.take(h.rows).exit_code == 0
    assert len(followed.carry.keys["k"].pending) == 1
    before = len(h.rows)
    h.get("x", 60, 70, 4, mod_revision=4, version=2)
    assert followed.take(h.rows[before:], final=True).exit_code == 0
    assert not any(key.pending for key in followed.carry.keys.values())
    assert followed.again == 0


def test_an_unknown_write_that_was_used_up_before_the_cut_explains_nothing_behind_it() -> None:
    h = History()
    h.put("x", 0, None)
    h.get("x", 10, 20, 2, mod_revision=2)
    h.put("a", 30, 40, 3)
    followed = FollowState()
    assert followed.take(h.rows).exit_code == 0
    before = len(h.rows)
    h.get("x", 50, 60, 4, mod_revision=4)
    assert followed.take(h.rows[before:], final=True).exit_code == 3


def test_a_read_behind_the_cut_of_what_was_overwritten_before_it_is_a_violation() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 20, 30, 3)
    followed = FollowState()
    assert followed.take(h.rows).exit_code == 0
    before = len(h.rows)
    h.get("a", 40, 50, 3, mod_revision=2)
    verdict = followed.take(h.rows[before:], final=True)
    assert verdict.exit_code == 3
    assert _comparable(verdict) == _comparable(check_rows(h.rows))


def test_a_read_that_returned_before_the_write_which_it_saw_was_called_is_found_across_the_cut() -> None:
    """A read saw the unknown write before the cut. But the late read shows a revision that places the write after the
    cut."""
    h = History()
    h.put("x", 100, None)
    h.get("x", 50, 150, 5, mod_revision=5)
    h.get(None, 160, 170, 5, key="other")
    followed = FollowState()
    assert followed.take(h.rows).exit_code == 0
    before = len(h.rows)
    h.get("x", 70, 80, 6, mod_revision=5)
    verdict = followed.take(h.rows[before:], final=True)
    assert verdict.exit_code == 3
    assert _comparable(verdict) == _comparable(check_rows(h.rows))


def _across(before: History, *, behind: int) -> tuple[Verdict, Verdict]:
    """The verdict in parts and the verdict of the whole, if the last `behind` rows come after a cut. All rows before
    the cut are right."""
    followed = FollowState()
    assert followed.take([*before.rows[:-behind], _tick()]).exit_code == 0
    parts = followed.take(before.rows[-behind:], final=True)
    return parts, check_rows(followed.read, clocks=CLOCKS)


def _tick() -> Row:
    """A read of another key at revision 1. The read comes long after all other operations. Its only purpose is to
    settle them."""
    h = History()
    h.get(None, 10_000, 10_010, 1, key="tick", client="tick", consistency="local")
    return {**h.rows[0], "op_id": 10_000}


@pytest.mark.parametrize("wrong", ["place", "absent", "version of the past", "version", "order"])
def test_what_only_the_carry_can_tell_is_told(wrong: str) -> None:
    """Each side of the cut alone is right. Each history shows why the follower must carry or check one value."""
    h = History()
    if wrong == "place":  # A read before the cut proves that the unknown write did not have this revision.
        h.put("a", 0, 10, 2)
        h.put("x", 20, None)
        h.get("a", 100, 110, 7, mod_revision=2)
        h.get("x", 120, 130, 12, mod_revision=5)
    elif wrong == "absent":  # A local read finds no value at an old revision at which the key had a value.
        for number in range(10):
            h.put(f"v{number}", 20 * number, 20 * number + 10, number + 2)
        h.get(None, 300, 310, 3, consistency="local")
    elif wrong == "version of the past":  # The hidden write would have to be in the part that was decided before.
        h.put("u", 0, None)
        h.put("a", 0, 10, 2)
        h.get("a", 20, 30, 2, mod_revision=2, version=1)
        h.get("a", 120, 130, 2, mod_revision=2, version=2)
    elif wrong == "version":
        h.put("a", 0, 10, 2)
        h.put("b", 20, 30, 3)
        h.get("b", 120, 130, 3, mod_revision=3, version=1)
    else:  # The higher revision, of another key, had returned before the lower one was called.
        h.put("a", 100, 110, 5)
        h.put("b", 10, 20, 6, key="other")
    parts, whole = _across(h, behind=1)
    assert whole.exit_code == 3
    assert _comparable(parts) == _comparable(whole)


def test_a_local_read_of_long_ago_has_its_key_read_again_and_no_other() -> None:
    h = History()
    for number in range(10):
        h.put(f"v{number}", 20 * number, 20 * number + 10, number + 2)
    followed = FollowState()
    followed.take(h.rows)
    before = len(h.rows)
    h.get("v1", 300, 310, 3, mod_revision=3, consistency="local")
    assert followed.take(h.rows[before:], final=True).exit_code == 0
    assert followed.again == 1


def test_a_true_history_is_never_read_again_when_its_recorder_is_as_quick_as_expected() -> None:
    """A follower that reads all rows again would save no work. The verdict in parts is the verdict on the whole
    history."""
    rows = generate(Shape(operations=4_000, keys=20, unknown_share=0.0), 3)
    followed = FollowState()
    arrived = sorted(rows, key=lambda row: row["return_ns"])
    longest = max(row["return_ns"] - row["call_ns"] for row in rows)
    for start in range(0, 4_000, 500):
        verdict = followed.take(arrived[start : start + 500], settled_ns=longest, final=start == 3_500)
        assert verdict.exit_code == 0
        assert len(followed.carry.held) < 100
    assert followed.again == 0
    assert _comparable(verdict) == _comparable(check_rows(rows))


def test_a_row_that_comes_later_than_expected_has_the_run_read_again_and_changes_no_verdict() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 20, 30, 3)
    h.get("b", 60, 70, 3)
    followed = FollowState()
    h.put("c", 80, 90, 4, key="other")
    assert followed.take([h.rows[0], *h.rows[2:]]).exit_code == 3  # The write that the read saw has not arrived yet.
    assert followed.take([h.rows[1]], final=True).exit_code == 0
    assert followed.again >= 1


@pytest.mark.parametrize("wrong", ["twice", "open", "after unknown"])
def test_what_is_wrong_between_rows_on_two_sides_of_a_cut_is_malformed(wrong: str) -> None:
    h = History()
    h.put("a", 0, 10, 2, client="c")
    h.put("b", 20, None if wrong == "after unknown" else 30, 3, client="c")
    followed = FollowState()
    followed.take(h.rows)
    before = len(h.rows)
    h.put("c", 25 if wrong == "open" else 40, 50, 4, client="d" if wrong == "twice" else "c")
    if wrong == "twice":
        h.rows[-1]["op_id"] = 0
    with pytest.raises(MalformedHistory):
        followed.take(h.rows[before:])


def test_a_run_without_revisions_is_decided_at_its_end() -> None:
    h = History()
    h.put("a", 0, 10)
    followed = FollowState()
    assert followed.take(h.rows).exit_code == 4
    before = len(h.rows)
    h.get("b", 20, 30)
    assert followed.take(h.rows[before:], final=True).exit_code == 3


def test_numbers_are_new_once_and_kept_as_ranges() -> None:
    random, seen, numbers = Random(4), set[int](), RangeSet()
    for _ in range(2_000):
        number = random.randrange(500)
        assert numbers.add(number) == (number not in seen)
        seen.add(number)
    firsts = [n for n in sorted(seen) if n - 1 not in seen]
    lasts = [n for n in sorted(seen) if n + 1 not in seen]
    assert numbers.ranges() == list(zip(firsts, lasts, strict=True))
    assert not any(RangeSet(numbers.ranges()).add(number) for number in seen)


def test_no_unknown_write_is_put_before_what_was_decided() -> None:
    """The write was open all the time and would explain the version. But the carried record was decided without this
    write."""
    h = History()
    h.put("hidden", 0, None)
    h.put("a", 1, 10, 3)
    h.get("a", 20, 30, 3, mod_revision=3, version=2)
    clocks = Clocks.from_run(CLOCKS)
    before = close("k", KeyCarry(), KeyPart([h.rows[1]], [h.rows[0]]), clocks)
    assert before is not None
    seen = witness(
        [past(before.carry, "boot"), *(op for row in (h.rows[2], h.rows[0]) for op in operation_of(row))], clocks
    )

    assert not seen.verified
    assert close("k", before.carry, KeyPart([h.rows[2]], []), clocks) is None
    assert check_rows(h.rows).status == "linearizable"


def _cut_between(h: History, final: list[Row]) -> Verdict:
    followed = FollowState()
    followed.take(h.rows)
    assert not followed.again
    last = followed.take(final, final=True)
    assert _comparable(last) == _comparable(check_rows(followed.read, clocks=CLOCKS))
    return last


@pytest.mark.parametrize(("revision", "wrong"), [(6, None), (7, "unique"), (9, "order")])
def test_a_revision_told_behind_a_cut_is_held_against_other_keys_before_it(revision: int, wrong: str | None) -> None:
    """The put of `other` returned long before a read shows that the unknown put had taken revision 7."""
    h = History()
    h.put("first", 0, 5, 2, key="x")
    h.put("other", 6, 8 if wrong == "order" else 15, revision, key="y")
    h.put("lost", 10, None, key="x")
    h.put("more", 20, 30, 10, key="z")
    later = History()
    later.rows = list(h.rows)
    later.get("lost", 40, 50, 10, key="x", mod_revision=7, version=2)

    verdict = _cut_between(h, later.rows[len(h.rows) :])

    violated = {name for name, prop in verdict.properties.items() if prop.violated}
    assert violated == ({wrong} if wrong else set()), verdict.to_json()
