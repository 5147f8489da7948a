"""Blocks of events, in columns: the open block, which grows, and sealed blocks, which never change.

The columns of a sealed block are tuples of atoms and arrays of numbers, which the garbage collector does not walk. They
take half the memory that two records for each event would take.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from operator import add
from typing import Any

from kvstore.limits import MIB, RECORD_OVERHEAD_BYTES
from kvstore.store.records import RecordItem

BLOCK_EVENTS = 1_024
"""The greatest number of events of a block. Freeing one block takes 0.2 to 0.4 ms."""

MaybeRecord = RecordItem | None

KeyChange = tuple[bytes, int, bool]
"""A creation or a deletion: (key, create revision of the deleted record or 0, whether it is a deletion)"""


_PLACES = tuple(range(BLOCK_EVENTS))
ABSENT: RecordItem = (b"", 0, 0, 0, 0)
"""Stands for an absent record in the columns: no record has `mod_revision` 0."""

BLOCK_BYTES = 4 * MIB
"""A block is sealed early once its events count this many bytes. A block keeps all its values until its last event is
dropped, so with large values blocks of 1,024 events would take many times `history_bytes_max`."""

FEW_EVENTS = 6
"""Up to this many events are added one by one, which takes half as long for them as arranging them in columns."""

_NARROW_MAX = 2**32 - 1
"""The greatest number in an array with 4 bytes for each."""

PORTION_EVENTS = 256
"""How many events are arranged in columns at once: so few that they fit in the processor's cache."""

RecordAfter = RecordItem | tuple[None, int, int, int, int]
"""The record after an event, or the tombstone of a deletion."""


def tombstone(revision: int) -> RecordAfter:
    """Stands for the missing record after a deletion: like a record of this `mod_revision` without a value."""
    return (None, 0, revision, 0, 0)


class EventColumns:
    """Events by column. `values` to `leases` are the fields of the record before; a creation has b"" and zeros.
    `new_values` and `new_leases` are fields of the record after; a deletion has None and 0. If `leases` is None, no
    record has a lease.

    The record after an event is not stored: it follows from the record before, the revision, the new value and the new
    lease.
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
        leases: Sequence[int] | None,
        new_values: Sequence[bytes | None],
        new_leases: Sequence[int] | None,
    ) -> None:
        self.revisions, self.keys = revisions, keys
        self.values, self.created, self.modified, self.versions = values, created, modified, versions
        self.leases, self.new_values, self.new_leases = leases, new_values, new_leases

    def __len__(self) -> int:
        return len(self.revisions)

    def before(self, place: int) -> MaybeRecord:
        """The record before an event."""
        modified = self.modified[place]
        if not modified:
            return None
        lease_id = self.leases[place] if self.leases else 0
        return (self.values[place], self.created[place], modified, self.versions[place], lease_id)

    def after(self, place: int) -> MaybeRecord:
        """The record after an event."""
        value = self.new_values[place]
        if value is None:
            return None
        revision, lease_id = self.revisions[place], self.new_leases[place] if self.new_leases else 0
        return (value, self.created[place] or revision, revision, self.versions[place] + 1, lease_id)

    def befores(self, start: int) -> list[MaybeRecord]:
        """The records before the events from the place `start` on. Cost: 0.1 µs each."""
        leases: Iterable[int] = self.leases[start:] if self.leases else repeat(0)
        columns = self.values[start:], self.created[start:], self.modified[start:], self.versions[start:], leases
        return [record if record[2] else None for record in zip(*columns, strict=False)]

    def changes_from(self, start: int) -> list[KeyChange]:
        """The creations and deletions from the place `start` on, in order."""
        columns = self.keys[start:], self.created[start:], self.modified[start:], self.new_values[start:]
        return [
            (key, created, value is None)
            for key, created, modified, value in zip(*columns, strict=True)
            if not modified or value is None
        ]


class OpenBlock(EventColumns):
    """The newest events. Everything that a sealed block needs is made when an event is added, because at that time the
    event is still in the processor's cache.

    `totals`: for each event, how many bytes the events up to and including this event count. `first_by_key`: key → the
    place of its first event. `new_keys`: the keys of the creations. `gone`: the keys and create revisions of the
    deletions.
    """

    __slots__ = ("_is_plain", "first_by_key", "gone", "new_keys", "totals")

    revisions: array[int]
    keys: list[bytes]
    values: list[bytes]
    created: array[int]
    modified: array[int]
    versions: array[int]
    leases: array[int] | None
    new_values: list[bytes | None]
    new_leases: array[int] | None

    def __init__(self) -> None:
        super().__init__(array("I"), [], [], array("I"), array("I"), array("I"), None, [], None)
        self.totals = array("I")
        self.first_by_key: dict[bytes, int] = {}
        self.new_keys: list[bytes] = []
        self.gone: list[tuple[bytes, int]] = []
        self._is_plain = True  # No lease so far, and 4 bytes for each number.

    def add(
        self,
        keys: list[bytes],
        befores: Sequence[MaybeRecord],
        afters: Sequence[RecordAfter],
    ) -> None:
        """Add the newest events. The block has room for them."""
        if len(keys) <= FEW_EVENTS:
            for row in zip(keys, befores, afters, strict=True):
                self._add_one(*row)
            return
        # Not `zip(*befores)`: its iterators, one for each event, would set off a garbage collection.
        old, new = list[Any](), list[Any]()
        for before in befores:
            old += before or ABSENT
        for after in afters:
            new += after
        self.add_columns(new[2::5], keys, old[::5], old[1::5], old[2::5], old[3::5], old[4::5], new[::5], new[4::5])

    def _add_one(self, key: bytes, before: MaybeRecord, after: RecordAfter) -> None:
        value, created, modified, version, lease_id = before or ABSENT
        new_value, _, revision, _, new_lease_id = after
        place = len(self.keys)
        total = (self.totals[-1] if place else 0) + RECORD_OVERHEAD_BYTES + len(key) + len(value)
        if lease_id or new_lease_id or not self._is_plain or max(revision, total, version) > _NARROW_MAX:
            before_columns = [value], [created], [modified], [version], [lease_id]
            self.add_columns([revision], [key], *before_columns, [new_value], [new_lease_id])
            return
        self.revisions.append(revision)
        self.keys.append(key)
        self.values.append(value)
        self.created.append(created)
        self.modified.append(modified)
        self.versions.append(version)
        self.new_values.append(new_value)
        self.totals.append(total)
        self.first_by_key.setdefault(key, place)
        if not modified:
            self.new_keys.append(key)
        if new_value is None:
            self.gone.append((key, created))

    def add_columns(
        self,
        revisions: list[int],
        keys: list[bytes],
        values: list[bytes],
        created: list[int],
        modified: list[int],
        versions: list[int],
        leases: list[int],
        new_values: list[bytes | None],
        new_leases: list[int],
    ) -> None:
        """Add the newest events, given by column. The block has room for them."""
        place = len(self.keys)
        if any(leases) or any(new_leases) or self.leases is not None or self.new_leases is not None:
            self.leases = _extended(self.leases or array("I", bytes(4 * place)), leases)
            self.new_leases = _extended(self.new_leases or array("I", bytes(4 * place)), new_leases)
        self.revisions = _extended(self.revisions, revisions)
        self.created = _extended(self.created, created)
        self.modified = _extended(self.modified, modified)
        self.versions = _extended(self.versions, versions)
        counted = map(add, map(add, map(len, keys), map(len, values)), repeat(RECORD_OVERHEAD_BYTES))
        totals = accumulate(counted, initial=self.totals[-1] if place else 0)
        self.totals = _extended(self.totals, list(totals)[1:])
        self.keys += keys
        self.values += values
        self.new_values += new_values
        deque(map(self.first_by_key.setdefault, keys, _PLACES[place:]), maxlen=0)
        # For overwrites only, `all` takes half the time of a loop that finds no key.
        if not all(modified):
            self.new_keys += [key for key, revision in zip(keys, modified, strict=True) if not revision]
        if not all(new_values):
            rows = zip(keys, created, new_values, strict=True)
            self.gone += [(key, revision) for key, revision, value in rows if value is None]
        arrays = self.revisions, self.created, self.modified, self.versions, self.totals
        self._is_plain = self.leases is None and all(each.typecode == "I" for each in arrays)


class SealedBlock(EventColumns):
    """Consecutive events that never change. `number`: the number of the first event.

    `totals`: for each event, how many bytes the events of the block count, up to and including this event. `base`: how
    many bytes all events before the block count.

    Four indexes are complete when the block is sealed, so that no read has to build them. `first_by_key`: key → the
    place of its first event. `new_keys`: the keys of the creations, sorted. `deleted`: the keys of the deletions,
    sorted. `deleted_created`: the create revisions of the deleted records, in the order of `deleted`.
    """

    __slots__ = (
        "base",
        "deleted",
        "deleted_created",
        "deleted_created_min",
        "first_by_key",
        "new_keys",
        "number",
        "totals",
    )

    def __init__(self, number: int, base: int, opened: OpenBlock) -> None:
        """Take over the events of a block to which nothing will be added."""
        super().__init__(
            opened.revisions,
            tuple(opened.keys),
            tuple(opened.values),
            opened.created,
            opened.modified,
            opened.versions,
            opened.leases,
            tuple(opened.new_values),
            opened.new_leases,
        )
        self.number, self.base = number, base
        self.totals: Sequence[int] = opened.totals
        self.first_by_key = opened.first_by_key
        self.new_keys = tuple(sorted(opened.new_keys))
        gone = sorted(opened.gone)
        self.deleted = tuple([key for key, _ in gone])
        self.deleted_created: Sequence[int] = _extended(array("I"), [revision for _, revision in gone])
        self.deleted_created_min = min(self.deleted_created, default=0)

    def strip(self) -> None:
        """Free everything except `revisions`; nothing else can be read afterwards. This takes 0.3 ms."""
        self.keys = self.new_keys = self.deleted = ()
        self.values, self.new_values = (), ()
        self.created = self.modified = self.versions = self.deleted_created = self.totals = ()
        self.leases = self.new_leases = None
        self.first_by_key = {}


def _extended(numbers: array[int], added: list[int]) -> array[int]:
    """`numbers` with `added` at its end. Each number has 4 bytes if all of them fit, and 8 otherwise."""
    try:
        numbers.fromlist(added)
    except OverflowError:
        numbers = array("q", numbers)
        numbers.fromlist(added)
    return numbers
