"""Whether a disk is so quick that one waits for it, rather than be told by another turn of the loop."""

from __future__ import annotations

QUICK_NS_MAX = 1_000_000
"""A sync that takes less is waited for. To be told of its end takes 100 to 300 µs, and nearly all of it CPU time;
nothing else happens while one waits, so it must be short beside a heartbeat interval, too."""

WAIT_NS_MAX = 5_000_000
"""So long it is waited for at most: a disk may stall, or hang, and no heartbeat leaves meanwhile. A tenth of their
interval; shorter, and what is late only because the cores are busy would be told by a turn of the loop as well."""

STEPS = 32
"""A longer wait moves what is typical up by one part in so many, a shorter one down by three: a quarter is shorter."""

SKIPS = 256
"""So many syncs are not waited for before it is tried again."""


class Pace:
    """Looks at nothing but how long it was waited, at most WAIT_NS_MAX: times that nobody waited for say more of the
    CPU than of the disk.

    It follows the first quartile, for where many processes share few cores most of a wait may be for a core, and a
    turn of the loop would wait for one as well. When waiting is not worth it, it is tried again now and then.
    """

    def __init__(self) -> None:
        self._typical_ns = QUICK_NS_MAX // 2
        self._skips_left = 0

    def is_worth_waiting(self) -> bool:
        """True if the next short append should be waited for."""
        if self._skips_left > 0:
            self._skips_left -= 1
            return False
        return True

    def took(self, duration_ns: int) -> None:
        """So long it was waited."""
        if duration_ns > self._typical_ns:
            self._typical_ns += self._typical_ns // STEPS
        else:
            self._typical_ns -= 3 * self._typical_ns // STEPS
        if self._typical_ns > QUICK_NS_MAX:
            self._skips_left = SKIPS
