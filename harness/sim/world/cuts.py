"""Directions in which nothing passes now: of the network between members, and between clients and members."""

from __future__ import annotations

from collections.abc import Iterable

Link = tuple[str, str]
"""(from, to)."""


class Cuts:
    """Counts the faults that cut each direction: it is whole again when all of them have ended."""

    def __init__(self) -> None:
        self._count: dict[Link, int] = {}

    def __contains__(self, link: Link) -> bool:
        return link in self._count

    def __bool__(self) -> bool:
        return bool(self._count)

    def add(self, links: Iterable[Link], count: int = 1) -> None:
        """Cut these; `count` of them need as many calls of `remove`."""
        for link in links:
            self._count[link] = self._count.get(link, 0) + count

    def remove(self, links: Iterable[Link]) -> None:
        """Undo one cut of each; those that have been healed meanwhile are left alone."""
        for link in links:
            left = self._count.get(link, 0) - 1
            if left > 0:
                self._count[link] = left
            else:
                self._count.pop(link, None)

    def clear(self) -> None:
        """End all."""
        self._count.clear()
