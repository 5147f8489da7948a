"""Injects one fault into a linearizable history. Tests then check that the audit finds the fault.

Written values must be unique, as they are in generated and recorded histories. Then no order explains the changed rows,
no matter which operations of unknown outcome took effect. Without the changes, the history has no violation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

from spark_audit.history.operation import WEAK
from spark_audit.testing.inject_service_fault import SERVICE_FAULTS, inject_service

Row = dict[str, Any]

# The faults that can be injected into a history of only puts and reads.
FAULTS = ("stale_read", "lost_write", "applied_twice", "never_written")


class _History:
    """The rows of one run, which a fault changes in place. `done`: the acknowledged rows that promise linearizability.

    `done` is in a random order.
    """

    def __init__(self, rows: list[Row], random: Random) -> None:
        self.rows, self.random = rows, random
        done = [row for row in rows if row["status"] == "ok" and row["consistency"] not in WEAK]
        self.done = random.sample(done, len(done))
        self._by_key: dict[str, list[Row]] = {}
        for row in rows:
            if row["key"] is not None:
                self._by_key.setdefault(row["key"], []).append(row)
        self._transactions = [row for row in rows if row["op"] == "txn"]

    def of(self, *ops: str) -> list[Row]:
        """Return the acknowledged operations of these kinds that promise linearizability."""
        return [row for row in self.done if row["op"] in ops]

    def reads(self) -> list[Row]:
        return [row for row in self.of("get") if row["output"]["found"]]

    def writes(self, key: str, *ops: str) -> list[Row]:
        """Return the acknowledged writes of this key that took effect, sorted by return."""
        mine = (row for row in self._by_key.get(key, ()) if row["op"] in ops and row["status"] == "ok")
        return sorted((row for row in mine if row["output"]["succeeded"] is not False), key=_returned)

    def overwritten(self, key: str, before_ns: int, *ops: str) -> tuple[Row, Row] | None:
        """Return the last two consecutive writes of the key that both returned before `before_ns`.

        The first write must have returned before the call of the second write. `ops`: the kinds of writes; puts if
        empty.
        """
        done = [row for row in self.writes(key, *(ops or ("put",))) if row["return_ns"] < before_ns]
        return next(((a, b) for a, b in reversed(list(pairwise(done))) if a["return_ns"] < b["call_ns"]), None)

    def removed(self, key: str, before_ns: int) -> Row | None:
        """Return a put whose record was removed by a deletion that returned before this time."""
        gone = [row for row in self.writes(key, "delete") if row["return_ns"] < before_ns and row["output"]["found"]]
        put = self.writes(key, "put")
        return next((p for d in reversed(gone) for p in reversed(put) if p["return_ns"] < d["call_ns"]), None)

    def surely_there(self, key: str, row: Row) -> bool:
        """Return whether the key must have been present from the call to the return of `row`.

        The key must have been present if a put had returned before the call of `row`, and no deletion can have followed
        that put.
        """
        last = next((put for put in reversed(self.writes(key, "put")) if put["return_ns"] < row["call_ns"]), None)
        others = (other for other in (*self._by_key.get(key, ()), *self._transactions) if other is not row)
        return last is not None and not any(
            _may_delete(other, key)
            and other["call_ns"] <= row["return_ns"]
            and (other["return_ns"] is None or other["return_ns"] >= last["call_ns"])
            for other in others
        )

    def may_write(self, key: str) -> list[Row]:
        """Return the operations of any outcome that may have changed this key."""
        return [row for row in (*self._by_key.get(key, ()), *self._transactions) if _may_write(row, key)]

    def listings(self) -> Iterator[tuple[Row, Row]]:
        """Yield each listing that reports all records of its interval, with its request."""
        for row in self.of("range"):
            request = json.loads(row["request"])
            if not any(request.get(name) for name in ("limit", "revision", "count_only", "keys_only", "start", "end")):
                yield row, request


def inject(rows: Iterable[Row], fault: str, seed: int) -> tuple[list[Row], Row]:
    """Return a copy of the rows of a run with one fault in it, and an operation that shows the fault.

    `fault`: one of ALL_FAULTS or of SERVICE_FAULTS. Raises ValueError if the fault is not possible in this history.
    """
    if fault in SERVICE_FAULTS:
        return inject_service(rows, fault, seed)
    copied = [{**row, "output": row["output"] and dict(row["output"])} for row in rows]
    shown = _MADE[fault](_History(copied, Random(seed)))
    if shown is None:
        raise ValueError(f"no operation of this history can be given the fault {fault!r}")
    return copied, shown


def _stale_read(history: _History) -> Row | None:
    """A read returns a value that had been overwritten before the read was called."""
    for read in history.reads():
        if pair := history.overwritten(read["key"], read["call_ns"]):
            return _answer(read, pair[0])
    return None


def _applied_twice(history: _History) -> Row | None:
    """A read returns an overwritten value again, at another revision, as if its put had been applied twice."""
    for read in history.reads():
        if pair := history.overwritten(read["key"], read["call_ns"]):
            return _answer(read, {**pair[0], "revision": read["revision"]})
    return None


def _never_written(history: _History) -> Row | None:
    """A read returns a value that was never written."""
    for read in history.reads():
        read["output"]["value"] += "-never"
        return read
    return None


def _lost_write(history: _History) -> Row | None:
    """The last write of a key is lost: every operation that saw the lost write sees the previous write instead.

    The result is a read that was called after the lost write had returned.
    """
    for key in dict.fromkeys(read["key"] for read in history.reads()):
        if (shown := _lose(history, key)) is not None:
            return shown
    return None


def _lose(history: _History, key: str) -> Row | None:
    """Remove the effect of the last write of this key, and return a read that shows the fault.

    In three cases the result is None, and nothing is changed: if another write may have followed the lost write, if an
    operation that saw the lost write cannot see the older write instead, or if no read shows the fault.
    """
    pair = history.overwritten(key, max(row["call_ns"] for row in history.rows), "put", "cas")
    if pair is None:
        return None
    older, lost = pair
    for row in history.may_write(key):
        if row is lost or row["status"] != "ok":  # No unknown write can bring the older value back.
            continue
        between = older["revision"] is not None and older["revision"] < row["revision"]
        if row["return_ns"] >= lost["call_ns"] or between:
            return None
    text = json.dumps(lost["value"])
    observers = [row for row in history.rows if row["output"] and text in json.dumps(row["output"])]
    if not all(_can_forget(row, key, older) for row in observers):
        return None
    shown = next((r for r in observers if _strict_read(r) and r["call_ns"] > lost["return_ns"]), None)
    for row in observers if shown is not None else ():
        if row["op"] == "range":
            items = [_item(older) if item["key"] == key else item for item in row["output"]["items"]]
            row["output"]["items"] = items
        else:
            _answer(row, older)
    return shown


def _strict_read(row: Row) -> bool:
    return bool(row["op"] == "get" and row["consistency"] not in WEAK)


def _can_forget(row: Row, key: str, older: Row) -> bool:
    """Return whether an operation that saw the lost write can see the older write instead.

    If a failed compare-and-set expected the older value or revision, it cannot see the older write, because it would
    then have succeeded.
    """
    if row["op"] == "range":
        return True
    if row["op"] == "cas" and row["output"]["succeeded"] is False and row["key"] == key:
        by_value = row["expected_mod_revision"] is None and row["expected"] == older["value"]
        return not by_value and (older["revision"] is None or row["expected_mod_revision"] != older["revision"])
    return bool(row["op"] == "get" and row["key"] == key)


def _dirty_read(history: _History) -> Row | None:
    """A read returns the value of a put that certainly failed. The row of an earlier read is turned into this put."""
    for read in history.reads():
        other = (row for row in history.of("get") if row["key"] == read["key"] and row["return_ns"] < read["call_ns"])
        if (failed := next(other, None)) is not None:
            failed |= {"op": "put", "value": f"failed-{failed['op_id']}", "status": "fail", "error": "Rejected"}
            failed |= {"output": None, "revision": None, "consistency": None}
            return _answer(read, {**failed, "revision": read["revision"]})
    return None


def _early_read(history: _History) -> Row | None:
    """A read returns a value that was written only after the read had returned."""
    for read in history.reads():
        later = (put for put in history.writes(read["key"], "put") if put["call_ns"] > read["return_ns"])
        if (put := next(later, None)) is not None:
            return _answer(read, put)
    return None


def _deleted_read(history: _History) -> Row | None:
    """A read returns a record that had been removed before the read was called."""
    for read in history.of("get"):
        if (put := history.removed(read["key"], read["call_ns"])) is not None:
            return _answer(read, put)
    return None


def _missed_read(history: _History) -> Row | None:
    """A read finds no record, although a put had returned before and no deletion can have followed it."""
    for read in history.reads():
        if history.surely_there(read["key"], read):
            read["output"] = {**dict.fromkeys(read["output"]), "found": False}
            return read
    return None


def _wrong_cas(history: _History) -> Row | None:
    """A compare-and-set succeeds, although the value that it expected had been overwritten before its call."""
    for cas in history.of("cas"):
        pair = history.overwritten(cas["key"], cas["call_ns"]) if cas["output"]["succeeded"] else None
        if pair is not None:
            cas |= {"expected": pair[0]["value"], "expected_mod_revision": None}
            return cas
    return None


def _lost_update(history: _History) -> Row | None:
    """Two compare-and-sets succeed on the same record."""
    for one in history.of("cas"):
        if not one["output"]["succeeded"] or not (one["expected"] or one["expected_mod_revision"]):
            continue
        for other in history.writes(one["key"], "cas"):
            if other["call_ns"] > one["call_ns"]:
                return _expecting(other, one)
    return None


def _expecting(cas: Row, other: Row) -> Row:
    cas |= {name: other[name] for name in ("expected", "expected_mod_revision")}
    return cas


def _phantom_item(history: _History) -> Row | None:
    """A listing shows a key that had been removed before the listing was called."""
    for row, request in history.listings():
        listed = {item["key"] for item in row["output"]["items"]}
        for key in sorted(history._by_key):
            put = history.removed(key, row["call_ns"]) if key.startswith(request["prefix"]) else None
            if put is not None and key not in listed:
                return _list(row, request, [*row["output"]["items"], _item(put)])
    return None


def _missing_item(history: _History) -> Row | None:
    """A listing leaves out a key that was present during the whole listing."""
    for row, request in history.listings():
        items = row["output"]["items"]
        for item in items:
            if history.surely_there(item["key"], row):
                return _list(row, request, [other for other in items if other is not item])
    return None


def _reordered_listing(history: _History) -> Row | None:
    """A listing shows two keys in the wrong order."""
    for row, _ in history.listings():
        items = row["output"]["items"]
        if len(items) >= 2:
            at = history.random.randrange(len(items) - 1)
            row["output"]["items"] = [*items[:at], items[at + 1], items[at], *items[at + 2 :]]
            return row
    return None


def _half_transaction(history: _History) -> Row | None:
    """A listing shows a record that a transaction put, and a record that the same transaction removed."""
    for row, request in history.listings():
        items = {item["key"]: item for item in row["output"]["items"]}
        for other in history.of("txn"):
            steps = json.loads(other["request"])["success"]
            if not other["output"]["succeeded"] or not other["revision"] or steps[-1]["op"] != "delete":
                continue
            one, gone = steps[0]["key"], steps[-1]["key"]
            if gone in items or not gone.startswith(request["prefix"]) or not other["output"]["results"][-1]["found"]:
                continue
            put = next((p for p in reversed(history.writes(gone, "put")) if p["return_ns"] < other["call_ns"]), None)
            if put is not None and items.get(one, {}).get("mod_revision") == other["revision"]:
                return _list(row, request, [*items.values(), _item(put)])
    return None


def _wrong_branch(history: _History) -> Row | None:
    """A transaction runs the branch for an absent key, although the key was present during the whole transaction."""
    for row in history.of("txn"):
        request = json.loads(row["request"])
        if row["output"]["succeeded"] and history.surely_there(request["compares"][0]["key"], row):
            request["compares"][0] |= {"target": "version", "op": "=", "value": 0}
            row["request"] = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            return row
    return None


def _order_over_keys(history: _History) -> Row | None:
    """A read carries a lower revision than an operation on another key that returned before the call of the read."""
    seen = sorted((row for row in history.done if row["revision"]), key=_returned)
    for read in history.reads():
        mod = read["output"]["mod_revision"]
        before = (row for row in seen if row["return_ns"] < read["call_ns"] and row["key"] != read["key"])
        if mod and any(row["revision"] > mod for row in before):
            read["revision"] = mod
            return read
    return None


def _repeated_revision(history: _History) -> Row | None:
    """Two puts on two keys are acknowledged with the same revision.

    The second put gets the revision of the first. No row may name the revision that the second put had before.
    """
    others = json.dumps([(row["output"], row["request"], row["expected_mod_revision"]) for row in history.rows])
    puts = sorted((put for put in history.of("put") if put["revision"]), key=lambda put: int(put["revision"]))
    for one, other in history.random.sample(list(pairwise(puts)), max(0, len(puts) - 1)):
        apart = one["return_ns"] < other["call_ns"] or one["key"] == other["key"]
        if not apart and str(other["revision"]) not in others:
            other["revision"] = one["revision"]
            return other
    return None


def _ending(history: _History) -> Iterator[tuple[Row, str]]:
    """Yield (read, appended text) for each read whose value ends with the text.

    The append had returned before the read was called.
    """
    for read in history.reads():
        for append in history.writes(read["key"], "append"):
            if append["return_ns"] < read["call_ns"] and read["output"]["value"].endswith(append["value"]):
                yield read, append["value"]


def _lost_append(history: _History) -> Row | None:
    """A read lacks the last append, although the append had returned and another read shows it at the same place."""
    for read, text in _ending(history):
        whole = read["output"]["value"]
        others = (other["output"]["value"] for other in history.reads() if other is not read)
        if len(whole) > len(text) and any(other.startswith(whole) for other in others):
            return _answer(read, {"value": whole[: -len(text)], "revision": None})
    return None


def _doubled_append(history: _History) -> Row | None:
    """A read shows an append twice."""
    for read, text in _ending(history):
        read["output"]["value"] += text
        return read
    return None


def _wrong_local_read(history: _History) -> Row | None:
    """A local read, which may be old, returns a value that was never written."""
    for read in history.rows:
        if read["consistency"] == "local" and read["status"] == "ok" and read["output"]["found"]:
            read["output"]["value"] += "-never"
            return read
    return None


_MADE: dict[str, Callable[[_History], Row | None]] = {
    "stale_read": _stale_read,
    "lost_write": _lost_write,
    "applied_twice": _applied_twice,
    "never_written": _never_written,
    "dirty_read": _dirty_read,
    "early_read": _early_read,
    "deleted_read": _deleted_read,
    "missed_read": _missed_read,
    "wrong_cas": _wrong_cas,
    "lost_update": _lost_update,
    "phantom_item": _phantom_item,
    "missing_item": _missing_item,
    "reordered_listing": _reordered_listing,
    "half_transaction": _half_transaction,
    "wrong_branch": _wrong_branch,
    "order_over_keys": _order_over_keys,
    "repeated_revision": _repeated_revision,
    "lost_append": _lost_append,
    "doubled_append": _doubled_append,
    "wrong_local_read": _wrong_local_read,
}
ALL_FAULTS = tuple(_MADE)


def _answer(read: Row, write: Row) -> Row:
    seen = {"found": True, "value": write["value"], "mod_revision": write["revision"]}
    read["output"] = {**dict.fromkeys(read["output"]), "succeeded": read["output"]["succeeded"], **seen}
    return read


def _item(write: Row) -> Row:
    numbers = {"mod_revision": write["revision"], "create_revision": None, "version": None}
    return {"key": write["key"], "value": write["value"], **numbers}


def _list(row: Row, request: Row, items: list[Row]) -> Row:
    row["output"]["items"] = sorted(items, key=lambda item: str(item["key"]), reverse=bool(request.get("reverse")))
    if row["output"].get("count") is not None:
        row["output"]["count"] = len(items)
    return row


def _returned(row: Row) -> int:
    return int(row["return_ns"])


def _may_delete(row: Row, key: str) -> bool:
    if row["op"] == "txn":
        request = json.loads(row["request"])
        steps = (*request["success"], *request["failure"])
        return any(step["op"] == "delete" and step["key"] == key for step in steps)
    return bool(row["op"] == "delete" and row["status"] != "fail")


def _may_write(row: Row, key: str) -> bool:
    if row["op"] == "txn":
        return json.dumps(key, ensure_ascii=False) in row["request"]
    if row["op"] == "cas" and row["output"] and not row["output"]["succeeded"]:
        return False
    return bool(row["key"] == key and row["op"] not in ("get", "range"))
