"""Decides, without I/O, which program owns a name: the common part of locks, elections and semaphores.

A contender has a lease, and one key, which is attached to the lease: the name, a slash, and the id of the lease in 16
hex digits. etcd's clients leave the leading zeros out, and stand in the same line. The contenders of a name stand in
line in the order of the create revisions of their keys. The first `places` contenders in the line own the name. A lock
and an election have one place. The create revision of an owner's key is its *fence*. Each owner has a greater fence
than all earlier owners, so a service that has seen a fence can refuse smaller fences.

A contender joins with one transaction, which may be repeated: it creates the key if the key is absent, and reads the
key otherwise. The contender then watches keys before its own key, from the revision of the response on. When one of
these keys is gone, one transaction reads two things: whether the contender's own key still exists, and which keys are
before it. The first question is needed because the contender's lease may have ended during the wait. No later contender
can come before an earlier one, because create revisions only rise.

See docs/concepts/locks.md#how-a-lock-works.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.errors import InvalidRequest, LockLost, Reason
from kvstore.protocol.commands import Compare, Comparison, Delete, Get, Put, Range, Target, Txn
from kvstore.protocol.results import GetResult, KeyRecord, RangeResult, TxnResult


def line_range(name: bytes) -> tuple[bytes, bytes]:
    """The start and end of the range with the keys of all contenders for `name`. Raises InvalidRequest for an empty
    name."""
    if not name:
        raise InvalidRequest(Reason.KEY_EMPTY)
    return name + b"/", name + b"0"


def line_of(name: bytes, items: Sequence[KeyRecord]) -> list[KeyRecord]:
    """The records of the contenders for `name`, in the order of the line. `items` are all records below the name. Other
    records among them, such as records of the name `name/other`, are left out."""
    start = len(name) + 1
    found = [item for item in items if item.lease_id and item.key[start:] in _endings(item.lease_id)]
    return sorted(found, key=lambda item: item.create_revision)


def _endings(lease_id: int) -> tuple[bytes, bytes]:
    """The ends of the keys of a contender with this lease. etcd's clients write the id without leading zeros."""
    return b"%016x" % lease_id, b"%x" % lease_id


class Contender:
    """One contender for a name. `value`: the value of its key. `fence` is 0 until the contender has joined."""

    def __init__(self, name: bytes, lease_id: int, value: bytes = b"", places: int = 1) -> None:
        assert lease_id > 0 < places, (lease_id, places)
        self.name, self.lease_id, self.value, self.places = name, lease_id, value, places
        self.start, self.end = line_range(name)
        self.key = self.start + b"%016x" % lease_id
        self.fence = 0
        self.before: tuple[bytes, ...] = ()
        self.owner_lease_id = 0  # The lease of the first contender in the line.

    def join(self) -> Txn:
        """The transaction that creates this contender's key, or reads the key if it exists, and reads the line."""
        is_absent = Compare(self.key, Target.CREATE_REVISION, Comparison.EQUAL, 0)
        return Txn(
            (is_absent,), (Put(self.key, self.value, self.lease_id), self._line()), (Get(self.key), self._line())
        )

    def look(self) -> Txn:
        """The transaction that reads the line, if this contender's key still exists."""
        return Txn((self.guard(),), (self._line(),))

    def guard(self) -> Compare:
        """The comparison that holds while this contender's key exists."""
        return Compare(self.key, Target.CREATE_REVISION, Comparison.EQUAL, self.fence)

    def leave(self) -> Txn:
        """The transaction that removes this contender's key, unless it is gone already."""
        return Txn((self.guard(),), (Delete(self.key),))

    def joined(self, result: TxnResult) -> RangeResult:
        """Read the result of `join`; returns the first page of the line."""
        first, line = result.results
        if isinstance(first, GetResult):
            assert first.record is not None, self.key
            self.fence = first.record.create_revision
        else:
            self.fence = result.revision
        assert isinstance(line, RangeResult), line
        return line

    def looked(self, result: TxnResult) -> RangeResult:
        """Read the result of `look`; returns the first page of the line. Raises LockLost if this contender's key is
        gone."""
        if not result.succeeded:
            raise LockLost(self.key, self.fence)
        (line,) = result.results
        assert isinstance(line, RangeResult), line
        return line

    def stand(self, items: Sequence[KeyRecord]) -> bool:
        """Record this contender's place in the line; `items` are the whole line. Returns True if the contender is an
        owner.

        Afterwards, `before` contains the keys of the contenders before this one, in the order of the line.
        """
        line = line_of(self.name, items)
        self.before = tuple(item.key for item in line if item.create_revision < self.fence)
        self.owner_lease_id = line[0].lease_id if line else 0
        return len(self.before) < self.places

    def gone(self, key: bytes) -> bool:
        """Record that `key` was removed. Returns True if this contender may be an owner now, and so has to call
        `look`."""
        self.before = tuple(each for each in self.before if each != key)
        return len(self.before) < self.places

    def _line(self) -> Range:
        return Range(self.start, self.end, keys_only=True)
