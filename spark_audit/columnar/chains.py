"""Blocks: clusters glued by successful compare-and-sets, and how far each reaches in time."""

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
    """Per cluster (`Clusters`): `f`, `s`; its chain's `root`, its `depth` in it, whether it is `cyclic`; `ancestor`:
    the cluster before it in the chain with the greatest s, and that s. Per root: F and S of the block.
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
    active: Bools  # Clusters that have members.


def chains(block: Block, given: Order, made: Clusters) -> Chains:
    """Least returns and greatest calls of clusters and of the chains that they form."""
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
    f[len(given) :] = block.origin  # Absence was written before all else.
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
