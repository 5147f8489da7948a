"""Finds the rows of services in a frame, inspects them one by one, and replaces them by plain rows (`plain_rows`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_audit.history.services import OPTION_OPS, SERVICE_OPS, service_problem
from spark_audit.services.key_facts import Interest
from spark_audit.services.settle import settled_rows
from spark_audit.tables.conform import conform, joined
from spark_audit.tables.frame import Bools, Frame, Int64s, Row, schema

# run_id → op_id → the rows that replace the plain row with this op_id.
Settled: TypeAlias = Mapping[str, Mapping[int, Sequence[Row]]]
NOTHING_SETTLED: Settled = {}


def service_rows(frame: Frame) -> Int64s:
    """Return the numbers of the rows of services (`is_service`)."""
    return np.flatnonzero(_of_services(frame))


def judged_rows(frame: Frame) -> Int64s:
    """Return the numbers of the rows of services, and of the writes with an acknowledgement level."""
    return np.flatnonzero(_judged(frame))


def summary_rows(frame: Frame) -> Bools:
    """Return for each row whether a summary needs it: a row of a service, a write with a level, or an unknown
    transaction."""
    return _judged(frame) | (frame.codes("op").among("txn") & frame.codes("status").among("unknown"))


def fact_rows(frame: Frame, interests: Collection[Interest]) -> Bools:
    """Return for each row whether it may have facts about the keys in one of these interests."""
    appended = any(interest.prefixes for interest in interests)
    leased = any(interest.leased for interest in interests)
    told = any(interest.told for interest in interests)
    without = [*(() if leased or appended or told else ["get"]), *(() if appended else ["range"])]
    return _of_services(frame) | ~frame.codes("op").among(*without)


def bad_services(frame: Frame) -> Iterator[tuple[int, str]]:
    """Yield (row, reason) for each row of a service whose request or answer is malformed."""
    rows = service_rows(frame)
    for number, row in zip(rows.tolist(), frame.dicts(rows), strict=True):
        reason = service_problem(row)
        if reason is not None:
            yield number, reason


def plain(frame: Frame, settled: Settled) -> Frame:
    """Return `frame` in which plain rows (`plain_rows`) replace each row of a service, and rows of `settled` replace
    each settled plain row.

    All rows must be well-formed. A frame without rows of services and without settled rows is returned unchanged.
    """
    replaced = _of_services(frame) | _among(frame, settled)
    if not replaced.any():
        return frame
    made: list[Row] = []
    for row in frame.dicts(np.flatnonzero(replaced)):
        made += settled_rows(row, settled.get(row["run_id"], {}))
    rest = frame.table.take(np.flatnonzero(~replaced))
    return Frame(joined([rest, conform(pa.Table.from_pylist(made, schema=schema(names_coded=False)))]))


def _judged(frame: Frame) -> Bools:
    return _of_services(frame) | ~frame.null("acknowledge")


def _of_services(frame: Frame) -> Bools:
    op = frame.codes("op")
    return op.among(*SERVICE_OPS) | (op.among(*OPTION_OPS) & ~frame.null("request"))


def _among(frame: Frame, settled: Settled) -> Bools:
    found = np.zeros(frame.rows, np.bool_)
    for run_id, by_id in settled.items():
        wanted = np.array(sorted(by_id), np.int64)
        found |= frame.codes("run_id").among(run_id) & np.isin(frame.numbers("op_id", -1), wanted)
    return found
