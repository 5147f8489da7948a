"""Checks that no `bounded` read was older than its stated age. The audit does not read these ages.

A `bounded` answer shows every write that was acknowledged by a certain time: the time of the call minus the stated age.
So the revision of the answer is not below the revision of any operation that had returned by that time.

See docs/reference/specification.md#811-consistency-of-reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

_MILLISECOND_NS = 1_000_000


def older_than_they_say(rows: Sequence[dict[str, Any]]) -> tuple[int, ...]:
    """Return the `op_id` of each bounded read that is older than its stated age. Cost: O(n log n)."""
    told = sorted((row["return_ns"], row["revision"]) for row in rows if row["status"] == "ok" and row.get("revision"))
    moments = [moment for moment, _ in told]
    newest = list(accumulate((revision for _, revision in told), max, initial=0))
    return tuple(
        row["op_id"]
        for row in rows
        if row["status"] == "ok"
        and row.get("age_ms") is not None
        and row["revision"] < newest[bisect_left(moments, row["call_ns"] - row["age_ms"] * _MILLISECOND_NS)]
    )
