"""Inspects the listings and transactions of a history one by one, in Python, and projects them onto single keys."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_audit.history.effects import changed
from spark_audit.history.projection import project
from spark_audit.history.requests import is_multi_key, parse_request, request_problem
from spark_audit.tables.conform import conform, joined
from spark_audit.tables.frame import ROWS_AT_ONCE, Bools, Frame, Int64s, Row, nulls, schema
from spark_audit.tables.row_rules import multi_key_rows

_PART: tuple[tuple[str, pa.DataType], ...] = (("weak", pa.large_string()), ("changes_store", pa.bool_()))


@dataclass(slots=True)
class MultiKeyRows:
    """The listings and transactions of a frame. `rows`: the numbers of their rows, ascending.

    `concerns`, `changed` and `pinned` have a value for each row of the frame. The value is false or 0 for rows that are
    neither listings nor transactions. `concerns`: whether no single key can decide the row (`is_multi_key`). `changed`:
    whether the row changed the store. `pinned`: the revision to which a listing is pinned. `bad`: (row, reason) for
    each malformed request or output. `parts`: the projections of the rows (`project`). `part_of`: the row of each
    projection.
    """

    rows: Int64s
    concerns: Bools
    changed: Bools
    pinned: Int64s
    bad: list[tuple[int, str]] = field(default_factory=list)
    parts: list[pa.Table] = field(default_factory=list)
    part_of: list[int] = field(default_factory=list)


def inspect_multi_key(frame: Frame) -> MultiKeyRows:
    """Inspect all listings and transactions of a frame. `plain_problem` must have accepted their rows."""
    rows = multi_key_rows(frame)
    made = MultiKeyRows(
        rows, np.zeros(frame.rows, np.bool_), np.zeros(frame.rows, np.bool_), np.zeros(frame.rows, np.int64)
    )
    waiting: list[Row] = []
    for number, row in zip(rows.tolist(), frame.dicts(rows), strict=True):
        reason = request_problem(row)
        if reason is not None:
            made.bad.append((number, reason))
            continue
        made.concerns[number] = is_multi_key(row)
        made.changed[number] = row["status"] == "ok" and changed(row)
        made.pinned[number] = (row["op"] == "range" and parse_request(row)["revision"]) or 0
        for _, part in project(row):
            waiting.append({**part})
            made.part_of.append(number)
        if len(waiting) >= ROWS_AT_ONCE:
            made.parts.append(_table(waiting))
            waiting = []
    if waiting:
        made.parts.append(_table(waiting))
    return made


def single_rows(frame: Frame, multi_key: MultiKeyRows) -> tuple[pa.Table, Int64s]:
    """Return a table of rows about single keys, and the positions in this table in the order of the frame.

    In this order, the projections of a listing or transaction take the position of its row. The table has the columns
    of the frame, and the columns that `project` adds.
    """
    if not len(multi_key.rows):
        return _with_marks(frame.table), np.arange(frame.rows)
    single = np.ones(frame.rows, np.bool_)
    single[multi_key.rows] = False
    plain = np.flatnonzero(single)
    table = joined([_with_marks(frame.table.take(plain)), *multi_key.parts])
    return table, np.argsort(np.concatenate((plain, np.array(multi_key.part_of, np.int64))), kind="stable")


def _table(rows: list[Row]) -> pa.Table:
    plain = pa.Table.from_pylist(rows, schema=schema(names_coded=False))
    marks = [pa.array([row.get(name) for row in rows], kind) for name, kind in _PART]
    return _with_marks(conform(plain), *marks)


def _with_marks(table: pa.Table, *marks: object) -> pa.Table:
    arrays = marks or [nulls(table.num_rows, kind) for _, kind in _PART]
    for (name, _), array in zip(_PART, arrays, strict=True):
        table = table.append_column(name, array)
    return table
