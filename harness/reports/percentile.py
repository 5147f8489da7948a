"""The exact percentile of a list, for all reports and benchmarks.

`raft.runtime.Histogram` estimates the same rank from counts, without keeping the durations. This file imports nothing
of the project, because a member of PySyncObj loads it in the comparison of systems.
"""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest rank: the least value that at least `share` of all values do not exceed.

    `ordered`: the values, ascending and not empty. `share`: above 0, at most 1.
    """
    assert ordered, "no values have no percentile"
    assert 0 < share <= 1, share
    rank = -(-len(ordered) * round(share * 1000) // 1000)  # Ceiling, in integers: 0.99 is not exact in binary.
    return ordered[max(0, rank - 1)]
