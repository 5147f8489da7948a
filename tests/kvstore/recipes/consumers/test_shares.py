"""Members divide the shares of a group evenly, and no share moves unnecessarily. The tests need no store."""

from __future__ import annotations

from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.recipes.consumers.shares import ShareMoves, moves, target_of


@given(st.integers(1, 40), st.integers(1, 64))
def test_targets_are_even_and_cover_all_shares(members: int, shares: int) -> None:
    targets = [target_of(rank, members, shares) for rank in range(members)]
    assert sum(targets) == shares
    assert max(targets) == ceil(shares / members)
    assert max(targets) - min(targets) <= 1


def test_a_newcomer_waits_until_a_share_is_free() -> None:
    assert moves(1, [1], 4, owned=[], held=[]) == ShareMoves(take=(0, 1, 2, 3))
    assert moves(1, [1, 2], 4, owned=[0, 1, 2, 3], held=[0, 1, 2, 3]) == ShareMoves(give_up=(2, 3))
    assert moves(2, [1, 2], 4, owned=[0, 1, 2, 3], held=[]) == ShareMoves()
    assert moves(2, [1, 2], 4, owned=[0, 1], held=[]) == ShareMoves(take=(2, 3))


@settings(deadline=None)
@given(st.integers(1, 24), st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=12), st.data())
def test_after_any_joins_and_leaves_the_shares_become_even(
    shares: int, events: list[tuple[bool, int]], data: st.DataObject
) -> None:
    """Each step of a member reads the current store. A share never has two owners."""
    members: list[int] = [1]
    owner_of: dict[int, int] = {}
    for number, (joins, place) in enumerate(events, 2):
        if joins or len(members) == 1:
            members.append(number)
        else:
            gone = members.pop(place % len(members))
            owner_of = {share: owner for share, owner in owner_of.items() if owner != gone}
        for _ in range(data.draw(st.integers(0, 3))):
            _step(data.draw(st.sampled_from(members)), members, shares, owner_of)
    moved = True
    while moved:
        steps = [_step(member, members, shares, owner_of) for member in members]
        moved = any(steps)

    counts = [list(owner_of.values()).count(member) for member in members]
    assert sorted(owner_of) == list(range(shares))
    assert max(counts) - min(counts) <= 1


def _step(member: int, members: list[int], shares: int, owner_of: dict[int, int]) -> bool:
    held = [share for share, owner in owner_of.items() if owner == member]
    steps = moves(member, members, shares, owner_of, held)
    for share in steps.give_up:
        assert owner_of.pop(share) == member
    for share in steps.take:
        assert share not in owner_of
        owner_of[share] = member
    return steps != ShareMoves()
