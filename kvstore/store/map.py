"""The ordered, versioned map: records, remembered deletions, and the revision.

A record is a plain tuple of atoms, `(value, create_revision, mod_revision, version, lease_id)`: the garbage collector
does not walk such tuples, and results and snapshots share them without a copy.

See docs/reference/specification.md#81-records-and-revisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Protocol

from sortedcontainers import SortedList

from kvstore.limits import ITEM_OVERHEAD_BYTES, PAGE_BYTES_MAX, RECORD_OVERHEAD_BYTES
from kvstore.store.history import History, MaybeRecord
from kvstore.store.key_order import KeyOrder
from kvstore.store.leases import Leases
from kvstore.store.records import RecordItem, Records

RangeItem = tuple[bytes, bytes | None, int, int, int, int]
DeletionPlace = tuple[int, int, bytes]
"""(deleted_revision, number of the deletion within that revision, key). Sorted places are in the order of deletion."""

FIRST_REVISION = 1
"""The revision of the empty store; the first change makes it 2."""


class MapView(Protocol):
    """An open view of the map as it was at one moment. When a record changes, the map passes the old record to the
    view, which saves it."""

    def save(self, key: bytes, record: RecordItem) -> None:
        """Save `record`, which is about to be overwritten."""

    def save_removed(self, key: bytes, record: RecordItem) -> None:
        """Save `record`, which has just been removed."""

    def save_deletion(self, place: DeletionPlace) -> None:
        """Save a remembered deletion that the map has just forgotten."""


class KeyValueMap:
    """Keys in byte order, with their records. Sessions, quotas and errors are handled by other modules.

    `deletions` maps a key to the revision of its remembered deletion, oldest first, all above `deletion_floor`; no key
    is in both `records` and `deletions`. `deletion_order` has the places of the deletions: unlike a dict, it can be
    read from any place and shortened at its front. Changes by `place` and `take_out` must be followed by a `seal` with
    the keys written. Before any other change of `records`, the open `views` must save the old records.
    """

    __slots__ = (
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
        self.keys = KeyOrder()
        self.deletions: dict[bytes, int] = {}
        self.deletion_order: SortedList[DeletionPlace] = SortedList()
        self.history = History()
        self.leases = Leases()
        self.views: list[MapView] = []  # The open views.
        self.deletion_floor = 0
        self.revision = FIRST_REVISION
        self.stored_bytes = 0  # Σ(len(key) + len(value) + 64) over all records.

    @property
    def compact_revision(self) -> int:
        """The oldest revision that can be read; the present one if no history is kept."""
        return self.history.compact_revision if self.history.is_on else self.revision

    @property
    def first_revision(self) -> int:
        """Every event from this revision on is kept. It is above the present revision if there are none."""
        return self.history.first_revision if self.history.is_on else self.revision + 1

    def deletion_of(self, key: bytes) -> tuple[int, bool]:
        """(deleted_revision, exact) of an absent key; (0, True) means that the key was never there. Cost: O(1)."""
        revision = self.deletions.get(key)
        if revision is not None:
            return revision, True
        return self.deletion_floor, self.deletion_floor == 0

    def place(self, key: bytes, value: bytes, revision: int, lease_id: int = 0) -> RecordItem | None:
        """Write a record at `revision`; return the old record. Cost: O(1), or O(log n) for a new key."""
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
        """Remove a record; returns it, or None if there was none. Cost: O(log n)."""
        old = self.records.pop(key)
        if old is not None:
            for view in self.views:
                view.save_removed(key, old)
            self.keys.remove(key)
            self.stored_bytes -= len(key) + len(old[0]) + RECORD_OVERHEAD_BYTES
        return old

    def put_back(self, key: bytes, old: RecordItem | None) -> None:
        """Undo one `place` or `take_out`, which returned `old`."""
        self.take_out(key)
        if old is not None:
            self.records[key] = old
            self.keys.add(key)
            self.stored_bytes += len(key) + len(old[0]) + RECORD_OVERHEAD_BYTES

    def seal(self, written: dict[bytes, RecordItem | None], revision: int, deletions_max: int) -> None:
        """Complete the change that `place` and `take_out` made at `revision`. `written`: each changed key with its old
        record."""
        assert revision == self.revision + 1, (revision, self.revision)
        history = self.history
        for key, old in written.items():
            record = self.records.get(key)
            if record is None:
                self.remember_deletion(key, revision)
            elif old is None and key in self.deletions:
                self.undelete(key)
            old_lease, new_lease = old[4] if old else 0, record[4] if record else 0
            if old_lease != new_lease:
                self.leases.move_key(key, old_lease, new_lease)
            if history.is_on:
                history.append(revision, key, old, record)
        self.revision = revision
        self.forget_deletions(deletions_max)

    def remember_deletion(self, key: bytes, revision: int) -> None:
        """Add the newest deletion. No deletion of this key is remembered yet. Cost: O(log n)."""
        order, number = self.deletion_order, 0
        if order and order[-1][0] == revision:
            number = order[-1][1] + 1
        self.deletions[key] = revision
        order.add((revision, number, key))

    def undelete(self, key: bytes) -> None:
        """Forget the deletion of a key that is written again. Cost: O(log n + deletions of its revision)."""
        places = self.deletion_order.irange((self.deletions.pop(key), 0, b""))
        place = next(place for place in places if place[2] == key)
        self.deletion_order.remove(place)
        for view in self.views:
            view.save_deletion(place)

    def forget_deletions(self, deletions_max: int) -> None:
        """Forget the oldest deletions until at most `deletions_max` are left, and raise the deletion floor. Deletions
        of one revision are forgotten together."""
        order = self.deletion_order
        if len(order) <= deletions_max:
            return
        while len(order) > deletions_max or (order and order[0][0] == self.deletion_floor):
            place = order.pop(0)
            self.deletion_floor = place[0]
            del self.deletions[place[2]]
            for view in self.views:
                view.save_deletion(place)

    def select(self, body: Sequence[Any]) -> tuple[tuple[RangeItem, ...], bool, int]:
        """Read a page for the body of a range, as (items, more, count).

        The page ends at its limit, or before the item that would exceed its bound in bytes. It has at least one item if
        there is any, so that a listing always makes progress. Cost: O(log n + items), and 50 ns for each 1,000 keys in
        the range.
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
        """How many keys a range has. Cost: O(log n), and 50 ns for each 1,000 keys in the range."""
        low, high = self.keys.place_of(start), self.keys.end() if end is None else self.keys.place_of(end)
        return max(0, self.keys.count(low, high))

    def keys_of(self, start: bytes, end: bytes | None) -> list[bytes]:
        """The keys of a range, in order. Cost: O(log n + keys of the range)."""
        low, high = self.keys.place_of(start), self.keys.end() if end is None else self.keys.place_of(end)
        return list(self.keys.walk(low, high)) if low < high else []

    def record_at(self, key: bytes, revision: int, written: Mapping[bytes, MaybeRecord]) -> MaybeRecord:
        """The record of `key` as it was at `revision`. `written`: old records of changes that are not sealed yet."""
        present = written[key] if key in written else self.records.get(key)
        return self.history.record_at(key, revision, present)

    def select_at(
        self, body: Sequence[Any], written: Mapping[bytes, MaybeRecord]
    ) -> tuple[tuple[RangeItem, ...], bool, int]:
        """Like `select`, as of the revision that the body names. `written`: as in `record_at`.

        Cost: that of `select` and of `History.changed_since`.
        """
        _, start, end, limit, reverse, keys_only, count_only, revision, bytes_max = body
        then = self.history.changed_since(revision, start, end)
        for key, old in written.items():
            if key >= start and (end is None or key < end):
                then.setdefault(key, old)
        keys, records = self.keys, self.records
        low, high = keys.place_of(start), keys.end() if end is None else keys.place_of(end)
        gone = [key for key, record in then.items() if record is not None and key not in records]
        gone.sort(reverse=reverse)
        new = sum([record is None and key in records for key, record in then.items()])
        count = max(0, keys.count(low, high)) + len(gone) - new
        if count_only or count == 0:
            return (), False, count
        budget = min(bytes_max or PAGE_BYTES_MAX, PAGE_BYTES_MAX)
        items: list[RangeItem] = []
        walk = keys.walk_back(low, high) if reverse else keys.walk(low, high)
        for key in merge(walk, gone, reverse=reverse):
            record = then[key] if key in then else records[key]
            if record is None:
                continue
            budget -= ITEM_OVERHEAD_BYTES + len(key) + (0 if keys_only else len(record[0]))
            if budget < 0 and items:
                break
            items.append((key, None, *record[1:]) if keys_only else (key, *record))
            if len(items) == limit:
                break
        return tuple(items), len(items) < count, count

    def check(self) -> None:
        """Verify every internal invariant; AssertionError if one is broken. Cost: O(n)."""
        self.keys.check()
        assert list(self.keys) == sorted([key for key, _ in self.records.items()])
        assert self.stored_bytes == sum(len(k) + len(r[0]) + RECORD_OVERHEAD_BYTES for k, r in self.records.items())
        for key, (_, create_revision, mod_revision, version, lease_id) in self.records.items():
            assert FIRST_REVISION < create_revision <= mod_revision <= self.revision, key
            assert 1 <= version <= mod_revision - create_revision + 1, key
            assert lease_id == 0 or lease_id in self.leases.by_id, key
        assert [(key, revision) for revision, _, key in self.deletion_order] == list(self.deletions.items())
        revisions = list(self.deletions.values())
        assert revisions == sorted(revisions)
        assert all(self.deletion_floor < revision <= self.revision for revision in revisions)
        assert 0 <= self.deletion_floor <= self.revision
        assert not any(key in self.records for key in self.deletions)
        self.history.check(self.revision)
        for event in self.history.events(self.history.first_number, len(self.history)):
            newest = self.history.record_at(event.key, event.revision, self.records.get(event.key))
            assert newest == event.after, event
        self.leases.check({key: record[4] for key, record in self.records.items() if record[4]})
