"""Keys are sorted only in the places that are read. The tests compare the order of the keys with a sorted list."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.store import key_order
from kvstore.store.key_order import KeyOrder

names = st.binary(min_size=1, max_size=2)
looks = st.tuples(st.just("page"), names, names) | st.tuples(st.just("after"), names, names)
changes = st.tuples(st.sampled_from(["add"] * 3 + ["remove", "remove all", "remove some", "drop"]), names, names)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "BLOCK_KEYS", 4)
    monkeypatch.setattr(key_order, "FEW", 2)


class Sorted:
    """The slow twin: one list, always sorted."""

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys

    def toggle(self, keys: KeyOrder[bytes], key: bytes, wanted: str) -> None:
        """Add the key to this list and to `keys`, or remove it from both. If the key to remove is absent, remove its
        neighbour."""
        at = bisect_left(self.keys, key)
        is_there = self.keys[at : at + 1] == [key]
        if wanted == "add" and not is_there:
            insort(self.keys, key)
            keys.add(key)
        elif wanted == "remove" and self.keys:
            keys.remove(self.keys.pop(min(at, len(self.keys) - 1)))


@pytest.mark.usefixtures("small_blocks")
@settings(deadline=None, max_examples=500)
@given(first=st.sets(names, max_size=30), steps=st.lists(changes | changes | looks, max_size=80))
def test_every_look_finds_the_keys_of_a_list_that_is_always_sorted(
    first: set[bytes], steps: list[tuple[str, bytes, bytes]]
) -> None:
    slow = Sorted(sorted(first))
    keys = KeyOrder(slow.keys.copy())
    for what, key, other in steps:
        if what == "page":
            low, high = bisect_left(slow.keys, key), bisect_left(slow.keys, other)
            start, end = keys.place_of(key), keys.place_of(other)
            assert keys.count(start, end) == high - low
            assert list(keys.walk(start, end)) == slow.keys[low:high]
            assert list(keys.walk_back(start, end)) == slow.keys[low:high][::-1]
            assert keys.count(start, keys.end()) == len(slow.keys) - low
        elif what == "after":
            assert list(keys.after(key)) == slow.keys[bisect_right(slow.keys, key) :]
        elif what in ("remove all", "remove some"):
            part = slice(bisect_left(slow.keys, key), bisect_left(slow.keys, other), 1 if what == "remove all" else 2)
            keys.remove_all(slow.keys[part])
            del slow.keys[part]
        elif what == "drop":
            count = min(ord(key[:1]) % 9, len(slow.keys))
            keys.drop_first(count)
            del slow.keys[:count]
        else:
            slow.toggle(keys, key, what)
        keys.check()
    assert list(keys) == slow.keys


@pytest.mark.parametrize("ascending", [1, 0, -1])
def test_blocks_stay_between_their_bounds_while_a_store_fills_and_empties(ascending: int) -> None:
    names = [b"%05d" % number for number in range(20_000)]
    order = names[:: ascending or 1]
    if not ascending:
        random.Random(7).shuffle(order)
    keys: KeyOrder[bytes] = KeyOrder()
    for name in order:
        keys.add(name)
    keys.check()
    assert len(keys._blocks) <= 20
    assert list(keys) == names
    for name in order[100:]:
        keys.remove(name)
    keys.check()
    assert len(keys._blocks) <= 2
    assert list(keys) == sorted(order[:100])


def test_a_look_puts_no_more_in_order_than_it_sees() -> None:
    keys = KeyOrder([b"%05d" % number for number in range(0, 20_000, 2)])
    for number in range(1, 20_000, 200):
        keys.add(b"%05d" % number)
    late = [len(block) - known for block, known in zip(keys._blocks, keys._in_order, strict=True)]
    assert late == [10] * 10

    start = keys.place_of(b"05000")
    assert next(keys.walk(start, keys.end())) == b"05000"

    left = [len(block) - known for block, known in zip(keys._blocks, keys._in_order, strict=True)]
    assert left == [0 if number == 2 else 10 for number in range(10)]


def test_a_key_that_is_not_there_cannot_be_removed() -> None:
    keys = KeyOrder([b"a", b"c"])
    with pytest.raises(AssertionError):
        keys.remove(b"b")
    assert list(keys) == [b"a", b"c"]
    with pytest.raises(AssertionError):
        keys.remove_all([b"a", b"b"])


def test_removing_whole_blocks_leaves_no_empty_ones() -> None:
    names = [b"%05d" % number for number in range(10_000)]
    keys = KeyOrder(names)
    keys.remove_all(names[500:9_500])
    keys.check()
    assert len(keys._blocks) <= 2
    assert list(keys) == names[:500] + names[9_500:]
    keys.drop_first(1_000)
    keys.check()
    assert (list(keys), len(keys._blocks)) == ([], 1)
    keys.add(b"again")
    assert list(keys) == [b"again"]
