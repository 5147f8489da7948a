"""Helpers to write a history by hand: times in µs, and one client per operation unless a client is named."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spark_audit.testing.generate import Row

_US = 1_000


class History:
    """The rows of one run. Each method adds an operation that was called at `call` and returned at `end`. If `end` is
    None, the operation never returned."""

    def __init__(self, run_id: str = "by-hand") -> None:
        self.rows: list[Row] = []
        self.run_id = run_id

    def put(self, value: str, call: int, end: int | None, revision: int | None = None, **more: Any) -> Row:
        return self._add("put", call, end, revision, value=value, output={"succeeded": True}, **more)

    def get(self, value: str | None, call: int, end: int, revision: int | None = None, **more: Any) -> Row:
        seen: Row = {name: more.pop(name) for name in ("mod_revision", "create_revision", "version") if name in more}
        output = {"found": value is not None, "value": value, **seen}
        return self._add("get", call, end, revision, output=output, **more)

    def delete(self, found: bool, call: int, end: int | None, revision: int | None = None, **more: Any) -> Row:
        return self._add("delete", call, end, revision, output={"found": found, "succeeded": found}, **more)

    def cas(
        self, value: str, expected: str | None, ok: bool, call: int, end: int | None, revision: int | None = None,
        **more: Any,
    ) -> Row:  # fmt: skip
        output = {"succeeded": ok, "found": more.pop("found", None), "value": more.pop("seen", None)}
        return self._add("cas", call, end, revision, value=value, expected=expected, output=output, **more)

    def range(self, keys: dict[str, tuple[str, int]], call: int, end: int, revision: int, /, **request: Any) -> Row:
        items = [{"key": key, "value": value, "mod_revision": mod} for key, (value, mod) in keys.items()]
        output = {"items": items, "more": request.pop("more", False), "count": request.pop("count", None)}
        text = json.dumps({"prefix": "", **request}, sort_keys=True)
        return self._add("range", call, end, revision, key=None, request=text, output=output)

    def txn(
        self, request: Row, succeeded: bool, results: list[Row], call: int, end: int | None, revision: int | None
    ) -> Row:
        output = {"succeeded": succeeded, "results": results}
        return self._add("txn", call, end, revision, key=None, request=json.dumps(request), output=output)

    def _add(self, op: str, call: int, end: int | None, revision: int | None, **fields: Any) -> Row:
        number = len(self.rows)
        unknown = end is None
        row: Row = {"run_id": self.run_id, "op_id": number, "client": f"c{number}", "op": op, "key": "k"}
        row |= {"call_ns": call * _US, "return_ns": None if end is None else end * _US, "clock_id": "boot"}
        row |= {"status": "unknown" if unknown else "ok", "revision": revision, **fields}
        if unknown:
            row["output"] = None
        self.rows.append(row)
        return row


def write_lines(path: Path, rows: Iterable[Row]) -> Path:
    """Write each row as a JSON object on a separate line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
