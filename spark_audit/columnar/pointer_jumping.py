"""Computations along chains by pointer jumping: each round doubles the number of links whose values are combined."""

from __future__ import annotations

import numpy as np

from spark_audit.columnar.columns import NOTHING, Bools, Int64s


def least_of_descendants(parent: Int64s, value: Int64s) -> Int64s:
    """Return for each link the least of its own value and the values of its descendants.

    `parent`: the parent of each link, -1 if it has none. The chains may contain cycles.
    """
    least, jump = value.copy(), parent.copy()
    for _ in range(len(parent).bit_length()):
        going = np.flatnonzero(jump >= 0)
        if not len(going):
            break
        old = least[going]
        np.minimum.at(least, jump[going], old)
        jump[going] = jump[jump[going]]
    return least


def depths(parent: Int64s) -> tuple[Int64s, Int64s, Bools]:
    """Return for each link its root, the number of its ancestors, and whether a cycle is among its ancestors.

    If a cycle is among the ancestors of a link, the root and the number have no meaning.
    """
    depth = (parent >= 0).astype(np.int64)
    root = np.where(parent >= 0, parent, np.arange(len(parent)))
    going = np.flatnonzero(parent >= 0)
    for _ in range(len(parent).bit_length() + 1):
        going = going[parent[root[going]] >= 0]
        if not len(going):
            break
        top = root[going]
        depth[going] += depth[top]
        root[going] = root[top]
    return root, depth, parent[root] >= 0


def greatest_of_ancestors(parent: Int64s, value: Int64s) -> tuple[Int64s, Int64s]:
    """Return for each link the ancestor (not itself) whose value is greatest, and that value.

    A link without ancestors gets -1 and the least int64.
    """
    none = np.iinfo(np.int64).min
    who = parent.copy()
    best = np.where(parent >= 0, value[parent], none) if len(parent) else value.copy()
    jump = parent.copy()
    going = np.flatnonzero(jump >= 0)
    for _ in range(len(parent).bit_length()):
        going = going[jump[going] >= 0]
        if not len(going):
            break
        top = jump[going]
        better = best[top] > best[going]
        new_best, new_who, new_jump = best[top], who[top], jump[top]
        best[going] = np.where(better, new_best, best[going])
        who[going] = np.where(better, new_who, who[going])
        jump[going] = new_jump
    assert (who[parent < 0] == NOTHING).all()
    return who, best
