"""Adds watches of all keys to a history made in numpy. Each watch delivers every change, with the record before it.

A watch is recorded as a member's client would record it: one message per revision, in rows of a bounded number of
events. Each row resumes the watch where the previous row ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from benchmarks.audit.histories import DELETE, History

EVENTS_PER_ROW = 1_000
_LAG_NS = 200_000  # The time from the return of an operation to the arrival of its event, if no earlier event is late.

_Event = list[Any]


def write_watches(history: History, folder: Path, watches: int, run_id: str = "made") -> Path:
    """Write the rows of the watches as a Parquet file of a run folder. All operations must be acknowledged."""
    path = folder / "ops" / "watches.parquet"
    rows = list(watch_rows(history, watches, run_id))
    parquet.write_table(pa.Table.from_pylist(rows), path, compression="zstd")
    return path


def watch_rows(history: History, watches: int, run_id: str = "made") -> Iterator[dict[str, Any]]:
    """Yield the rows of the watches. All operations must be acknowledged."""
    if history.unknown.any():
        raise ValueError("the revisions of unknown operations are not known")
    parts = list(_parts(_messages(history)))
    op_id = len(history)
    for watch in range(watches):
        request: dict[str, Any] = {"previous": True, "from_revision": 2, "resumes": None}
        called = 0
        for messages in parts:
            last_ns, last = messages[-1][:2]
            answer = {"created_revision": request["from_revision"] - 1, "messages": messages, "end": "cancelled"}
            yield {
                "run_id": run_id, "op_id": op_id, "client": f"w{watch}", "op": "watch", "request": json.dumps(request),
                "output": {"answer": json.dumps(answer)}, "status": "ok", "call_ns": called, "return_ns": last_ns,
                "clock_id": "simulated",
            }  # fmt: skip
            request = {**request, "from_revision": last + 1, "resumes": op_id}
            called, op_id = last_ns, op_id + 1


def _parts(messages: Iterator[list[Any]]) -> Iterator[list[Any]]:
    part: list[Any] = []
    for message in messages:
        part.append(message)
        if len(part) == EVENTS_PER_ROW:
            yield part
            part = []
    if part:
        yield part


def _messages(history: History) -> Iterator[list[Any]]:
    """Yield [arrival, revision, [event]] for each change, in the order of the revisions."""
    changes = np.flatnonzero(history.succeeded)
    changes = changes[np.argsort(history.revision[changes], kind="stable")]
    arrivals = np.maximum.accumulate(history.ret[changes] + _LAG_NS).tolist()
    columns = zip(
        arrivals, changes.tolist(), history.revision[changes].tolist(), history.key[changes].tolist(),
        (history.kind[changes] == DELETE).tolist(), strict=True,
    )  # fmt: skip
    store: dict[int, list[Any]] = {}  # Key → value, create revision, revision, version, lease.
    for arrival, op_id, revision, key, deletes in columns:
        before = store.pop(key, None)
        event: _Event = [revision, "delete", f"k{key}", None, 0, 0, 0, before]
        if not deletes:
            create, version = (before[1], before[3] + 1) if before is not None else (revision, 1)
            store[key] = [f"v{op_id}", create, revision, version, 0]
            event = [revision, "put", f"k{key}", f"v{op_id}", create, version, 0, before]
        yield [arrival, revision, [event]]
