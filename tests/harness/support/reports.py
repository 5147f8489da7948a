"""Rows and events of a run, from which a report is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.reports.report import Report, summarize

ABOUT: dict[str, Any] = {"run_id": "r", "seed": 7, "nodes": 3, "clients": 2, "keys": 2, "finished": True}
MS = 1_000_000


def a_row(op: str, call_ms: int, return_ms: int | None, status: str = "ok", **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"client": "c1", "op": op, "status": status, "call_ns": call_ms * MS, **more}
    return row if return_ms is None else row | {"return_ns": return_ms * MS}


def an_event(at_ms: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"at_ns": at_ms * MS, "kind": kind, **fields}


def a_fault(kind: str, number: int, at_ms: int, *victims: str, **outcome: str) -> list[dict[str, Any]]:
    fields = {"number": number, "fault": kind, "target": "leader", "direction": None, "victims": list(victims)}
    return [
        an_event(at_ms, "fault_started", started_ns=at_ms * MS, **fields),
        an_event(at_ms + 500, "fault_stopped", number=number, **outcome),
    ]


def a_kill(number: int, at_ms: int) -> list[dict[str, Any]]:
    return a_fault("kill", number, at_ms, "n1")


HEALED = an_event(2100, "healed")


SAME = an_event(2200, "state_hashes", agree=True, index=9, hashes={"n1": "aa", "n2": "aa"})


STOPPED = an_event(2300, "members_stopped", exit_codes={"n1": 0, "n2": 0})


EVERY_KEY_READ = [a_row("get", 2110, 2120) | {"client": f"final.{number}"} for number in (0, 1)]


def the_report(rows: list[dict[str, Any]], *events: dict[str, Any]) -> Report:
    load = [an_event(0, "load_started"), an_event(2000, "load_ended")]
    return summarize(ABOUT, rows, [*load, *events], Path("there"))
