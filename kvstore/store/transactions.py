"""Operations and transactions carried out on a store: in order, as one change, all or nothing.

Every function takes a valid body (`protocol/validation.py`) and returns a result item
(`protocol/results.py`). Writes go straight into the store, where later operations see them; an error undoes
them. The remembered deletions and the revision change only at the end; nothing else reads the store before that.

See docs/reference/specification.md#84-transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstore.errors import KvError, QuotaExceeded, ResponseTooLarge, RevisionAhead, RevisionCompacted
from kvstore.limits import ITEM_OVERHEAD_BYTES, RESPONSE_BYTES_MAX, StoreLimits
from kvstore.protocol.commands import CommandKind, Comparison, Target
from kvstore.protocol.results import PUT_DONE, ResultItem, refusal_item
from kvstore.store.map import KeyValueMap
from kvstore.store.records import RecordItem

_DELETED = (3, True)
_SET = (5, True)


def put(store: KeyValueMap, key: bytes, value: bytes, limits: StoreLimits) -> ResultItem:
    """Write one record: a faster `run` for a single put. Cost: O(1), or O(log n) for a new key."""
    revision, bytes_before = store.revision + 1, store.stored_bytes
    old = store.place(key, value, revision)
    if bytes_before < store.stored_bytes > limits.quota_bytes:
        error = QuotaExceeded(store.stored_bytes, limits.quota_bytes)
        store.put_back(key, old)
        return refusal_item(error, store.revision)
    if old is None and key in store.deletions:
        store.undelete(key)
    store.revision = revision
    return (0, revision, PUT_DONE)


def compare_and_set(store: KeyValueMap, body: Sequence[Any], limits: StoreLimits) -> ResultItem:
    """Write if the key is as expected, else return its present record or deletion."""
    _, key, value, expected = body
    target = Target.MOD_REVISION if type(expected) is int else Target.VALUE
    if not holds(store, (target, Comparison.EQUAL, key, expected)):
        return (0, store.revision, (5, False, *_Branch(store).seen(key)))
    result = put(store, key, value, limits)
    return (0, result[1], _SET) if result[0] == 0 else result


def txn(store: KeyValueMap, body: Sequence[Any], limits: StoreLimits) -> ResultItem:
    """Evaluate the comparisons and run the branch that they select."""
    _, compares, success, failure = body
    succeeded = all(holds(store, compare) for compare in compares)
    try:
        results = run(store, success if succeeded else failure, limits)
    except KvError as error:
        return refusal_item(error, store.revision)
    return (0, store.revision, (6, succeeded, results))


def operation(store: KeyValueMap, body: Sequence[Any], limits: StoreLimits) -> ResultItem:
    """Carry out one put, get, delete or range."""
    try:
        (result,) = run(store, (body,), limits)
    except KvError as error:
        return refusal_item(error, store.revision)
    return (0, store.revision, result)


def holds(store: KeyValueMap, compare: Sequence[Any]) -> bool:
    """Evaluate one comparison. For an absent key the numbers are 0, and any comparison with the value is false."""
    target, comparison, key, operand = compare
    record = store.records.get(key)
    if target == Target.VALUE:
        if record is None:
            return False
        seen: Any = record[0]
    elif record is None:
        seen = 0
    else:
        seen = record[{Target.CREATE_REVISION: 1, Target.MOD_REVISION: 2, Target.VERSION: 3}[target]]
    if comparison == Comparison.EQUAL:
        return bool(seen == operand)
    if comparison == Comparison.NOT_EQUAL:
        return bool(seen != operand)
    return bool(seen < operand if comparison == Comparison.LESS else seen > operand)


def run(store: KeyValueMap, operations: Sequence[Sequence[Any]], limits: StoreLimits) -> tuple[ResultItem, ...]:
    """Carry out operations as one change. On any KvError the store is unchanged.

    The revision rises by one if a record was written or removed. Raises QuotaExceeded if the stored bytes have grown
    and are above the quota.
    """
    branch, bytes_before = _Branch(store), store.stored_bytes
    try:
        results = tuple([branch.carry_out(body) for body in operations])
        if bytes_before < store.stored_bytes > limits.quota_bytes:
            raise QuotaExceeded(store.stored_bytes, limits.quota_bytes)
    except KvError:
        branch.take_back()
        raise
    if branch.written:
        store.seal(branch.written, branch.revision, limits.deletions_max)
    return results


class _Branch:
    """Operations being carried out: their writes so far, and how many bytes the remaining results may have."""

    def __init__(self, store: KeyValueMap) -> None:
        self.store = store
        self.revision = (
            store.revision + 1
        )  # The revision of the writes; reads before the first write are at the old revision.
        self.written: dict[bytes, RecordItem | None] = {}  # By key: the old record. No key is written twice.
        self._budget = RESPONSE_BYTES_MAX

    def carry_out(self, body: Sequence[Any]) -> ResultItem:
        """Carry out one operation; returns the body of its result."""
        kind = body[0]
        if kind == CommandKind.PUT:
            self._spend(0)
            self.written[body[1]] = self.store.place(body[1], body[2], self.revision)
            return PUT_DONE
        if kind == CommandKind.GET:
            seen = self.seen(body[1])
            self._spend(len(seen[0][0]) if seen[0] is not None else 0)
            return (2, *seen)
        if kind == CommandKind.DELETE:
            self._spend(0)
            return self._delete(body[1])
        assert kind == CommandKind.RANGE, body
        return self._range(body)

    def seen(self, key: bytes) -> tuple[Any, ...]:
        """`(record,)`, or `(None, deleted_revision, exact)` of an absent key."""
        record = self.store.records.get(key)
        if record is not None:
            return (record,)
        if key in self.written:
            return (None, self.revision, True)  # This transaction has deleted it.
        return (None, *self.store.deletion_of(key))

    def take_back(self) -> None:
        """Undo everything written so far."""
        for key, old in self.written.items():
            self.store.put_back(key, old)
        self.written.clear()

    def _delete(self, key: bytes) -> ResultItem:
        old = self.store.take_out(key)
        if old is None:
            return (3, False, *self.store.deletion_of(key))
        self.written[key] = old
        return _DELETED

    def _range(self, body: Sequence[Any]) -> ResultItem:
        """Read a page. No history is kept, so only the present revision can be read."""
        asked, now = body[7], self.revision if self.written else self.store.revision
        if asked > now:
            raise RevisionAhead(asked, now)
        if 0 < asked < now:
            raise RevisionCompacted(asked, now)
        items, more, count = self.store.select(body)
        self._spend(sum([ITEM_OVERHEAD_BYTES + len(item[0]) + len(item[1] or b"") for item in items]))
        return (4, items, more, count)

    def _spend(self, size_bytes: int) -> None:
        self._budget -= ITEM_OVERHEAD_BYTES + size_bytes
        if self._budget < 0:
            raise ResponseTooLarge(RESPONSE_BYTES_MAX)
