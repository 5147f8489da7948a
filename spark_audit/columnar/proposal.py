"""A proposed order of a block's operations: the completed ones by revision, unknown writes put in where they belong."""

from dataclasses import dataclass, replace

import numpy as np

from spark_audit.columnar.blocks import Block, any_of
from spark_audit.columnar.columns import NOTHING, Bools, Int64s, sorted_by
from spark_audit.columnar.order import Order


@dataclass(frozen=True, slots=True)
class Proposal:
    """`rows`: the block's rows, in the proposed order; `order`: their columns. `given`: all rows', in their own order.

    The `revision` of an unknown write, in `given`, is what responses told of it; -1 while none did. `sizes`: per key,
    how many places it has.
    """

    block: Block
    given: Order
    rows: Int64s
    order: Order
    sizes: Int64s

    def key(self) -> Int64s:
        """Of each place."""
        return np.repeat(np.arange(self.block.keys), self.sizes)

    def unused(self) -> Bools:
        """Per row: an unknown write that has no place."""
        unused = self.block.unknown.copy()
        unused[self.rows] = False
        return unused

    def inserted(self, rows: Int64s, places: Int64s, rank: Int64s, revision: Int64s) -> "Proposal":
        """With these rows put in immediately before the operations that are at these places, by `rank` among each."""
        if not len(rows):
            return self
        by_place = np.lexsort((rank, places))
        shift = np.cumsum(np.bincount(places, minlength=len(self.rows)))
        merged = np.empty(len(self.rows) + len(rows), np.int64)
        merged[np.arange(len(self.rows)) + shift] = self.rows
        merged[places[by_place] + np.arange(len(rows))] = rows[by_place]
        sizes = self.sizes + np.bincount(self.block.key[rows], minlength=self.block.keys)
        return _in_order(self.block, self._told(rows, revision), merged, sizes)

    def revised(self, rows: Int64s, revision: Int64s) -> "Proposal":
        """The same order, these rows' revisions being these."""
        given = self._told(rows, revision)
        order = replace(self.order, revision=given.revision[self.rows])
        return Proposal(self.block, given, self.rows, order, self.sizes)

    def of_rows(self, rows: Int64s) -> "Proposal":
        """With these in the places of `rows`; each of the same key, and with revisions of their own."""
        return _in_order(self.block, self.given, rows, self.sizes)

    def _told(self, rows: Int64s, revision: Int64s) -> Order:
        told = self.given.revision.copy()
        told[rows] = revision
        return replace(self.given, revision=told)

    def out_of_turn(self) -> Bools:
        """Which places carry a revision below the one told before, or as writes the same: an unknown write is not
        where it was told to be, or a revision was seen without its write.

        In an order without such a place, whoever reads has read the last write of a revision up to its own.
        """
        told = np.flatnonzero(self.order.revision > 0)
        rise = np.diff(self.order.revision[told])
        falls = np.flatnonzero((rise < 0) | ((rise == 0) & (self.order.writes[told[1:]] >= 0)))
        here, next_to_it = told[falls + 1], told[falls]
        wrong = np.zeros(len(self.rows), np.bool_)
        wrong[here] = self.order.begins[here] == self.order.begins[next_to_it]
        return wrong

    def guessed(self) -> Bools:
        """Per key: whether the place of some unknown write was told by no response."""
        untold = (self.order.writes >= 0) & (self.order.revision < 0)
        return any_of(self.key(), untold, self.block.keys)


def proposed(block: Block) -> Proposal:
    """The completed operations by (key, revision, writer first, call); the rows are sorted by (key, call) already."""
    given = given_order(block)
    completed = np.flatnonzero(~block.unknown)
    revision = given.revision[completed]
    low = int(revision.min(initial=0))
    span = int(revision.max(initial=0)) - low + 1
    rank = (revision - low) * 2 + (given.writes[completed] < 0)
    if span * 2 * block.keys < 2**62:
        rows = completed[sorted_by(rank + block.key[completed] * (2 * span))]
    else:
        rows = completed[np.lexsort((rank, block.key[completed]))]
    return _in_order(block, given, rows, np.bincount(block.key[completed], minlength=block.keys))


def given_order(block: Block) -> Order:
    """The columns of the block's rows, in their own order."""
    columns = block.columns
    return Order(
        begins=block.starts[block.key],
        absence=block.absence[block.key],
        call=block.call,
        ret=block.ret,
        revision=np.where(block.unknown, NOTHING, block.part(columns.revision)),
        failed=columns.failed[block.begin : block.end],
        writes=block.local_tokens(columns.writes),
        finds=block.local_tokens(columns.finds),
        differs=_or_nothing(block.local_tokens(columns.differs)),
        expected_revision=_or_nothing(block.part(columns.expected_revision)),
        mod=_or_nothing(block.part(columns.mod)),
        create=_or_nothing(block.part(columns.create)),
        version=_or_nothing(block.part(columns.version)),
    )


def _or_nothing(column: Int64s) -> Int64s:
    """A column that tells nothing takes no room, and no time to be sorted (`Order.taken`)."""
    return column if column.max(initial=NOTHING) >= 0 else np.broadcast_to(np.int64(NOTHING), len(column))


def _in_order(block: Block, given: Order, rows: Int64s, sizes: Int64s) -> Proposal:
    begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = given.taken(rows, begins=begins, absence=np.repeat(block.absence, sizes))
    return Proposal(block, given, rows, order, sizes)
