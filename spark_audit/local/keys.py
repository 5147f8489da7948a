"""Decides all keys of a history in two threads. A thread decides one group of keys at a time, so its arrays stay small.

The threads run in parallel while they are in numpy or Arrow, which release the interpreter lock. The search for an
order of a key is Python code, so two searches do not run in parallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_audit.columnar.columns import sorted_by
from spark_audit.history.clocks import Clocks
from spark_audit.tables.decide_keys import NEEDED, DecidedTable, decide_table
from spark_audit.tables.effects import changes_of_one_key
from spark_audit.tables.frame import BLOCK_ROWS, Frame, Int64s
from spark_audit.tables.order import ranked
from spark_audit.tables.ranges import HOT_ROWS, LIMITS, decide_in_ranges
from spark_audit.verdict.findings import KeyFindings

THREADS = 2
_SINGLE_OUTPUT = ("succeeded", "found", "value", "create_revision", "mod_revision", "version")


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions for some of the keys, as in `DecidedTable`."""

    proven: pa.Table
    others: list[KeyFindings]


def decided_keys(
    table: pa.Table, rows: Int64s, clocks: Mapping[str, Clocks], configurations_max: int, *, multi_key: bool
) -> Iterator[Decided]:
    """Decide every (run_id, key). `table`, `rows`: the results of `single_rows`.

    `multi_key`: whether the table has projections of listings or transactions.
    """
    frame = Frame(table)
    order, edges = _groups(frame, rows)
    lean = table.select([name for name in NEEDED if name != "output"])
    output: Any = frame.output()
    if not multi_key:
        fields = [pc.struct_field(output, name) for name in _SINGLE_OUTPUT]
        output = pa.StructArray.from_arrays(fields, names=list(_SINGLE_OUTPUT), mask=output.is_null())
    lean = lean.append_column("output", output)

    def decided(start: int, end: int) -> Decided:
        mine = order[start:end]
        if end - start > HOT_ROWS:  # A group with more rows than this always has only one key.
            found = _in_ranges(frame, lean, mine, clocks, configurations_max)
        else:
            found = decide_table(lean.take(mine), clocks, configurations_max)
        return Decided(found.proven, list(found.others))

    with ThreadPoolExecutor(THREADS) as threads:
        yield from threads.map(decided, edges[:-1], edges[1:])


def _in_ranges(
    frame: Frame, table: pa.Table, rows: Int64s, clocks: Mapping[str, Clocks], configurations_max: int
) -> DecidedTable:
    """Decide these rows, which are all of one key, one range after the other."""
    revision = frame.numbers("revision", 0)
    ranks = frame.codes("status").among("ok")[rows] & (revision[rows] > 0)
    order = ranked(frame, rows[ranks], revision, changes_of_one_key(frame))
    begins = range(0, len(order), LIMITS.range)
    ranges = (table.take(order[begin : begin + LIMITS.range]) for begin in begins)

    def whole() -> pa.Table | None:
        return table.take(rows) if len(rows) <= LIMITS.whole else None

    return decide_in_ranges(table.take(rows[~ranks]), ranges, whole, clocks, configurations_max)


def _groups(frame: Frame, rows: Int64s) -> tuple[Int64s, list[int]]:
    """Sort these rows by key, stably, and cut them into groups.

    Return the rows, and the positions of the cuts. All cuts are between keys. There is a cut after about every
    BLOCK_ROWS rows, and before and after each key of more than HOT_ROWS rows.
    """
    run, key = frame.codes("run_id"), frame.codes("key")
    owner = (run.ids * np.int64(len(key.texts)) + key.ids)[rows]
    order = sorted_by(owner)
    begins = np.flatnonzero(np.diff(owner[order], prepend=-1))
    order = rows[order]
    wanted = np.arange(0, len(order), BLOCK_ROWS)
    cuts = begins[np.searchsorted(begins, wanted, side="right") - 1]
    ends = np.append(begins[1:], len(order))
    hot = ends - begins > HOT_ROWS
    return order, np.unique(np.concatenate((cuts, begins[hot], ends[hot], [len(order)]))).tolist()
