"""Checks two properties of the whole store from the revisions alone, for rows in memory (Spark: `spark/order.py`).

Order: if operation A returned before operation B was called, even on another key, B must not carry a lower revision
than A. If B changed something, its revision must be higher. So if the operations are sorted by (revision, writer first,
call), no operation may have returned before the call of an operation that precedes it.

Uniqueness: two acknowledged operations that changed something must not carry the same revision. Revisions that no such
operation carries are counted, but not reported as violations, because writers outside of the history may have made
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import changed, rank


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """A pair of operations that breaks the order.

    `late` returned before `early` was called, but `late` comes after `early` in the order of revisions.
    """

    late: Mapping[str, Any]
    early: Mapping[str, Any]


def out_of_order(rows: Iterable[Mapping[str, Any]], clocks: Clocks) -> Iterator[OutOfOrder]:
    """Yield each operation of one run that breaks the order, with another operation that shows the violation.

    `rows`: the rows that take part (`takes_part` in history/effects.py).
    """
    latest: dict[str, Mapping[str, Any]] = {}  # Clock → the row with the greatest call among the rows handled so far.
    for row in sorted(rows, key=rank):
        for clock, other in latest.items():
            margin = clocks.margin_ns(row["clock_id"], clock)
            if margin is not None and row["return_ns"] + margin < other["call_ns"]:
                yield OutOfOrder(row, other)
                break
        have = latest.get(row["clock_id"])
        if have is None or row["call_ns"] > have["call_ns"]:
            latest[row["clock_id"]] = row


@dataclass(frozen=True, slots=True)
class Uniqueness:
    """The uniqueness of the revisions of acknowledged writes in one run.

    `repeated`: revision → the writes that share it. `gaps`: the number of revisions that no write
    carries, between the least and the greatest revision of a write. `writes`: the number of writes.
    """

    repeated: dict[int, list[Mapping[str, Any]]]
    gaps: int
    writes: int


def uniqueness(rows: Iterable[Mapping[str, Any]]) -> Uniqueness:
    """Check the uniqueness of the revisions in one run. `rows`: the rows that take part."""
    by_revision: dict[int, list[Mapping[str, Any]]] = {}
    for row in sorted(filter(changed, rows), key=rank):
        by_revision.setdefault(row["revision"], []).append(row)
    gaps = max(by_revision) - min(by_revision) + 1 - len(by_revision) if by_revision else 0
    repeated = {revision: rows for revision, rows in sorted(by_revision.items()) if len(rows) > 1}
    return Uniqueness(repeated, gaps, sum(len(rows) for rows in by_revision.values()))
