"""Fault plans: the seed alone determines a plan, the kinds are drawn equally often, and all faults end before the run
ends."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness.errors import BadInput
from harness.nemesis.schedule import KINDS, MEMBER_KINDS, parse_faults, plan_faults


def test_one_seed_is_one_plan() -> None:
    """If a plan depended on anything except the seed, it could not be replayed."""
    one = plan_faults(seed=7, seconds=60, kinds=KINDS, interval_seconds=2.5)
    again = plan_faults(seed=7, seconds=60, kinds=KINDS, interval_seconds=2.5)
    other = plan_faults(seed=8, seconds=60, kinds=KINDS, interval_seconds=2.5)
    assert one == again
    assert one != other


@pytest.mark.parametrize("seed", range(20))
def test_faults_end_within_the_run_and_never_overlap(seed: int) -> None:
    """Membership changes do not overlap each other, but other faults may hit members during a membership change."""
    faults = plan_faults(seed=seed, seconds=30, kinds=KINDS, interval_seconds=2.0)
    assert [fault.number for fault in faults] == list(range(1, len(faults) + 1))
    changes = [fault for fault in faults if fault.kind in MEMBER_KINDS]
    others = [fault for fault in faults if fault.kind not in MEMBER_KINDS]
    for lane in (changes, others):
        assert len(lane) >= 5
        for before, after in pairwise(lane):
            assert before.start_seconds + before.duration_seconds < after.start_seconds
        assert lane[-1].start_seconds + lane[-1].duration_seconds <= 30


def test_every_kind_comes_once_before_any_comes_twice() -> None:
    faults = plan_faults(seed=3, seconds=90, kinds=KINDS, interval_seconds=1.0)
    others = [fault.kind for fault in faults if fault.kind not in MEMBER_KINDS]
    rounds = len(KINDS) - len(MEMBER_KINDS)
    assert set(others[:rounds]) == set(others[rounds : 2 * rounds]) == set(KINDS) - set(MEMBER_KINDS)


def test_a_long_plan_has_every_kind_against_every_target_both_ways_and_one_way() -> None:
    """The plans contain pauses and partitions (symmetric and one-way), each against the leader, a minority or random
    members."""
    faults = plan_faults(seed=1, seconds=200, kinds=("kill", "pause", "partition"), interval_seconds=2.0)
    seen = {(fault.kind, fault.target) for fault in faults}
    for kind in ("kill", "pause", "partition"):
        assert {(kind, "leader"), (kind, "minority"), (kind, "random")} <= seen
    assert ("kill", "all") in seen
    assert {fault.direction for fault in faults if fault.kind == "partition"} == {"both", "in", "out", "slow"}
    assert {fault.direction for fault in faults if fault.kind != "partition"} == {None}


def test_no_kind_is_no_fault() -> None:
    assert plan_faults(seed=1, seconds=60, kinds=(), interval_seconds=2.0) == ()


def test_fault_lists_are_read_as_a_person_writes_them() -> None:
    assert parse_faults("none") == ()
    assert parse_faults("all") == KINDS
    assert parse_faults("partition, kill") == ("kill", "partition")


@pytest.mark.parametrize(
    ("text", "words"),
    [("kil", "did you mean kill"), ("xyzzy", "the faults are"), ("none,kill", "comma list"), ("", "comma")],
)
def test_a_fault_that_is_not_one_is_answered_with_the_right_name(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        parse_faults(text)
