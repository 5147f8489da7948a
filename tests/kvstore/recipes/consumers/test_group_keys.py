"""The layout of a group in the store, and how keys split into shares."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import GroupMismatch
from kvstore.recipes.consumers.group_keys import (
    GROUP_BYTES_MAX,
    SHARES_MAX,
    START_BYTES_MAX,
    GroupAbout,
    GroupKeys,
    StoredPosition,
    after_group,
    even_starts,
    group_of,
)


@given(st.integers(1, SHARES_MAX), st.binary(min_size=1, max_size=8), st.binary(max_size=12))
def test_each_key_under_a_prefix_is_in_one_share(shares: int, prefix: bytes, rest: bytes) -> None:
    if prefix.startswith(b"consumers/") or b"consumers/".startswith(prefix):
        return
    about = GroupAbout(prefix, even_starts(shares))
    key = prefix + rest

    holding = [each for each in about.shares if each.start <= key and (each.end is None or key < each.end)]

    assert len(holding) == 1
    assert len(about.shares) == shares
    assert GroupAbout.decode(b"g", about.encode()) == about


def test_an_even_split_uses_the_bytes_of_the_alphabet() -> None:
    assert even_starts(4, "0123456789abcdef") == (b"", b"4", b"8", b"c")
    assert even_starts(3, "0123456789") == (b"", b"33", b"66")
    assert even_starts(1) == (b"",)
    with pytest.raises(ValueError, match="1 to 4 shares, not 5"):
        even_starts(5, "ab")
    with pytest.raises(ValueError, match=f"1 to {SHARES_MAX} shares, not {SHARES_MAX + 1}"):
        even_starts(SHARES_MAX + 1)


@pytest.mark.parametrize("prefix", [b"", b"c", b"consumers", b"consumers/", b"consumers/g/positions/"])
def test_a_prefix_that_includes_the_keys_of_groups_is_refused(prefix: bytes) -> None:
    """With such a prefix, the consumer would consume its own commits."""
    with pytest.raises(ValueError, match="name a narrower prefix"):
        GroupAbout(prefix)


@pytest.mark.parametrize(
    ("starts", "words"),
    [
        ((), "from 1 to 256 shares, not 0"),
        ((b"a",), "the first start is empty"),
        ((b"", b"b", b"b"), "ascend"),
        ((b"", b"x" * (START_BYTES_MAX + 1)), "at most 64 bytes"),
    ],
)
def test_starts_that_split_nothing_are_refused(starts: tuple[bytes, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GroupAbout(b"log/", starts)


@pytest.mark.parametrize("name", ["", "a/b", "x" * (GROUP_BYTES_MAX + 1)])
def test_a_name_that_no_group_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="from 1 to 128 bytes and no slash"):
        GroupKeys(name)


@pytest.mark.parametrize("value", [b"", b"17", b"{}", b'{"fence":1,"number":1,"position":-1}', b'{"position":"1"}'])
def test_a_value_that_is_no_position_is_refused(value: bytes) -> None:
    with pytest.raises(GroupMismatch, match="is not a position"):
        StoredPosition.decode(b"g", value)
    with pytest.raises(GroupMismatch, match="does not describe a group"):
        GroupAbout.decode(b"g", value)


def test_the_group_of_a_key_and_the_next_group() -> None:
    """The name of one group may be a prefix of the name of another group."""
    keys = sorted(GroupKeys(name).about for name in ("a", "a-b", "a0", "ab"))
    assert [group_of(key) for key in keys] == [b"a-b", b"a", b"a0", b"ab"]
    for key, following in pairwise(keys):
        assert key < after_group(key) <= following
    assert group_of(b"consumers/loose") is None
    assert group_of(b"other/a/about") is None
    assert after_group(b"consumers/loose") == b"consumers/loose\0"
