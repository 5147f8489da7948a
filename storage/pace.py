"""Whether a disk is so quick that one waits for it, rather than hand the work to a thread."""

from __future__ import annotations

QUICK_NS_MAX = 1_000_000
"""A sync that takes less is waited for. The way to a thread and back is 150 to 300 µs, and nearly all of it CPU time;
nothing else happens while one waits, so it must be short beside a heartbeat interval, too."""

STALL_NS = 50_000_000
"""A wait as long as a heartbeat interval: this disk is left to the thread for long."""

STEPS = 32
"""A longer wait moves what is typical up by one part in so many, a shorter one down by three: a quarter is shorter."""

SKIPS = 256
"""So many syncs go to the thread before waiting is tried again."""


class Pace:
    """Looks at nothing but how long it was waited: times that a thread saw say more of the CPU than of the disk.

    It follows the first quartile, for where many processes share few cores most of a wait may be for a core, and the
    thread would wait for one as well. When waiting is not worth it, it is tried again now and then. A stall is
    remembered for thousands of syncs.
    """

    def __init__(self) -> None:
        self._typical_ns = QUICK_NS_MAX // 2
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
            self._typical_ns -= 3 * self._typical_ns // STEPS
        self._skips_left = SKIPS
