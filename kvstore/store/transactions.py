"""Operations and transactions on a store, which are carried out in order, as one atomic change.

All bodies must be valid (`protocol/validation.py`). Results are result items (`protocol/results.py`). Writes change the
store directly, so that later operations of the same transaction read them, and an error undoes all writes. The
remembered deletions and the revision change only at the end. No other code reads the store before the end.

See docs/reference/specification.md#84-transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvstore.errors import (
    InvalidRequest,
    KvError,
    LeaseNotFound,
    NotANumber,
    QuotaExceeded,
    Reason,
    ResponseTooLarge,
    RevisionAhead,
    RevisionCompacted,
)
from kvstore.limits import COMPARE_KEYS_MAX, ITEM_OVERHEAD_BYTES, RESPONSE_BYTES_MAX, StoreLimits
from kvstore.protocol.commands import CommandKind, Comparison, PutFlag, Target
from kvstore.protocol.results import PUT_DONE, ResultItem, refusal_item
from kvstore.protocol.validation import APPENDED_BYTES
from kvstore.store.map import KeyValueMap
from kvstore.store.records import RecordItem
from raft import INT64_MAX, INT64_MIN

NUMBER_BYTES_MAX = 20
"""The length of the longest decimal integer of 64 bits, with its sign."""

_DELETED = (3, True)
_SET = (5, True)


def put(store: KeyValueMap, key: bytes, value: bytes, limits: StoreLimits) -> ResultItem:
    """Write one record, with the result of `run`, but faster for a single put. Cost: O(1), or O(log n) for a new
    key."""
    revision, bytes_before = store.revision + 1, store.stored_bytes
    old = store.place(key, value, revision)
    if bytes_before < store.stored_bytes > limits.quota_bytes:
        error = QuotaExceeded(store.stored_bytes, limits.quota_bytes)
        store.put_back(key, old)
        return refusal_item(error, store.revision)
    if old is None:
        if key in store.deletions:
            store.undelete(key)
    elif old[4]:
        store.leases.move_key(key, old[4], 0)
    store.revision = revision
    if store.history.is_on:
        store.history.append(revision, key, old, store.records[key])
    return (0, revision, PUT_DONE)


def compare_and_set(store: KeyValueMap, body: Sequence[Any], limits: StoreLimits) -> ResultItem:
    """Write the value if the key has the expected state. Otherwise return the present record or the deletion of the
    key."""
    _, key, value, expected = body
    target = Target.MOD_REVISION if type(expected) is int else Target.VALUE
    if not holds(store.records.get(key), (target, Comparison.EQUAL, key, expected)):
        return (0, store.revision, (5, False, *_Branch(store, limits).seen(key)))
    result = put(store, key, value, limits)
    return (0, result[1], _SET) if result[0] == 0 else result


def txn(store: KeyValueMap, body: Sequence[Any], limits: StoreLimits) -> ResultItem:
    """Evaluate the comparisons and run the branch that they select."""
    try:
        path = choose(store, body)
        results = run(store, path.operations, limits)
    except KvError as error:
        return refusal_item(error, store.revision)
    return (0, store.revision, (6, path.succeeded, results))


class Path(NamedTuple):
    """The path that the comparisons of a transaction have chosen. `operations`: the operations of the chosen branch, in
    which a path replaces each inner transaction."""

    succeeded: bool
    operations: Sequence[Sequence[Any] | Path]


def choose(store: KeyValueMap, body: Sequence[Any]) -> Path:
    """Evaluate the comparisons of a transaction, and of the inner transactions on the chosen path.

    Raises InvalidRequest if the ranges in the comparisons have too many keys.
    """
    return _Choice(store).path_of(body)


class _Choice:
    """The evaluation of comparisons, with the number of keys in their ranges so far."""

    def __init__(self, store: KeyValueMap) -> None:
        self._store = store
        self._keys = 0

    def path_of(self, body: Sequence[Any]) -> Path:
        _, compares, success, failure = body
        succeeded = all(self._holds(compare) for compare in compares)
        branch = success if succeeded else failure
        return Path(succeeded, [self.path_of(each) if each[0] == CommandKind.TXN else each for each in branch])

    def _holds(self, compare: Sequence[Any]) -> bool:
        store = self._store
        if len(compare) == 4 or compare[4] == b"":
            return holds(store.records.get(compare[2]), compare)
        self._keys += store.count_of(compare[2], compare[4])
        if self._keys > COMPARE_KEYS_MAX:
            raise InvalidRequest(Reason.TOO_MANY_KEYS, self._keys, COMPARE_KEYS_MAX)
        keys = store.keys_of(compare[2], compare[4])
        return all(holds(store.records[key], compare) for key in keys) if keys else holds(None, compare)


def operation(store: KeyValueMap, body: Sequence[Any], limits: StoreLimits) -> ResultItem:
    """Carry out a single operation, as one change."""
    try:
        (result,) = run(store, (body,), limits)
    except KvError as error:
        return refusal_item(error, store.revision)
    return (0, store.revision, result)


def holds(record: RecordItem | None, compare: Sequence[Any]) -> bool:
    """Evaluate a comparison for one key. The numbers of an absent key are 0. Every comparison with the value of an
    absent key is false."""
    target, comparison, operand = compare[0], compare[1], compare[3]
    if target == Target.VALUE:
        if record is None:
            return False
        seen: Any = record[0]
    elif record is None:
        seen = 0
    else:
        seen = record[_PLACES[target]]
    if comparison == Comparison.EQUAL:
        return bool(seen == operand)
    if comparison == Comparison.NOT_EQUAL:
        return bool(seen != operand)
    return bool(seen < operand if comparison == Comparison.LESS else seen > operand)


_PLACES = {Target.CREATE_REVISION: 1, Target.MOD_REVISION: 2, Target.VERSION: 3, Target.LEASE: 4}


def run(store: KeyValueMap, operations: Sequence[Sequence[Any] | Path], limits: StoreLimits) -> tuple[ResultItem, ...]:
    """Carry out operations as one change. If this raises a KvError, the store is unchanged.

    The revision is increased by one if a record was written or removed. Raises QuotaExceeded if the stored bytes have
    grown and exceed the quota.
    """
    branch, bytes_before = _Branch(store, limits), store.stored_bytes
    try:
        results = branch.carry_out_all(operations)
        if bytes_before < store.stored_bytes > limits.quota_bytes:
            raise QuotaExceeded(store.stored_bytes, limits.quota_bytes)
    except KvError:
        branch.take_back()
        raise
    if branch.written:
        store.seal(branch.written, branch.revision, limits.deletions_max)
    return results


class _Branch:
    """The execution of operations. Stores the writes so far, and the number of bytes that the remaining results may
    have."""

    def __init__(self, store: KeyValueMap, limits: StoreLimits) -> None:
        self.store = store
        # The revision of the writes. Reads before the first write have the old revision.
        self.revision = store.revision + 1
        self.written: dict[bytes, RecordItem | None] = {}  # Key → its old record. No key is written twice.
        self._budget = RESPONSE_BYTES_MAX
        self._delete_keys_max = limits.delete_keys_max
        self._range_keys = 0  # The number of keys in the deleted ranges so far.

    def carry_out_all(self, operations: Sequence[Sequence[Any] | Path]) -> tuple[ResultItem, ...]:
        """Carry out operations and inner transactions in order. Returns the bodies of their results."""
        results: list[ResultItem] = []
        for each in operations:
            if isinstance(each, Path):
                self._spend(0)
                results.append((6, each.succeeded, self.carry_out_all(each.operations)))
            else:
                results.append(self.carry_out(each))
        return tuple(results)

    def carry_out(self, body: Sequence[Any]) -> ResultItem:
        """Carry out one operation. Returns the body of its result."""
        kind = body[0]
        if kind == CommandKind.PUT:
            if len(body) > 3:
                return self._put_with_options(body)
            self._spend(0)
            self._write(body[1], body[2], 0)
            return PUT_DONE
        if kind == CommandKind.GET:
            seen = self._seen_at(body[1], body[2]) if len(body) > 2 and body[2] else self.seen(body[1])
            self._spend(len(seen[0][0]) if seen[0] is not None else 0)
            return (2, *seen)
        if kind == CommandKind.DELETE:
            self._spend(0)
            return self._delete(body[1])
        if kind == CommandKind.RANGE:
            return self._range(body)
        if kind == CommandKind.DELETE_RANGE:
            return self._delete_range(body)
        if kind == CommandKind.APPEND:
            return self._append(body)
        assert kind == CommandKind.ADD, body
        return self._add(body)

    def seen(self, key: bytes) -> tuple[Any, ...]:
        """Return `(record,)` if the key exists, and `(None, deleted_revision, exact)` if it is absent."""
        record = self.store.records.get(key)
        if record is not None:
            return (record,)
        if key in self.written:
            return (None, self.revision, True)  # This transaction has deleted the key.
        return (None, *self.store.deletion_of(key))

    def _write(self, key: bytes, value: bytes, lease_id: int) -> None:
        """Write a record. A key can be written twice only if an append makes the same key, because validation has
        refused all other cases."""
        if key in self.written:
            raise InvalidRequest(Reason.KEY_WRITTEN_TWICE)
        self.written[key] = self.store.place(key, value, self.revision, lease_id)

    def take_back(self) -> None:
        """Undo everything written so far."""
        for key, old in self.written.items():
            self.store.put_back(key, old)
        self.written.clear()

    def _put_with_options(self, body: Sequence[Any]) -> ResultItem:
        _, key, value, lease_id, flags = body
        old = self.store.records.get(key)
        if old is None and flags & (PutFlag.KEEP_VALUE | PutFlag.KEEP_LEASE):
            raise InvalidRequest(Reason.KEY_NOT_FOUND)
        if old is not None:
            value = old[0] if flags & PutFlag.KEEP_VALUE else value
            lease_id = old[4] if flags & PutFlag.KEEP_LEASE else lease_id
        self._check_lease(lease_id, key)
        returns_old = bool(flags & PutFlag.PREVIOUS)
        self._spend(len(old[0]) if returns_old and old is not None else 0)
        self._write(key, value, lease_id)
        return (1, old) if returns_old else PUT_DONE

    def _append(self, body: Sequence[Any]) -> ResultItem:
        _, prefix, value, lease_id = body
        key = prefix + self.revision.to_bytes(APPENDED_BYTES, "big")
        self._check_lease(lease_id, key)
        self._spend(len(key))
        self._write(key, value, lease_id)
        return (9, key)

    def _add(self, body: Sequence[Any]) -> ResultItem:
        _, key, delta = body
        old = self.store.records.get(key)
        number = (0 if old is None else _number_of(key, old[0])) + delta
        if not INT64_MIN <= number <= INT64_MAX:
            raise NotANumber(key)
        self._spend(0)
        self._write(key, b"%d" % number, old[4] if old is not None else 0)
        return (10, number)

    def _check_lease(self, lease_id: int, key: bytes) -> None:
        """Check that `key` may be attached to the lease. A `lease_id` of 0 means no lease. A transaction may exceed the
        bound, because the keys that it attaches are not counted."""
        if not lease_id:
            return
        lease = self.store.leases.by_id.get(lease_id)
        if lease is None:
            raise LeaseNotFound(lease_id)
        if len(lease.keys) >= self._delete_keys_max and key not in lease.keys:
            raise InvalidRequest(Reason.LEASE_IS_FULL, len(lease.keys), self._delete_keys_max)

    def _delete(self, key: bytes) -> ResultItem:
        is_written = key in self.written
        if key not in self.store.records:
            return (3, False, *((self.revision, True) if is_written else self.store.deletion_of(key)))
        if is_written:  # An append has written the key.
            raise InvalidRequest(Reason.KEY_WRITTEN_TWICE)
        self.written[key] = self.store.take_out(key)
        return _DELETED

    def _delete_range(self, body: Sequence[Any]) -> ResultItem:
        _, start, end, returns_old = body
        self._range_keys += self.store.count_of(start, end)
        if self._range_keys > self._delete_keys_max:
            raise InvalidRequest(Reason.TOO_MANY_KEYS, self._range_keys, self._delete_keys_max)
        keys = self.store.keys_of(start, end)
        if not self.written.keys().isdisjoint(keys):  # An append has written one of the keys in the range.
            raise InvalidRequest(Reason.KEY_WRITTEN_TWICE)
        items: list[tuple[Any, ...]] = []
        self._spend(0)
        if returns_old:
            for key in keys:
                old = self.store.records[key]
                self._spend(len(key) + len(old[0]))
                items.append((key, *old))
        self.written |= self.store.take_out_all(keys)
        return (7, len(keys), tuple(items)) if returns_old else (7, len(keys))

    def _seen_at(self, key: bytes, revision: int) -> tuple[Any, ...]:
        """Read a key at `revision`. Returns `(None, revision, False)` if the key was absent at that older revision."""
        if not self._is_older(revision):
            return self.seen(key)
        record = self.store.record_at(key, revision, self.written)
        return (record,) if record is not None else (None, revision, False)

    def _is_older(self, revision: int) -> bool:
        """True if `revision` is older than the present revision. Raises RevisionAhead, RevisionCompacted."""
        store = self.store
        now = self.revision if self.written else store.revision
        if revision > now:
            raise RevisionAhead(revision, now)
        if revision in (0, now):
            return False
        store.history.settle()  # Updates `compact_revision`.
        if not store.history.is_on or revision < store.compact_revision:
            raise RevisionCompacted(revision, store.compact_revision if store.history.is_on else now)
        return True

    def _range(self, body: Sequence[Any]) -> ResultItem:
        """Read a page at the revision in `body`."""
        select = self.store.select_at(body, self.written) if self._is_older(body[7]) else self.store.select(body)
        items, more, count = select
        self._spend(sum([ITEM_OVERHEAD_BYTES + len(item[0]) + len(item[1] or b"") for item in items]))
        return (4, items, more, count)

    def _spend(self, size_bytes: int) -> None:
        self._budget -= ITEM_OVERHEAD_BYTES + size_bytes
        if self._budget < 0:
            raise ResponseTooLarge(RESPONSE_BYTES_MAX)


def _number_of(key: bytes, value: bytes) -> int:
    """Return the number that `value` contains as decimal text. Raises NotANumber."""
    if len(value) <= NUMBER_BYTES_MAX and (value[1:] if value[:1] == b"-" else value).isdigit():
        return int(value)
    raise NotANumber(key)
