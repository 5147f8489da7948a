"""Chains of clusters, linked by successful compare-and-sets, and the interval of time that each chain covers.

A maximal chain is a block in the sense of `columnar/zones.py`, not of `columnar/blocks.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_audit.columnar.blocks import Block
from spark_audit.columnar.clusters import Clusters
from spark_audit.columnar.columns import NOTHING, Bools, Int64s
from spark_audit.columnar.pointer_jumping import depths, greatest_of_ancestors
from spark_audit.columnar.verify_order import Order


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of one block of keys. Every array has one entry for each cluster (`Clusters`).

    `f`, `s`: the least return and the greatest call of the operations in the cluster. `root`: the first cluster of the
    cluster's chain. `depth`: the number of links before the cluster in its chain. `cyclic`: whether the links before
    the cluster lead into a cycle. `ancestor`: among the earlier clusters of the chain, the one with the greatest `s`.
    `ancestor_call`: the `s` of this ancestor. `first_return`, `last_call`: for a root, the least `f` and the greatest
    `s` in its chain.
    """

    f: Int64s
    s: Int64s
    root: Int64s
    depth: Int64s
    cyclic: Bools
    ancestor: Int64s
    ancestor_call: Int64s
    first_return: Int64s
    last_call: Int64s
    active: Bools  # Whether the cluster has an operation or a successor.


def chains(block: Block, given: Order, made: Clusters) -> Chains:
    """Return the chains of a block, with the least return and the greatest call of each cluster and each chain."""
    count = len(made.before)
    members = np.flatnonzero(made.of >= 0)
    cluster = made.of[members]
    f = np.full(count, np.iinfo(np.int64).max, np.int64)
    s = np.full(count, np.iinfo(np.int64).min, np.int64)
    np.minimum.at(f, cluster, given.ret[members])
    np.maximum.at(s, cluster, given.call[members])
    active = np.zeros(count, np.bool_)
    active[cluster] = True
    links = np.flatnonzero(made.before >= 0)
    active[made.before[links]] = True
    f[len(given) :] = block.origin  # The initial absence precedes every operation.
    s[len(given) :] = np.maximum(s[len(given) :], block.origin)
    root, depth = np.arange(count), np.zeros(count, np.int64)
    cyclic = np.zeros(count, np.bool_)
    ancestor, ancestor_call = np.full(count, NOTHING, np.int64), s
    first_return, last_call = f, s
    if len(links):
        root, depth, cyclic = depths(made.before)
        ancestor, ancestor_call = greatest_of_ancestors(made.before, s)
        first_return, last_call = f.copy(), s.copy()
        np.minimum.at(first_return, root[links], f[links])
        np.maximum.at(last_call, root[links], s[links])
    return Chains(f, s, root, depth, cyclic, ancestor, ancestor_call, first_return, last_call, active)
