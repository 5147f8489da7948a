"""Makes the files of a case. The same case always gives the same files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from benchmarks.audit.histories import CAS, DELETE, GET, PUT, ROWS_PER_FILE, History, generate, write
from benchmarks.audit.plan import SEED, Case
from benchmarks.audit.watched import write_watches
from spark_audit import Shape, inject
from spark_audit import generate as generate_rows

_FAULTY = Shape(keys=12, multi_key_share=0.1, local_share=0.05, unknown_share=0.01)
_FAULTY_APPENDS = Shape(keys=200, append_share=0.2, unknown_share=0.01)
SEEDS_MAX = 20  # If the fault cannot be put into the history of a seed, the next seed is tried.
_OPS = {GET: "get", PUT: "put", DELETE: "delete", CAS: "cas"}


def make(case: Case, folder: Path, *, plain: bool) -> Path:
    """Make the run folder of a case. With `plain`, the history is also written to `FOLDER/plain.csv`."""
    if case.shape is None:
        return _faulty(case, folder)
    history = generate(case.shape, case.operations, SEED)
    write(history, folder)
    if case.shape.watches:
        write_watches(history, folder, case.shape.watches)
    if plain:
        write_plain(history, folder / "plain.csv")
    return folder


def _faulty(case: Case, folder: Path) -> Path:
    shape = _FAULTY_APPENDS if "append" in (case.fault or "") else _FAULTY
    for seed in range(SEED, SEED + SEEDS_MAX):
        rows = generate_rows(replace(shape, operations=case.operations), seed)
        try:
            rows = inject(rows, case.fault, seed)[0] if case.fault is not None else rows
        except ValueError:
            continue
        (folder / "ops").mkdir(parents=True)
        with (folder / "ops" / "all.jsonl").open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)
        return folder
    raise ValueError(f"no history of {SEEDS_MAX} has a place for {case.fault}")


def write_plain(history: History, path: Path) -> None:
    """Write the history for another checker, without revisions:
    `op,key,value,expected,call_ns,return_ns,succeeded,seen`.

    A value is the op_id of its write; -1: no value, or an absent key; -2: an expected value that nobody wrote. A
    `return_ns` of -1 stands for an unknown outcome.
    """
    names = ["op", "key", "value", "expected", "call_ns", "return_ns", "succeeded", "seen"]
    ops: Any = pa.array([_OPS[kind] for kind in sorted(_OPS)])
    with csv.CSVWriter(path, pa.schema([(name, pa.string() if name == "op" else pa.int64()) for name in names])) as out:
        for part in history.parts(ROWS_PER_FILE):
            kind = part.kind
            writes = (kind == PUT) | (kind == CAS)
            columns: list[Any] = [
                ops.take(kind),
                part.key,
                np.where(writes, part.op_id, -1),
                part.expected,
                part.call,
                np.where(part.unknown, -1, part.ret),
                part.succeeded.astype(np.int64),
                part.seen,
            ]
            out.write_table(pa.table(dict(zip(names, columns, strict=True))))
