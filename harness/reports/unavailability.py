"""How long writes stood still, fault by fault, as the recorded history shows it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.reports.percentiles import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailability:
    """Of all faults of one kind: the longest time without an acknowledged write, in milliseconds, nearest ranks.

    `hit`: `leader` where whoever led was among the victims, `others` where not.
    """

    fault: str
    hit: str
    count: int
    median_ms: float
    p90_ms: float
    worst_ms: float


def longest_silence_ns(acknowledged: Sequence[int], since: int, until: int) -> int:
    """The longest time within `since` to `until` in which no write was acknowledged.

    `acknowledged`: when each was, rising. The ends of the window count as ends of a silence.
    """
    assert since <= until, (since, until)
    inside = acknowledged[bisect_left(acknowledged, since) : bisect_left(acknowledged, until)]
    moments = [since, *inside, until]
    return max(after - before for before, after in pairwise(moments))


def distributions(silences: Iterable[tuple[str, bool, float]]) -> tuple[Unavailability, ...]:
    """Sum up (kind, whether the leader was hit, seconds), by kind and by who was hit, in order of these names."""
    groups: dict[tuple[str, str], list[float]] = {}
    for kind, hit_leader, seconds in silences:
        groups.setdefault((kind, "leader" if hit_leader else "others"), []).append(seconds * 1000)
    return tuple(
        Unavailability(
            fault=kind,
            hit=hit,
            count=len(values),
            median_ms=round(percentile(sorted(values), 0.5), 1),
            p90_ms=round(percentile(sorted(values), 0.9), 1),
            worst_ms=round(max(values), 1),
        )
        for (kind, hit), values in sorted(groups.items())
    )
