"""Checks the order over all keys, one block of revisions at a time.

Block n has every row of a run with a revision in [n·2^BLOCK_BITS, (n+1)·2^BLOCK_BITS). First, each block is checked by
itself and summarized. The summary has the greatest call and the least return of the block, for each clock. If the
greatest call of the earlier blocks (the carry) exceeds the least return of a block, the block is checked again,
starting from the carry. So only one block, and a few numbers of each other block, are in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from spark_audit.history.clocks import Clocks
from spark_audit.tables.frame import Bools, Frame, Int64s
from spark_audit.tables.order import ranked
from spark_audit.tables.shuffle import BLOCK_BITS
from spark_audit.verdict.verdict import SHOWN_MAX

MEMBERS_MAX = 4  # If several writes share a revision, at most this many of them are shown.
_EARLIEST = -(2**63)
Latest = dict[str, tuple[int, int]]  # Clock → the greatest call, and its op_id.


@dataclass(slots=True)
class BlockSummary:
    """The summary of one block. Rows are identified by their op_id.

    `latest`, `least_return`: the greatest call and the least return, by clock. A row is late if it returned before the
    call of a row that precedes it in the order. `late`: the number of late rows. `pairs`: (late row, a row that
    precedes it) for the first late rows. `writes`, `distinct`: the number of acknowledged changes, and of their
    distinct revisions. `least`, `greatest`: the least and the greatest of these revisions. `repeated_revisions`: the
    number of revisions that several changes carry. `repeated`: (revision, some of its changes) for the first of these
    revisions.
    """

    run_id: str
    number: int
    latest: Latest
    least_return: dict[str, int]
    late: int = 0
    pairs: list[tuple[int, int]] = field(default_factory=list)
    writes: int = 0
    distinct: int = 0
    least: int = 0
    greatest: int = 0
    repeated: list[tuple[int, list[int]]] = field(default_factory=list)
    repeated_revisions: int = 0


def blocks_of(
    table: pa.Table, clocks: Mapping[str, Clocks], carries: Mapping[tuple[str, int], Latest] | None = None
) -> Iterator[BlockSummary]:
    """Yield the summaries of the blocks in a table of kind ORDER. The table must have all rows of each of its blocks.

    `carries`: (run_id, number of the block) → carry. If `carries` is given, only its blocks are summarized, each
    starting from its carry.
    """
    frame = Frame(table)
    run, revision, reads = frame.codes("run_id"), frame.numbers("revision", 0), _flags(table)
    for code, run_id in enumerate(run.texts):
        order = ranked(frame, np.flatnonzero(run.ids == code), revision, ~reads)
        number = revision[order] >> BLOCK_BITS
        edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(order)]
        for begin, end in pairwise(edges):
            if begin == end:
                continue
            here = (run_id, int(number[begin]))
            if carries is None or here in carries:
                rows = _BlockRows(frame, order[begin:end], reads)
                yield _block(*here, rows, clocks[run_id], carries[here] if carries else {})


def _flags(table: pa.Table) -> Any:
    return np.asarray(table.column("reads").combine_chunks().to_numpy(zero_copy_only=False), np.bool_)


class _BlockRows:
    """The rows of one block as arrays, in the order of revisions."""

    def __init__(self, frame: Frame, rows: Int64s, reads: Any) -> None:
        self.call, self.ended = frame.numbers("call_ns", 0)[rows], frame.numbers("return_ns", 0)[rows]
        self.op_id, self.revision = frame.numbers("op_id", 0)[rows], frame.numbers("revision", 0)[rows]
        self.clock, self.clocks = frame.codes("clock_id").ids[rows], frame.codes("clock_id").texts
        self.writes = np.flatnonzero(~reads[rows])


def _block(run_id: str, number: int, rows: _BlockRows, clocks: Clocks, carry: Latest) -> BlockSummary:
    made = BlockSummary(run_id, number, {}, {})
    codes = np.unique(rows.clock).tolist()
    # Place of a late row → op_id of a row that precedes the late row in the order, but was called only after the late
    # row had returned.
    guilty: dict[int, int] = {}
    for clock in dict.fromkeys((*carry, *(rows.clocks[code] for code in codes))):
        code = rows.clocks.index(clock) if clock in rows.clocks else -1
        mine = rows.call if len(codes) == 1 and code == codes[0] else np.where(rows.clock == code, rows.call, _EARLIEST)
        begun = carry[clock][0] if clock in carry else _EARLIEST
        reach = np.maximum.accumulate(np.concatenate(([begun], mine)))
        for other in codes:
            margin = clocks.margin_ns(rows.clocks[other], clock)
            if margin is None:
                continue
            late = np.flatnonzero((rows.clock == other) & _leads(reach[:-1], rows.ended, margin))
            # For each late row, the origin of the latest call before it. 0: the carry; n: row n - 1 of this block.
            first = np.searchsorted(reach, reach[late]) if len(late) else late
            for place, by in zip(late.tolist(), first.tolist(), strict=True):
                guilty.setdefault(place, int(rows.op_id[by - 1]) if by else carry[clock][1])
        if code in codes:
            top = int(np.argmax(mine))
            made.latest[clock] = (int(mine[top]), int(rows.op_id[top]))
            made.least_return[clock] = int(rows.ended[rows.clock == code].min())
    made.late = len(guilty)
    made.pairs = [(int(rows.op_id[place]), by) for place, by in sorted(guilty.items())[:SHOWN_MAX]]
    _note_writes(made, rows)
    return made


def _leads(reach: Int64s, ended: Int64s, margin: int) -> Bools:
    """Return whether ended + margin < reach. The computation does not overflow, whatever the stamps and the margin."""
    leads: Bools = (reach > ended) & (reach.view(np.uint64) - ended.view(np.uint64) > min(margin, 2**64 - 1))
    return leads


def _note_writes(made: BlockSummary, rows: _BlockRows) -> None:
    """Count the writes of the block. Writes with the same revision are consecutive."""
    revision = rows.revision[rows.writes]
    if not len(revision):
        return
    starts = np.flatnonzero(np.concatenate(([True], np.diff(revision) != 0)))
    ends = np.append(starts[1:], len(revision))
    made.writes, made.distinct = len(revision), len(starts)
    made.least, made.greatest = int(revision[0]), int(revision[-1])
    several = np.flatnonzero(ends - starts > 1)
    made.repeated_revisions = len(several)
    for group in several[:SHOWN_MAX].tolist():
        members = rows.op_id[rows.writes[starts[group] : min(ends[group], starts[group] + MEMBERS_MAX)]]
        made.repeated.append((int(revision[starts[group]]), members.tolist()))


def reached(carry: Latest, block: BlockSummary, clocks: Clocks) -> bool:
    """Return whether an operation of an earlier block was called after an operation of this block had returned."""
    return any(
        (margin := clocks.margin_ns(other, clock)) is not None and least + margin < call
        for clock, (call, _) in carry.items()
        for other, least in block.least_return.items()
    )


def carried(blocks: Sequence[BlockSummary], clocks: Clocks) -> dict[tuple[str, int], Latest]:
    """Return the carries of the blocks of one run that must be checked again.

    `blocks`: the summaries of all blocks of the run, in order.
    """
    carry: Latest = {}
    found: dict[tuple[str, int], Latest] = {}
    for block in blocks:
        if reached(carry, block, clocks):
            found[block.run_id, block.number] = dict(carry)
        for clock, latest in block.latest.items():
            if clock not in carry or latest[0] > carry[clock][0]:
                carry[clock] = latest
    return found
