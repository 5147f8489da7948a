"""Finds rows that contradict each other: rows of one run with the same op_id, and operations of one client that are
open at the same time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spark_audit.columnar.columns import sorted_by
from spark_audit.history.rows import after_unknown, overlapping, twice
from spark_audit.tables.frame import Bools, Frame, Int32s, Int64s


def clashes(frame: Frame) -> Iterator[tuple[int, str]]:
    """Yield (row, reason) for each row that contradicts another row, in no particular order.

    All rows of the frame must be well-formed.
    """
    op_id, run = frame.numbers("op_id", -1), frame.codes("run_id")
    for row in _seen_before(run.ids, op_id).tolist():
        yield row, twice(int(op_id[row]), run.texts[run.ids[row]])
    client = frame.codes("client")
    unknown = frame.null("return_ns")
    for before, row in _open_at_once(frame, unknown).tolist():
        words = after_unknown if unknown[before] else overlapping
        yield row, words(client.texts[client.ids[row]], int(op_id[before]))


def _seen_before(run: Int32s, op_id: Int64s) -> Int64s:
    """Return the rows whose op_id is also the op_id of an earlier row of the same run."""
    numbered = len(run) > 0 and not run.any() and int(op_id.max()) < 4 * len(op_id)
    if numbered and int(np.bincount(op_id).max()) == 1:  # The usual case: one run whose operations are numbered.
        return np.zeros(0, np.int64)
    order: Int64s = np.lexsort((op_id, run))
    again = (np.diff(run[order]) == 0) & (np.diff(op_id[order]) == 0)
    later: Int64s = order[1:][again]
    return later  # The sort is stable, so the first row with an op_id is not in the result.


def _open_at_once(frame: Frame, unknown: Bools) -> Int64s:
    """Return pairs of consecutive operations of one client: the first was still open when the second was called."""
    call = frame.numbers("call_ns", 0)
    ended = frame.numbers("return_ns", 2**63 - 1)
    run, client = frame.codes("run_id"), frame.codes("client")
    owner = run.ids * np.int64(len(client.texts)) + client.ids
    order = np.arange(len(call)) if _ascending(call) else np.argsort(call, kind="stable")
    order = order[sorted_by(owner[order])]
    same = np.diff(owner[order]) == 0
    if (same & (np.diff(call[order]) == 0)).any():  # If calls are equal, the operation that returned first comes first.
        order = np.lexsort((frame.numbers("op_id", -1), ended, unknown, call, owner))
    before, after = order[:-1], order[1:]
    open_ = same & (unknown[before] | (ended[before] > call[after]))
    return np.stack((before[open_], after[open_]), axis=1)


def _ascending(stamps: Int64s) -> bool:
    return not (np.diff(stamps) < 0).any()
