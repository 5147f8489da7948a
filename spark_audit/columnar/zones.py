"""Zones: decides keys whose written values are unique, without using revisions, in O(n log n).

This is the method of Gibbons and Korach (1997), with blocks (chains of successful compare-and-sets) in place of
clusters. A *zone* is the interval between f and s of a cluster, or between F and S of a block, as defined below.
docs/internals/audit-proofs.md proves the rules:

- cluster: a write and its reads; f = least return, s = greatest call. No read may return before its write is called.
- chain: the cluster of a compare-and-set comes directly after the cluster of the value that it expected. A cluster with
  two successors is a violation, and so is a cycle. If cluster i is before cluster j in a chain, s(i) ≤ f(j) must hold.
- block: a chain, or a cluster in no chain; F = least f, S = greatest s. Two blocks A, B of a key conflict if and only
  if F(A) < S(B) and F(B) < S(A). If no two blocks conflict, all blocks in the order of min(F, S) are a linearization.

A key is `vague` if its clusters allow more orders than its history (`columnar/clusters.py`). A violation that is found
for a vague key is still real. If no violation is found, an order of the key is proposed and verified: the key is OK if
the order is valid, otherwise NEEDS_SEARCH.
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
    """The result for each key of a `Columns`.

    `status`: OK, VIOLATION or NEEDS_SEARCH. `core`: up to CORE_MAX rows of the columns that show a violation, then -1.
    `reason`: for a violation, an index of `conflicts.REASONS`; otherwise -1.
    """

    status: Int8s
    core: Int64s
    reason: Int8s


def zones(columns: Columns, rows_max: int = BLOCK_ROWS) -> Zoned:
    """Decide the keys, one block of keys at a time. A key that zones cannot decide gets NEEDS_SEARCH."""
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
    """Return for each key of `wanted` whether the order that its zones propose is valid.

    A valid order agrees with all reported revisions and versions, too.
    """
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
