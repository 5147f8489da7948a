"""Verifies an order: it must respect real time, and every response must follow from the state before its operation.

A verified order proves linearizability, no matter how it was found. So a wrong verdict of the witness can come only
from an error in this check. The check is stricter than `model/key.py` in one point: if the write of a record has no
revision, every response that reports a revision of this record is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spark_audit.columnar.blocks import last_of, last_place
from spark_audit.columnar.columns import NOTHING, PRESENT, Bools, Int64s


@dataclass(frozen=True, slots=True)
class Order:
    """Operations of several keys in the proposed order; the operations of each key are consecutive.

    The fields are those of `Columns`, with these differences. `begins`: for each operation, the place at which its key
    begins. `absence`: for each operation, the token that stands for the absence of its key. `revision`: -1 if it is not
    known.
    """

    begins: Int64s
    absence: Int64s
    call: Int64s
    ret: Int64s
    revision: Int64s
    failed: Bools
    writes: Int64s
    finds: Int64s
    differs: Int64s
    expected_revision: Int64s
    mod: Int64s
    create: Int64s
    version: Int64s

    def __len__(self) -> int:
        return len(self.call)

    def taken(self, places: Int64s, *, begins: Int64s, absence: Int64s) -> Order:
        """Return the order that consists of the operations at these places, with the given `begins` and `absence`."""
        rest: dict[str, Any] = {name: _taken(getattr(self, name), places) for name in _TAKEN}
        return Order(begins=begins, absence=absence, **rest)

    def changed(self, places: Int64s, to: Order) -> Order:
        """Replace the operations at these places by the operations of `to`. `begins` and `absence` are not changed."""
        names: dict[str, Any] = {
            name: _changed(getattr(self, name), places, getattr(to, name)) for name in _TAKEN
        }  # fmt: skip
        return replace(self, **names)


_TAKEN = tuple(name for name in Order.__slots__ if name not in ("begins", "absence"))


def _taken(column: Int64s, places: Int64s) -> Int64s:
    """Return the entries of the column at these places. A constant array (of stride 0) stays a constant array."""
    if column.strides == (0,):
        return np.broadcast_to(np.int64(NOTHING), len(places))
    taken: Int64s = column[places]
    return taken


def _changed(column: Int64s, places: Int64s, to: Int64s) -> Int64s:
    if (column[places] == to).all():
        return column
    changed = column.copy()
    changed[places] = to
    return changed


@dataclass(frozen=True, slots=True)
class States:
    """The state before each operation.

    `writer`: the place of the last write, -1 if none. `token`, `present`, `revision`: the record that this write left,
    or its absence. `writes`: the places of all writes in the order.
    """

    writer: Int64s
    token: Int64s
    present: Bools
    revision: Int64s  # 0 for absence.
    writes: Int64s


def states(order: Order) -> States:
    """Return the state before each operation of the order."""
    before = np.empty(len(order), np.int64)
    before[:1] = NOTHING
    writes = np.flatnonzero(order.writes >= 0)
    before[1:] = last_of(writes, len(order))[:-1]
    inside = before >= order.begins
    before = np.where(inside, before, NOTHING)
    token = np.where(inside, order.writes[before], order.absence) if len(order) else before
    present = token != order.absence
    revision = order.revision[before] * present if len(order) else before
    return States(before, token, present, revision, writes)


def late(order: Order) -> Bools:
    """Find each operation that returned before the call of another operation that precedes it in the order.

    The stamps `call` and `ret` are those of Block, so operations of different keys never count as late.
    """
    return np.maximum.accumulate(order.call) > order.ret if len(order) else np.zeros(0, np.bool_)


def unexplained(order: Order, before: States) -> Bools:
    """Find operations whose response does not follow from the state before them."""
    wrong: Bools = (order.finds >= 0) & (order.finds != before.token)
    wrong |= (order.finds == PRESENT) & ~before.present
    wrong |= order.differs == before.token  # NOTHING never equals a token.
    if order.expected_revision.max(initial=NOTHING) >= 0:
        compared = order.expected_revision >= 0
        holds = order.expected_revision == before.revision
        wrong |= compared & ((holds == order.failed) | (before.revision < 0))
    wrong |= (order.mod >= 0) & (order.mod != before.revision)
    counted = np.flatnonzero((order.version >= 0) | (order.create >= 0))
    if len(counted):
        wrong[counted] |= _wrong_count(order, before, counted)
    return wrong


def _wrong_count(order: Order, before: States, places: Int64s) -> Bools:
    """Return for each of these places whether the reported version or creation revision is wrong."""
    number, creation = counts(order, before)
    writer = before.writer[places]
    created = creation[writer]
    version, create = order.version[places], order.create[places]
    wrong: Bools = (version >= 0) & (version != number[writer] - number[created] + 1)
    wrong |= (create >= 0) & (create != order.revision[created])
    wrong |= writer < 0
    return wrong


def counts(order: Order, before: States) -> tuple[Int64s, Int64s]:
    """Return two arrays with an entry for the place of each write. The first array has the number of writes up to this
    one that leave a record. The second array has the place of the last creation.

    The writes of all keys are counted together. The place of the last creation is -1 if there is no creation up to
    that write. Entries at places without a write have no meaning.
    """
    writes = before.writes
    makes = order.writes[writes] != order.absence[writes]
    number, creation = np.zeros(len(order), np.int64), np.full(len(order), NOTHING, np.int64)
    number[writes] = np.cumsum(makes, dtype=np.int64)
    creation[writes] = np.append(writes, NOTHING)[last_place(makes & ~before.present[writes])]
    return number, creation
