"""The heap of deadlines is compared with a search through all items."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.store.deadline_heap import EARLY_CORRECTIONS_MAX, ID_BITS, NEVER, STALE_ENTRIES_MAX, DeadlineHeap


class Item:
    def __init__(self, deadline: int) -> None:
        self.deadline = deadline


class Filled:
    """Items, and a heap of their deadlines."""

    def __init__(self, deadlines: list[int]) -> None:
        self.items: dict[int, Item] = {}
        self.heap = DeadlineHeap(self.items)
        for item_id, deadline in enumerate(deadlines):
            self.add(item_id, deadline)

    def add(self, item_id: int, deadline: int) -> None:
        self.items[item_id] = Item(deadline)
        self.heap.add(item_id, deadline)

    def remove(self, item_id: int) -> None:
        del self.items[item_id]
        self.heap.removed()

    def earliest(self) -> tuple[int, int] | None:
        return min([(item.deadline, item_id) for item_id, item in self.items.items()], default=None)

    def noted(self) -> list[int]:
        """The times of all entries of the heap, including outdated ones."""
        return sorted(entry >> ID_BITS for entry in self.heap._entries)


ids, times = st.integers(0, 9), st.integers(0, 40)
steps = st.lists(
    st.tuples(st.just("add"), ids, times)
    | st.tuples(st.just("postpone"), ids, times)
    | st.tuples(st.just("remove"), ids, times)
    | st.tuples(st.just("look"), ids, times),
    max_size=60,
)


@pytest.mark.parametrize("early_max", [0, 1, EARLY_CORRECTIONS_MAX])
@settings(deadline=None)
@given(steps=steps)
def test_every_look_finds_the_earliest_deadline_or_a_bound_after_the_time(
    early_max: int, steps: list[tuple[str, int, int]]
) -> None:
    """The heap finds the deadline for any number of entries that were corrected early."""
    filled = Filled([])
    for what, item_id, time in steps:
        if what == "add" and item_id not in filled.items:
            filled.add(item_id, time)
        elif what == "postpone" and item_id in filled.items:
            filled.items[item_id].deadline += time
        elif what == "remove" and item_id in filled.items:
            filled.remove(item_id)
        elif what == "look":
            found, earliest = filled.heap.first(time, early_max), filled.earliest()
            assert (found is None) == (earliest is None)
            if found is not None and earliest is not None:
                assert found == earliest if earliest[0] <= time else time < found[0] <= earliest[0]
        filled.heap.check()
    assert filled.heap.first() == filled.earliest()


def test_a_look_corrects_what_was_due_and_a_bounded_number_of_others() -> None:
    """A member with 10⁵ leases must not pause in order to correct all their entries."""
    filled = Filled([*range(1000), *range(5000, 6000)])
    for item in filled.items.values():
        item.deadline += 10_000

    assert filled.heap.first(499) == (500 + EARLY_CORRECTIONS_MAX, 500 + EARLY_CORRECTIONS_MAX)

    assert sum(time >= 10_000 for time in filled.noted()) == 500 + EARLY_CORRECTIONS_MAX
    filled.heap.check()


def test_corrected_entries_give_the_garbage_collector_no_work() -> None:
    """If the collector tracked the entries, 10⁵ renewed leases would make one collection take 8 to 18 ms."""
    filled = Filled([1000] * 100)
    for item in filled.items.values():
        item.deadline += 1000
    filled.heap.first(1500)
    assert not any(gc.is_tracked(entry) for entry in filled.heap._entries)


def test_the_greatest_id_and_the_greatest_deadline_keep_their_values() -> None:
    filled = Filled([])
    filled.add(2**63 - 1, NEVER)
    assert filled.heap.first() == (NEVER, 2**63 - 1)
    filled.heap.check()


def test_equal_deadlines_are_in_the_order_of_their_ids() -> None:
    filled = Filled([7, 5, 9, 5])
    filled.items[1].deadline = 7
    order = []
    while (first := filled.heap.first(100)) is not None:
        order.append(first)
        filled.remove(first[1])
    assert order == [(5, 3), (7, 0), (7, 1), (9, 2)]


def test_an_item_that_was_removed_and_added_again_has_its_new_deadline() -> None:
    """The new deadline may be earlier or later."""
    filled = Filled([10, 30])
    filled.remove(0)
    filled.add(0, 20)
    filled.remove(1)
    filled.add(1, 5)
    assert filled.heap.first() == (5, 1)
    filled.remove(1)
    assert filled.heap.first() == (20, 0)


def test_entries_of_removed_items_do_not_pile_up() -> None:
    filled = Filled([1000])
    for number in range(1, 500):
        filled.add(number, 10_000)
        filled.remove(number)
        assert len(filled.noted()) <= 2 + STALE_ENTRIES_MAX
    filled.heap.check()
