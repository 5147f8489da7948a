"""Applying several entries at a time has the same effect as applying them one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft import Entry, EntryKind
from raft.node.apply import RUN_MAX, apply_batch
from tests.raft.support.memory_stores import ListMachine


class Plain(ListMachine):
    """A machine that applies entries only one by one, and refuses one of them."""

    def __init__(self, refused_index: int = 0) -> None:
        super().__init__()
        self.seen: list[int] = []
        self._refused_index = refused_index

    def apply(self, entry: Entry) -> Sequence[Any]:
        if entry.index == self._refused_index:
            raise ValueError(entry.index)
        self.seen.append(entry.index)
        return [entry.index] * len(entry.payload)


class InRuns(Plain):
    """A machine that applies several entries in one call."""

    def apply_batch(self, entries: Sequence[Entry]) -> Sequence[Sequence[Any]]:
        assert 1 <= len(entries) <= RUN_MAX
        return [self.apply(entry) for entry in entries]


def a_log(sizes: list[int]) -> list[Entry]:
    return [Entry(index, 1, EntryKind.COMMANDS, bytes(size)) for index, size in enumerate(sizes, start=1)]


@pytest.mark.parametrize("kind", [Plain, InRuns])
@given(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=3 * RUN_MAX), bytes_max=st.integers(1, 10_000))
def test_a_slice_holds_the_same_entries_however_many_are_handed_over_at_once(
    kind: type[Plain], sizes: list[int], bytes_max: int
) -> None:
    log = a_log(sizes)
    one_by_one: list[Entry] = []
    while len(one_by_one) < len(log) and sum(entry.size_bytes for entry in one_by_one) < bytes_max:
        one_by_one.append(log[len(one_by_one)])

    machine, waiting, budget_bytes = kind(), deque(log), bytes_max
    applied: list[Entry] = []
    while waiting and budget_bytes > 0:
        for entry, results in apply_batch(machine, waiting, budget_bytes):
            assert results == [entry.index] * len(entry.payload)
            applied.append(entry)
            budget_bytes -= entry.size_bytes

    assert applied == one_by_one
    assert machine.seen == [entry.index for entry in one_by_one]
    assert [*applied, *waiting] == log


@pytest.mark.parametrize("kind", [Plain, InRuns])
def test_what_comes_before_an_entry_that_stops_the_machine_is_applied(kind: type[Plain]) -> None:
    machine = kind(refused_index=3)
    with pytest.raises(ValueError, match="3"):
        apply_batch(machine, deque(a_log([1] * 5)), 1000)
    assert machine.seen == [1, 2]
