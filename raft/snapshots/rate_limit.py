"""A limit of bytes per second, without a clock of its own: the caller passes the time."""

from __future__ import annotations

SECOND_NS = 1_000_000_000

AHEAD_NS_MAX = 1_000_000
"""Pieces that together take less time (ns) than this may leave at once, so that small pieces need not wait one by
one."""


class RateLimiter:
    """Delays the next bytes by the time that the last ones take at the limit. Unused time is not saved up."""

    def __init__(self, bytes_per_second: int) -> None:
        """`bytes_per_second` ≥ 1."""
        self._bytes_per_second = bytes_per_second
        self._worth_until = 0  # Monotonic ns.

    @property
    def due_at(self) -> int:
        """When the next piece may leave (monotonic ns)."""
        return self._worth_until - AHEAD_NS_MAX

    def is_due(self, now: int) -> bool:
        """True if one piece of any size may leave now."""
        return now >= self.due_at

    def spend(self, size_bytes: int, now: int) -> None:
        """Count a piece of `size_bytes` that leaves now."""
        self._worth_until = max(self._worth_until, now) + size_bytes * SECOND_NS // self._bytes_per_second
