"""Gives some writes of a sound history acknowledgement levels, and injects one fault into such a history.

See docs/reference/specification.md#1011-acknowledgement-levels. The histories stay sound, because only acknowledged
puts become accepted puts, and each lost put has a unique value that no operation reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

from spark_audit.history.operation import WEAK

Row = dict[str, Any]

MIN_IN_SYNC = 2  # The limit `min_in_sync` of the histories that `with_levels` makes.
_ACCEPTED_SHARE, _IN_SYNC_SHARE, _LOST_MAX = 0.15, 0.2, 6
_MEMBERS = ["n1", "n2", "n3"]


def with_levels(rows: Iterable[Row], seed: int) -> list[Row]:
    """Return a copy of the rows of one run in which some puts have levels, with rows of the operation `outcome`.

    Some acknowledged puts become accepted puts; for each of them, an answer reports its entry as committed. Some other
    acknowledged puts become writes of level IN_SYNC. Between two reads that show the same record, a put without an
    effect is added, and an answer that reports its entry as lost.
    """
    random = Random(f"levels {seed}")
    made = [{**row, "output": row.get("output") and dict(row["output"])} for row in rows]
    lost = [each for pair in _same_reads(made) for each in _lost(pair, len(made))][: 2 * _LOST_MAX]
    for number, row in enumerate(lost):
        row["op_id"] = len(made) + number
    settled: list[Row] = []
    for row in made:
        if row["op"] != "put" or row["status"] != "ok" or row.get("request") is not None:
            continue
        drawn = random.random()
        if drawn < _ACCEPTED_SHARE:
            settled.append(_accept(row, len(made) + len(lost) + len(settled), random))
        elif drawn < _ACCEPTED_SHARE + _IN_SYNC_SHARE:
            row |= {"acknowledge": "in_sync", "acknowledged_by": random.sample(_MEMBERS, random.randrange(2, 4))}
    return sorted([*made, *lost, *settled], key=lambda row: (row["call_ns"], row["op_id"]))


def _same_reads(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield pairs of linearizable reads that show the same record, with time for two operations between the reads."""
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        plain = row["op"] == "get" and row["status"] == "ok" and row.get("request") is None
        if plain and row["output"]["found"] and row.get("consistency") in (None, "linearizable"):
            by_key.setdefault(row["key"], []).append(row)
    for _, mine in sorted(by_key.items()):
        for first, second in pairwise(sorted(mine, key=lambda row: row["call_ns"])):
            same = first["output"]["mod_revision"] == second["output"]["mod_revision"]
            if same and first["return_ns"] + 6 < second["call_ns"]:
                yield first, second


def _lost(pair: tuple[Row, Row], index: int) -> tuple[Row, Row]:
    """Return a put that has no effect, and the answer that it is lost, both between the two reads."""
    first, second = pair
    called, key = first["return_ns"] + 1, first["key"]
    put = {**dict.fromkeys(first), "run_id": first["run_id"], "clock_id": first["clock_id"], "op": "put", "key": key}
    put |= {"value": f"lost-{first['op_id']}", "status": "unknown", "client": f"lost.{first['op_id']}"}
    put |= {"call_ns": called, "acknowledge": "leader", "accepted_index": index + first["op_id"], "accepted_term": 1}
    return put, _answer(put, "lost", called + 2, second["call_ns"] - 1)


def _accept(row: Row, op_id: int, random: Random) -> Row:
    """Turn an acknowledged put into an accepted put. Return the row of the answer that its entry is committed."""
    row |= {"acknowledge": "leader", "accepted_index": row["op_id"] + 1, "accepted_term": 2, "status": "unknown"}
    called = row["return_ns"] + random.randrange(1, 1_000)
    row |= {"return_ns": None, "revision": None, "output": None, "client": f"{row['client']}~{row['op_id']}"}
    return {**_answer(row, "committed", called, called + random.randrange(1, 1_000_000)), "op_id": op_id}


def _answer(row: Row, outcome: str, call_ns: int, return_ns: int) -> Row:
    request = {"index": row["accepted_index"], "term": row["accepted_term"]}
    made = {**dict.fromkeys(row), "run_id": row["run_id"], "clock_id": row["clock_id"], "op": "outcome", "status": "ok"}
    made |= {"client": f"asks {row['client']}", "request": _canonical(request), "call_ns": call_ns}
    return {**made, "return_ns": return_ns, "output": {"answer": _canonical({"outcome": outcome})}}


def inject_level(rows: Iterable[Row], fault: str, seed: int) -> tuple[list[Row], Row]:
    """Return a copy of the rows of a run with one fault in it, and a row that shows the fault.

    `rows`: as `with_levels` returns them. `fault`: one of LEVEL_FAULTS. Raises ValueError if the fault is not possible
    in this history.
    """
    copied = [{**row, "output": row.get("output") and dict(row["output"])} for row in rows]
    shown = _MADE[fault](Random(seed).sample(copied, len(copied)))
    if shown is None:
        raise ValueError(f"no row of this history can be given the fault {fault!r}")
    return [row for row in copied if row["op"] != _DROPPED], shown


_DROPPED = "dropped"


def _told(rows: Iterable[Row], outcome: str) -> Iterator[tuple[Row, Row]]:
    """Yield (accepted write, answer) for each answer with this outcome."""
    known = list(rows)
    for answer in known:
        if answer["op"] == "outcome" and json.loads(answer["output"]["answer"])["outcome"] == outcome:
            request = json.loads(answer["request"])
            entry = (request["index"], request["term"])
            yield next(row for row in known if (row.get("accepted_index"), row.get("accepted_term")) == entry), answer


def _lost_but_seen(rows: list[Row]) -> Row | None:
    """An answer reports a write as lost although its value was read."""
    strict = [row for row in rows if row["op"] == "get" and row["output"] and row.get("consistency") not in WEAK]
    read = {row["output"]["value"] for row in strict if row["output"]["found"]}
    for write, answer in _told(rows, "committed"):
        if write["op"] == "put" and write["value"] in read:
            answer["output"] = {"answer": _canonical({"outcome": "lost"})}
            return answer
    return None


def _committed_but_never(rows: list[Row]) -> Row | None:
    """An answer reports a write as committed although it certainly had no effect."""
    for _, answer in _told(rows, "lost"):
        answer["output"] = {"answer": _canonical({"outcome": "committed"})}
        return answer
    return None


def _two_outcomes(rows: list[Row]) -> Row | None:
    """One answer reports an entry as committed, and a later answer reports it as lost."""
    told = _told(rows, "committed")
    first, second = next(told, None), next(told, None)
    if first is None or second is None:
        return None
    first[0]["accepted_index"], first[0]["accepted_term"] = second[0]["accepted_index"], second[0]["accepted_term"]
    first[1]["request"] = second[1]["request"]
    first[1]["output"] = {"answer": _canonical({"outcome": "lost"})}
    return first[1]


def _acknowledged(rows: list[Row], **fields: object) -> Row | None:
    for write, answer in _told(rows, "lost"):
        write |= {"status": "ok", "return_ns": answer["call_ns"] - 1, "output": {"succeeded": True}, **fields}
        answer["op"] = _DROPPED
        return write
    return None


def _early_answer_is_ok(rows: list[Row]) -> Row | None:
    """A lost write of level LEADER is recorded as `ok`."""
    return _acknowledged(rows)


def _in_sync_write_is_lost(rows: list[Row]) -> Row | None:
    """A write of level IN_SYNC is acknowledged but has no effect."""
    no_entry = {"accepted_index": None, "accepted_term": None}
    return _acknowledged(rows, acknowledge="in_sync", acknowledged_by=_MEMBERS, **no_entry)


def _too_few_copies(rows: list[Row]) -> Row | None:
    """A write of level IN_SYNC is acknowledged by fewer members than `min_in_sync`."""
    for row in rows:
        is_judged = row.get("acknowledge") == "in_sync" and not row.get("under_replicated")
        if is_judged and row["status"] == "ok":
            row["acknowledged_by"] = row["acknowledged_by"][: MIN_IN_SYNC - 1]
            return row
    return None


_MADE: dict[str, Callable[[list[Row]], Row | None]] = {
    "lost_but_seen": _lost_but_seen,
    "committed_but_never": _committed_but_never,
    "two_outcomes": _two_outcomes,
    "early_answer_is_ok": _early_answer_is_ok,
    "in_sync_write_is_lost": _in_sync_write_is_lost,
    "too_few_copies": _too_few_copies,
}
LEVEL_FAULTS = tuple(_MADE)

LEVEL_FAULT_PROPERTIES = {
    "lost_but_seen": "outcomes",
    "committed_but_never": "outcomes",
    "two_outcomes": "outcomes",
    "early_answer_is_ok": "keys",
    "in_sync_write_is_lost": "keys",
    "too_few_copies": "in_sync",
}
"""The property that each fault violates."""


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
