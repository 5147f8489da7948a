"""The configurations of one log: that of its snapshot, and those which its entries made since (Raft §6).

The newest one is in force from the moment its entry is appended, committed or not; if the entry is cut, the one before
it is in force again.
"""

from __future__ import annotations

from bisect import bisect_right

from raft.membership.configuration import Configuration


class Configurations:
    """By the index of the entry. The first stands for everything up to the index at which it was known."""

    def __init__(self, index: int, configuration: Configuration) -> None:
        self._indexes = [index]
        self._configurations = [configuration]

    @property
    def latest(self) -> Configuration:
        """The one in force."""
        return self._configurations[-1]

    @property
    def latest_index(self) -> int:
        """Where its entry is; if there is none in the log, an index that is long committed."""
        return self._indexes[-1]

    @property
    def leased_from(self) -> int | None:
        """From which index on members have promised `lease_ns` to their leaders; None if nobody has."""
        return next((i for i, each in zip(self._indexes, self._configurations, strict=True) if each.lease_ns), None)

    @property
    def all(self) -> tuple[Configuration, ...]:
        """Every one that is still known, oldest first."""
        return tuple(self._configurations)

    def at(self, index: int) -> Configuration:
        """The one that the log up to `index` makes. `index` is not below the first that is known."""
        place = bisect_right(self._indexes, index) - 1
        assert place >= 0, (index, self._indexes)
        return self._configurations[place]

    def append(self, index: int, configuration: Configuration) -> None:
        """The log has gained an entry of this kind."""
        assert index > self._indexes[-1], (index, self._indexes)
        self._indexes.append(index)
        self._configurations.append(configuration)

    def cut_from(self, index: int) -> bool:
        """The log was cut before `index`. True if another one is in force now."""
        kept = bisect_right(self._indexes, index - 1)
        assert kept > 0, (index, self._indexes)
        is_other = kept < len(self._indexes)
        del self._indexes[kept:], self._configurations[kept:]
        return is_other

    def reset(self, index: int, configuration: Configuration) -> None:
        """The log begins anew after a snapshot at `index`."""
        self._indexes, self._configurations = [index], [configuration]

    def forget_before(self, index: int) -> None:
        """Nobody asks any more for what was in force below `index`."""
        passed = bisect_right(self._indexes, index) - 1
        if passed > 0:
            del self._indexes[:passed], self._configurations[:passed]

    def correct_first(self, configuration: Configuration) -> None:
        """The first one that is known was not what it was taken for."""
        self._configurations[0] = configuration
