"""Settles writes of unknown outcome whose revision an event shows: replaces their rows by acknowledged ones.

The acknowledged row has the revision that the event shows. Its return is the arrival of the event, because the write
took effect before that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from spark_audit.history.services import plain_rows
from spark_audit.services.key_check import Settlement

Row = dict[str, Any]


def settled_rows_of(settlements: Iterable[Settlement]) -> dict[int, list[Row]]:
    """Return, by op_id of the plain row, the rows that replace it.

    Several deletions at one revision, as by a lease that ended, become one transaction. Its row replaces the first of
    these plain rows, and nothing replaces the others.
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
    """Yield the plain rows of a row. Those that are settled are replaced, by rows that have all fields of `row`."""
    for made in plain_rows(row):
        for one in settled.get(made["op_id"], ()):
            yield {**dict.fromkeys(row), **one}
        if made["op_id"] not in settled:
            yield {**made}


def _plain_id(one: Settlement) -> int:
    return one.candidate.plain_id


def _row(one: Settlement, revision: int) -> Row:
    candidate = one.candidate
    output: Row = {"found": True, "succeeded": True} if candidate.kind == "delete" else {"succeeded": True}
    op = "delete" if candidate.kind == "delete" else "put"
    return {**_stamps([one], revision), "op": op, "key": one.key, "value": candidate.value, "output": output}


def _together(deletes: Sequence[Settlement], revision: int) -> Row:
    steps = [{"op": "delete", "key": one.key} for one in deletes]
    request = json.dumps({"compares": [], "success": steps, "failure": []})
    output = {"succeeded": True, "results": [{"op": "delete", "found": True} for _ in deletes]}
    return {**_stamps(deletes, revision), "op": "txn", "request": request, "output": output}


def _stamps(mine: Sequence[Settlement], revision: int) -> Row:
    first = mine[0].candidate
    called_ns = max(one.candidate.name.call_ns for one in mine)
    client = f"lease {first.lease_id} of #{first.name.op_id}" if first.op == "lease" else first.name.client
    return {
        "op_id": first.plain_id,
        "client": client,
        "status": "ok",
        "call_ns": called_ns,
        "return_ns": max(called_ns, min(one.seen_ns for one in mine)),
        "clock_id": first.name.clock,
        "revision": revision,
    }


def with_run(rows: Mapping[int, Sequence[Row]], run_id: str) -> dict[int, list[Row]]:
    """Return the rows with the run_id of this run."""
    return {op_id: [{"run_id": run_id, **row} for row in mine] for op_id, mine in rows.items()}
