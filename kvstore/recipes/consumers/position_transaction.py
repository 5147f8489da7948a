"""A transaction that moves the position of a consumer together with other writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from kvstore.protocol.commands import Add, Append, Txn
from kvstore.protocol.results import TxnResult
from kvstore.protocol.text import Text, as_bytes
from kvstore.recipes.guarded_transaction import TransactionBuilder


@dataclass(frozen=True, slots=True)
class PositionMoved:
    """The result of a commit. `revision`: the revision at which the position was moved.

    `result`: the result of the other writes, or None if there were none. It is also None if the response of the attempt
    that took effect was lost, because a later attempt learns only that the earlier one took effect.
    """

    position: int
    revision: int
    result: TxnResult | None


class PositionBuilder(TransactionBuilder):
    """Builds a transaction that is carried out only if the consumer is still the active one, and the stored position
    has not changed since. The transaction moves the position to `position`, and carries out the collected operations,
    as one change.

    The operations of `then` run if all comparisons of `when` hold, and otherwise the operations of `otherwise`. The
    position moves in both cases. The object may be committed again: its operations take effect only once.
    """

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position
        self.number = 0  # The number of this commit among the commits of the consumer; 0 before the first attempt.
        self.is_unanswered = False  # True once an attempt has received no answer, and so may have taken effect.

    def _begun_by(self) -> str:
        return f"the transaction() of a consumer, which moves the position to {self.position},"

    def add(self, key: Text, delta: int = 1) -> Self:
        """Add an operation that adds to a decimal number."""
        with self._wrong_types_told_once():
            add = Add(as_bytes(key), delta)
        return self.then(add)

    def append(self, prefix: Text, value: Text) -> Self:
        """Add an append."""
        with self._wrong_types_told_once():
            append = Append(as_bytes(prefix), as_bytes(value))
        return self.then(append)

    @property
    def operations(self) -> tuple[Txn, ...]:
        """The collected operations as one inner transaction; empty if there are no operations."""
        inner = self.inner()
        return (inner,) if inner != Txn() else ()


class PositionTransaction(PositionBuilder):
    """A transaction of a consumer."""

    def __init__(self, position: int, commit: Callable[[PositionBuilder], Awaitable[PositionMoved]]) -> None:
        super().__init__(position)
        self._commit = commit

    async def commit(self) -> PositionMoved:
        """Carry out the transaction, and repeat it until its outcome is known or the lease is lost.

        Raises LockLost, with nothing done, if the consumer is no longer the active one. Raises PositionConflict, with
        nothing done, if the records are already committed, or another program has changed the stored position. Raises
        LeaseLost or OutcomeUnknown if the lease was lost after an attempt that got no answer, and that may have taken
        effect. If the writes are refused, raises InvalidRequest, QuotaExceeded or another refusal, with nothing done.
        """
        self._commits()
        return await self._commit(self)
