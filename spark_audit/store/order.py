"""The store-wide properties that revisions alone decide, for rows in memory (Spark: `spark/order.py`).

Order: if an operation returned before the call of another operation, on any key, the second carries no lower revision
than the first. If the second changed something, it carries a higher revision. In the order (revision, writer first,
call), this means that no operation returned before an earlier one of the order was called.

Unique: no two acknowledged writes that changed something carry the same revision. Revisions that no write carries are
only counted, because writers outside of the history may exist.
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

    `late` had returned before `early` was called, yet carries a revision that is not lower.
    """

    late: Mapping[str, Any]
    early: Mapping[str, Any]


def out_of_order(rows: Iterable[Mapping[str, Any]], clocks: Clocks) -> Iterator[OutOfOrder]:
    """Yield each operation of one run that breaks the order, with another operation that shows the violation.

    `rows`: the rows that take part.
    """
    latest: dict[str, Mapping[str, Any]] = {}  # Clock → the row called last, among the rows so far in the order.
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
    """The uniqueness of the revisions of one run.

    `repeated`: revision → the writes that share it. `gaps`: the number of revisions that no write carries, between the
    least and the greatest revision of a write. `writes`: the number of writes.
    """

    repeated: dict[int, list[Mapping[str, Any]]]
    gaps: int
    writes: int


def uniqueness(rows: Iterable[Mapping[str, Any]]) -> Uniqueness:
    """Return the uniqueness of the acknowledged writes of one run. `rows`: the rows that take part."""
    by_revision: dict[int, list[Mapping[str, Any]]] = {}
    for row in sorted(filter(changed, rows), key=rank):
        by_revision.setdefault(row["revision"], []).append(row)
    gaps = max(by_revision) - min(by_revision) + 1 - len(by_revision) if by_revision else 0
    repeated = {revision: rows for revision, rows in sorted(by_revision.items()) if len(rows) > 1}
    return Uniqueness(repeated, gaps, sum(len(rows) for rows in by_revision.values()))
