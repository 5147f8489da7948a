"""Checks the order over all keys and the uniqueness of revisions of one run, in numpy.

The result is the same as in `store/order.py`, but only the few rows that are shown become Python objects. The texts of
the findings come from `verdict/findings.py`.
"""

from __future__ import annotations

import numpy as np

from spark_audit.columnar.columns import sorted_by
from spark_audit.history.clocks import Clocks
from spark_audit.store.order import OutOfOrder
from spark_audit.tables.frame import Bools, Frame, Int64s, Row
from spark_audit.verdict.findings import order_violation, repeated_violation
from spark_audit.verdict.verdict import SHOWN_MAX, Verdict

_EARLIEST = -(2**63)
_SHOWN = ("op_id", "client", "op", "key", "call_ns", "return_ns", "clock_id", "revision")


def check_order(frame: Frame, run_id: str, ordered: Int64s, changed: Bools, clocks: Clocks, verdict: Verdict) -> None:
    """Record the rows of one run that break the order, and the revisions that several writes carry.

    `ordered`: the rows that take part, sorted by `rank` (history/effects.py). `changed`: for each row of the frame,
    whether it changed the store.
    """
    verdict.properties["order"].checked += len(ordered)
    late, early = _late(frame, ordered, clocks)
    for number in range(min(len(late), SHOWN_MAX)):
        pair = OutOfOrder(*_rows(frame, np.array([late[number], early[number]])))
        rest = len(late) - SHOWN_MAX if number == 0 and len(late) > SHOWN_MAX else 0
        verdict.record(order_violation(run_id, pair), count=1 + rest)
    _check_unique(frame, run_id, ordered[changed[ordered]], verdict)


def ranked(frame: Frame, rows: Int64s, revision: Int64s, changed: Bools) -> Int64s:
    """Return these rows sorted by (revision, writer first, call, op_id).

    `revision` and `changed` have a value per row of the frame.
    """
    call = frame.numbers("call_ns", 0)
    order = rows if not (np.diff(call[rows]) < 0).any() else rows[np.argsort(call[rows], kind="stable")]
    place = np.minimum(revision, 2**61)[order] * 2 + ~changed[order]
    if len(place) and int(place.max()) >= 2**61:
        place = np.unique(np.stack((revision[order], ~changed[order])), axis=1, return_inverse=True)[1].reshape(-1)
    order = order[sorted_by(place)]
    equal = (np.diff(revision[order]) == 0) & (np.diff(changed[order]) == 0) & (np.diff(call[order]) == 0)
    if equal.any():
        order = order[np.lexsort((frame.numbers("op_id", 0)[order], call[order], ~changed[order], revision[order]))]
    return order


def _late(frame: Frame, ordered: Int64s, clocks: Clocks) -> tuple[Int64s, Int64s]:
    """Return (late, early). `late`: the rows that break the order. `early`: for each late row, a row that shows this.

    A late row returned before the call of the early row, although the early row precedes the late row in the order. The
    early row is the one that was called last among the rows of its clock that precede the late row.
    """
    if not len(ordered):
        return ordered, ordered
    clock = frame.codes("clock_id")
    on = clock.ids[ordered]
    call, ended = (frame.numbers(name, 0)[ordered] for name in ("call_ns", "return_ns"))
    used, first = np.unique(on, return_index=True)
    early = np.full(len(ordered), -1)
    # The clocks are visited in the order of their first occurrence, so that the result equals the result of Spark.
    for code in used[np.argsort(first)].tolist():
        mine = on == code if len(used) > 1 else slice(None)
        calls = np.full(len(ordered), _EARLIEST)
        calls[mine] = call[mine]
        reach = np.concatenate(([_EARLIEST], np.maximum.accumulate(calls)[:-1]))
        for other in used.tolist():
            margin = clocks.margin_ns(clock.texts[other], clock.texts[code])
            if margin is None:
                continue
            late = (early < 0) & (on == other) & _leads(reach, ended, margin)
            if late.any():
                # The early row is the first row of the order with this call.
                early[late] = np.searchsorted(np.maximum.accumulate(calls), reach[late])
    guilty = np.flatnonzero(early >= 0)
    return ordered[guilty], ordered[early[guilty]]


def _leads(reach: Int64s, ended: Int64s, margin: int) -> Bools:
    """Return whether ended + margin < reach. The computation does not overflow, whatever the stamps and the margin."""
    leads: Bools = (reach > ended) & (reach.view(np.uint64) - ended.view(np.uint64) > min(margin, 2**64 - 1))
    return leads


def _check_unique(frame: Frame, run_id: str, writes: Int64s, verdict: Verdict) -> None:
    verdict.properties["unique"].checked += len(writes)
    if not len(writes):
        return
    revision = frame.numbers("revision", 0)[writes]
    starts = np.flatnonzero(np.concatenate(([True], np.diff(revision) != 0)))
    sizes = np.diff(np.append(starts, len(writes)))
    verdict.revision_gaps += int(revision[-1]) - int(revision[0]) + 1 - len(starts)
    repeated = np.flatnonzero(sizes > 1)
    for number, group in enumerate(repeated[:SHOWN_MAX].tolist()):
        mine = writes[starts[group] : starts[group] + sizes[group]]
        rest = max(0, len(repeated) - SHOWN_MAX) if number == 0 else 0
        found = repeated_violation(run_id, int(revision[starts[group]]), _rows(frame, mine))
        verdict.record(found, count=1 + rest)


def _rows(frame: Frame, rows: Int64s) -> list[Row]:
    return list(frame.dicts(rows, _SHOWN))
