"""The role of a row in the order of revisions: whether it takes part, whether it changed the store, and its rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_audit.history.operation import WEAK


def changed(row: Mapping[str, Any]) -> bool:
    """Return whether this acknowledged operation changed the store. If it did, it has a revision of its own.

    See docs/reference/specification.md#81-records-and-revisions.
    """
    output = row["output"]
    match row["op"]:
        case "put" | "append":
            return True
        case "delete":
            return bool(output["found"])
        case "cas":
            return bool(output["succeeded"])
        case "txn":
            return any(r["op"] == "put" or (r["op"] == "delete" and r["found"]) for r in output["results"])
    return False


def takes_part(row: Mapping[str, Any]) -> bool:
    """Return whether the order of revisions includes this row.

    The order includes the acknowledged operations that have a revision and promise linearizability.
    """
    return row["status"] == "ok" and row.get("revision") is not None and row.get("consistency") not in WEAK


def rank(row: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return the sort key of the row in the order of revisions: (revision, writer first, call, op_id)."""
    return (row["revision"], 0 if changed(row) else 1, row["call_ns"], row["op_id"])
