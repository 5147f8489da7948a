"""A transaction that is carried out only while its caller owns a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self, TypeVar

from kvstore.errors import LockLost
from kvstore.protocol.commands import (
    Compare,
    Comparison,
    Delete,
    Operation,
    Put,
    Target,
    Txn,
    checked_compares,
    checked_operations,
)
from kvstore.protocol.results import TxnResult
from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.lease import LeaseHandle
from kvstore.recipes.store import KeyStore
from kvstore.recipes.uncommitted import Alarm

ItemT = TypeVar("ItemT")


class TransactionBuilder:
    """Collects the comparisons and operations of a transaction. The operations run in order, as one change.

    If a program drops an object that has collected an operation, and that was never committed, a ResourceWarning names
    the line. (Python hides this kind of warning, unless it runs with `-X dev` or `-W default`; pytest shows it.)
    """

    def __init__(self) -> None:
        self._compares: list[Compare] = []
        self._success: list[Operation] = []
        self._failure: list[Operation] = []
        self._alarm: Alarm | None = None

    def when(self, *compares: Compare) -> Self:
        """Add comparisons. If one of them is false, the operations of `otherwise` run instead of those of `then`."""
        self._collect(self._compares, checked_compares, compares)
        return self

    def then(self, *operations: Operation) -> Self:
        """Add operations that run if all comparisons of `when` hold."""
        self._collect(self._success, partial(checked_operations, "then"), operations)
        return self

    def otherwise(self, *operations: Operation) -> Self:
        """Add operations that run if a comparison of `when` is false."""
        self._collect(self._failure, partial(checked_operations, "otherwise"), operations)
        return self

    def put(self, key: Text, value: Text, *, lease: LeaseHandle | int | None = None) -> Self:
        """Add a put."""
        with self._wrong_types_told_once():
            put = Put(as_bytes(key), as_bytes(value), lease.id if isinstance(lease, LeaseHandle) else lease or 0)
        return self.then(put)

    def delete(self, key: Text) -> Self:
        """Add a delete."""
        with self._wrong_types_told_once():
            delete = Delete(as_bytes(key))
        return self.then(delete)

    def inner(self) -> Txn:
        """The collected transaction, as an operation of a guarding transaction."""
        self._commits()
        return Txn(tuple(self._compares), tuple(self._success), tuple(self._failure))

    def _begun_by(self) -> str:
        """The call that began this transaction, for the warning."""
        return "the transaction of client.when(...)"

    def _collect(
        self, kept: list[ItemT], check: Callable[[tuple[ItemT, ...]], tuple[ItemT, ...]], items: tuple[ItemT, ...]
    ) -> None:
        with self._wrong_types_told_once():
            kept += check(items)
        if self._alarm is None and (self._success or self._failure):
            self._alarm = Alarm(self, self._begun_by(), self._compares, self._success, self._failure)

    @contextmanager
    def _wrong_types_told_once(self) -> Iterator[None]:
        """Look at what the program has given. A TypeError says enough, so no warning follows it."""
        try:
            yield
        except TypeError:
            self._commits()
            raise

    def _commits(self) -> None:
        """Note that the program has not forgotten this transaction."""
        if self._alarm is not None:
            self._alarm.disarm()


class Transaction(TransactionBuilder):
    """A transaction of a client that is built step by step."""

    def __init__(self, store: KeyStore) -> None:
        super().__init__()
        self._store = store

    async def commit(self, *, deadline_seconds: float | None = None) -> TxnResult:
        """Carry out the transaction. `succeeded` of the result is true if all comparisons of `when` held."""
        txn = self.inner()
        return await self._store.txn(txn.compares, txn.success, txn.failure, deadline_seconds=deadline_seconds)


class GuardedBuilder(TransactionBuilder):
    """Builds a transaction that the store carries out only if the create revision of `key` is `fence`. If the key was
    removed, or another program has created it again, the store does nothing."""

    def __init__(self, key: bytes, fence: int, lost: type[LockLost]) -> None:
        super().__init__()
        self._key, self._fence, self._lost = key, fence, lost

    def _begun_by(self) -> str:
        return f"the transaction of guarded(), whose guard is {self._key!r:.80},"

    def guard(self) -> Compare:
        """The comparison that holds while the caller owns the key."""
        return Compare(self._key, Target.CREATE_REVISION, Comparison.EQUAL, self._fence)

    def read(self, result: TxnResult) -> TxnResult:
        """Return the result of the collected transaction, taken from the result of the guarding transaction. Raises
        LockLost."""
        if not result.succeeded:
            raise self._lost(self._key, self._fence)
        (answer,) = result.results
        assert isinstance(answer, TxnResult), answer
        return answer


class GuardedTransaction(GuardedBuilder):
    """A transaction that is carried out only while its caller owns a key.

    The object may be committed again, for example after OutcomeUnknown.
    """

    def __init__(self, store: KeyStore, key: bytes, fence: int, lost: type[LockLost] = LockLost) -> None:
        super().__init__(key, fence, lost)
        self._store = store

    async def commit(self, *, deadline_seconds: float | None = None) -> TxnResult:
        """Carry out the transaction. Raises LockLost, with nothing done, if the caller no longer owns the key.

        `succeeded` of the result is true if all comparisons of `when` held.
        """
        return self.read(await self._store.txn((self.guard(),), (self.inner(),), deadline_seconds=deadline_seconds))
