"""The ordered, versioned map: records, remembered deletions, and the revision.

A record is a tuple of plain values, `(value, create_revision, mod_revision, version, lease_id)`. The garbage collector
does not examine such tuples, and results and snapshots share them without a copy.

See docs/reference/specification.md#81-records-and-revisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Protocol

from kvstore.access.state import NO_ACCESS_STATE
from kvstore.limits import ITEM_OVERHEAD_BYTES, PAGE_BYTES_MAX, RECORD_OVERHEAD_BYTES
from kvstore.store.events_since import EventsSince
from kvstore.store.history import History
from kvstore.store.key_order import DeletionPlace, KeyOrder
from kvstore.store.leases import Leases
from kvstore.store.records import SLOTS, RecordItem, Records
from kvstore.store.sealed_block import MaybeRecord

RangeItem = tuple[bytes, bytes | None, int, int, int, int]
FIRST_REVISION = 1
"""The revision of a new store. The first change has revision 2."""

CHECKED_READS = 256
"""The approximate number of old records that `check` reads."""

PAST_RECORDS_MIN = 128
"""The number of records in the first portion that a page at an old revision looks up. Each later portion is twice as
large as the previous portion."""


class MapView(Protocol):
    """An open view of the map at one moment. When a record changes, the map passes the old record to the view, which
    saves the record."""

    def save(self, key: bytes, record: RecordItem) -> None:
        """Save `record`, which is about to be overwritten."""

    def save_removed(self, key: bytes, record: RecordItem) -> None:
        """Save `record`, which has just been removed."""

    def save_deletion(self, place: DeletionPlace) -> None:
        """Save a remembered deletion that the map has just dropped."""


class KeyValueMap:
    """Keys in byte order, with their records. Sessions, quotas and errors are handled by other modules.

    `deletions` maps keys to the places of their remembered deletions, in the order from the oldest to the newest. The
    revisions of these places are above `deletion_floor`. No key is in both `records` and `deletions`. `deletion_order`
    contains the same places. Unlike a dict, it can be read from any place, and shortened at its beginning.

    After changes by `place`, `take_out` and `take_out_all`, the caller must call `seal` with the changed keys. Code
    that changes `records` directly must first let the open `views` save the old records.
    """

    __slots__ = (
        "access",
        "deletion_floor",
        "deletion_order",
        "deletions",
        "history",
        "keys",
        "leases",
        "records",
        "revision",
        "stored_bytes",
        "views",
    )

    def __init__(self) -> None:
        self.records = Records()
        self.keys: KeyOrder[bytes] = KeyOrder()
        self.deletions: dict[bytes, DeletionPlace] = {}
        self.deletion_order: KeyOrder[DeletionPlace] = KeyOrder()
        self.history = History()
        self.leases = Leases()
        self.access = NO_ACCESS_STATE
        self.views: list[MapView] = []  # The open views.
        self.deletion_floor = 0
        self.revision = FIRST_REVISION
        self.stored_bytes = 0  # Σ(len(key) + len(value) + 64) over all records.

    @property
    def compact_revision(self) -> int:
        """The oldest revision that can be read, which is the present revision if no history is kept."""
        self.history.settle()
        return self.history.compact_revision if self.history.is_on else self.revision

    @property
    def first_revision(self) -> int:
        """The revision from which on all events are kept; the next revision if no event is kept."""
        self.history.settle()
        return self.history.first_revision if self.history.is_on else self.revision + 1

    def deletion_of(self, key: bytes) -> tuple[int, bool]:
        """Return (deleted_revision, exact) of an absent key; (0, True) means that the key never existed. Cost: O(1)."""
        place = self.deletions.get(key)
        if place is not None:
            return place[0], True
        return self.deletion_floor, self.deletion_floor == 0

    def place(self, key: bytes, value: bytes, revision: int, lease_id: int = 0) -> RecordItem | None:
        """Write a record at `revision`, and return the old record. Cost: O(1), or O(log n) for a new key."""
        records = self.records.part_of(key)
        old = records.get(key)
        if old is None:
            records[key] = (value, revision, revision, 1, lease_id)
            self.keys.add(key)
            self.stored_bytes += len(key) + len(value) + RECORD_OVERHEAD_BYTES
        else:
            for view in self.views:
                view.save(key, old)
            records[key] = (value, old[1], revision, old[3] + 1, lease_id)
            self.stored_bytes += len(value) - len(old[0])
        return old

    def take_out(self, key: bytes) -> RecordItem | None:
        """Remove a record. Returns the record, or None if there was none. Cost: O(log n)."""
        old = self.records.pop(key)
        if old is not None:
            for view in self.views:
                view.save_removed(key, old)
            self.keys.remove(key)
            self.stored_bytes -= len(key) + len(old[0]) + RECORD_OVERHEAD_BYTES
        return old

    def take_out_all(self, keys: Sequence[bytes]) -> dict[bytes, RecordItem | None]:
        """Remove the records of `keys`, and return these records. Every key must exist, and `keys` must ascend. Cost:
        0.5 µs for each key."""
        slots, old = self.records.slots, dict[bytes, RecordItem | None]()
        size_bytes = len(keys) * RECORD_OVERHEAD_BYTES
        for key in keys:
            record = old[key] = slots[hash(key) % SLOTS].pop(key)
            size_bytes += len(key) + len(record[0])
            for view in self.views:
                view.save_removed(key, record)
        self.keys.remove_all(keys)
        self.stored_bytes -= size_bytes
        return old

    def put_back(self, key: bytes, old: RecordItem | None) -> None:
        """Undo one call of `place` or `take_out` that returned `old`."""
        self.take_out(key)
        if old is not None:
            self.records[key] = old
            self.keys.add(key)
            self.stored_bytes += len(key) + len(old[0]) + RECORD_OVERHEAD_BYTES

    def seal(self, written: dict[bytes, RecordItem | None], revision: int, deletions_max: int) -> None:
        """Complete the change that `place` and `take_out` made at `revision`. `written` maps each changed key to its
        old record."""
        assert revision == self.revision + 1, (revision, self.revision)
        slots, deletions, places = self.records.slots, self.deletions, list[DeletionPlace]()
        afters = [slots[hash(key) % SLOTS].get(key) for key in written]
        for (key, old), record in zip(written.items(), afters, strict=True):
            if record is None:
                place = deletions[key] = (revision, len(places), key)
                places.append(place)
                if old and old[4]:
                    self.leases.move_key(key, old[4], 0)
                continue
            if old is None and key in deletions:
                self.undelete(key)
            old_lease = old[4] if old else 0
            if old_lease != record[4]:
                self.leases.move_key(key, old_lease, record[4])
        if self.history.is_on:
            self.history.extend(revision, written, afters)
        self.revision = revision
        if places:
            self.deletion_order.extend(places)
            self.forget_deletions(deletions_max)

    def remember_deletion(self, key: bytes, revision: int) -> None:
        """Add the newest deletion, while a state is loaded. No deletion of this key is remembered yet."""
        newest = next(reversed(self.deletions.values()), (0, 0, b""))
        place = self.deletions[key] = (revision, newest[1] + 1 if newest[0] == revision else 0, key)
        self.deletion_order.extend((place,))

    def undelete(self, key: bytes) -> None:
        """Remove the remembered deletion of a key that is written again. Cost: O(log n)."""
        place = self.deletions.pop(key)
        self.deletion_order.remove(place)
        for view in self.views:
            view.save_deletion(place)

    def forget_deletions(self, deletions_max: int) -> None:
        """Drop the oldest deletions until at most `deletions_max` are left, and raise the deletion floor. Deletions of
        one revision are dropped together."""
        excess = len(self.deletions) - deletions_max
        if excess <= 0:
            return
        gone: list[DeletionPlace] = []
        for place in self.deletion_order:
            if len(gone) >= excess and place[0] != self.deletion_floor:
                break
            gone.append(place)
            self.deletion_floor = place[0]
        self.deletion_order.drop_first(len(gone))
        for place in gone:
            del self.deletions[place[2]]
            for view in self.views:
                view.save_deletion(place)

    def select(self, body: Sequence[Any]) -> tuple[tuple[RangeItem, ...], bool, int]:
        """Read the page that the body of a range command requests. Returns (items, more, count).

        The page ends at `limit`, or before the item that would exceed `bytes_max`. If the range contains keys, the page
        has at least one item, so that a listing always makes progress. Cost: O(log n + items), and 50 ns for each 1,000
        keys in the range.
        """
        _, start, end, limit, reverse, keys_only, count_only, _, bytes_max = body
        keys = self.keys
        low, high = keys.place_of(start), keys.end() if end is None else keys.place_of(end)
        count = max(0, keys.count(low, high))
        if count_only or count == 0:
            return (), False, count
        budget = min(bytes_max or PAGE_BYTES_MAX, PAGE_BYTES_MAX)
        items: list[RangeItem] = []
        records = self.records
        walk = keys.walk_back(low, high) if reverse else keys.walk(low, high)
        for key in islice(walk, limit or None):
            record = records[key]
            budget -= ITEM_OVERHEAD_BYTES + len(key) + (0 if keys_only else len(record[0]))
            if budget < 0 and items:
                break
            items.append((key, None, *record[1:]) if keys_only else (key, *record))
        return tuple(items), len(items) < count, count

    def count_of(self, start: bytes, end: bytes | None) -> int:
        """Return the number of keys in a range. Cost: O(log n), and 50 ns for each 1,000 keys in the range."""
        low, high = self.keys.place_of(start), self.keys.end() if end is None else self.keys.place_of(end)
        return max(0, self.keys.count(low, high))

    def keys_of(self, start: bytes, end: bytes | None) -> list[bytes]:
        """Return the keys of a range, in order. Cost: O(log n + keys of the range)."""
        low, high = self.keys.place_of(start), self.keys.end() if end is None else self.keys.place_of(end)
        return list(self.keys.walk(low, high)) if low < high else []

    def record_at(self, key: bytes, revision: int, written: Mapping[bytes, MaybeRecord]) -> MaybeRecord:
        """Return the record of `key` at `revision`. `written`: the old records of keys whose changes are not sealed
        yet."""
        present = written[key] if key in written else self.records.get(key)
        return self.history.record_at(key, revision, present)

    def select_at(
        self, body: Sequence[Any], written: Mapping[bytes, MaybeRecord]
    ) -> tuple[tuple[RangeItem, ...], bool, int]:
        """Read a page as `select` does, at the revision in the body. `written`: as in `record_at`.

        Cost: the cost of `select`; plus 2 µs for each block of events above the revision; plus 0.4 µs for each key that
        the page skips because the key was created later; plus the cost of `EventsSince.befores` for the changed keys of
        the page.
        """
        _, start, end, limit, reverse, keys_only, count_only, revision, bytes_max = body
        since, keys, records = self.history.since(revision), self.keys, self.records
        unsealed = [(key, old) for key, old in written.items() if key >= start and (end is None or key < end)]
        count = self.count_of(start, end) - since.count_growth(start, end)
        count -= sum([(key in records) - (old is not None) for key, old in unsealed])
        if count_only or count == 0:
            return (), False, count
        low, high = keys.place_of(start), keys.end() if end is None else keys.place_of(end)
        walk = keys.walk_back(low, high) if reverse else keys.walk(low, high)
        kept = (key for key in walk if records[key][1] <= revision)
        gone = [key for key, old in unsealed if key not in records and old is not None and old[1] <= revision]
        gone.sort(reverse=reverse)
        found = merge(kept, since.deleted(start, end, reverse=reverse), gone, reverse=reverse)
        budget = min(bytes_max or PAGE_BYTES_MAX, PAGE_BYTES_MAX)
        items: list[RangeItem] = []
        items_max = min(limit or count, count)
        for key, record in self._as_they_were(islice(found, items_max), since, written):
            budget -= ITEM_OVERHEAD_BYTES + len(key) + (0 if keys_only else len(record[0]))
            if budget < 0 and items:
                break
            items.append((key, None, *record[1:]) if keys_only else (key, *record))
        return tuple(items), len(items) < count, count

    def _as_they_were(
        self, keys: Iterator[bytes], since: EventsSince, written: Mapping[bytes, MaybeRecord]
    ) -> Iterator[tuple[bytes, RecordItem]]:
        """Yield the records at the revision of `since`, for keys that existed at that revision.

        The records are looked up in portions, because the number of records in a page depends on their sizes.
        """
        portion = PAST_RECORDS_MIN
        while batch := list(islice(keys, portion)):
            portion *= 2
            sealed = [written[key] if key in written else self.records.get(key) for key in batch]
            changed = {
                key: record[2] if record and record[1] <= since.revision else 0
                for key, record in zip(batch, sealed, strict=True)
                if record is None or record[2] > since.revision
            }
            befores = since.befores(changed)
            for key, record in zip(batch, sealed, strict=True):
                then = befores[key] if key in changed else record
                assert then is not None, key
                yield key, then

    def check(self) -> None:
        """Verify every internal invariant. Raises AssertionError if an invariant is broken. Cost: O(n)."""
        self.keys.check()
        assert list(self.keys) == sorted([key for key, _ in self.records.items()])
        assert self.stored_bytes == sum(len(k) + len(r[0]) + RECORD_OVERHEAD_BYTES for k, r in self.records.items())
        for key, (_, create_revision, mod_revision, version, lease_id) in self.records.items():
            assert FIRST_REVISION < create_revision <= mod_revision <= self.revision, key
            assert 1 <= version <= mod_revision - create_revision + 1, key
            assert lease_id == 0 or lease_id in self.leases.by_id, key
        self.deletion_order.check()
        assert [(place[2], place) for place in self.deletion_order] == list(self.deletions.items())
        revisions = [place[0] for place in self.deletions.values()]
        assert revisions == sorted(revisions)
        assert all(self.deletion_floor < revision <= self.revision for revision in revisions)
        assert 0 <= self.deletion_floor <= self.revision
        assert not any(key in self.records for key in self.deletions)
        self.history.settle()
        self.history.check(self.revision)
        events = list(self.history.events(self.history.first_number, len(self.history)))
        later: dict[bytes, MaybeRecord] = {}  # Key → its record before the next event.
        for event in reversed(events):
            assert event.after == (later[event.key] if event.key in later else self.records.get(event.key)), event
            later[event.key] = event.before
        for event in events[:: 1 + len(events) // CHECKED_READS]:
            newest = self.history.record_at(event.key, event.revision, self.records.get(event.key))
            assert newest == event.after, event
        self.leases.check({key: record[4] for key, record in self.records.items() if record[4]})
