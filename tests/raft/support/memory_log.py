"""A small `LogStore` in memory. The log records the entries that were appended, and those that would survive a
crash."""

from __future__ import annotations

from collections.abc import Sequence

from raft.interfaces import Done, LogWrite
from raft.types import Entry, EntryKind, HardState, LogPosition


class MemoryLog:
    """A log of the entries after `base`. A sync takes effect when the test demands it."""

    def __init__(self, base: LogPosition, entries: Sequence[Entry] = (), hard_state: HardState | None = None) -> None:
        self.base, self.entries = base, list(entries)
        self.hard_state = hard_state or HardState()
        self._unsynced: list[LogWrite] = []
        self._durable = (base, list(entries), self.hard_state)
        self.synced_sequence = 0

    @property
    def first_index(self) -> int:
        return self.base.index + 1

    @property
    def last_index(self) -> int:
        return self.base.index + len(self.entries)

    @property
    def has_unproven_batch(self) -> bool:
        return False

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def is_disk_full(self) -> bool:
        return False

    @property
    def lacks_descriptors(self) -> str:
        return ""

    def look_for_room(self) -> None:
        raise AssertionError("the core never looks for room")

    def term_runs(self) -> Sequence[LogPosition]:
        runs: list[LogPosition] = []
        for entry in self.entries:
            if not runs or runs[-1].term != entry.term:
                runs.append(LogPosition(entry.index, entry.term))
        return runs

    def configuration_indexes(self) -> Sequence[int]:
        return [entry.index for entry in self.entries if entry.kind is EntryKind.CONFIGURATION]

    def append(self, write: LogWrite) -> None:
        self._unsynced.append(write)
        self.base, self.hard_state = self._carry_out(write, self.base, self.entries, self.hard_state)

    def sync(self, commit_hint: int, done: Done) -> None:
        raise AssertionError("the core never syncs")

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        assert self.first_index <= first_index <= last_index <= self.last_index, (first_index, last_index)
        found: list[Entry] = []
        for entry in self.entries[first_index - self.first_index : last_index - self.first_index + 1]:
            bytes_max -= entry.size_bytes
            if found and bytes_max < 0:
                break
            found.append(entry)
        return found

    def drop_before(self, index: int) -> None:
        self.base = self._dropped(index, self.base, self.entries)
        base, entries, hard_state = self._durable
        self._durable = (self._dropped(index, base, entries), entries, hard_state)

    def synced(self, sequence: int) -> None:
        """Everything up to this write survives a crash from now on."""
        self.synced_sequence = max(self.synced_sequence, sequence)
        while self._unsynced and self._unsynced[0].sequence <= sequence:
            base, entries, hard_state = self._durable
            base, hard_state = self._carry_out(self._unsynced.pop(0), base, entries, hard_state)
            self._durable = (base, entries, hard_state)

    def after_crash(self) -> MemoryLog:
        """The log that the member would find after a crash."""
        base, entries, hard_state = self._durable
        return MemoryLog(base, entries, hard_state)

    @staticmethod
    def _dropped(index: int, base: LogPosition, entries: list[Entry]) -> LogPosition:
        count = min(max(index - base.index - 1, 0), len(entries))
        if count:
            base = LogPosition(entries[count - 1].index, entries[count - 1].term)
            del entries[:count]
        return base

    @staticmethod
    def _carry_out(
        write: LogWrite, base: LogPosition, entries: list[Entry], hard_state: HardState
    ) -> tuple[LogPosition, HardState]:
        """Carry out a `LogWrite` in this order: hard state; reset or replacement; entries.

        See docs/reference/specification.md#33-term-and-vote-come-first.
        """
        if write.hard_state is not None:
            assert write.hard_state.term >= hard_state.term, (write.hard_state, hard_state)
            hard_state = write.hard_state
        if write.reset is not None:
            base = write.reset
            entries.clear()
        if write.replace_from is not None:
            assert base.index < write.replace_from <= base.index + len(entries) + 1, write
            del entries[write.replace_from - base.index - 1 :]
        for entry in write.entries:
            assert entry.index == base.index + len(entries) + 1, (entry, base, len(entries))
            assert entry.term <= hard_state.term, (entry, hard_state)
            entries.append(entry)
        return base, hard_state
