"""The clients of a run use all read modes. The harness checks one promise of an answer: the age of the state."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from harness.errors import BadInput
from harness.recording.staleness_check import older_than_they_say
from harness.runs.settings import RunSettings
from harness.workload.operation_generator import OperationSource, View, key_names
from harness.workload.read_modes import BY_ROUND, LEADER_READS_ONLY, USUAL_READ_MODES, ReadModes
from kvstore import Consistency, Get, Range

KEYS = key_names(12)
MS = 1_000_000


def test_shares_are_kept_and_the_rest_goes_by_a_round() -> None:
    modes = ReadModes(lease=0.3, follower=0.2, bounded=0.1, local=0.1)
    random = Random("shares")
    drawn = Counter(modes.next(Get(b"k"), random).consistency.word for _ in range(4000))
    shares = {word: count / 4000 for word, count in drawn.items()}
    wanted = {"lease": 0.3, "follower": 0.2, "bounded": 0.1, "local": 0.1, "linearizable": 0.3}
    assert shares == {word: pytest.approx(share, abs=0.03) for word, share in wanted.items()}


def test_reads_that_any_member_may_answer_are_asked_of_one_member_or_of_whoever_can() -> None:
    """The load must also send reads to a member that is cut off, because such a member may have an old state."""
    random = Random("members")
    for word in ("follower", "bounded"):
        modes = ReadModes.parse(f"{word}=1")
        asked = [modes.next(Get(b"k"), random) for _ in range(200)]
        assert {each.member is None for each in asked} == {True, False}
        assert all((each.max_staleness_ms is not None) == (word == "bounded") for each in asked)
    assert all(ReadModes(local=1).next(Get(b"k"), random).member is not None for _ in range(50))
    assert all(ReadModes(lease=1).next(Get(b"k"), random).member is None for _ in range(50))


def test_listings_are_read_in_those_ways_only_that_can_be_checked() -> None:
    random = Random("listings")
    drawn = {USUAL_READ_MODES.next(Range(), random).consistency for _ in range(300)}
    assert drawn == {Consistency.LINEARIZABLE, Consistency.LEASE, Consistency.FOLLOWER}


def test_ways_leave_the_stream_of_operations_as_it_is() -> None:
    """The seed alone decides which operation uses which key. The read modes of a run do not change this choice."""
    streams = []
    for modes in (None, LEADER_READS_ONLY, USUAL_READ_MODES, USUAL_READ_MODES):
        source = OperationSource(seed=7, worker=1, keys=KEYS, view=View(), modes=modes)
        streams.append([source.next() for _ in range(300)])
    commands = [[each.command for each in stream] for stream in streams]
    assert commands[0] == commands[1] == commands[2]
    assert streams[2] == streams[3]
    assert {each.mode for each in streams[1]} == {BY_ROUND}
    assert all(each.local_of is None for stream in streams[1:] for each in stream)
    assert {each.mode.consistency for each in streams[2]} == set(Consistency)


@pytest.mark.parametrize("modes", [USUAL_READ_MODES, LEADER_READS_ONLY, ReadModes(bounded=1)])
def test_ways_are_written_as_they_are_read(modes: ReadModes) -> None:
    assert ReadModes.parse(str(modes)) == modes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("leas=0.1", "did you mean lease"),
        ("xyzzy", "the names are lease"),
        ("lease=0.1,lease=0.2", "twice"),
        ("lease=much", "not a share"),
        ("lease=0.6,follower=0.6", "at most 1"),
        ("local=-1", "from 0 to 1"),
        ("", "the names are"),
    ],
)
def test_ways_that_are_none_are_answered_with_the_way_out(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        ReadModes.parse(text)


def test_members_may_read_by_lease_where_somebody_asks_for_it_and_nowhere_else(tmp_path: Any) -> None:
    def options(**settings: Any) -> list[str]:
        return list(RunSettings(out=tmp_path / "run", **settings).member_options.options)

    assert "--lease-reads" in options()
    assert "--lease-reads" not in options(read_modes=LEADER_READS_ONLY)
    assert "--lease-reads" not in options(bulk=64)


def a_row(op_id: int, call_ms: int, return_ms: int | None, revision: int, **more: Any) -> dict[str, Any]:
    row = {"op_id": op_id, "status": "ok", "call_ns": call_ms * MS, "revision": revision, **more}
    return row | {"return_ns": None if return_ms is None else return_ms * MS}


def test_a_bounded_read_that_is_older_than_it_says_is_found() -> None:
    """A bounded read with age A must see each result that any client had received at least A before the call of the
    read.

    See docs/reference/specification.md#811-consistency-of-reads.
    """
    told = [a_row(1, 0, 10, 5), a_row(2, 20, 30, 6), a_row(3, 0, None, 7, status="unknown")]
    fresh = a_row(4, 40, 41, 5, consistency="bounded", age_ms=10)  # The second put was answered at 30, not before.
    stale = a_row(5, 40, 41, 5, consistency="bounded", age_ms=9)
    # This read may show a state from before the first answer.
    early = a_row(6, 40, 41, 1, consistency="bounded", age_ms=100)
    local = a_row(7, 90, 91, 1, consistency="local")
    assert older_than_they_say([*told, fresh, stale, early, local]) == (5,)


def test_what_was_told_by_a_read_counts_too() -> None:
    seen = a_row(1, 0, 10, 9, consistency="linearizable")
    assert older_than_they_say([seen, a_row(2, 30, 31, 8, consistency="bounded", age_ms=5)]) == (2,)
