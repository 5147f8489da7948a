"""The rights of one user under one auth revision, stored so that one bisection finds the rights on a key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from kvstore.access.state import ROOT, AccessState, User
from kvstore.protocol.access_commands import Right


class KeyRanges:
    """A set of keys, as ranges that neither overlap nor touch, in order. An `end` of None means: to the last key."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes | None] = []
        for start, end in sorted(ranges, key=lambda each: each[0]):
            last = self._ends[-1] if self._ends else b""
            if self._starts and (last is None or start <= last):
                if last is not None and (end is None or end > last):
                    self._ends[-1] = end
            else:
                self._starts.append(start)
                self._ends.append(end)

    def has_key(self, key: bytes) -> bool:
        """True if the key is in the set."""
        place = bisect_right(self._starts, key) - 1
        if place < 0:
            return False
        end = self._ends[place]
        return end is None or key < end

    def covers(self, start: bytes, end: bytes | None) -> bool:
        """True if every key from `start` to before `end` is in the set."""
        place = bisect_right(self._starts, start) - 1
        if place < 0:
            return False
        last = self._ends[place]
        return last is None or (end is not None and start < last and end <= last)

    @property
    def has_all_keys(self) -> bool:
        """True if every key is in the set."""
        return self.covers(b"", None)


class Rights:
    """What one user may do. `user` is empty while authentication is off, and then everything is allowed.
    `bytes_per_second`: the bound of the user; 0: none."""

    __slots__ = ("bytes_per_second", "is_root", "read", "user", "write")

    def __init__(
        self, user: str, read: KeyRanges, write: KeyRanges, *, is_root: bool, bytes_per_second: int = 0
    ) -> None:
        self.user, self.read, self.write, self.is_root = user, read, write, is_root
        self.bytes_per_second = bytes_per_second

    @classmethod
    def of(cls, user: User, state: AccessState) -> Rights:
        """Return the rights that a user has by its roles. Cost: O(n log n) for n ranges of the roles."""
        if ROOT in user.roles:
            everything = KeyRanges([(b"", None)])
            return cls(user.name, everything, everything, is_root=True, bytes_per_second=user.limits.bytes_per_second)
        permissions = [permission for role in user.roles for permission in state.roles[role]]
        read, write = (
            KeyRanges((start, end) for start, end, rights in permissions if rights & right)
            for right in (Right.READ, Right.WRITE)
        )
        return cls(user.name, read, write, is_root=False, bytes_per_second=user.limits.bytes_per_second)
