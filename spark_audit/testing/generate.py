"""Generates seeded histories that are linearizable by construction (`testing/inject_fault.py` injects faults).

The clients, the store and the clock are simulated. Each operation takes effect at an instant between its call and its
return, and its response is taken from the store at that instant. An unknown operation takes effect at some time after
its call, or never.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

Row = dict[str, Any]
_EMPTY: dict[str, Any] = {
    "succeeded": None,
    "found": None,
    "value": None,
    "create_revision": None,
    "mod_revision": None,
    "version": None,
    "deleted_revision": None,
    "exact": None,
    "items": None,
    "more": None,
    "count": None,
    "results": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parameters of a history. A share is a fraction of all operations.

    The operations that remain after the put, delete, cas, append and multi-key shares are reads. `unknown_share`: the
    share of operations of unknown outcome. `local_share`: the share of `local` reads among the reads.
    """

    operations: int = 1_000
    clients: int = 10
    keys: int = 20
    put_share: float = 0.35
    delete_share: float = 0.05
    cas_share: float = 0.15
    append_share: float = 0.0
    multi_key_share: float = 0.0  # Ranges and transactions over several keys.
    unknown_share: float = 0.01
    local_share: float = 0.0
    revisions: bool = True
    skew: float = 0.0  # With 0, all keys are equally frequent. With 1, one key gets about half of the draws.


class _Store:
    """The simulated store. A record is (value, create_revision, mod_revision, version)."""

    def __init__(self) -> None:
        self.revision = 1
        self.records: dict[str, tuple[str, int, int, int]] = {}
        self.deleted: dict[str, int] = {}

    def put(self, key: str, value: str, revision: int) -> None:
        old = self.records.get(key)
        self.records[key] = (value, old[1] if old else revision, revision, old[3] + 1 if old else 1)

    def delete(self, key: str, revision: int) -> bool:
        self.deleted[key] = revision
        return self.records.pop(key, None) is not None

    def seen(self, key: str) -> Row:
        record = self.records.get(key)
        if record is None:
            deleted = self.deleted.get(key)
            return {"found": False, "deleted_revision": deleted, "exact": None if deleted is None else True}
        value, create, mod, version = record
        return {"found": True, "value": value, "create_revision": create, "mod_revision": mod, "version": version}

    def listed(self, prefix: str, limit: int, reverse: bool) -> Row:
        keys = sorted((key for key in self.records if key.startswith(prefix)), reverse=reverse)
        page = keys[:limit] if limit else keys
        items = [{"key": key, **{k: v for k, v in self.seen(key).items() if k != "found"}} for key in page]
        return {"items": items, "more": len(page) < len(keys), "count": len(keys)}


def generate(shape: Shape, seed: int, run_id: str = "") -> list[Row]:
    """Return the rows of one run, sorted by call. The same shape and seed give the same rows.

    `run_id`: if it is empty, a name is made from the seed.
    """
    return list(_Simulation(shape, Random(seed), run_id or f"generated-{seed}").rows())


class _Simulation:
    def __init__(self, shape: Shape, random: Random, run_id: str) -> None:
        self.shape, self.random, self.run_id = shape, random, run_id
        self.store = _Store()
        self.finished: list[Row] = []
        self.stale = _Store()  # The store of a lagging member, which answers local reads.

    def rows(self) -> Iterator[Row]:
        """Yield the rows.

        The simulation takes events (time, kind, op_id, row) from a heap. A call adds two events to the heap: its
        effect, and the next call of the client.
        """
        events: list[tuple[int, int, int, Row]] = []
        names = dict.fromkeys(range(self.shape.clients), 0)
        for op_id in range(min(self.shape.clients, self.shape.operations)):
            heappush(events, (self.random.randrange(1, 1_000_000), 0, op_id, {"number": op_id}))
        next_id = self.shape.clients
        while events:
            now, kind, op_id, row = heappop(events)
            if kind == 1:
                self._take_effect(row)
                continue
            number = row["number"]
            operation = self._called(op_id, f"c{number}.{names[number]}", now)
            end = now + self.random.randrange(200_000, 3_000_000)
            if operation["status"] == "unknown":
                names[number] += 1
                if self.random.random() < 0.6:
                    heappush(events, (now + self.random.randrange(1, 20_000_000), 1, op_id, operation))
            else:
                heappush(events, (self.random.randrange(now, end + 1), 1, op_id, operation))
                operation["return_ns"] = end
            self.finished.append(operation)
            if next_id < self.shape.operations:
                heappush(events, (end + self.random.randrange(1, 300_000), 0, next_id, {"number": number}))
                next_id += 1
        yield from self.finished

    def _called(self, op_id: int, client: str, now: int) -> Row:
        op = self._chosen_op()
        unknown = self.random.random() < self.shape.unknown_share
        row: Row = dict.fromkeys(("key", "value", "expected", "expected_mod_revision", "request", "output", "error"))
        row |= {"run_id": self.run_id, "op_id": op_id, "client": client, "session": None, "op": op, "call_ns": now}
        row |= {"status": "unknown" if unknown else "ok", "return_ns": None, "clock_id": "simulated", "revision": None}
        row |= {"consistency": None, "node": f"n{1 + op_id % 3}", "error": "Timeout" if unknown else None}
        if op in ("range", "txn"):
            row["request"] = _canonical(self._listing() if op == "range" else self._transaction(op_id))
        else:
            row["key"] = self._key()
        if op in ("put", "cas", "append"):
            row["value"] = f"v{op_id}"
        if op in ("get", "range"):
            row["consistency"] = "linearizable"
        if op == "cas":
            self._expect(row)
        return row

    def _chosen_op(self) -> str:
        shape, draw = self.shape, self.random.random()
        for name in ("put", "delete", "cas", "append"):
            share = getattr(shape, f"{name}_share")
            if draw < share:
                return name
            draw -= share
        return self.random.choice(("range", "txn")) if draw < shape.multi_key_share else "get"

    def _key(self) -> str:
        first = self.random.random() < self.shape.skew / 2
        return f"k{0 if first else self.random.randrange(self.shape.keys):04d}"

    def _expect(self, row: Row) -> None:
        seen = self.store.seen(row["key"])
        if self.random.random() < 0.2:
            row["expected"] = f"v{self.random.randrange(row['op_id'] + 1)}"
        elif self.shape.revisions and self.random.random() < 0.5:
            row["expected_mod_revision"] = seen.get("mod_revision", 0)
        else:
            row["expected"] = seen.get("value")

    def _listing(self) -> Row:
        prefix = f"k{self.random.randrange(self.shape.keys):04d}"[: self.random.choice((3, 4, 5))]
        return {"prefix": prefix, "limit": self.random.choice((0, 0, 3)), "reverse": self.random.random() < 0.3}

    def _transaction(self, op_id: int) -> Row:
        one, other = self._key(), self._key()
        version = self.store.seen(one).get("version", 0)
        success = [{"op": "put", "key": one, "value": f"v{op_id}a"}, {"op": "get", "key": other}]
        if other != one:
            success.append({"op": self.random.choice(("delete", "get")), "key": other})
        compares = [{"key": one, "target": "version", "op": "=", "value": version}]
        return {"compares": compares, "success": success, "failure": [{"op": "get", "key": one}]}

    def _take_effect(self, row: Row) -> None:
        output = {**_EMPTY, **_applied(self.store, row)}
        if row["status"] == "ok":
            row["output"] = output
            row["revision"] = self.store.revision if self.shape.revisions else None
            if row["op"] == "get" and self.random.random() < self.shape.local_share:
                row["consistency"], row["revision"] = "local", self.stale.revision
                row["output"] = {**_EMPTY, **self.stale.seen(row["key"])}
            if not self.shape.revisions:
                _hide_revisions(output)
        if self.random.random() < 0.01:
            self.stale.records, self.stale.deleted = dict(self.store.records), dict(self.store.deleted)
            self.stale.revision = self.store.revision


def _applied(store: _Store, row: Row) -> Row:
    """Apply the operation of a row to the store, and return its output."""
    key, next_revision = row["key"], store.revision + 1
    match row["op"]:
        case "get":
            return store.seen(key)
        case "put":
            store.put(key, row["value"], next_revision)
            store.revision = next_revision
            return {"succeeded": True}
        case "append":
            store.put(key, store.seen(key).get("value", "") + row["value"], next_revision)
            store.revision = next_revision
            return {"succeeded": True}
        case "delete":
            found = key in store.records
            if found:
                store.delete(key, next_revision)
                store.revision = next_revision
            return {"succeeded": found, "found": found}
        case "cas":
            return _compare_and_set(store, row, next_revision)
        case "range":
            request = json.loads(row["request"])
            return store.listed(request["prefix"], request["limit"], request["reverse"])
    return _transacted(store, json.loads(row["request"]), next_revision)


def _compare_and_set(store: _Store, row: Row, next_revision: int) -> Row:
    seen = store.seen(row["key"])
    wanted = row["expected_mod_revision"]
    holds = seen.get("value") == row["expected"] if wanted is None else seen.get("mod_revision", 0) == wanted
    if not holds:
        return {"succeeded": False, **seen}
    store.put(row["key"], row["value"], next_revision)
    store.revision = next_revision
    return {"succeeded": True}


def _transacted(store: _Store, request: Row, next_revision: int) -> Row:
    holds = all(store.seen(c["key"]).get("version", 0) == c["value"] for c in request["compares"])
    results: list[Row] = []
    for step in request["success" if holds else "failure"]:
        result: Row = {**{k: v for k, v in _EMPTY.items() if k != "results"}, "op": step["op"]}
        if step["op"] == "get":
            result |= store.seen(step["key"])
        elif step["op"] == "put":
            store.put(step["key"], step["value"], next_revision)
            store.revision = next_revision
        elif step["key"] in store.records:
            store.delete(step["key"], next_revision)
            store.revision = next_revision
            result["found"] = True
        else:
            result["found"] = False
        results.append(result)
    return {"succeeded": holds, "results": results}


def _hide_revisions(output: Row) -> None:
    for row in (output, *(output["items"] or ()), *(output["results"] or ())):
        row |= dict.fromkeys(("create_revision", "mod_revision", "version", "deleted_revision", "exact"))


def _canonical(request: Row) -> str:
    return json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
