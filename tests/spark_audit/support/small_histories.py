"""Small random histories of one key, corrupted on purpose, and a checker that tries every order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, combinations, permutations
from random import Random

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import Operation, operation_of
from spark_audit.testing.generate import Row, Shape, generate


class Change:
    """One change of the key. `revision` is None until an answer has shown it."""

    def __init__(self, revision: int | None) -> None:
        self.revision = revision


class Register:
    """The store for one key. It was written a second time from docs/reference/specification.md#8-store, without looking
    at `spark_audit.model.key`.

    `carried` has the revisions of the acknowledged writes. An unknown change must have a revision that is not in
    `carried`.
    """

    def __init__(self, carried: Iterable[int] = ()) -> None:
        self.value: str | None = None
        self.mod = self.create = Change(0)
        self.version = 0
        self.taken = {0, *carried}  # 0 is the revision of an absent key.

    def set(self, value: str, revision: int | None) -> None:
        self.mod = Change(revision)
        if self.value is None:
            self.create, self.version = self.mod, 0
        self.value, self.version = value, self.version + 1

    def clear(self) -> None:
        self.value, self.mod, self.create, self.version = None, Change(0), Change(0), 0

    def agrees(self, change: Change, reported: int) -> bool:
        """True if this change may have the reported revision. In this case, the change keeps this revision from then
        on."""
        if change.revision is None and reported not in self.taken:
            change.revision = reported
            self.taken.add(reported)
        return change.revision == reported

    def shows(self, row: Row) -> bool:
        if bool(row["found"]) != (self.value is not None):
            return False
        if self.value is None:
            return True
        if row["value"] not in (None, self.value) or row["version"] not in (None, self.version):
            return False
        reported = ((self.mod, row["mod_revision"]), (self.create, row["create_revision"]))
        return all(revision is None or self.agrees(change, revision) for change, revision in reported)

    def take(self, row: Row) -> bool:
        """Apply the row. Returns False if the row's answer is impossible in this state."""
        unknown: bool = row["status"] == "unknown"
        output = row["output"] or {}
        if row["op"] == "get":
            return self.shows(output)
        if row["op"] == "put":
            self.set(row["value"], row["revision"])
            return True
        if row["op"] == "append":
            self.set((self.value or "") + row["value"], row["revision"])
            return True
        if row["op"] == "delete":
            there = self.value is not None
            if not unknown and output["found"] != there:
                return False
            self.clear()
            return True
        by_revision = row["expected_mod_revision"]
        if unknown or output["succeeded"]:
            holds = self.value == row["expected"] if by_revision is None else self.agrees(self.mod, by_revision)
            if not holds:
                return unknown  # The comparison was false, so the operation changed nothing.
            self.set(row["value"], row["revision"])
            return True
        shown = self.shows(output)
        return shown and (self.value != row["expected"] if by_revision is None else self.mod.revision != by_revision)


def has_an_order(rows: list[Row]) -> bool:
    """Try all permutations of the completed operations and of every subset of the unknown ones."""
    done = [row for row in rows if row["status"] == "ok"]
    open_ = [row for row in rows if row["status"] == "unknown" and row["op"] != "get"]
    subsets = chain.from_iterable(combinations(open_, n) for n in range(len(open_) + 1))
    return any(_explains(order) for subset in subsets for order in permutations([*done, *subset]))


def _explains(order: tuple[Row, ...]) -> bool:
    for position, row in enumerate(order):
        end = row["return_ns"]
        if end is not None and any(end < earlier["call_ns"] for earlier in order[:position]):
            return False
    carried = [row["revision"] for row in order if row["status"] == "ok" and _changed(row)]
    register = Register(revision for revision in carried if revision is not None)
    return all(register.take(row) for row in order)


def _changed(row: Row) -> bool:
    if row["op"] == "delete":
        return bool(row["output"]["found"])
    return row["op"] in ("put", "append") or (row["op"] == "cas" and bool(row["output"]["succeeded"]))


def small_history(random: Random, *, revisions: bool, values: int, appends: bool = False) -> list[Row]:
    """Four to six operations on one key by two to four clients. `values` is the number of different values. If it is 0,
    all values differ."""
    shape = Shape(
        operations=random.choice((4, 5, 6)),
        clients=random.choice((2, 3, 4)),
        keys=1,
        put_share=0.1 if appends else 0.3,
        delete_share=0.15,
        cas_share=0.25,
        append_share=0.25 if appends else 0.0,
        unknown_share=0.3,
        revisions=revisions,
    )
    rows = generate(shape, random.randrange(2**32))
    for row in rows if values else ():
        for place in (row, row["output"] or {}):
            for name in ("value", "expected"):
                if place.get(name):
                    place[name] = re.sub(r"\d+", lambda match: str(int(match[0]) % values), place[name])
    if random.random() < 0.7:
        corrupt(rows, random)
    if not revisions:
        for row in rows:
            row["revision"] = None
    return rows


def corrupt(rows: list[Row], random: Random) -> None:
    """Change one answer, or the times of one operation."""
    row = random.choice(rows)
    other = random.choice(rows)
    output = row["output"]
    match random.randrange(6):
        case 0 if output and output.get("found") and row["op"] != "delete":
            output["value"] = other["value"] or "never"
        case 1 if output and output.get("mod_revision"):
            output["mod_revision"] += random.choice((-1, 1))
        case 2 if output and output.get("version"):
            output["version"] += random.choice((-1, 1))
        case 3 if row["return_ns"] is not None and other["return_ns"] is not None and row is not other:
            row["call_ns"], other["call_ns"] = other["call_ns"], row["call_ns"]
            row["return_ns"], other["return_ns"] = other["return_ns"], row["return_ns"]
        case 4 if output and row["op"] == "delete":
            output["found"] = not output["found"]
        case _:
            if row["status"] == "ok" and row["return_ns"] > row["call_ns"] + 100_000:
                row["return_ns"] = row["call_ns"] + 100_000


def operations_in(rows: list[Row]) -> list[Operation]:
    return [op for row in rows for op in operation_of(row)]


ONE_CLOCK = Clocks()
