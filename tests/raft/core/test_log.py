"""Compares the core's view of the log with a plain list, and checks the writes that the log gives to the store."""

from __future__ import annotations

import gc
import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.core.log import CACHED_OBJECT_BYTES, EVICTED_AT_ONCE, RaftLog
from raft.core.write_stream import WriteStream
from raft.types import Entry, EntryKind, HardState, LogPosition
from tests.raft.support.core_fixture import BEGINNING, entries_of
from tests.raft.support.memory_log import MemoryLog

CACHE_BYTES = 10_000


def a_log(terms: list[int], *, base: LogPosition = BEGINNING, cache_bytes_max: int = CACHE_BYTES) -> RaftLog:
    store = MemoryLog(base, entries_of(terms, after=base.index))
    return RaftLog(
        store, snapshot=base, writes=WriteStream(durable_index=store.last_index), cache_bytes_max=cache_bytes_max
    )


def test_terms_are_known_from_the_base_to_the_end() -> None:
    """Raft §5.3: prevLogTerm may be the term of the last compacted entry."""
    log = a_log([2, 2, 5], base=LogPosition(10, 1))

    assert [log.term_at(index) for index in (9, 10, 11, 12, 13, 14)] == [None, 1, 2, 2, 5, None]
    assert log.term_at(0) == 0
    assert (log.first_index, log.last_index, log.last_term) == (11, 13, 5)


def test_with_entries_kept_behind_the_snapshot_the_term_before_them_is_unknown() -> None:
    """Entries before `snapshot_index` may be retained, but then the term before the first of them is unknown.

    See docs/reference/specification.md#61-order-of-the-marks.
    """
    store = MemoryLog(LogPosition(3, 1), entries_of([1, 2, 2], after=3))
    log = RaftLog(store, snapshot=LogPosition(5, 2), writes=WriteStream(durable_index=6), cache_bytes_max=CACHE_BYTES)

    assert log.first_index == 4
    assert [log.term_at(index) for index in (3, 4, 5)] == [None, 1, 2]


@pytest.mark.parametrize(
    ("index", "term", "found"), [(9, 9, 6), (6, 4, 3), (6, 3, 3), (2, 4, 2), (6, 0, 0), (3, 0, 0), (0, 0, 0)]
)
def test_the_last_position_at_most_of_a_term_is_found_in_one_step(index: int, term: int, found: int) -> None:
    """Raft §5.3: a hint skips all entries of a conflicting term in one step. The terms of the log are 1 1 1 5 5 6."""
    assert a_log([1, 1, 1, 5, 5, 6]).last_at_most(index, term) == found


@pytest.mark.parametrize(("index", "term", "found"), [(12, 1, 10), (12, 0, 9), (7, 0, 7)])
def test_below_the_base_the_log_cannot_say_more(index: int, term: int, found: int) -> None:
    """The leader skips the compacted part of its log, and sends the peer a snapshot."""
    assert a_log([2, 2], base=LogPosition(10, 1)).last_at_most(index, term) == found


def test_a_cut_and_its_replacement_are_one_write() -> None:
    """The cut is in the same frame as the entries that replace the cut entries.

    See docs/reference/specification.md#34-cut-and-replacement.
    """
    writes = WriteStream(durable_index=3)
    log = RaftLog(
        MemoryLog(BEGINNING, entries_of([1, 1, 1])), snapshot=BEGINNING, writes=writes, cache_bytes_max=CACHE_BYTES
    )

    log.truncate_from(2)
    log.append(entries_of([2, 2], after=1))

    write = writes.take(HardState(term=2))
    assert write is not None
    assert (write.replace_from, [entry.index for entry in write.entries]) == (2, [2, 3])
    assert log.durable_index == 1


def test_what_was_never_given_to_the_store_is_cut_without_a_trace() -> None:
    """Entries that are cut before any write contains them are never written."""
    writes = WriteStream(durable_index=1)
    log = RaftLog(MemoryLog(BEGINNING, entries_of([1])), snapshot=BEGINNING, writes=writes, cache_bytes_max=CACHE_BYTES)

    log.append(entries_of([1, 1], after=1))
    log.truncate_from(3)

    write = writes.take(HardState(term=1))
    assert write is not None
    assert (write.replace_from, [entry.index for entry in write.entries]) == (None, [2])


def test_a_write_under_way_proves_nothing_about_entries_that_were_cut_since() -> None:
    """Write 1 goes up to entry 5, but proves only the entries before the cut. The new entry 4 becomes durable with
    write 2."""
    writes = WriteStream(durable_index=1)
    log = RaftLog(MemoryLog(BEGINNING, entries_of([1])), snapshot=BEGINNING, writes=writes, cache_bytes_max=CACHE_BYTES)
    log.append(entries_of([1, 1, 1, 1], after=1))
    writes.take(HardState(term=1))
    log.truncate_from(4)
    log.append(entries_of([2, 2], after=3))
    writes.take(HardState(term=2))

    writes.persisted(1)
    assert log.durable_index == 3

    writes.persisted(2)
    assert log.durable_index == 5


def test_a_reset_forgets_every_claim_and_everything_said_waits_for_it() -> None:
    """The member acknowledges the snapshot only when the snapshot *and* the reset are durable.

    See docs/reference/specification.md#56-installing-a-snapshot.
    """
    writes = WriteStream(durable_index=1)
    log = RaftLog(MemoryLog(BEGINNING, entries_of([1])), snapshot=BEGINNING, writes=writes, cache_bytes_max=CACHE_BYTES)
    log.append(entries_of([1, 1], after=1))
    writes.take(HardState(term=1))

    log.reset(LogPosition(9, 4))

    assert writes.sequence_for(9) == writes.barrier_sequence == 2
    writes.persisted(1)
    assert (log.first_index, log.last_index, log.last_term, log.durable_index) == (10, 9, 4, 9)
    write = writes.take(HardState(term=4))
    assert write is not None
    assert (write.reset, write.replace_from, write.entries) == (LogPosition(9, 4), None, ())


def test_the_cache_stays_within_its_bound_and_older_entries_come_from_the_store() -> None:
    """The cache stays within `log_cache_bytes_max`. It keeps entries that are not durable, because the store may not
    have these entries."""
    store = MemoryLog(BEGINNING, (), HardState(term=1))
    writes = WriteStream(durable_index=0)
    log = RaftLog(store, snapshot=BEGINNING, writes=writes, cache_bytes_max=2_000)
    entries = entries_of([1] * 40)

    for entry in entries:
        log.append([entry])
    assert log.cached_bytes > sum(entry.size_bytes for entry in entries)  # No entry is durable yet.

    write = writes.take(HardState(term=1))
    assert write is not None
    store.append(write)
    writes.persisted(1)
    log.append(entries_of([1], after=40))
    assert log.cached_bytes <= 2_000
    assert log.read(1, 1, 1)[0] == entries[0]
    assert log.read(40, 41, CACHE_BYTES) == [entries[39], *entries_of([1], after=40)]


@pytest.mark.parametrize("end", ["compact", "reset"])
def test_a_long_log_of_small_entries_leaves_the_memory_in_steps(end: str) -> None:
    """Freeing a million entries, each of one put, in one step would take a tenth of a second."""
    count = 3 * EVICTED_AT_ONCE
    store, writes = MemoryLog(BEGINNING, (), HardState(term=1)), WriteStream(durable_index=0)
    log = RaftLog(store, snapshot=BEGINNING, writes=writes, cache_bytes_max=1 << 30)
    log.append(entries_of([1] * count))
    write = writes.take(HardState(term=1))
    assert write is not None
    store.append(write)
    writes.persisted(1)

    left = []
    for step in range(4):
        if step:
            log.append(entries_of([1], after=log.last_index))
        elif end == "compact":
            log.compact(count)
        else:
            log.reset(LogPosition(count, 1))
        left.append(len(log._cache) + len(log._left_behind))

    expected = [2, 1, 0, 0] if end == "compact" else [3, 2, 1, 0]
    assert left == [EVICTED_AT_ONCE * parts + step for step, parts in enumerate(expected)]
    assert log.cached_bytes == sum(entry.size_bytes + CACHED_OBJECT_BYTES for entry in log._cache)


def test_what_the_cache_counts_is_what_it_takes() -> None:
    """If a small entry counted as only 32 bytes plus its payload, the cache would exceed its bound by two thirds."""
    log = RaftLog(
        MemoryLog(BEGINNING, (), HardState(term=1)),
        snapshot=BEGINNING,
        writes=WriteStream(durable_index=0),
        cache_bytes_max=CACHE_BYTES,
    )
    gc.collect()
    tracemalloc.start()
    try:
        for index in range(1_001, 3_001):  # Python shares number objects only up to 256.
            log._cache.append(Entry(index, 1, EntryKind.COMMANDS, os.urandom(100)))
        taken_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    counted_bytes = sum(entry.size_bytes + CACHED_OBJECT_BYTES for entry in log._cache)
    assert 0.9 * taken_bytes < counted_bytes < 1.2 * taken_bytes


@given(st.data())
def test_the_log_equals_a_plain_list_whatever_is_done_to_it(data: st.DataObject) -> None:
    """A model test: append, cut, compact and reset in any order, with a small cache."""
    store, writes = MemoryLog(BEGINNING, (), HardState(term=99)), WriteStream(durable_index=0)
    log = RaftLog(store, snapshot=BEGINNING, writes=writes, cache_bytes_max=200)
    model: list[Entry] = []
    base, term = BEGINNING, 1
    for _ in range(data.draw(st.integers(1, 25))):
        last_index = base.index + len(model)
        match data.draw(st.sampled_from(["append", "append", "append", "cut", "compact", "reset", "sync"])):
            case "append":
                term += data.draw(st.integers(0, 1))
                new = entries_of([term] * data.draw(st.integers(1, 4)), after=last_index)
                log.append(new)
                model += new
            case "cut" if model:
                index = data.draw(st.integers(base.index + 1, last_index))
                log.truncate_from(index)
                del model[index - base.index - 1 :]
                term += 1
            case "compact" if model:
                index = data.draw(st.integers(base.index + 1, last_index))
                log.compact(index)
                base = LogPosition(index, model[index - base.index - 1].term)
                model = [entry for entry in model if entry.index > index]
            case "reset":
                term += 1
                base, model = LogPosition(last_index + 3, term), []
                log.reset(base)
            case _:
                pass
        if (write := writes.take(HardState(term=term))) is not None:
            store.append(write)
            if data.draw(st.booleans()):
                writes.persisted(write.sequence)
        assert (log.first_index, log.last_index) == (base.index + 1, base.index + len(model))
        assert [log.term_at(entry.index) for entry in model] == [entry.term for entry in model]
        assert log.term_at(base.index) == base.term
        found: list[Entry] = []
        while len(found) < len(model):
            found += log.read(log.first_index + len(found), log.last_index, 120)
        assert found == model
        for entry in model:
            expected = sum(other.size_bytes for other in model if other.index > entry.index)
            assert log.bytes_after(entry.index) == expected
