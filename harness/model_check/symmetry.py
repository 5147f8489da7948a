"""Symmetry: states that differ only by a renaming of the members count as one state.

The place of a member is its number, from 0. A renaming is a tuple p, which moves the member in place i to place p[i].
Renamings are numbered; renaming 0 changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product

Renaming = tuple[int, ...]


class Renamings:
    """All renamings of `members` members or, without `symmetry`, only the renaming that changes nothing."""

    def __init__(self, members: int, *, symmetry: bool) -> None:
        self.all: list[Renaming] = list(permutations(range(members))) if symmetry else [tuple(range(members))]
        self.node_ids = tuple(f"s{place + 1}" for place in range(members))
        self._number = {p: number for number, p in enumerate(self.all)}
        self.names = [{self.node_ids[i]: self.node_ids[p[i]] for i in range(members)} for p in self.all]
        self.inverse = [self._number[tuple(sorted(range(members), key=p.__getitem__))] for p in self.all]
        self._sorting: dict[tuple[int, ...], list[int]] = {}

    def after(self, second: int, first: int) -> int:
        """Return the number of the renaming that does `first` and then `second`."""
        return self._number[tuple(self.all[second][place] for place in self.all[first])]

    def sorting(self, keys: Sequence[int]) -> list[int]:
        """Return the renamings that sort the members by `keys`: several renamings if some keys are equal."""
        if len(self.all) == 1:
            return [0]
        ranks = sorted(keys)
        pattern = tuple(ranks.index(key) for key in keys)
        found = self._sorting.get(pattern)
        if found is None:
            found = self._sorting[pattern] = self._find_sorting(pattern)
        return found

    def _find_sorting(self, pattern: tuple[int, ...]) -> list[int]:
        """Return all renamings that sort the members by rank: one for each order of the members of equal rank."""
        groups = [[place for place, key in enumerate(pattern) if key == rank] for rank in sorted(set(pattern))]
        found = []
        for orders in product(*(permutations(group) for group in groups)):
            ordered = [place for order in orders for place in order]
            renaming = [0] * len(pattern)
            for new, old in enumerate(ordered):
                renaming[old] = new
            found.append(self._number[tuple(renaming)])
        return found
