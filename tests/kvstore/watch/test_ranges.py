"""The index of watched ranges against a list of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.protocol.commands import prefix_range
from kvstore.watch.ranges import BLOCK_RANGES, KeyRange, RangeIndex

keys = st.binary(max_size=4) | st.sampled_from([b"", b"a", b"ab", b"abc", b"b", b"\xff", b"\xff\xff", b"a\xff"])


@st.composite
def ranges(draw: st.DrawFn) -> KeyRange:
    start = draw(keys)
    way = draw(st.sampled_from(["key", "prefix", "any", "open"]))
    if way == "key":
        return KeyRange(start, start + b"\0")
    if way == "prefix":
        return KeyRange(*prefix_range(start))
    if way == "open":
        return KeyRange(start, None)
    return KeyRange(start, max(start + b"\0", draw(keys)))


@settings(max_examples=200, deadline=None)
@given(st.lists(ranges(), max_size=60, unique=True), st.data())
def test_a_key_is_in_just_the_ranges_that_contain_it(wanted: list[KeyRange], data: st.DataObject) -> None:
    index: RangeIndex[KeyRange] = RangeIndex()
    for each in wanted:
        index.add(each, each)
    index.check()
    removed = data.draw(st.sets(st.sampled_from(wanted))) if wanted else set()
    for each in wanted:
        if each in removed:
            index.remove(each)
    index.check()
    left = [each for each in wanted if each not in removed]

    assert len(index) == len(left)
    for key in data.draw(st.lists(keys, min_size=1, max_size=20)):
        found = index.find(key)
        assert sorted(found, key=str) == sorted([each for each in left if key in each], key=str)
    assert all(index.get(each) is None for each in removed)
    assert all(index.get(each) == each for each in left)


def test_many_ranges_are_split_into_blocks_and_still_found() -> None:
    index: RangeIndex[int] = RangeIndex()
    count = 10 * BLOCK_RANGES
    for number in range(count):
        place = number * 7 % count
        index.add(KeyRange(b"%05d" % place, b"%05d" % (place + 5)), place)
    index.check()

    assert len(index._blocks) > 5
    assert sorted(index.find(b"00100x")) == [96, 97, 98, 99, 100]
    for place in range(count):
        index.remove(KeyRange(b"%05d" % place, b"%05d" % (place + 5)))
    assert len(index) == 0
    assert not index.find(b"00100x")


def test_the_order_of_what_is_found_does_not_depend_on_the_order_of_adding() -> None:
    """If the order depended on it, two runs of a simulation would differ."""
    bounds = [(b"a", b"a\0"), (b"", None), (b"a", b"b"), (b"0", b"c"), (b"a", b"d")]
    wanted = [KeyRange(*each) for each in bounds]
    found = []
    for order in (wanted, wanted[::-1]):
        index: RangeIndex[KeyRange] = RangeIndex()
        for each in order:
            index.add(each, each)
        found.append(index.find(b"a"))

    assert found[0] == found[1]
    assert len(found[0]) == 5
