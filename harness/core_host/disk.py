"""A log on a simulated disk: all appended entries, the durable entries, and the entries that a crash may leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from raft import Done, Entry, HardState, LogPosition, LogWrite


@dataclass(frozen=True, slots=True)
class Image:
    """The contents of a log that begins at index 1."""

    hard_state: HardState = field(default_factory=HardState)
    entries: tuple[Entry, ...] = ()

    def after(self, write: LogWrite) -> Image:
        """Return the contents after one write, whose parts are carried out in the order that `LogWrite` states.

        See docs/reference/specification.md#33-term-and-vote-come-first.
        """
        assert write.reset is None, "nothing installs a snapshot in this world"
        state, entries = self.hard_state, self.entries
        if write.hard_state is not None:
            assert write.hard_state.term >= state.term, (write, state)
            state = write.hard_state
        if write.replace_from is not None:
            entries = entries[: write.replace_from - 1]
        for entry in write.entries:
            assert entry.index == len(entries) + 1, (entry, len(entries))
            entries += (entry,)
        return Image(state, entries)


class Disk:
    """A `LogStore` without snapshots. Each call of `sync_oldest` makes one write durable."""

    def __init__(self, durable: Image) -> None:
        self.durable = durable
        self.unsynced: tuple[LogWrite, ...] = ()
        self.appended = durable  # The log with all appended entries, synced or not.

    @property
    def first_index(self) -> int:
        """Always 1, because this log is never compacted."""
        return 1

    @property
    def last_index(self) -> int:
        """The index of the last appended entry."""
        return len(self.appended.entries)

    @property
    def has_unproven_batch(self) -> bool:
        """Always false, because no batch on this disk needs a later frame to prove that it is durable."""
        return False

    @property
    def size_bytes(self) -> int:
        """The size of all entries in bytes."""
        return sum(entry.size_bytes for entry in self.appended.entries)

    @property
    def is_disk_full(self) -> bool:
        """Always false, because this disk is never full."""
        return False

    @property
    def lacks_descriptors(self) -> str:
        """Always empty, because this disk opens no file."""
        return ""

    def term_runs(self) -> Sequence[LogPosition]:
        """Return the position of the first entry of each term."""
        entries = self.appended.entries
        return [
            LogPosition(entry.index, entry.term)
            for place, entry in enumerate(entries)
            if place == 0 or entries[place - 1].term != entry.term
        ]

    def configuration_indexes(self) -> Sequence[int]:
        """Return no index, because the configuration never changes here."""
        return ()

    def append(self, write: LogWrite) -> None:
        """Append one write, which is not durable until `sync_oldest`."""
        self.unsynced += (write,)
        self.appended = self.appended.after(write)

    def sync(self, commit_hint: int, done: Done) -> None:
        """Fail, because a core never syncs its log itself. The host of the core calls `sync_oldest`."""
        raise AssertionError(f"a core syncs nothing itself: {commit_hint}, {done}")

    def read(self, first_index: int, last_index: int, bytes_max: int) -> list[Entry]:
        """Return entries from `first_index` to `last_index`: at least one, and no more than fit into `bytes_max`."""
        assert 1 <= first_index <= last_index <= self.last_index, (first_index, last_index)
        found: list[Entry] = []
        for entry in self.appended.entries[first_index - 1 : last_index]:
            bytes_max -= entry.size_bytes
            if found and bytes_max < 0:
                break
            found.append(entry)
        return found

    def look_for_room(self) -> None:
        """Do nothing, because this disk is never full."""

    def drop_before(self, index: int) -> None:
        """Fail, because only entries that a snapshot contains may be dropped, and this disk has no snapshot."""
        raise AssertionError(f"there is no snapshot that covers the entries before {index}")

    def sync_oldest(self) -> int:
        """Make the oldest unsynced write durable. Returns its sequence number."""
        write, *rest = self.unsynced
        self.durable, self.unsynced = self.durable.after(write), tuple(rest)
        return write.sequence

    def after_crash(self, survived: int = 0) -> Disk:
        """Return the disk after a crash. Of the unsynced writes, only the first `survived` are kept."""
        durable = self.durable
        for write in self.unsynced[:survived]:
            durable = durable.after(write)
        return Disk(durable)

    def count_from(self, sequence: int) -> None:
        """Renumber the unsynced writes: subtract `sequence`, the number of the last durable write."""
        self.unsynced = tuple(replace(write, sequence=write.sequence - sequence) for write in self.unsynced)
