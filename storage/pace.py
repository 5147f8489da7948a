"""Whether a disk is so quick that one waits for it, rather than hand the work to a thread."""

from __future__ import annotations

QUICK_NS_MAX = 1_000_000
"""A sync that takes less is waited for. The way to a thread and back is 150 to 300 µs, and nearly all of it CPU time;
nothing else happens while one waits, so it must be short beside a heartbeat interval, too."""

STALL_NS = 100_000_000
"""A wait that takes a good part of an election time-out: more follow soon, and the thread may have them."""

REST_NS_MIN, REST_NS_MAX = 1_000_000_000, 256_000_000_000
"""So long nothing is waited for after a stall, and twice as long with each: no heartbeat leaves while one waits."""

CALM_NS = 600_000_000_000
"""After so long without a stall those before it are forgotten."""

STEPS = 32
"""A longer wait moves what is typical up by one part in so many, a shorter one down by three: a quarter is shorter."""

SKIPS = 256
"""So many syncs go to the thread before waiting is tried again."""


class Pace:
    """Looks at nothing but how long it was waited: times that a thread saw say more of the CPU than of the disk.

    It follows the first quartile, for where many processes share few cores most of a wait may be for a core, and the
    thread would wait for one as well. When waiting is not worth it, it is tried again now and then. A disk that stalls
    again and again is waited for less and less: stalls come in bursts, and hold heartbeats.
    """

    def __init__(self) -> None:
        self._typical_ns = QUICK_NS_MAX // 2
        self._skips_left = 0
        self._rest_ns = REST_NS_MIN  # After the next stall.
        self._rests_until: int | None = None  # Monotonic ns; since the last stall.

    def is_quick(self, now: int) -> bool:
        """True if the next short append should be waited for. `now` is monotonic, in ns."""
        if self._rests_until is not None and now < self._rests_until:
            return False
        if self._skips_left > 0:
            self._skips_left -= 1
            return False
        return True

    def took(self, duration_ns: int, now: int) -> None:
        """So long it was waited, until `now`."""
        if duration_ns > self._typical_ns:
            self._typical_ns += self._typical_ns // STEPS
        else:
            self._typical_ns -= 3 * self._typical_ns // STEPS
        if duration_ns >= STALL_NS:
            if self._rests_until is not None and now - self._rests_until > CALM_NS:
                self._rest_ns = REST_NS_MIN
            self._rests_until = now + self._rest_ns
            self._rest_ns = min(2 * self._rest_ns, REST_NS_MAX)
        elif self._typical_ns > QUICK_NS_MAX:
            self._skips_left = SKIPS
