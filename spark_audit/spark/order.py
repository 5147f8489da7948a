"""Checks the order over all keys and the uniqueness of revisions, by merging summaries (`tables/order_blocks.py`).

The driver receives one summary per block and run, and the few rows that are shown, but no other rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from spark_audit.history.clocks import Clocks
from spark_audit.store.order import OutOfOrder
from spark_audit.tables.order_blocks import BlockSummary, Latest, carried
from spark_audit.verdict.findings import order_violation, repeated_violation
from spark_audit.verdict.verdict import SHOWN_MAX, Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHOWN = ("run_id", "op_id", "client", "op", "key", "call_ns", "return_ns", "clock_id", "revision")
Rerun = Callable[[Mapping[tuple[str, int], Latest]], Iterable[BlockSummary]]


def block_from(text: str) -> BlockSummary:
    """Return the summary in this JSON text, which was written with `asdict`."""
    fields = json.loads(text)
    fields["latest"] = {clock: (call, op_id) for clock, (call, op_id) in fields["latest"].items()}
    return BlockSummary(**fields)


def check_order(
    blocks: Iterable[BlockSummary],
    again: Rerun,
    rows: Callable[[], DataFrame],
    clocks: Mapping[str, Clocks],
    verdict: Verdict,
) -> None:
    """Record in `verdict` the rows that break the order, and the revisions that several acknowledged writes carry.

    `blocks`: the summaries of all blocks of all runs. `again`: summarizes some blocks once more, each starting from its
    carry. The carry is the greatest call of the earlier blocks, by clock. `rows`: returns all rows.
    """
    by_run: dict[str, list[BlockSummary]] = {}
    for block in sorted(blocks, key=lambda block: (block.run_id, block.number)):
        by_run.setdefault(block.run_id, []).append(block)
    carries: dict[tuple[str, int], Latest] = {}
    for run_id, mine in by_run.items():
        carries |= carried(mine, clocks[run_id])
    renewed = {(block.run_id, block.number): block for block in again(carries)} if carries else {}
    for mine in by_run.values():
        mine[:] = [renewed.get((block.run_id, block.number), block) for block in mine]
    shown = _rows_shown(rows, [block for mine in by_run.values() for block in mine])
    for run_id, mine in by_run.items():
        verdict.revision_gaps += _gaps(mine)
        for block in mine:
            _record(verdict, run_id, block, shown)


def _rows_shown(rows: Callable[[], DataFrame], blocks: Sequence[BlockSummary]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows of the first examples, by (run_id, op_id)."""
    pairs = [(block.run_id, pair) for block in blocks for pair in block.pairs][:SHOWN_MAX]
    repeated = [(block.run_id, members) for block in blocks for _, members in block.repeated][:SHOWN_MAX]
    by_run: dict[str, set[int]] = {}
    for run_id, op_ids in [*pairs, *repeated]:
        by_run.setdefault(run_id, set()).update(op_ids)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for run_id, wanted in by_run.items():
        mine = rows().where((f.col("run_id") == run_id) & f.col("op_id").isin(sorted(wanted))).select(*_SHOWN)
        found |= {(run_id, row["op_id"]): row.asDict() for row in mine.collect()}
    return found


def _record(
    verdict: Verdict, run_id: str, block: BlockSummary, shown: Mapping[tuple[str, int], dict[str, Any]]
) -> None:
    order, unique = verdict.properties["order"], verdict.properties["unique"]
    order.violated += block.late
    for late, early in block.pairs:
        if (run_id, late) in shown and (run_id, early) in shown:
            pair = OutOfOrder(shown[run_id, late], shown[run_id, early])
            verdict.record(order_violation(run_id, pair), count=0)
    unique.checked += block.writes
    unique.violated += block.repeated_revisions
    for revision, op_ids in block.repeated:
        members = [shown[run_id, op_id] for op_id in op_ids if (run_id, op_id) in shown]
        if len(members) == len(op_ids):
            verdict.record(repeated_violation(run_id, revision, members), count=0)


def _gaps(blocks: Sequence[BlockSummary]) -> int:
    with_writes = [block for block in blocks if block.writes]
    if not with_writes:
        return 0
    return (
        max(block.greatest for block in with_writes)
        - min(block.least for block in with_writes)
        + 1
        - sum(b.distinct for b in with_writes)
    )
