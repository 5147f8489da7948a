"""The exact percentile of a list, for all reports and benchmarks.

`raft.runtime.Histogram` estimates the same rank from counts, without keeping all durations. This module imports nothing
of the project, because the PySyncObj members in the comparison of systems (`benchmarks`) import it as well.
"""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the least value such that at least `share` of all values are not above it.

    `ordered`: the values in ascending order, at least one. `share`: above 0, at most 1.
    """
    assert ordered, "no values have no percentile"
    assert 0 < share <= 1, share
    # The rank is rounded up with integers, because 0.99 is not exact in binary.
    rank = -(-len(ordered) * round(share * 1000) // 1000)
    return ordered[max(0, rank - 1)]
