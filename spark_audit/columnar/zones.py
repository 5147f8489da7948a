"""Zones: linearizability of keys whose written values are unique, without revisions. O(n log n).

The method of Gibbons and Korach (1997), with blocks (chains of successful compare-and-sets) in place of clusters. The
rules, proven in docs/internals/audit-proofs.md:

- cluster: a write and its reads; f = least return, s = greatest call; no read returned before its write was called;
- chain: the cluster of a compare-and-set comes directly after that of the value it expected; two successors, or a
  cycle, are a violation; and for clusters i before j of a chain, s(i) ≤ f(j);
- block: a chain, or a cluster in no chain; F = least f, S = greatest s. Two blocks of a key conflict iff F(A) < S(B)
  and F(B) < S(A). If no two blocks conflict, all blocks in the order of min(F, S) are a linearization.

A key is `vague` if one of its responses does not identify the write that it read from. A violation that is found for
such a key is still real. If none is found for it, an order is proposed and verified: the key is OK if the order holds,
otherwise NEEDS_SEARCH. Nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_audit.columnar.blocks import BLOCK_ROWS, Block, any_of, blocks, first_place, not_covered
from spark_audit.columnar.chains import Chains, chains
from spark_audit.columnar.clusters import Clusters, clusters
from spark_audit.columnar.columns import NOTHING, Bools, Columns, Int8s, Int64s
from spark_audit.columnar.conflicts import CORE_MAX, ConflictFinder
from spark_audit.columnar.proposed_order import given_order
from spark_audit.columnar.verify_order import Order, late, states, unexplained

OK, VIOLATION, NEEDS_SEARCH = range(3)


@dataclass(frozen=True, slots=True)
class Zoned:
    """The result for each key of the columns.

    `status`: OK, VIOLATION or NEEDS_SEARCH. `core`: up to CORE_MAX rows of the columns that show a violation, then -1.
    `reason`: for a violation, an index of `conflicts.REASONS`; otherwise -1.
    """

    status: Int8s
    core: Int64s
    reason: Int8s


def zones(columns: Columns, rows_max: int = BLOCK_ROWS) -> Zoned:
    """Decide each key whose reads name what they read, a block of keys at a time."""
    status = np.full(columns.keys, OK, np.int8)
    core = np.full((columns.keys, CORE_MAX), NOTHING, np.int64)
    reason = np.full(columns.keys, NOTHING, np.int8)
    for block in blocks(columns, rows_max):
        mine = slice(block.first_key, block.last_key)
        status[mine], core[mine], reason[mine] = _decide(block)
    return Zoned(status, core, reason)


def _decide(block: Block) -> tuple[Int8s, Int64s, Int8s]:
    given = given_order(block)
    made = clusters(block, given)
    found = ConflictFinder(block, given, made)
    found.answers()
    linked = chains(block, given, made)
    found.chains(linked)
    found.pairs(linked)
    refused = not_covered(block)
    violated = (found.reason >= 0) & ~refused
    status = np.where(violated, VIOLATION, OK)
    unproven = made.vague & ~violated & ~refused
    if unproven.any():
        status[unproven & ~_verified(block, given, made, linked, unproven)] = NEEDS_SEARCH
    status[refused] = NEEDS_SEARCH
    found.core[~violated] = NOTHING
    return status.astype(np.int8), found.core, np.where(violated, found.reason, NOTHING).astype(np.int8)


def _verified(block: Block, given: Order, made: Clusters, linked: Chains, wanted: Bools) -> Bools:
    """Return for each key whether the order that its zones propose is valid, including all reported numbers."""
    rows = np.flatnonzero((made.of >= 0) & wanted[block.key] | (~block.unknown & wanted[block.key]))
    cluster = np.where(made.of[rows] >= 0, made.of[rows], rows)
    root = linked.root[cluster]
    begin, end = linked.first_return[root], linked.last_call[root]
    alone = made.of[rows] < 0
    begin, end = np.where(alone, block.ret[rows], begin), np.where(alone, block.call[rows], end)
    writes = given.writes[rows] < 0
    by = (block.call[rows], writes, linked.depth[cluster], root, begin < end, np.minimum(begin, end), block.key[rows])
    rows = rows[np.lexsort(by)]
    key = block.key[rows]
    order = given.taken(rows, begins=first_place(key, block.keys)[key], absence=block.absence[key])
    order = replace(order, revision=np.where(order.revision > 0, order.revision, NOTHING))
    return ~any_of(key, late(order) | unexplained(order, states(order)), block.keys)
