"""A block of events that never change, in columns.

The columns are tuples of atoms and arrays of numbers, which the garbage collector does not walk. They take half the
memory of two records for each event.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvstore.limits import RECORD_OVERHEAD_BYTES
from kvstore.store.records import RecordItem

BLOCK_EVENTS = 1_024
"""How many events a sealed block has. Freeing one block takes 0.2 to 0.4 ms."""

MaybeRecord = RecordItem | None

KeyChange = tuple[bytes, int, bool]
"""(key, create revision of the record before or 0, whether the event is a deletion), if it is one or a creation"""


_PLACES = tuple(range(BLOCK_EVENTS - 1, -1, -1))
ABSENT: RecordItem = (b"", 0, 0, 0, 0)
"""Stands for an absent record in the columns of a sealed block: no record has `mod_revision` 0."""


class Columns(NamedTuple):
    """Events by column. `values` to `leases` are those of the record before, or b"" and 0; `new_values` and
    `new_leases` are those of the record after, or None and 0."""

    revisions: Sequence[int]
    keys: Sequence[bytes]
    values: Sequence[bytes]
    created: Sequence[int]
    modified: Sequence[int]
    versions: Sequence[int]
    leases: Sequence[int]
    new_values: Sequence[bytes | None]
    new_leases: Sequence[int]


def columns_of(
    revisions: Sequence[int], keys: Sequence[bytes], befores: Sequence[MaybeRecord], afters: Sequence[MaybeRecord]
) -> Columns:
    """The columns of events."""
    rows = [before or ABSENT for before in befores]
    # A list for each column, not `zip(*rows)`: its thousand iterators would set off a garbage collection.
    return Columns(
        revisions,
        keys,
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [row[3] for row in rows],
        [row[4] for row in rows],
        [after[0] if after else None for after in afters],
        [after[4] if after else 0 for after in afters],
    )


class SealedBlock:
    """Consecutive events that never change. `number`: the number of the first one. `first_by_key`: key → first place.

    `totals`: for each event, the bytes that the events of the block count up to it. `base`: what all events before the
    block count. The record after an event follows from the record before, the revision, the new value and the lease.
    `created`: the keys of the creations, sorted, and `deleted` those of the deletions, with the create revisions of the
    deleted records in `deleted_created`. A block is indexed when it is sealed (0.1 ms), so that no read has to do it.
    """

    __slots__ = (
        "_created",
        "_leases",
        "_modified",
        "_new_leases",
        "_new_values",
        "_values",
        "_versions",
        "base",
        "created",
        "deleted",
        "deleted_created",
        "deleted_created_min",
        "first_by_key",
        "keys",
        "number",
        "revisions",
        "totals",
    )

    def __init__(self, number: int, base: int, columns: Columns, totals: Iterable[int]) -> None:
        self.number, self.base = number, base
        revisions, keys, values, created, modified, versions, leases, new_values, new_leases = columns
        self.revisions = _numbers(revisions)
        self.totals = _numbers([total - base for total in totals])
        self.keys = tuple(keys)
        self.first_by_key = dict(zip(reversed(self.keys), _PLACES[BLOCK_EVENTS - len(self.keys) :], strict=True))
        self._values, self._new_values = tuple(values), tuple(new_values)
        self._created, self._modified, self._versions = _numbers(created), _numbers(modified), _numbers(versions)
        has_leases = any(leases) or any(new_leases)
        self._leases = _numbers(leases) if has_leases else None
        self._new_leases = _numbers(new_leases) if has_leases else None
        self.created = tuple(sorted([keys[place] for place, revision in enumerate(modified) if not revision]))
        gone = sorted([(keys[place], created[place]) for place, value in enumerate(new_values) if value is None])
        self.deleted = tuple([key for key, _ in gone])
        self.deleted_created = _numbers([revision for _, revision in gone])
        self.deleted_created_min = min(self.deleted_created, default=0)

    def __len__(self) -> int:
        return len(self.revisions)

    def strip(self) -> None:
        """Free everything but the revisions, which are all that can be read then. This takes 0.3 ms."""
        self.keys = self.created = self.deleted = ()
        self._values, self._new_values = (), ()
        self._created = self._modified = self._versions = self.deleted_created = self.totals = _numbers(())
        self._leases = self._new_leases = None
        self.first_by_key = {}

    def before(self, place: int) -> MaybeRecord:
        """The record before an event."""
        modified = self._modified[place]
        if not modified:
            return None
        lease_id = self._leases[place] if self._leases else 0
        return (self._values[place], self._created[place], modified, self._versions[place], lease_id)

    def changes_from(self, start: int) -> list[KeyChange]:
        """The creations and deletions from a place on, in order."""
        columns = self.keys[start:], self._created[start:], self._modified[start:], self._new_values[start:]
        return [
            (key, created, value is None)
            for key, created, modified, value in zip(*columns, strict=True)
            if not modified or value is None
        ]

    def after(self, place: int) -> MaybeRecord:
        """The record after an event."""
        value = self._new_values[place]
        if value is None:
            return None
        revision, lease_id = self.revisions[place], self._new_leases[place] if self._new_leases else 0
        return (value, self._created[place] or revision, revision, self._versions[place] + 1, lease_id)


def _numbers(numbers: Sequence[int]) -> array[int]:
    """An array of counts, in 4 bytes each if they fit."""
    try:
        return array("I", numbers)
    except OverflowError:
        return array("q", numbers)


def running_totals(keys: Sequence[bytes], befores: Sequence[MaybeRecord], total: int) -> list[int]:
    """For each event, `total` and what the events up to it count towards `history_bytes_max`.

    An event counts 64, its key, and the value before. Replicated state depends on this sum, so its rule never changes.
    """
    return [
        total := total + RECORD_OVERHEAD_BYTES + len(key) + (len(before[0]) if before is not None else 0)
        for key, before in zip(keys, befores, strict=True)
    ]
