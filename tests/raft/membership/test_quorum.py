"""Tests the counting of majorities for votes, commits, reads and the activity check."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.core.leader import majority_index
from raft.membership.quorum import Quorum, Tally

positions = st.lists(st.integers(min_value=0, max_value=50), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("last_indexes", "committed"),
    [([8, 9, 10, 10, 10], 10), ([9, 9, 0, 0], 0), ([7, 6, 5], 6), ([5, 4], 4), ([3], 3), ([9, 9, 9, 0], 9)],
)
def test_the_median_is_what_a_majority_holds(last_indexes: list[int], committed: int) -> None:
    """Raft §5.3: more than half of *all* voters, so two of four are not enough."""
    assert majority_index(last_indexes) == committed


def test_no_voters_agree_on_nothing() -> None:
    """A call without voters is a mistake of the caller. It must not give a mark of 0."""
    with pytest.raises(ValueError, match="at least one voter"):
        majority_index([])


@given(positions)
def test_a_majority_has_reached_the_median_and_none_has_reached_more(last_indexes: list[int]) -> None:
    """The order of the voters does not matter."""
    agreed = majority_index(last_indexes)
    needed = len(last_indexes) // 2 + 1

    assert sum(index >= agreed for index in last_indexes) >= needed
    assert sum(index > agreed for index in last_indexes) < needed
    assert majority_index(last_indexes[::-1]) == agreed


def test_only_voters_count() -> None:
    """The vote of a removed member is not counted."""
    quorum = Quorum(("s1", "s2", "s3"))

    assert quorum.tally({"s1": True, "stranger": True}) is Tally.OPEN


@given(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=9))
def test_a_vote_is_won_or_lost_as_soon_as_it_cannot_change(votes: list[bool | None]) -> None:
    """A vote is won when a majority has granted it. It is lost when the voters that are still silent cannot complete a
    majority."""
    voters = tuple(f"s{n}" for n in range(len(votes)))
    answered = {voter: vote for voter, vote in zip(voters, votes, strict=True) if vote is not None}

    tally = Quorum(voters).tally(answered)

    granted, silent = votes.count(True), votes.count(None)
    assert (tally is Tally.WON) == (2 * granted > len(votes))
    assert (tally is Tally.LOST) == (2 * (granted + silent) <= len(votes))
