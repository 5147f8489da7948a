"""Writes of unknown outcome in the whole store. For each write: the changes that it would make, and its lowest possible
revision.

Such a write may have taken effect at a *gap*: a revision that no acknowledged change carries. No two writes have the
same revision, except for the deletions that the end of one lease makes. An unknown write cannot have taken effect
before its call, so its revision is above the revisions of all operations that returned before this call.

See docs/reference/specification.md#81-records-and-revisions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

from spark_audit.history.clocks import Clocks
from spark_audit.history.requests import Request, parse_request
from spark_audit.history.services import ended_lease
from spark_audit.model.store import Record, expected, holds

Row: TypeAlias = Mapping[str, Any]
Branch: TypeAlias = dict[str, str | None]


@dataclass(slots=True, eq=False)
class UnknownWrite:
    """One write of unknown outcome.

    `branches`: key → value written (None: deleted), for each branch of a transaction; other writes have one branch.
    `earliest`: the lowest revision that the write can have. `pinned`: the revision of a reported record that only this
    write can have made. `sure`: whether it is certain which branch of the write ran. `hinted`: the revision that a weak
    read suggests for the write. `part`: the number of its part; two writes are in the same part if they are connected
    through shared keys or a shared lease, directly or through other writes. `lease`: the lease whose end would make the
    write; None for a write of a client.
    """

    row: Row
    request: Request | None
    branches: tuple[Branch, ...]
    earliest: int
    pinned: int | None = None
    sure: bool = False
    hinted: int | None = None
    part: int = 0
    lease: str | None = field(init=False)
    keys: frozenset[str] = field(init=False)  # The keys that the write may change.
    with_lease: frozenset[str] = field(init=False)  # `keys`, and the keys that the end of the same lease may delete.
    named: frozenset[str] = field(init=False)  # The keys that the write may change, and the keys of its comparisons.

    def __post_init__(self) -> None:
        compares = self.request["compares"] if self.request else ()
        self.lease = ended_lease(self.row)
        self.keys = self.with_lease = frozenset(key for branch in self.branches for key in branch)
        self.named = self.keys | {compare["key"] for compare in compares}

    @property
    def op_id(self) -> int:
        """The op_id of the row of this write."""
        return int(self.row["op_id"])

    def effect(self, record: Callable[[str], Record]) -> Branch:
        """Return the changes that the write would make in this store; empty if it would change nothing."""
        row = self.row
        if self.request is not None:
            held = all(holds(record(compare["key"]), compare) for compare in self.request["compares"])
            made = self.branches[0 if held else 1]
        elif row["op"] == "append":
            made = {row["key"]: (record(row["key"])[0] or "") + row["value"]}
        elif row["op"] == "cas" and not expected(record(row["key"]), row):
            made = {}
        else:
            made = self.branches[0]
        return {key: value for key, value in made.items() if value is not None or record(key)[0] is not None}

    def may_write(self, key: str, value: str | None) -> bool:
        """Return whether the write can have given this value to the key. If `value` is None, return whether the write
        can have given any value to the key."""
        if self.row["op"] == "append":
            return key in self.keys
        return any(branch.get(key) is not None and value in (None, branch[key]) for branch in self.branches)


def unknown_writes(rows: Iterable[Row], completed: Sequence[Row], clocks: Clocks) -> list[UnknownWrite]:
    """Return the rows of unknown outcome that may have changed something.

    `completed`: the completed rows that carry a revision.
    """
    returned = ReturnedRevisions(completed, clocks)
    found: list[UnknownWrite] = []
    for row in rows:
        request = parse_request(row) if row["op"] == "txn" else None
        branches = _branches(row, request)
        if any(branches):
            found.append(
                UnknownWrite(row, request, branches, 1 + returned.highest_before(row["call_ns"], row["clock_id"]))
            )
    found.sort(key=lambda u: (u.row["call_ns"], u.op_id), reverse=True)
    _number_parts(found)
    return found


def _branches(row: Row, request: Request | None) -> tuple[Branch, ...]:
    if request is not None:
        # Without comparisons, the success branch always runs.
        return (_writes(request["success"]), _writes(request["failure"]) if request["compares"] else {})
    if row["op"] in ("put", "cas", "append"):
        return ({row["key"]: row["value"]},)
    return ({row["key"]: None},) if row["op"] == "delete" else ()


def _writes(steps: Iterable[Request]) -> Branch:
    return {step["key"]: step.get("value") for step in steps if step["op"] in ("put", "delete")}


class ReturnedRevisions:
    """An index of completed rows, by clock and return. It gives the highest revision among the rows that returned
    before a time."""

    def __init__(self, completed: Sequence[Row], clocks: Clocks) -> None:
        self._clocks = clocks
        by_clock: dict[str, list[tuple[int, int]]] = {}
        for row in completed:
            by_clock.setdefault(row["clock_id"], []).append((row["return_ns"], row["revision"]))
        self._known: dict[str, tuple[list[int], list[int]]] = {}
        for clock, pairs in by_clock.items():
            pairs.sort()
            self._known[clock] = ([end for end, _ in pairs], list(accumulate((r for _, r in pairs), max)))

    def highest_before(self, call_ns: int, clock_id: str) -> int:
        """Return the highest revision among the rows that returned before this stamp of this clock."""
        highest = 1  # The revision of the empty store.
        for clock, (ends, revisions) in self._known.items():
            margin = self._clocks.margin_ns(clock, clock_id)
            if margin is not None:
                position = bisect_left(ends, call_ns - margin)
                highest = max(highest, revisions[position - 1] if position else 1)
        return highest


def by_lease(found: Iterable[UnknownWrite]) -> dict[str, list[UnknownWrite]]:
    """Return lease → the deletions that the end of this lease may have made."""
    made: dict[str, list[UnknownWrite]] = {}
    for one in found:
        if one.lease is not None:
            made.setdefault(one.lease, []).append(one)
    return made


def _number_parts(found: Sequence[UnknownWrite]) -> None:
    """Set `part` and `with_lease` of these writes."""
    leader: dict[str, str] = {}

    def top(key: str) -> str:
        while leader.setdefault(key, key) != key:
            leader[key] = leader[leader[key]]
            key = leader[key]
        return key

    for unknown in found:
        first, *others = sorted(unknown.named)
        for key in others:
            leader[top(key)] = top(first)
    for siblings in by_lease(found).values():
        together = frozenset(key for one in siblings for key in one.keys)
        for one in siblings:
            one.with_lease = together
            leader[top(min(one.named))] = top(min(together))
    numbers: dict[str, int] = {}
    for unknown in found:
        unknown.part = numbers.setdefault(top(min(unknown.named)), len(numbers))
