"""The core's view of the log: the terms of all retained entries, and recent entries in memory; older entries are read
from the `LogStore`.

`base_index` is the index right before the first entry: the last compacted index, or the index of a snapshot. After a
compaction or a reset, the term at `base_index` is known. After a start, this term is not known if the log begins
*before* the index of the snapshot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

from raft.core.write_stream import WriteStream
from raft.interfaces import LogStore
from raft.types import ENTRY_OVERHEAD_BYTES, Entry, LogPosition

CACHE_KEPT_EIGHTHS = 7
"""An eviction shrinks the cache to this many eighths of its maximum size. So evictions are rare, and many appends share
the cost of each."""

EVICTED_AT_ONCE = 4_096
"""The maximum number of entries that one append evicts, which takes about 1 ms. If there are more entries to evict
(there may be 300,000), later appends evict them."""

CACHED_OBJECT_BYTES = 112
"""The memory of a cached entry in addition to its `size_bytes`: the object, the header of its payload, its index, its
list slot. This memory counts towards the bound of the cache. Otherwise entries of 100 bytes would take twice as much
memory as the bound allows."""

SIZES_FORGOTTEN_AT_ONCE = 1024
"""The sizes of applied entries are deleted only if there are more than this number, or if all entries are applied.
Deletions are rare because each deletion from the front of a list takes time in proportion to the length of the list."""


class RaftLog:
    """The entries from base_index + 1 to last_index. Appends, cuts and resets are passed on to the write stream."""

    def __init__(self, store: LogStore, *, snapshot: LogPosition, writes: WriteStream, cache_bytes_max: int) -> None:
        self._store, self._writes, self._cache_bytes_max = store, writes, cache_bytes_max
        self.base_index = store.first_index - 1
        self.base_term: int | None = snapshot.term if self.base_index == snapshot.index else None
        if self.base_index == 0:
            self.base_term = 0
        self.first_known_index = self.base_index if self.base_term is not None else self.base_index + 1
        """The lowest index whose term is known. An append must state the term of the entry before its own entries."""
        self.last_index = store.last_index
        self._runs = list(store.term_runs())  # The first position of each run of equal terms.
        self._run_starts = [run.index for run in self._runs]
        self._cache: list[Entry] = []  # The newest entries, including every entry that is not durable.
        self._cache_bytes = 0
        self._left_behind: list[
            Entry
        ] = []  # Entries dropped by a reset. Each append frees a few, because freeing all at once would take long.
        self._sizes_from = store.last_index  # _sizes[k] is the size (bytes) of the first k entries after this index.
        self._sizes = [0]
        self.last_term = self._find_last_term()
        """The term of the last entry; if the log is empty, the term at `base_index`."""
        assert self.base_index <= snapshot.index <= self.last_index, (self.base_index, snapshot, self.last_index)
        assert self.term_at(snapshot.index) == snapshot.term, (snapshot, self.term_at(snapshot.index))

    @property
    def first_index(self) -> int:
        """The index of the oldest entry; `last_index + 1` if there is none."""
        return self.base_index + 1

    @property
    def last_position(self) -> LogPosition:
        """The position of the last entry; if the log is empty, the position at `base_index`."""
        return LogPosition(self.last_index, self.last_term)

    @property
    def cached_bytes(self) -> int:
        """The approximate memory of the cached entries. The value may exceed `log_cache_bytes_max` while many entries
        are not durable. Later appends evict these entries once they are durable."""
        return self._cache_bytes

    @property
    def cached_from(self) -> int:
        """The index of the first entry in memory; `last_index + 1` if there is none. Earlier entries are only in the
        store."""
        return self.last_index - len(self._cache) + 1

    @property
    def durable_index(self) -> int:
        """The index of the last entry that is durable on this member."""
        return self._writes.durable_index

    @property
    def is_disk_full(self) -> bool:
        """True while the store has no room for commands."""
        return self._store.is_disk_full

    def term_at(self, index: int) -> int | None:
        """The term at `index`; None if the entry is compacted away or beyond the end. Cost: O(log n) for n runs of
        equal terms."""
        if index <= self.last_index and self._runs and (last_run := self._runs[-1]).index <= index:
            return last_run.term
        if self.base_index < index <= self.last_index:
            return self._runs[bisect_right(self._run_starts, index) - 1].term
        if index == self.base_index:
            return self.base_term
        return 0 if index == 0 else None

    def last_at_most(self, index: int, term: int) -> int:
        """The last index at or before `index` whose term is at most `term`. With this search, the leader skips a whole
        term after each rejected append (Raft §5.3).

        If no entry of this log can match, the result is below `base_index`. There are two such cases: `index` is below
        `base_index`, or even the term at `base_index` is above `term`.
        """
        if index < self.base_index:
            return index
        index = min(index, self.last_index)
        for run in reversed(self._runs):
            if run.index <= index:
                if run.term <= term:
                    return index
                index = run.index - 1
        return index if self.base_term is None or self.base_term <= term else max(0, self.base_index - 1)

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        """Read entries from `first_index` on, up to `last_index`: at least one, and as many more as fit into
        `bytes_max`."""
        assert self.base_index < first_index <= last_index <= self.last_index, (first_index, last_index, self)
        cache_first = self.last_index - len(self._cache) + 1
        if first_index < cache_first:
            stored = self._store.read(first_index, min(last_index, cache_first - 1), bytes_max)
            assert stored[0].index == first_index, (stored[0].index, first_index)
            return stored
        if first_index == last_index:
            return [self._cache[first_index - cache_first]]  # This is the usual case for a single put.
        found: list[Entry] = []
        for entry in self._cache[first_index - cache_first : last_index - cache_first + 1]:
            bytes_max -= entry.size_bytes
            if bytes_max < 0 and found:
                break
            found.append(entry)
        return found

    def bytes_after(self, index: int) -> int:
        """The size (bytes) of the entries above `index`. Entries that were in the store at the start are not counted,
        because they use no memory."""
        return self._sizes[-1] - self._sizes[min(max(index - self._sizes_from, 0), len(self._sizes) - 1)]

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries, whose first index must follow the last index of the log."""
        for entry in entries:
            assert entry.index == self.last_index + 1, (entry.index, self.last_index)
            size_bytes = len(entry.payload) + ENTRY_OVERHEAD_BYTES  # This sum equals `size_bytes`, but saves a call.
            assert entry.term >= self.last_term, (entry.term, self.last_term)
            if not self._runs or self.last_term != entry.term:
                self._runs.append(LogPosition(entry.index, entry.term))
                self._run_starts.append(entry.index)
                self.last_term = entry.term
            self._sizes.append(self._sizes[-1] + size_bytes)
            self._cache_bytes += size_bytes + CACHED_OBJECT_BYTES
            self._cache.append(entry)
            self.last_index = entry.index
        self._writes.append(list(entries))
        if self._cache_bytes > self._cache_bytes_max or len(self._cache) > self.last_index - self.base_index:
            self._evict()
        if self._left_behind:
            del self._left_behind[-EVICTED_AT_ONCE:]

    def truncate_from(self, index: int) -> None:
        """Remove the entry at `index` and all later entries."""
        assert self.first_index <= index <= self.last_index, (index, self)
        cut = self.last_index - index + 1
        for entry in self._cache[-cut:]:
            self._cache_bytes -= entry.size_bytes + CACHED_OBJECT_BYTES
        del self._cache[-cut:]
        del self._sizes[max(index - self._sizes_from, 1) :]
        self._sizes_from = min(self._sizes_from, index - 1)
        while self._runs and self._runs[-1].index >= index:
            self._runs.pop()
            self._run_starts.pop()
        self.last_index = index - 1
        self.last_term = self._find_last_term()
        self._writes.truncate_from(index)

    def reset(self, position: LogPosition) -> None:
        """Drop all entries. The log continues after a snapshot at `position`.

        See docs/reference/specification.md#56-installing-a-snapshot.
        """
        self._runs.clear()
        self._run_starts.clear()
        self._left_behind, self._cache = self._cache, []
        self._cache_bytes = 0
        self._sizes_from, self._sizes = position.index, [0]
        self.base_index, self.base_term, self.last_index = position.index, position.term, position.index
        self.first_known_index = position.index
        self.last_term = self._find_last_term()
        self._writes.reset(position)

    def compact(self, index: int) -> None:
        """Forget the entries up to `index`, which must be in a durable snapshot."""
        if index <= self.base_index:
            return
        assert index <= self.last_index, (index, self)
        self.base_index, self.base_term = index, self.term_at(index)
        self.first_known_index = index
        # Runs that begin at or before `index`. The last run may end after `index`.
        passed = bisect_right(self._run_starts, index)
        kept = self._runs[passed:]
        if index < self.last_index and not (kept and kept[0].index == index + 1):
            kept.insert(0, LogPosition(index + 1, self._runs[passed - 1].term))
        self._runs, self._run_starts = kept, [run.index for run in kept]
        self.last_term = self._find_last_term()
        self._evict()

    def forget_sizes(self, index: int) -> None:
        """Forget the sizes of the entries up to `index`, which are applied."""
        passed = min(index, self.last_index) - self._sizes_from
        if passed > SIZES_FORGOTTEN_AT_ONCE or 0 < passed == len(self._sizes) - 1:
            del self._sizes[:passed]
            self._sizes_from += passed

    def _find_last_term(self) -> int:
        """Return the new value of `last_term`. Called after each change of `_runs` except an append. `last_term` is an
        attribute, because the core reads it at every event."""
        term = self._runs[-1].term if self._runs else self.base_term
        assert term is not None, self.last_index
        return term

    def _evict(self) -> None:
        """Evict the compacted entries. If the cache is over its bound, evict the oldest durable entries, too."""
        bytes_left = self._cache_bytes
        goal = self._cache_bytes_max * CACHE_KEPT_EIGHTHS // 8 if bytes_left > self._cache_bytes_max else bytes_left
        compacted = len(self._cache) - (self.last_index - self.base_index)
        # Only durable entries are evicted, because only they are certainly in the store.
        evictable = len(self._cache) - (self.last_index - self.durable_index)
        count = 0
        for entry in islice(self._cache, EVICTED_AT_ONCE):
            size_bytes = entry.size_bytes + CACHED_OBJECT_BYTES
            if count >= compacted and (count >= evictable or bytes_left - size_bytes < goal):
                break
            bytes_left -= size_bytes
            count += 1
        self._cache_bytes = bytes_left
        del self._cache[:count]

    def __repr__(self) -> str:
        return f"RaftLog({self.first_index}..{self.last_index}, durable {self.durable_index})"
