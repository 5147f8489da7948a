"""A limit in bytes per second. This module reads no clock: the caller passes the time."""

from __future__ import annotations

SECOND_NS = 1_000_000_000

AHEAD_NS_MAX = 1_000_000
"""A piece may be sent this long (ns) before the limit allows it, so that small pieces are sent together instead of one
by one."""


class RateLimiter:
    """Delays each piece by the time that the previous pieces take at the limit. A pause does not allow a higher rate
    afterwards."""

    def __init__(self, bytes_per_second: int) -> None:
        """`bytes_per_second` is at least 1."""
        self._bytes_per_second = bytes_per_second
        # The time (monotonic ns) at which all pieces so far would be sent if they were sent exactly at the limit.
        self._worth_until = 0

    @property
    def due_at(self) -> int:
        """The time (monotonic ns) from which the next piece may be sent."""
        return self._worth_until - AHEAD_NS_MAX

    def is_due(self, now: int) -> bool:
        """True if the next piece may be sent now, whatever its size."""
        return now >= self.due_at

    def spend(self, size_bytes: int, now: int) -> None:
        """Count a piece of `size_bytes` that is sent now."""
        self._worth_until = max(self._worth_until, now) + size_bytes * SECOND_NS // self._bytes_per_second
