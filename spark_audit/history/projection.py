"""Splits a row that concerns several keys into its projections: one row for each key.

The projection of a linearizable history onto one key is linearizable, so a violation in a projection is a violation of
the history. The reverse does not hold, so `store/replay.py` checks listings and transactions against the whole store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from spark_audit.history.effects import changed
from spark_audit.history.requests import Request, parse_request, single_key
from spark_audit.history.services import SERVICE_OPS


def project(row: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (key, row about this key alone) for every key that the row reports on.

    A range or transaction that failed yields nothing. A row of a service yields nothing, because its plain rows
    (`plain_rows`) are projected instead.
    """
    if row["op"] in SERVICE_OPS:
        return
    if row["op"] not in ("range", "txn"):
        yield row["key"], row
    elif row["status"] != "fail":
        request = parse_request(row)
        yield from _listed(row, request) if row["op"] == "range" else _transacted(row, request)


def _listed(row: Mapping[str, Any], request: Request) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each item as a read of its key.

    If the range can contain only one key, an empty listing is yielded as a read that found no record. Otherwise the
    replay checks which keys are absent.
    """
    if row["status"] != "ok" or request["count_only"]:
        return
    pinned = request["revision"]
    base = {**row, "request": None}
    if pinned:
        base |= {"weak": "pinned", "revision": pinned}
    only = single_key(request)
    if only is not None and not row["output"]["items"]:
        yield only, {**base, "key": only, "output": {"found": False}}
    for item in row["output"]["items"]:
        seen = {
            name: value for name, value in item.items() if name != "key"
        }  # The schema of a row's output has no field `key`, and Spark drops fields that are not in the schema.
        yield item["key"], {**base, "key": item["key"], "output": {**seen, "found": True}}


def _transacted(row: Mapping[str, Any], request: Request) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if row["status"] == "unknown":
        for key in _keys(request["compares"], request["success"], request["failure"]):
            yield key, _part(row, key, request, None)
        return
    succeeded, results = row["output"]["succeeded"], row["output"]["results"]
    branch = "success" if succeeded else "failure"
    steps: list[Request] = []
    answers: list[Mapping[str, Any]] = []
    for step, result in zip(request[branch], results, strict=True):
        if step["op"] != "range":
            steps.append(step)
            answers.append(result)
        elif not step["count_only"] and not step["revision"]:
            steps.extend({"op": "get", "key": item["key"]} for item in result["items"])
            answers.extend({**item, "op": "get", "found": True} for item in result["items"])
    ran = {"compares": request["compares"], "success": [], "failure": [], branch: steps}
    for key in _keys(request["compares"], steps):
        mine = [answer for step, answer in zip(steps, answers, strict=True) if step["key"] == key]
        yield key, _part(row, key, ran, {"succeeded": succeeded, "results": mine})


def _keys(*lists: list[Request]) -> list[str]:
    return sorted({item["key"] for items in lists for item in items if item.get("op") != "range"})


def _part(row: Mapping[str, Any], key: str, request: Request, output: Request | None) -> Mapping[str, Any]:
    """Return the part of a transaction that concerns one key.

    In the request of the part, `exact` is true if all comparisons of the transaction concern this key. In this case the
    key alone decides which branch runs.
    """
    mine = {
        name: [item for item in request[name] if item.get("op") != "range" and item["key"] == key]
        for name in ("compares", "success", "failure")
    }
    exact = len(mine["compares"]) == len(request["compares"])
    if output is None and not request["compares"]:
        mine["failure"] = []  # Without comparisons, the success branch always runs.
    changes = row["status"] == "ok" and changed(row)
    return {
        **row,
        "key": key,
        "request": json.dumps({**mine, "exact": exact}),
        "output": output,
        "changes_store": changes,
    }
