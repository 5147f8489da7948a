"""The exact percentile of a list: that of all reports and benchmarks.

`raft.runtime.Histogram` estimates the same rank of durations that were counted and not kept. Nothing of the project is
imported here, because a member of PySyncObj loads this file in the comparison of systems.
"""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the least value that at least `share` of all do not exceed. `ordered` rises, and is not empty."""
    assert ordered, "no values have no percentile"
    assert 0 < share <= 1, share
    rank = -(-len(ordered) * round(share * 1000) // 1000)  # Ceiling, in integers: 0.99 is not exact in binary.
    return ordered[max(0, rank - 1)]
