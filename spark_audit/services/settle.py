"""Settles writes of unknown outcome whose revision an event shows: replaces their rows by acknowledged ones.

The acknowledged row has the revision that the event shows. Its return is the arrival of the event, because the write
took effect before the event arrived.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from spark_audit.history.services import plain_rows
from spark_audit.services.naming import RowName
from spark_audit.services.settlements import Settlement, Step

Row = dict[str, Any]


def settled_rows_of(settlements: Iterable[Settlement]) -> dict[int, list[Row]]:
    """Return a mapping: op_id of a plain row → the rows that replace this plain row.

    Several deletions at one revision, for example by the end of a lease, become one transaction. The row of this
    transaction replaces the plain row of the first deletion. Nothing replaces the plain rows of the other deletions.
    """
    by_revision: dict[int, list[Settlement]] = {}
    for one in settlements:
        by_revision.setdefault(one.revision, []).append(one)
    made: dict[int, list[Row]] = {}
    for revision, mine in sorted(by_revision.items()):
        deletes = sorted((one for one in mine if one.candidate.kind == "delete"), key=_plain_id)
        single = [one for one in mine if one.candidate.kind != "delete"]
        for one in single if len(deletes) > 1 else [*single, *deletes]:
            made[_plain_id(one)] = [_row(one, revision)]
        if len(deletes) > 1 and len({one.candidate.name.clock for one in deletes}) == 1:
            made.update((_plain_id(one), []) for one in deletes)
            made[_plain_id(deletes[0])] = [_together(deletes, revision)]
    return made


def settled_rows(row: Mapping[str, Any], settled: Mapping[int, Sequence[Row]]) -> Iterator[Row]:
    """Yield the plain rows of a row. A settled plain row is replaced by rows that have all fields of `row`."""
    for made in plain_rows(row):
        for one in settled.get(made["op_id"], ()):
            yield {**dict.fromkeys(row), **one}
        if made["op_id"] not in settled:
            yield {**made}


def _plain_id(one: Settlement) -> int:
    return one.candidate.plain_id


def batch_row(plain_id: int, name: RowName, steps: Sequence[Step], revision: int, seen_ns: int) -> Row:
    """Return the acknowledged row for an unknown transaction or deletion of a range that made these changes.

    `seen_ns`: the arrival of an event that shows one of the changes.
    """
    return {**_stamps(plain_id, name, name.client, seen_ns, revision), **_changes(steps)}


def _row(one: Settlement, revision: int) -> Row:
    candidate = one.candidate
    stamps = _stamps(candidate.plain_id, candidate.name, _client(one), one.seen_ns, revision)
    return {**stamps, **_changes([(candidate.kind, one.key, candidate.value)])}


def _together(deletes: Sequence[Settlement], revision: int) -> Row:
    first = deletes[0].candidate
    last = max((one.candidate.name for one in deletes), key=lambda name: name.call_ns)
    stamps = _stamps(first.plain_id, last, _client(deletes[0]), min(one.seen_ns for one in deletes), revision)
    return {**stamps, **_changes([("delete", one.key, None) for one in deletes])}


def _client(one: Settlement) -> str:
    candidate = one.candidate
    return (
        f"lease {candidate.lease_id} of #{candidate.name.op_id}" if candidate.op == "lease" else candidate.name.client
    )


def _changes(steps: Sequence[Step]) -> Row:
    """Return the fields of a row that made these changes."""
    if len(steps) == 1:
        ((kind, key, value),) = steps
        output: Row = {"found": True, "succeeded": True} if kind == "delete" else {"succeeded": True}
        return {"op": kind, "key": key, "value": value, "output": output}
    success: list[Row] = []
    results: list[Row] = []
    for kind, key, value in steps:
        success.append({"op": kind, "key": key, "value": value} if kind == "put" else {"op": kind, "key": key})
        results.append({"op": kind, "succeeded": True} if kind == "put" else {"op": kind, "found": True})
    request = json.dumps({"compares": [], "success": success, "failure": []})
    return {"op": "txn", "request": request, "output": {"succeeded": True, "results": results}}


def _stamps(plain_id: int, name: RowName, client: str, seen_ns: int, revision: int) -> Row:
    """Return some fields of an acknowledged row. Its call is the call of `name`, and its return is the arrival of an
    event.
    """
    return {
        "op_id": plain_id,
        "client": client,
        "status": "ok",
        "call_ns": name.call_ns,
        "return_ns": max(name.call_ns, seen_ns),
        "clock_id": name.clock,
        "revision": revision,
    }


def with_run(rows: Mapping[int, Sequence[Row]], run_id: str) -> dict[int, list[Row]]:
    """Return the rows with the run_id of this run."""
    return {op_id: [{"run_id": run_id, **row} for row in mine] for op_id, mine in rows.items()}
