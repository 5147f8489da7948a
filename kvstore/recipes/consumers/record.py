"""One record that a consumer has read: all changes of one revision under the prefix."""

from __future__ import annotations

from typing import Protocol

from kvstore.protocol.watches import Change
from kvstore.recipes.consumers.position_transaction import PositionMoved, PositionTransaction


class RecordConsumer(Protocol):
    """The interface of a consumer that its records use."""

    async def commit(self, position: int | None = None) -> PositionMoved:
        """Move the position."""
        ...

    def transaction(self, record: ConsumedRecord) -> PositionTransaction:
        """Begin a transaction that also moves the position."""
        ...


class RecordChanges:
    """The changes of one revision, in the order of their operations. A transaction that writes several keys under the
    prefix is one record, because a position is a revision.

    `revision`: the position of the group after this record. `changes`: the changes, at least one.
    """

    __slots__ = ("changes", "revision")

    def __init__(self, changes: tuple[Change, ...]) -> None:
        self.changes, self.revision = changes, changes[-1].revision

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.revision}, {self.changes!r:.200})"

    @property
    def change(self) -> Change:
        """The change of a record with a single change. Raises ValueError if the record has several changes."""
        if len(self.changes) > 1:
            raise ValueError(f"the record at revision {self.revision} has {len(self.changes)} changes: use `changes`")
        return self.changes[0]

    @property
    def key(self) -> bytes:
        """The key of a record with a single change. Raises ValueError if the record has several changes."""
        return self.change.key

    @property
    def value(self) -> bytes | None:
        """The value that a record with a single change has written; None for a deletion. Raises ValueError if the
        record has several changes."""
        record = self.change.record
        return None if record is None else record.value


class ConsumedRecord(RecordChanges):
    """A record, and its consumer."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: RecordConsumer, changes: tuple[Change, ...]) -> None:
        super().__init__(changes)
        self._consumer = consumer

    async def commit(self) -> PositionMoved:
        """Move the position of the group to this record, which commits all records up to this one. Raises LockLost and
        PositionConflict, as `Consumer.commit` does."""
        return await self._consumer.commit(self.revision)

    def transaction(self) -> PositionTransaction:
        """Begin a transaction that commits all records up to this one together with other writes."""
        return self._consumer.transaction(self)
