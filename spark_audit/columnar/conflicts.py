"""Finds the first violation of each key, and the few rows that show this violation."""

from __future__ import annotations

import numpy as np

from spark_audit.columnar.blocks import Block, last_place
from spark_audit.columnar.chains import Chains
from spark_audit.columnar.clusters import Clusters
from spark_audit.columnar.columns import NOTHING, Int8s, Int64s
from spark_audit.columnar.verify_order import Order

CORE_MAX = 6
REASONS = (
    "it found a value that nobody wrote",
    "its comparison failed, although it found the expected value",
    "it returned before the write that it read from was called",
    "two responses report different revisions of one record",
    "two compare-and-sets succeeded on the same record",
    "compare-and-sets that expect each other's values",
    "an operation of an earlier link of the chain was called after one of a later link had returned",
    "each of two blocks has an operation that returned before one of the other was called",
)
UNWRITTEN, NOT_DIFFERENT, BEFORE_ITS_WRITE, TWO_REVISIONS, TWO_SUCCESSORS, CYCLE, CHAIN, PAIR = range(8)


class ConflictFinder:
    """Collects the violations of the keys in one block.

    `core`: for each key, the rows of the columns that show its violation. `reason`: for each key, the index of the
    violation in REASONS; -1 if there is none.
    """

    def __init__(self, block: Block, given: Order, made: Clusters) -> None:
        self._block, self._given, self._made = block, given, made
        self.core = np.full((block.keys, CORE_MAX), NOTHING, np.int64)
        self.reason: Int8s = np.full(block.keys, NOTHING, np.int8)

    def _note(self, reason: int, *rows: Int64s) -> None:
        """Record violations with this reason.

        `rows`: arrays of equal length. Their entries at one index are the rows of one violation, numbered in the block;
        -1 for none. The key of a violation is the key of its row in the first array.
        """
        fresh = self.reason[self._block.key[rows[0]]] < 0
        table = np.stack([column[fresh] for column in rows], axis=1)[::-1]
        key = self._block.key[table[:, 0]]
        self.reason[key] = reason
        table = np.where(table >= 0, table + self._block.begin, NOTHING)
        for place in range(1, table.shape[1]):  # Name each operation only once.
            again = (table[:, :place] == table[:, place : place + 1]).any(axis=1)
            table[again, place] = NOTHING
        # numpy keeps the last of several assignments to one key. The table is reversed, so the first violation is kept.
        self.core[key, : table.shape[1]] = table

    def answers(self) -> None:
        """Find each violation that a single operation shows, or that reads and the write of their value show."""
        given, made, rows = self._given, self._made, np.arange(len(self._given))
        unwritten = rows[made.unwritten]
        if len(unwritten):
            self._note(UNWRITTEN, unwritten, made.observer[unwritten])
        same = given.failed & (given.differs >= 0) & (given.finds == given.differs)
        if same.any():
            self._note(NOT_DIFFERENT, rows[same])
        readers = rows[(made.of >= 0) & (made.of < len(given)) & (made.of != rows)]
        write = made.of[readers]
        early = given.ret[readers] < given.call[write]
        if early.any():
            self._note(BEFORE_ITS_WRITE, readers[early], write[early])
        self._revisions(readers, write)

    def _revisions(self, readers: Int64s, write: Int64s) -> None:
        given = self._given
        has_revision = given.mod[readers] >= 0
        if not has_revision.any():
            return
        readers, write = readers[has_revision], write[has_revision]
        claimant = np.full(len(given), NOTHING, np.int64)
        claimant[write] = readers
        own = given.revision > 0
        revision = np.where(own, given.revision, np.where(claimant >= 0, given.mod[claimant], NOTHING))
        other = given.mod[readers] != revision[write]
        if other.any():
            self._note(TWO_REVISIONS, readers[other], write[other], np.where(own, NOTHING, claimant)[write[other]])
        failed = given.failed[readers] & (given.expected_revision[readers] == given.revision[write])
        failed &= own[write]
        if failed.any():
            self._note(NOT_DIFFERENT, readers[failed], write[failed])

    def chains(self, linked: Chains) -> None:
        """Find clusters with two successors, cyclic chains, and chains whose order contradicts real time."""
        given, made = self._given, self._made
        links = np.flatnonzero(made.before >= 0)
        if not len(links):
            return
        source = made.before[links]
        first = np.full(len(made.before), NOTHING, np.int64)
        first[source[::-1]] = links[::-1]
        second = first[source] != links
        if second.any():
            again = links[second]
            other = first[source[second]]
            write = np.where(source[second] < len(given), source[second], NOTHING)
            self._note(TWO_SUCCESSORS, again, other, write, made.observer[again], made.observer[other])
        cyclic = links[linked.cyclic[links]]
        if len(cyclic):
            self._note(CYCLE, cyclic, made.before[cyclic])
        late = links[~linked.cyclic[links] & (linked.ancestor_call[links] > linked.f[links])]
        if len(late):
            returned, called = self._ends(linked)
            ancestor = linked.ancestor[late]
            self._note(CHAIN, returned[late], late, called[ancestor], self._write(ancestor))

    def _ends(self, linked: Chains) -> tuple[Int64s, Int64s]:
        """Return for each cluster the row with its least return, and the row with its greatest call."""
        given, made = self._given, self._made
        rows = np.flatnonzero(made.of >= 0)
        of = made.of[rows]
        returned = np.full(len(made.before), NOTHING, np.int64)
        called = returned.copy()
        least, greatest = given.ret[rows] == linked.f[of], given.call[rows] == linked.s[of]
        returned[of[least]] = rows[least]
        called[of[greatest]] = rows[greatest]
        return returned, called

    def _write(self, cluster: Int64s) -> Int64s:
        return np.where(cluster < len(self._given), cluster, NOTHING)

    def pairs(self, linked: Chains) -> None:
        """Find pairs of blocks (see `columnar/zones.py`) in which each block would have to precede the other."""
        block = np.flatnonzero(linked.active & (linked.root == np.arange(len(linked.root))) & ~linked.cyclic)
        begin, end = linked.first_return[block], linked.last_call[block]
        forward = block[begin < end]
        forward = forward[np.argsort(linked.first_return[forward])]
        first, last = linked.first_return[forward], linked.last_call[forward]
        if not len(forward):
            return
        reach = np.maximum.accumulate(last)
        clash = np.flatnonzero(reach[:-1] > first[1:])
        if len(clash):
            reaches_furthest = last_place(last == reach)
            self._conflict(linked, forward[clash + 1], forward[reaches_furthest[clash]])
        backward = block[begin >= end]
        place = np.searchsorted(first, linked.last_call[backward], side="left") - 1
        inside = (place >= 0) & (last[place] > linked.first_return[backward])
        if inside.any():
            self._conflict(linked, backward[inside], forward[place[inside]])

    def _conflict(self, linked: Chains, one: Int64s, other: Int64s) -> None:
        returned, called = self._block_ends(linked)
        ends = [returned[one], called[one], returned[other], called[other]]
        # The initial absence has no row. So if it has the least return of its block, there is no row with this return.
        # The row with the greatest call is used instead.
        ends[0] = np.where(ends[0] >= 0, ends[0], ends[1])
        self._note(PAIR, *ends, self._write(one), self._write(other))

    def _block_ends(self, linked: Chains) -> tuple[Int64s, Int64s]:
        """For the root of each block, return the row with the least return of the block, and the row with the greatest
        call.

        An entry is -1 if there is no such row.
        """
        returned, called = self._ends(linked)
        clusters = np.flatnonzero(linked.active)
        root = linked.root[clusters]
        least = clusters[(linked.f[clusters] == linked.first_return[root]) & (returned[clusters] >= 0)]
        greatest = clusters[(linked.s[clusters] == linked.last_call[root]) & (called[clusters] >= 0)]
        first, last = np.full(len(linked.root), NOTHING, np.int64), np.full(len(linked.root), NOTHING, np.int64)
        first[linked.root[least]] = returned[least]
        last[linked.root[greatest]] = called[greatest]
        return first, last
