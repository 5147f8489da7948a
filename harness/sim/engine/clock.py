"""Monotonic clocks of simulated machines. A clock may run at a wrong rate, jump forwards, and stand still.

Each clock begins at a random time, and never goes back while a process can read it. The product reads no wall clock,
so the simulator has none: `leader_time` comes from the leader's monotonic clock.

See docs/reference/specification.md#812-leader-time.
"""

from __future__ import annotations

import math
from typing import Final

from harness.sim.engine.event_queue import EventQueue
from harness.sim.engine.rng import stream

FS_PER_NS: Final = 1_000_000
"""Femtoseconds per nanosecond. The rate of a clock is how many fs it advances per true ns: a million if it is exact."""

BEGINS_NS_MAX = 10**12


class Clock:
    """One clock. Between two changes of its rate, the clock advances linearly with the true time.

    The clock counts in integers, so that rounding adds no drift.
    """

    __slots__ = ("_grain_ns", "_queue", "_random", "_rate", "_shown_fs", "_since", "usual_rate")

    def __init__(
        self, queue: EventQueue, seed: int, name: str, spread: float, *, at_edges: bool = False, grain_ns: int = 1
    ) -> None:
        self._queue, self._grain_ns = queue, grain_ns
        self._random = stream(seed, f"clock/{name}")
        # The true time of the last change, which is in the future while the clock stands still.
        self._since = queue.now
        # The time that the clock showed at `_since`.
        self._shown_fs = self._random.randrange(BEGINS_NS_MAX) * FS_PER_NS
        place = 2 * self._random.random() - 1
        self.usual_rate = int(FS_PER_NS * spread ** (math.copysign(1, place) if at_edges else place))
        self._rate = self.usual_rate

    def now(self) -> int:
        """Return the time that the clock shows, in ns."""
        elapsed_ns = self._queue.now - self._since
        shown_ns = (self._shown_fs + elapsed_ns * self._rate if elapsed_ns > 0 else self._shown_fs) // FS_PER_NS
        return shown_ns - shown_ns % self._grain_ns

    def due(self, shown_ns: int) -> int:
        """Return the first true time from now on at which this clock, if not changed, shows `shown_ns` or more."""
        shown_ns += -shown_ns % self._grain_ns
        missing_fs = shown_ns * FS_PER_NS - self._shown_fs
        return max(self._queue.now, self._since + -(-missing_fs // self._rate) if missing_fs > 0 else 0)

    def jump(self, by_ns: int) -> None:
        """Jump ahead. The caller must arm timers again."""
        assert by_ns >= 0, by_ns
        self._shown_fs += by_ns * FS_PER_NS

    def run_at(self, rate: int) -> None:
        """Run at another rate from now on. The caller must arm timers again."""
        assert rate > 0, rate
        elapsed_ns = self._queue.now - self._since
        if elapsed_ns > 0:
            self._shown_fs += elapsed_ns * self._rate
            self._since = self._queue.now
        self._rate = rate

    def stand_still(self, until: int) -> None:
        """Stand still until the true time `until`. Timers that are already armed will fire too early."""
        self.run_at(self._rate)
        self._since = max(self._since, until)

    def go_on(self) -> None:
        """Stop standing still, and run at the usual rate."""
        self._since = min(self._since, self._queue.now)
        self.run_at(self.usual_rate)

    def begin_anew(self) -> None:
        """Show a random time from now on, because the machine has lost power.

        The random time may be before the present time.
        """
        self._shown_fs = self._random.randrange(BEGINS_NS_MAX) * FS_PER_NS
        self._since, self._rate = self._queue.now, self.usual_rate
