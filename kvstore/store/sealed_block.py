"""Blocks of events, stored by column: the open block, which grows, and sealed blocks, which never change.

The columns of a sealed block are tuples of plain values and arrays of numbers, which the garbage collector does not
examine. These columns take half the memory of two records for each event.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import chain, repeat
from sys import byteorder
from typing import Any

from kvstore.limits import MIB, RECORD_OVERHEAD_BYTES
from kvstore.store.records import RecordItem

BLOCK_EVENTS = 1_024
"""The greatest number of events of a sealed block. Sealing a block takes 0.2 ms, and freeing a block 0.2 to 0.4 ms."""

MaybeRecord = RecordItem | None

KeyChange = tuple[bytes, int, bool]
"""A creation or a deletion: (key, create revision of the deleted record or 0, True for a deletion)"""


_PLACES = tuple(range(BLOCK_EVENTS))
ABSENT: RecordItem = (b"", 0, 0, 0, 0)
"""The value of an absent record in the columns. No record has `mod_revision` 0."""

BLOCK_BYTES = MIB
"""The counted bytes of the events of a block after which it is sealed early. A block keeps all its values until its
last event is dropped, so with large values, blocks of 1,024 events would take many times `history_bytes_max`."""

_NARROW_MAX = 2**32 - 1
"""The greatest number in an array with 4 bytes per number."""

_LOW_HALF = 0 if byteorder == "little" else 1


class EventColumns:
    """Events by column. `values` to `leases` are the fields of the record before; for a creation, b"" and zeros.
    `new_values` and `new_leases` are fields of the record after; for a deletion, None and 0. The columns of leases may
    be shorter than the other columns. Events beyond the end of these columns have no lease.

    The record after an event is not stored, because it can be computed from the record before, the revision, the new
    value and the new lease.
    """

    __slots__ = (
        "created",
        "keys",
        "leases",
        "modified",
        "new_leases",
        "new_values",
        "revisions",
        "values",
        "versions",
    )

    def __init__(
        self,
        revisions: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[bytes],
        created: Sequence[int],
        modified: Sequence[int],
        versions: Sequence[int],
        leases: Sequence[int],
        new_values: Sequence[bytes | None],
        new_leases: Sequence[int],
    ) -> None:
        self.revisions, self.keys = revisions, keys
        self.values, self.created, self.modified, self.versions = values, created, modified, versions
        self.leases, self.new_values, self.new_leases = leases, new_values, new_leases

    def __len__(self) -> int:
        return len(self.revisions)

    def part(self, start: int, end: int) -> EventColumns:
        """Return a copy of the events from the place `start` to before the place `end`."""
        return EventColumns(
            self.revisions[start:end],
            self.keys[start:end],
            self.values[start:end],
            self.created[start:end],
            self.modified[start:end],
            self.versions[start:end],
            self.leases[start:end],
            self.new_values[start:end],
            self.new_leases[start:end],
        )

    def before(self, place: int) -> MaybeRecord:
        """Return the record before an event."""
        modified = self.modified[place]
        if not modified:
            return None
        lease_id = self.leases[place] if place < len(self.leases) else 0
        return (self.values[place], self.created[place], modified, self.versions[place], lease_id)

    def after(self, place: int) -> MaybeRecord:
        """Return the record after an event."""
        value = self.new_values[place]
        if value is None:
            return None
        revision, lease_id = self.revisions[place], self.new_leases[place] if place < len(self.new_leases) else 0
        return (value, self.created[place] or revision, revision, self.versions[place] + 1, lease_id)

    def befores(self) -> list[MaybeRecord]:
        """Return the records before the events. Cost: 0.1 µs for each event."""
        columns = self.values, self.created, self.modified, self.versions, chain(self.leases, repeat(0))
        return [record if record[2] else None for record in zip(*columns, strict=False)]

    def changes_from(self, start: int) -> list[KeyChange]:
        """Return the creations and deletions from the place `start` on, in order."""
        columns = self.keys[start:], self.created[start:], self.modified[start:], self.new_values[start:]
        return [
            (key, created, value is None)
            for key, created, modified, value in zip(*columns, strict=True)
            if not modified or value is None
        ]


class OpenBlock(EventColumns):
    """The block of the newest events. Its columns remain the same objects, so hot loops may keep `appends`. These are
    the `append` methods of the columns without leases, from `revisions` to `new_values`, and of `totals`, in the order
    in which the method `append` below calls them.

    `totals`: running sums of the bytes of events, from event number 0 of the history on. The first sum covers all
    events before the block, and each event adds the sum up to and including this event. So there is one more sum than
    there are events.
    """

    __slots__ = ("appends", "totals")

    revisions: array[int]
    keys: list[bytes]
    values: list[bytes]
    created: array[int]
    modified: array[int]
    versions: array[int]
    leases: array[int]
    new_values: list[bytes | None]
    new_leases: array[int]

    def __init__(self) -> None:
        numbers = [array("Q") for _ in range(6)]
        super().__init__(numbers[0], [], [], numbers[1], numbers[2], numbers[3], numbers[4], [], numbers[5])
        self.totals = array("Q", [0])
        columns = self.revisions, self.keys, self.values, self.created, self.modified, self.versions, self.new_values
        self.appends: Any = (*[column.append for column in columns], self.totals.append)

    def append(self, revision: int, key: bytes, before: MaybeRecord, after: MaybeRecord) -> None:
        """Add the newest event. For records without a lease, hot loops contain the same code inline."""
        value, created, modified, version, lease_id = before or ABSENT
        new_value, new_lease_id = (after[0], after[4]) if after else (None, 0)
        if lease_id or new_lease_id:
            missing = bytes(self.leases.itemsize * (len(self.keys) - len(self.leases)))
            for column, lease in ((self.leases, lease_id), (self.new_leases, new_lease_id)):
                column.frombytes(missing)
                column.append(lease)
        self.revisions.append(revision)
        self.keys.append(key)
        self.values.append(value)
        self.created.append(created)
        self.modified.append(modified)
        self.versions.append(version)
        self.new_values.append(new_value)
        self.totals.append(self.totals[-1] + len(key) + len(value) + RECORD_OVERHEAD_BYTES)

    def load(self, events: EventColumns, totals: array[int]) -> None:
        """Load events and their sums into this empty block."""
        self.totals[:] = totals
        for name in EventColumns.__slots__:
            getattr(self, name).extend(iter(getattr(events, name)))

    def drop_first(self, count: int) -> None:
        """Remove the first events."""
        for column in (self.revisions, self.created, self.modified, self.versions, self.leases, self.new_leases):
            del column[:count]
        del self.keys[:count], self.values[:count], self.new_values[:count], self.totals[:count]


class SealedBlock(EventColumns):
    """Consecutive events that never change. `number`: the number of the first event. `totals`: as in the open block.

    Sealing the block builds four indexes, so that no read has to build them. `first_by_key`: key → the place of its
    first event. `new_keys`: the keys of the creations, sorted. `deleted`: the keys of the deletions, sorted.
    `deleted_created`: the create revisions of the deleted records, in the order of `deleted`.
    """

    __slots__ = (
        "deleted",
        "deleted_created",
        "deleted_created_min",
        "first_by_key",
        "new_keys",
        "number",
        "totals",
    )

    def __init__(self, number: int, events: EventColumns, totals: array[int]) -> None:
        keys, new_values, created, modified = events.keys, events.new_values, events.created, events.modified
        newest = events.revisions[-1]  # No revision or version of these events is greater.
        super().__init__(
            _column(events.revisions, newest),
            tuple(keys),
            tuple(events.values),
            _column(created, newest),
            _column(modified, newest),
            _column(events.versions, newest),
            _column(events.leases, max(events.leases)) if any(events.leases) else (),
            tuple(new_values),
            _column(events.new_leases, max(events.new_leases)) if any(events.new_leases) else (),
        )
        self.number = number
        self.totals: Sequence[int] = totals
        self.first_by_key: dict[bytes, int] = {}
        deque(map(self.first_by_key.setdefault, keys, _PLACES), maxlen=0)
        # If all events are overwrites, `all` takes half the time of the loop, which would find no key.
        self.new_keys: Sequence[bytes] = ()
        if not all(modified):
            self.new_keys = tuple(sorted([key for key, each in zip(keys, modified, strict=True) if not each]))
        rows = zip(keys, created, new_values, strict=True)
        gone = [] if all(new_values) else sorted([(key, made) for key, made, value in rows if value is None])
        self.deleted = tuple([key for key, _ in gone])
        self.deleted_created: Sequence[int] = _column([made for _, made in gone], newest)
        self.deleted_created_min = min(self.deleted_created, default=0)

    def strip(self) -> None:
        """Free everything except `revisions`, the only column that can be read afterwards. Cost: 0.3 ms."""
        self.keys = self.new_keys = self.deleted = ()
        self.values, self.new_values = (), ()
        self.created = self.modified = self.versions = self.deleted_created = self.totals = ()
        self.leases = self.new_leases = ()
        self.first_by_key = {}


def _column(numbers: Sequence[int], greatest: int) -> array[int]:
    """Return an array of the numbers, with 4 bytes per number if `greatest` fits, and 8 otherwise. No number is above
    `greatest`."""
    if greatest > _NARROW_MAX:
        return array("Q", numbers)
    if isinstance(numbers, array) and numbers.typecode == "Q":  # 20 times as fast as `array("I", numbers)`.
        return array("I", memoryview(numbers).cast("B").cast("I")[_LOW_HALF::2].tobytes())
    return array("I", numbers)
