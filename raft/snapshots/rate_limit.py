"""A limit of bytes per second, without a clock of its own: callers pass the time."""

from __future__ import annotations

SECOND_NS = 1_000_000_000

AHEAD_NS_MAX = 1_000_000
"""Pieces worth less time than this in sum may be spent at once, so that small ones need not wait one by one."""


class RateLimiter:
    """Delays the next bytes for as long as the last ones are worth. Time without bytes is not saved up."""

    def __init__(self, bytes_per_second: int) -> None:
        """`bytes_per_second` ≥ 1."""
        self._bytes_per_second = bytes_per_second
        self._worth_until = 0  # Monotonic ns.

    @property
    def due_at(self) -> int:
        """When more may be spent, monotonic ns."""
        return self._worth_until - AHEAD_NS_MAX

    def is_due(self, now: int) -> bool:
        """True if some may be spent: one chunk, however large."""
        return now >= self.due_at

    def spend(self, size_bytes: int, now: int) -> None:
        """Account for `size_bytes` that leave now."""
        self._worth_until = max(self._worth_until, now) + size_bytes * SECOND_NS // self._bytes_per_second
