"""A proposed order of a block's operations: completed operations by revision, with unknown writes inserted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_audit.columnar.blocks import Block, so_far
from spark_audit.columnar.columns import NOTHING, Bools, Int64s, sorted_by
from spark_audit.columnar.verify_order import Order


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposed order of rows, before the columns are put into this order.

    `rows`: the chosen rows of the block, in the proposed order. `given`: the columns of all rows of the block, sorted
    by (key, call). In `given`, the `revision` of an unknown write is the revision that a response shows it to have, or
    -1 while no such response is known. `sizes`: for each key, its number of places in the order.
    """

    block: Block
    given: Order
    rows: Int64s
    sizes: Int64s

    def inserted(self, rows: Int64s, places: Int64s, rank: Int64s, revision: Int64s) -> Draft:
        """Insert these rows immediately before the operations at these places, ordered by `rank` at each place."""
        if not len(rows):
            return self
        by_place = np.lexsort((rank, places))
        before = places[by_place]
        merged = np.empty(len(self.rows) + len(rows), np.int64)
        merged[np.arange(len(self.rows)) + so_far(before, len(self.rows))] = self.rows
        merged[before + np.arange(len(rows))] = rows[by_place]
        sizes = self.sizes + np.bincount(self.block.key[rows], minlength=self.block.keys)
        return Draft(self.block, with_revisions(self.given, rows, revision), merged, sizes)

    def in_order(self) -> Proposal:
        """Return the proposal, which has the columns in this order."""
        sizes = self.sizes
        begins = np.repeat(np.cumsum(sizes) - sizes, sizes)
        order = self.given.taken(self.rows, begins=begins, absence=np.repeat(self.block.absence, sizes))
        return Proposal(self.block, self.given, self.rows, order, sizes)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft with its columns. `order`: the columns of the `rows`, in the proposed order."""

    block: Block
    given: Order
    rows: Int64s
    order: Order
    sizes: Int64s

    def key(self) -> Int64s:
        """The key of each place."""
        return np.repeat(np.arange(self.block.keys), self.sizes)

    def unused(self) -> Bools:
        """Return for each row whether it is an unknown write that is not in the order."""
        unused = self.block.unknown.copy()
        unused[self.rows] = False
        return unused

    def inserted(self, rows: Int64s, places: Int64s, rank: Int64s, revision: Int64s) -> Proposal:
        """Insert these rows immediately before the operations at these places, ordered by `rank` at each place."""
        if not len(rows):
            return self
        draft = Draft(self.block, self.given, self.rows, self.sizes)
        return draft.inserted(rows, places, rank, revision).in_order()

    def revised(self, rows: Int64s, revision: Int64s) -> Proposal:
        """Return the same order, with these revisions for these rows."""
        if not len(rows):
            return self
        given = with_revisions(self.given, rows, revision)
        order = replace(self.order, revision=given.revision[self.rows])
        return Proposal(self.block, given, self.rows, order, self.sizes)

    def with_row(self, places: Int64s, rows: Int64s) -> Proposal:
        """Replace the rows at these places by the given rows.

        Each new row must be of the same key as the row that it replaces. Each new row keeps its own revision.
        """
        there = self.rows.copy()
        there[places] = rows
        order = self.order.changed(places, self.given.taken(rows, begins=rows, absence=rows))
        return replace(self, rows=there, order=order)

    def out_of_turn(self) -> Bools:
        """Find the places at which the revisions of a key are out of order.

        The revision at a place is compared with the last known revision before the place, of the same key. The place is
        out of order if its revision is lower, or if both revisions are equal and the operation at the place is a write.
        Revisions are out of order if an unknown write is not at the place of its revision, or if the write of a
        reported revision is missing. In an order without such places, every read reads from the last write whose
        revision is not above the revision of the read.
        """
        known = np.flatnonzero(self.order.revision > 0)
        rise = np.diff(self.order.revision[known])
        falls = np.flatnonzero(rise <= 0)
        falls = falls[(rise[falls] < 0) | (self.order.writes[known[falls + 1]] >= 0)]
        here, next_to_it = known[falls + 1], known[falls]
        wrong = np.zeros(len(self.rows), np.bool_)
        wrong[here] = self.order.begins[here] == self.order.begins[next_to_it]
        return wrong

    def guessed(self) -> Bools:
        """Return for each key whether the place of one of its unknown writes is a guess.

        The place is a guess if no response determines the write's revision.
        """
        unnamed = np.flatnonzero(self.order.revision < 0)
        unnamed = unnamed[self.order.writes[unnamed] >= 0]
        return self.keys_of(unnamed)

    def keys_of(self, places: Int64s) -> Bools:
        """Return for each key whether any of these places belongs to it."""
        found = np.zeros(self.block.keys, np.bool_)
        found[self.block.key[self.rows[places]]] = True
        return found


def with_revisions(given: Order, rows: Int64s, revision: Int64s) -> Order:
    """Return the columns, with these revisions for these rows."""
    revisions = given.revision.copy()
    revisions[rows] = revision
    return replace(given, revision=revisions)


def propose(block: Block) -> Draft:
    """Order the completed operations by (key, revision, writer first, call).

    The rows of the block are already sorted by (key, call).
    """
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
    lost = np.bincount(block.key[block.unknown], minlength=block.keys)
    return Draft(block, given, rows, np.diff(block.starts) - lost)


def given_order(block: Block) -> Order:
    """Return the columns of the block's rows, sorted by (key, call)."""
    columns, sizes = block.columns, np.diff(block.starts)
    revision = block.part(columns.revision).copy()
    revision[block.unknown] = NOTHING
    return Order(
        begins=np.repeat(block.starts[:-1], sizes),
        absence=np.repeat(block.absence, sizes),
        call=block.call,
        ret=block.ret,
        revision=revision,
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
    """Return the column; if all its entries are NOTHING, return a constant array of stride 0 instead.

    Such an array takes no memory, and `Order.taken` need not reorder it.
    """
    return column if column.max(initial=NOTHING) >= 0 else np.broadcast_to(np.int64(NOTHING), len(column))
