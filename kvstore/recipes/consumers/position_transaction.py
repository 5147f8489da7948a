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

    `result`: the result of the other writes. It is None if there were none, or if the response of the attempt that took
    effect was lost: then a later attempt has only learned that the earlier attempt took effect.
    """

    position: int
    revision: int
    result: TxnResult | None


class PositionBuilder(TransactionBuilder):
    """Builds a transaction that the store carries out only if the consumer is still the active one, and the position
    is still the one from which the consumer goes on. It then moves the position to `position`, and carries out the
    collected operations, as one change.

    The operations of `then` run if all comparisons of `when` hold, otherwise those of `otherwise`; the position moves
    in both cases. The object may be committed again: its operations take effect once.
    """

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position = position
        self.number = 0  # The number of this commit among those of the consumer; 0 before its first attempt.
        self.is_unanswered = False  # True once an attempt has got no answer, so that it may have taken effect.

    def add(self, key: Text, delta: int = 1) -> Self:
        """Add an addition to a decimal number."""
        return self.then(Add(as_bytes(key), delta))

    def append(self, prefix: Text, value: Text) -> Self:
        """Add an append."""
        return self.then(Append(as_bytes(prefix), as_bytes(value)))

    @property
    def operations(self) -> tuple[Txn, ...]:
        """The collected operations as one inner transaction; empty if there are none."""
        inner = self.inner()
        return (inner,) if inner != Txn() else ()


class PositionTransaction(PositionBuilder):
    """A transaction of a consumer."""

    def __init__(self, position: int, commit: Callable[[PositionBuilder], Awaitable[PositionMoved]]) -> None:
        super().__init__(position)
        self._commit = commit

    async def commit(self) -> PositionMoved:
        """Carry out the transaction, and repeat it until its outcome is known or the lease is lost.

        Raises LockLost, with nothing done, if the consumer is not the active one any more, and PositionConflict, with
        nothing done, if the records are committed already or the stored position was changed by another program. Raises
        LeaseLost or OutcomeUnknown if an attempt that got no answer may have taken effect before the lease was lost.
        Raises InvalidRequest, QuotaExceeded and other refusals of the writes, with nothing done.
        """
        return await self._commit(self)
