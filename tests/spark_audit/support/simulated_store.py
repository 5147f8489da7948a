"""Random histories of a small store with several keys, and a checker that tries all orders. Some histories are broken
on purpose.

The module is a second implementation of docs/reference/specification.md#8-store. Its author did not look at the replay
of `spark_audit`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from spark_audit.testing.generate import Row

Rec: TypeAlias = tuple[str, int, int, int]  # A record is (value, create_revision, mod_revision, version).
Faulty: TypeAlias = str | None
FAULTS = ("stale", "lost", "phantom", "half", "torn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The shares of the kinds of operations. All remaining operations are reads."""

    operations: int
    keys: int
    clients: int = 4
    unknown: float = 0.1
    put: float = 0.25
    delete: float = 0.1
    cas: float = 0.1
    txn: float = 0.15
    listing: float = 0.1
    local: float = 0.0


class Store:
    """A store that maps keys to records. `apply` returns the answer to a row. The revision rises if the row has changed
    something."""

    def __init__(self) -> None:
        self.revision = 1
        self.records: dict[str, Rec] = {}
        self.deleted: dict[str, int] = {}

    def copy(self) -> Store:
        other = Store()
        other.revision, other.records, other.deleted = self.revision, dict(self.records), dict(self.deleted)
        return other

    def seen(self, key: str) -> Row:
        if key not in self.records:
            return {"found": False, "deleted_revision": self.deleted.get(key), "exact": key in self.deleted}
        value, create, mod, version = self.records[key]
        return {"found": True, "value": value, "create_revision": create, "mod_revision": mod, "version": version}

    def _holds(self, compare: Row) -> bool:
        record = self.records.get(compare["key"])
        if compare["target"] == "value":
            return record is not None and _sign(record[0], compare["op"], compare["value"])
        numbers = {"create_revision": 1, "mod_revision": 2, "version": 3}
        have = record[numbers[compare["target"]]] if record else 0
        return _sign(have, compare["op"], compare["value"])

    def apply(self, row: Row, half: bool = False) -> Row:
        """With `half`, the store makes only the first write of a transaction, but reports all writes."""
        steps, output = self._steps(row)
        results: list[Row] = []
        revision, changed, writes = self.revision + 1, False, 0
        for step in steps:
            result: Row = {"op": step["op"]}
            there = self.records.get(step.get("key", ""))
            skipped = half and writes > 0
            if step["op"] == "get":
                result |= self.seen(step["key"])
            elif step["op"] == "range":
                result |= self.listed(step)
            elif step["op"] == "put":
                changed = True
                if not skipped:
                    create, version = (there[1], there[3] + 1) if there else (revision, 1)
                    self.records[step["key"]] = (step["value"], create, revision, version)
                writes += 1
            else:
                result["found"] = there is not None
                if there and not skipped:
                    del self.records[step["key"]]
                    self.deleted[step["key"]] = revision
                changed, writes = changed or there is not None, writes + 1
            results.append(result)
        self.revision += changed
        if row["op"] == "txn":
            return {"succeeded": output["succeeded"], "results": results}
        return output | ({k: v for k, v in results[0].items() if k != "op"} if results else {})

    def _steps(self, row: Row) -> tuple[list[Row], Row]:
        if row["op"] == "range":
            return [{"op": "range", **json.loads(row["request"])}], {}
        if row["op"] == "txn":
            request = json.loads(row["request"])
            holds = all(self._holds(compare) for compare in request["compares"])
            return request["success" if holds else "failure"], {"succeeded": holds}
        if row["op"] == "cas":
            seen = self.seen(row["key"])
            by_revision = row.get("expected_mod_revision")
            if by_revision is None:
                holds = seen.get("value") == row.get("expected")
            else:
                holds = seen.get("mod_revision", 0) == by_revision
            step = {"op": "put", "key": row["key"], "value": row["value"]}
            return ([step], {"succeeded": True}) if holds else ([], {"succeeded": False, **seen})
        return [{"op": row["op"], "key": row["key"], "value": row.get("value")}], {"succeeded": True}

    def listed(self, request: Row) -> Row:
        keys = sorted(key for key in self.records if key.startswith(request["prefix"]))
        keys = keys[::-1] if request.get("reverse") else keys
        page = keys[: request["limit"]] if request.get("limit") else keys
        items = [{"key": key, **{k: v for k, v in self.seen(key).items() if k != "found"}} for key in page]
        return {"items": items, "more": len(page) < len(keys), "count": len(keys)}


def _sign(have: Any, sign: str, want: Any) -> bool:
    return bool({"=": have == want, "!=": have != want, "<": have < want, ">": have > want}[sign])


def history(mix: Mix, random: Random, fault: Faulty = None) -> list[Row]:
    """Rows in the order of their calls. With `fault`, the store makes one mistake somewhere in the middle."""
    return _Run(mix, random, fault).rows()


class _Run:
    def __init__(self, mix: Mix, random: Random, fault: Faulty) -> None:
        self.mix, self.random, self.fault = mix, random, fault
        self.store = Store()
        self.older = [self.store.copy()]
        self.keys = [f"k{number}" for number in range(mix.keys)]

    def rows(self) -> list[Row]:
        effects: list[tuple[int, int, Row]] = []
        now, names = [self.random.randrange(1_000) for _ in range(self.mix.clients)], [0] * self.mix.clients
        for op_id in range(self.mix.operations):
            client = min(range(self.mix.clients), key=now.__getitem__)
            unknown = self.random.random() < self.mix.unknown
            call, end = now[client], now[client] + self.random.randrange(100, 3_000)
            row: Row = {"run_id": "small", "op_id": op_id, "client": f"c{client}.{names[client]}", "clock_id": "one"}
            row |= {"call_ns": call, "return_ns": None if unknown else end, "status": "unknown" if unknown else "ok"}
            at = self.random.randrange(call, call + 20_000 if unknown else end + 1)
            effects.append((at, op_id, row))
            names[client] += unknown
            now[client] = end + self.random.randrange(1, 500)
        for _, op_id, row in sorted(effects, key=lambda effect: effect[:2]):
            self._request(row)
            self._happen(row, wrong=self.fault is not None and op_id >= self.mix.operations // 3)
        return sorted((row for *_, row in effects), key=lambda row: int(row["call_ns"]))

    def _request(self, row: Row) -> None:
        mix, draw, key = self.mix, self.random.random(), self.random.choice(self.keys)
        row["op"] = "get"
        shares = {"put": mix.put, "delete": mix.delete, "cas": mix.cas, "txn": mix.txn, "range": mix.listing}
        for op, share in shares.items():
            if 0 <= draw < share:
                row["op"] = op
            draw -= share
        if row["op"] == "txn":
            row["request"] = json.dumps(self._transaction(row["op_id"]))
        elif row["op"] == "range":
            row["request"] = json.dumps(self._listing())
        else:
            row["key"] = key
        if row["op"] in ("put", "cas"):
            row["value"] = f"v{row['op_id']}"
        if row["op"] == "cas":
            row |= self._expectation(key)

    def _expectation(self, key: str) -> Row:
        seen = self.random.choice((self.store, self.store, self.random.choice(self.older))).seen(key)
        if self.random.random() < 0.5:
            return {"expected_mod_revision": seen.get("mod_revision", 0)}
        return {"expected": seen.get("value")}

    def _listing(self) -> Row:
        return {"prefix": "k", "limit": self.random.choice((0, 0, 2)), "reverse": self.random.random() < 0.3}

    def _transaction(self, op_id: int) -> Row:
        one, other = self.random.choice(self.keys), self.random.choice(self.keys)
        known = self.random.choice((self.store, self.store, self.random.choice(self.older))).seen(one)
        target = self.random.choice(("version", "mod_revision", "value"))
        want = known.get(target, "" if target == "value" else 0)
        compares = [{"key": one, "target": target, "op": "=", "value": want}] if self.random.random() < 0.8 else []
        success: list[Row] = [{"op": "put", "key": one, "value": f"v{op_id}a"}, {"op": "get", "key": one}]
        if other != one:
            success.append(self.random.choice((
                {"op": "put", "key": other, "value": f"v{op_id}b"}, {"op": "delete", "key": other},
                {"op": "get", "key": other},
            )))  # fmt: skip
        last: Row = {"op": "put", "key": other, "value": f"v{op_id}f"}
        failure = [self.random.choice((last, {"op": "get", "key": one}, {"op": "range", "prefix": "k"}))]
        return {"compares": compares, "success": success, "failure": failure}

    def _happen(self, row: Row, *, wrong: bool) -> None:
        if row["status"] == "unknown":
            if self.random.random() < 0.6:
                self._apply(row, wrong)
            row |= {"output": None, "revision": None}
            return
        if row["op"] == "get" and self.random.random() < self.mix.local:
            lagging = self.random.choice(self.older[-10:])
            row |= {"output": lagging.seen(row["key"]), "revision": lagging.revision, "consistency": "local"}
            return
        row["output"] = self._apply(row, wrong)
        row["revision"] = self.store.revision

    def _apply(self, row: Row, wrong: bool) -> Row:
        before = self.store.copy()
        fault = self.fault if wrong else None
        output: Row | None = None
        if fault == "phantom":
            self.store.apply({"op": "put", "key": self.random.choice(self.keys), "value": f"v{row['op_id']}p"})
        elif fault == "half" and row["op"] == "txn":
            output = self.store.apply(row, half=True)
        elif fault in ("stale", "torn") and row["op"] in (("get",) if fault == "stale" else ("range", "txn")):
            output = self.random.choice(self.older).copy().apply(row)
            fault = fault if json.dumps(output) != json.dumps(before.copy().apply(row)) else ""
            self.store.apply(row)
        elif fault == "lost" and row["op"] in ("put", "cas", "txn", "delete"):
            output = self.store.apply(row)
            self.store.records, self.store.deleted = before.records, before.deleted
        if output is None:
            output = self.store.apply(row)
            fault = fault if fault == "phantom" else ""
        if fault:
            self.fault = None  # Once is enough.
        self.older.append(self.store.copy())
        return output


def has_an_order(rows: list[Row]) -> bool:
    """True if some order explains all answers and revisions. The order must contain the completed operations, and may
    contain unknown ones.

    Local reads promise less, so they are left out. A revision may also belong to an operation that has no row.
    """
    done = [row for row in rows if row["status"] == "ok" and row.get("consistency") != "local"]
    open_ = [row for row in rows if row["status"] == "unknown" and row["op"] not in ("get", "range")]
    top = max((row["revision"] for row in done), default=1)
    start = Store()
    visited: set[Any] = set()
    stack = [(start, frozenset(range(len(done))), frozenset(range(len(open_))))]
    while stack:
        store, left, spare = stack.pop()
        if not left:
            return True
        state = (store.revision, left, spare, tuple(sorted(store.records.items())))
        if state in visited or store.revision > top:
            continue
        visited.add(state)
        until = min(done[number]["return_ns"] for number in left)
        for number in left:
            row = done[number]
            if row["call_ns"] <= until and row["revision"] - store.revision in (0, 1):
                after = store.copy()
                if _agrees(after.apply(row), row["output"]) and after.revision == row["revision"]:
                    stack.append((after, left - {number}, spare))
        for number in spare:
            if open_[number]["call_ns"] <= until:
                after = store.copy()
                after.apply(open_[number])
                if after.revision > store.revision:
                    stack.append((after, left, spare - {number}))
        nobody = store.copy()
        nobody.revision += 1
        stack.append((nobody, left, spare))
    return False


def _agrees(mine: Any, reported: Any) -> bool:
    """True if both answers are the same. For an absence, the function only compares that there was no record."""
    if isinstance(mine, dict):
        return all(
            _agrees(mine.get(name), value)
            for name, value in reported.items()
            if name not in ("deleted_revision", "exact")
        )
    if isinstance(mine, list):
        return len(mine) == len(reported) and all(_agrees(a, b) for a, b in zip(mine, reported, strict=True))
    return bool(mine == reported)
