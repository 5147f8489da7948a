"""Histograms of durations, and a `Driver` that also measures how long entries take to commit."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

from raft.runtime.driver import Driver

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""The default bounds of the buckets (seconds). A lone put on a fast disk takes 0.2 ms. If a sync takes ten seconds, the
disk hangs."""


class Histogram:
    """Counts durations in buckets, so that its memory does not grow with the number of durations.

    Only one thread at a time may add durations, but any thread may read. `bounds_seconds`: the upper bounds of the
    buckets, in rising order. No two of them may be equal when rounded to nanoseconds. The closer two neighbouring
    bounds are, the more exact are the percentiles between them. The default suits Prometheus, which adds the buckets of
    many members and computes percentiles of the sum.
    """

    def __init__(self, bounds_seconds: Sequence[float] = SECONDS) -> None:
        self.bounds_seconds = tuple(bounds_seconds)
        self._bounds_ns = [round(bound * 1e9) for bound in self.bounds_seconds]
        assert self._bounds_ns == sorted(set(self._bounds_ns)), bounds_seconds
        self._counts = [0] * (len(self._bounds_ns) + 1)  # The last count is for durations above all bounds.
        self._sum_ns = self._max_ns = 0

    def observe(self, duration_ns: int) -> None:
        """Count one duration. A duration that equals a bound belongs to the bucket with this upper bound."""
        self._counts[bisect_left(self._bounds_ns, duration_ns)] += 1
        self._sum_ns += duration_ns
        if duration_ns > self._max_ns:
            self._max_ns = duration_ns

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self._counts)

    @property
    def max_seconds(self) -> float:
        """The longest duration; 0 if there was none."""
        return self._max_ns / 1e9

    @property
    def sum_seconds(self) -> float:
        """The sum of all durations."""
        return self._sum_ns / 1e9

    def cumulative(self) -> list[int]:
        """For each bound, the number of durations that do not exceed it. The last item is the number of all
        durations."""
        counts, total = [], 0
        for count in list(self._counts):
            total += count
            counts.append(total)
        return counts

    def percentile_seconds(self, share: float) -> float:
        """Return a percentile by nearest rank: the lowest bound that at least `share` of all durations do not exceed.

        If the longest duration is below this bound, or if no bound is high enough, the result is the longest duration.
        If there are no durations, the result is 0. `share` is above 0 and at most 1, and is rounded to thousandths.
        """
        assert 0 < share <= 1, share
        cumulative = self.cumulative()
        # Integers make the rounding exact. With a `share` of 0.99 as a float, the rounding would not be exact.
        rank = max(1, -(-cumulative[-1] * round(share * 1000) // 1000))
        bucket = bisect_left(cumulative, rank)
        is_bounded = bucket < len(self.bounds_seconds)
        return min(self.bounds_seconds[bucket], self.max_seconds) if is_bounded else self.max_seconds


class MeasuredDriver(Driver):
    """A driver that, while its member leads, also measures the time from the append of entries to their commit.

    Each flush gives one measurement: the time until all entries that the flush has appended are committed.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """The arguments are those of `Driver`."""
        super().__init__(*arguments, **named)
        self.commit_latency = Histogram()
        self._term: int | None = None  # The term in which the waiting entries were proposed.
        self._seen_index = 0  # The end of the log after the last flush.
        self._waiting: deque[tuple[int, int]] = deque()  # (last index, start in ns) of each appending flush.

    def _carry_out(self, now: int | None) -> bool:
        began = time.perf_counter_ns()
        is_over = super()._carry_out(now)
        core = self.node.core
        if core.leading_term != self._term:
            self._term = core.leading_term
            # This member no longer leads, so it may never learn whether the waiting entries have committed.
            self._waiting.clear()
            self._seen_index = core.last_index
        if self._term is not None:
            last_index, waiting = core.last_index, self._waiting
            if last_index > self._seen_index:
                self._seen_index = last_index
                # The deque is bounded, because the leader's uncommitted entries are bounded.
                waiting.append((last_index, began))
            if waiting and waiting[0][0] <= core.commit_index:
                commit_index, now = core.commit_index, time.perf_counter_ns()
                while waiting and waiting[0][0] <= commit_index:
                    self.commit_latency.observe(now - waiting.popleft()[1])
        return is_over
