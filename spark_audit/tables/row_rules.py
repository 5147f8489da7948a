"""Checks the rules for rows over whole columns: cheap conditions find suspect rows, which are then checked exactly.

The conditions find every row that breaks a rule, and may find some rows that break none. A test compares them with
`plain_problem` on random rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spark_audit.history.requests import NUMBERS
from spark_audit.history.rows import (
    CONSISTENCIES,
    LEVELS,
    MULTI_KEY_OPS,
    OPS,
    REQUEST_OPS,
    SINGLE_KEY_OPS,
    STATUSES,
    plain_problem,
)
from spark_audit.history.services import ANSWERED_OPS
from spark_audit.tables.frame import Bools, Frame, Int64s

_NEVER_NULL = ("run_id", "op_id", "client", "call_ns", "clock_id")
_LEAST = (
    ("op_id", 0),
    ("revision", 1),
    ("expected_mod_revision", 0),
    ("accepted_index", 1),
    ("accepted_term", 1),
)


def broken_rows(frame: Frame) -> Iterator[tuple[int, str]]:
    """Yield (row, reason) for each row that `plain_problem` does not accept, in order."""
    found = [start + np.flatnonzero(suspect(block)) for start, block in frame.blocks()]
    rows = np.concatenate((np.zeros(0, np.int64), *found))
    for row, suspect_row in zip(rows.tolist(), frame.dicts(rows), strict=True):
        reason = plain_problem(suspect_row)
        if reason is not None:
            yield row, reason


def suspect(frame: Frame) -> Bools:
    """Return for each row whether it may break a rule."""
    status, op, consistency = frame.codes("status"), frame.codes("op"), frame.codes("consistency")
    ok, unknown = status.among("ok"), status.among("unknown")
    bad = ~status.among(*STATUSES) | ~op.among(*OPS)
    bad |= (consistency.ids >= 0) & ~consistency.among(*CONSISTENCIES)
    for name in _NEVER_NULL:
        bad |= frame.null(name)
    for name, least in _LEAST:
        bad |= frame.numbers(name, least) < least
    for name in NUMBERS:
        bad |= frame.output_below(name, 0)
    bad |= frame.null("accepted_index") != frame.null("accepted_term")
    bad |= ~frame.null("acknowledge") & ~_level_fits(frame, ok)
    bad |= unknown != frame.null("return_ns")
    bad |= frame.numbers("return_ns", 2**63 - 1) < frame.numbers("call_ns", 0)
    key = frame.codes("key")
    bad |= op.among(*SINGLE_KEY_OPS) & ((key.ids < 0) | key.among(""))
    bad |= op.among("put", "cas", "append") & frame.null("value")
    bad |= op.among(*REQUEST_OPS) & frame.null("request")
    bad |= ok & frame.null("output")
    return bad | (ok & _bad_answer(frame))


def _level_fits(frame: Frame, ok: Bools) -> Bools:
    """Return for each row whether its acknowledgement level is known, and its answer has the fields of the level."""
    level = frame.codes("acknowledge")
    return level.among(*LEVELS) & ~(level.among("in_sync") & ok & frame.null("acknowledged_by"))


def _bad_answer(frame: Frame) -> Bools:
    """Return for each row whether its output would break a rule if its status were `ok`."""
    op = frame.codes("op")
    gets, compares = op.among("get"), op.among("cas")
    no_flag, no_find = frame.output_null("succeeded"), frame.output_null("found")
    bad = (gets | op.among("delete")) & no_find
    bad |= (compares | op.among("txn")) & no_flag
    bad |= compares & no_find & ~frame.output_flag("succeeded")
    bad |= gets & frame.output_null("value") & frame.output_flag("found")
    bad |= op.among("txn") & frame.output_null("results")
    return bad | (op.among(*ANSWERED_OPS) & frame.output_null("answer"))


def multi_key_rows(frame: Frame) -> Int64s:
    """Return the rows that are listings or transactions."""
    return np.flatnonzero(frame.codes("op").among(*MULTI_KEY_OPS))
