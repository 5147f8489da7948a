"""Whether a disk is so quick that one waits for it, rather than hand the work to a thread."""

from __future__ import annotations

QUICK_NS_MAX = 1_000_000
"""A sync that takes less is waited for. The way to a thread and back is 150 to 300 µs, and nearly all of it CPU time;
nothing else happens while one waits, so it must be short beside a heartbeat interval, too."""

STALL_NS = 50_000_000
"""A wait as long as a heartbeat interval: this disk is left to the thread for long."""

STEPS = 8
"""Each wait moves what is typical by an eighth of it."""

SKIPS = 256
"""So many syncs go to the thread before waiting is tried again."""


class Pace:
    """Looks at nothing but how long it was waited: times that a thread saw say more of the CPU than of the disk.

    It follows the median, one step up or down per wait, so that a few slow ones do not count, but many do. When waiting
    is not worth it, it is tried again now and then. A stall is remembered for thousands of syncs.
    """

    def __init__(self) -> None:
        self._typical_ns = QUICK_NS_MAX
        self._skips_left = 0

    def is_quick(self) -> bool:
        """True if the next short append should be waited for."""
        if self._typical_ns <= QUICK_NS_MAX:
            return True
        self._skips_left -= 1
        return self._skips_left < 0

    def took(self, duration_ns: int) -> None:
        """So long it was waited."""
        if duration_ns >= STALL_NS:
            self._typical_ns = STALL_NS
        elif duration_ns > self._typical_ns:
            self._typical_ns += self._typical_ns // STEPS
        else:
            self._typical_ns -= self._typical_ns // STEPS
        self._skips_left = SKIPS
