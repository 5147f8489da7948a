"""Falsifies a copy of a run, because a checker that has never reported a violation proves nothing.

One linearizable read is rewritten so that it shows an older value. This value must *certainly* be stale, because
otherwise a correct audit could find an order of operations that explains the value. So the read needs two writes of its
key. `first` wrote the older value, and was acknowledged before `second` was called. `second` was acknowledged before
the read was called. All written values are unique.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import BadInput
from harness.recording.history import copy_run, read_rows, write_rows

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StaleAnswer:
    """The read that is changed, and the two writes that make its new answer impossible."""

    read: Row  # The read as recorded, before the change.
    shows: str  # The older value that the read shows after the change.
    first: Row
    second: Row

    def words(self) -> str:
        return (
            f"operation {self.read['op_id']}, get {self.read['key']!r} by client {self.read['client']}, "
            f"now returns {self.shows!r} instead of {self.read['output']['value']!r}, although operation "
            f"{self.second['op_id']} had replaced that value and was acknowledged before the read was called"
        )


def make_stale(source: Path, target: Path) -> StaleAnswer:
    """Copy the run `source` to the new folder `target`, and make one of its reads stale.

    Raises BadInput if the run has no read that can be made *certainly* stale, usually because the run is too short.
    """
    rows: list[Row] = list(read_rows(source))
    spoiled = find_stale(rows)
    if spoiled is None:
        raise BadInput(f"{source} has no read that could be made stale for certain", "record a longer run")
    copy_run(source, target)
    write_rows(target, [_lie(row, spoiled) if row["op_id"] == spoiled.read["op_id"] else row for row in rows])
    return spoiled


def find_stale(rows: list[Row]) -> StaleAnswer | None:
    """Choose a read with two such writes, as close to the middle of the run as possible; None if there is none."""
    writes: dict[str, list[Row]] = {}
    for row in rows:
        if row["op"] in ("put", "cas") and row["status"] == "ok" and row["output"]["succeeded"]:
            writes.setdefault(row["key"], []).append(row)
    for of_key in writes.values():
        of_key.sort(key=lambda row: row["call_ns"])
    reads = sorted((row for row in rows if _is_plain_read(row)), key=lambda row: row["call_ns"])
    middle = len(reads) // 2
    for place in sorted(range(len(reads)), key=lambda place: abs(place - middle)):
        read = reads[place]
        second = _last_before(writes.get(read["key"], []), read["call_ns"])
        first = _last_before(writes.get(read["key"], []), second["call_ns"]) if second is not None else None
        if second is not None and first is not None:
            return StaleAnswer(read, first["value"], first, second)
    return None


def _is_plain_read(row: Row) -> bool:
    return bool(
        row["op"] == "get"
        and row["status"] == "ok"
        and row.get("consistency", "linearizable") == "linearizable"
        and row["output"]["found"]
    )


def _last_before(writes: list[Row], moment_ns: int) -> Row | None:
    """Return the latest write that had returned before `moment_ns`."""
    return next((write for write in reversed(writes) if write["return_ns"] < moment_ns), None)


def _lie(read: Row, spoiled: StaleAnswer) -> Row:
    """Return the read with the value and the `mod_revision` that `first` wrote.

    The field `revision` of the row does not change, so an audit must find the violation from the rest of the answer.
    """
    output = {"found": True, "value": spoiled.shows, "mod_revision": spoiled.first["revision"]}
    return {**read, "output": output}
