"""Decides a key of very many operations, one range of revisions at a time.

Only one range, and the unknown writes of the key, are in memory at once.

The ranges are in the order (revision, writer first, call). Each range begins with the carry of the ranges before it
(`columnar/ranges.py`). A failed proof of a range is not a violation. The key is then decided as a whole, or, if it has
more than WHOLE_ROWS_MAX rows, it is undecided. The local and the Spark engine use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_audit.columnar import Columns, encode
from spark_audit.columnar.columns import NEEDED, Bools, Int64s
from spark_audit.columnar.ranges import Advanced, Carry, advance, weak_reads_fit
from spark_audit.columnar.unplaced_writes import PlacedWrites
from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import WEAK
from spark_audit.store.revision_claims import RevisionClaim, Traces, UnplacedWrite
from spark_audit.tables.decide_keys import METHODS, NOTHING_TO_DECIDE, PROVEN, DecidedTable, decide_table
from spark_audit.tables.shuffle import concat
from spark_audit.verdict.findings import KeyFindings
from spark_audit.verdict.verdict import UNDECIDED, Undecided

# A key with more rows than this is decided in ranges. Smaller keys are decided as a whole, many keys at once.
HOT_ROWS = 1 << 19
# A key that cannot be proven in ranges is decided as a whole if it has at most this many rows. This many rows need
# about 1.5 GB.
WHOLE_ROWS_MAX = 1 << 22


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers of rows.

    `range`: the number of rows of a range. `ahead`: at least this many rows at the end of a range are decided only with
    the next range. `left`: the maximum number of rows that may wait for the next range. `pending`: the maximum number
    of unknown writes that are considered at once. `whole`: see WHOLE_ROWS_MAX.
    """

    range: int = 1 << 17
    ahead: int = 1 << 13
    left: int = 1 << 18
    pending: int = 1 << 15
    whole: int = WHOLE_ROWS_MAX


LIMITS = Limits()
Whole = Callable[[], pa.Table | None]


def decide_in_ranges(
    unranked: pa.Table,
    ranges: Iterable[pa.Table],
    whole: Whole,
    clocks: Mapping[str, Clocks],
    configurations_max: int,
    limits: Limits = LIMITS,
) -> DecidedTable:
    """Decide one key of one run.

    `ranges`: the completed rows that have a revision, in the form that `decide_table` needs. In the order (revision,
    writer first, call), each row of a range precedes all rows of the next range. `unranked`: all other rows of the key.
    `whole`: returns all rows of the key, or None if there are too many. `whole` is called after the last range, and
    only if the proof in ranges fails.
    """
    walk = _RangeWalk(unranked, limits)
    rows = unranked.num_rows
    for table, is_last in _with_last(ranges):
        rows += table.num_rows
        walk.take(table, is_last=is_last)
    if walk.proves:
        return DecidedTable(walk.proven(), iter(()))
    everything = whole()
    if everything is not None:
        return decide_table(everything, clocks, configurations_max)
    return DecidedTable(PROVEN.empty_table(), iter([_undecided(walk, rows, limits)]))


def _undecided(walk: _RangeWalk, rows: int, limits: Limits) -> KeyFindings:
    run_id, key = walk.name
    reason = (
        f"the order of its revisions, taken in ranges, does not explain it, and it has {rows} rows: more than"
        f" {limits.whole} are not searched as a whole"
    )
    found = KeyFindings(run_id, key, UNDECIDED, "search", walk.weak, 0, [Undecided("keys", run_id, key, reason)], True)
    found.operations = walk.operations
    return found


def _with_last(ranges: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, bool]]:
    """Yield (range, whether it is the last one) for each range."""
    before: pa.Table | None = None
    for table in ranges:
        if before is not None:
            yield before, False
        before = table
    if before is not None:
        yield before, True


class _RangeWalk:
    """Proves one key, range by range.

    `proves`: whether all ranges so far are proven. `operations`, `weak`: as in KeyFindings.
    """

    def __init__(self, unranked: pa.Table, limits: Limits) -> None:
        self._limits, self._carry = limits, Carry()
        # A completed row in `unranked` has no revision. If there is such a row, the order of revisions cannot prove the
        # key.
        self.proves = not _among(unranked, "status", "ok").any()
        speaks = _among(unranked, "status", "unknown") & ~_among(unranked, "op", "get", "range")
        pending = _lean(unranked.take(np.flatnonzero(speaks & ~_weak(unranked))))
        self._pending = pending.take(np.argsort(_numbers(pending, "call_ns", 0), kind="stable"))
        self._called = _numbers(self._pending, "call_ns", 0)
        self._op_id = _numbers(self._pending, "op_id", 0)
        self._open = np.ones(len(self._called), np.bool_)
        # The write of the carried record, if there is one, and the rows that earlier ranges left.
        self._waiting: pa.Table | None = None
        self._begun = 0  # 1 if the waiting rows begin with the write of the carried record, otherwise 0.
        self._clocks: set[str] = set()
        self.name = ("", "")
        self.operations, self.weak = int(speaks.sum()), int((speaks & _weak(unranked)).sum())
        self._claims, self._unplaced = list[RevisionClaim](), list[UnplacedWrite]()
        self._note(unranked)

    def _note(self, table: pa.Table) -> None:
        self._clocks.update(map(str, table.column("clock_id").unique().to_pylist()))
        if table.num_rows:
            self.name = (str(table.column("run_id")[0]), str(table.column("key")[0]))

    def take(self, table: pa.Table, *, is_last: bool) -> None:
        """Prove the next range. If the proof fails, `proves` becomes False."""
        self._note(table)
        self.operations += table.num_rows
        self.weak += int(_weak(table).sum())
        before = [self._waiting] if self._waiting is not None else []
        waiting = sum(some.num_rows for some in before)
        self.proves = self.proves and len(self._clocks) == 1 and waiting <= self._limits.left
        if not self.proves:
            self._waiting = None
            return
        rows = concat([*before, _lean(table)])
        chosen = self._candidates(rows)
        joined = concat([rows, self._pending.take(chosen)]) if len(chosen) else rows
        found = self._advanced(encode(joined), is_last)
        if found is None:
            self.proves, self._waiting = False, None
            return
        self._go_on(found, joined, rows.num_rows, chosen)

    def _advanced(self, columns: Columns, is_last: bool) -> Advanced | None:
        if not weak_reads_fit(columns, self._carry):
            return None
        # The key has no completed operation. So it has only weak reads, and unknown writes whose effects no response
        # shows.
        if not (~columns.unknown).any():
            return Advanced(self._carry, -1, np.zeros(0, np.int64), np.zeros(0, np.int64), PlacedWrites())
        return advance(columns, self._carry, ahead=self._limits.ahead, last=is_last)

    def _candidates(self, rows: pa.Table) -> Int64s:
        """Return the unknown writes that were called before one of these rows returned, and are not used yet.

        If there are too many, only the writes that were called last are returned.
        """
        latest = int(_numbers(rows, "return_ns", 0)[self._begun :].max(initial=-1))
        called = int(np.searchsorted(self._called, latest, side="right"))
        return np.flatnonzero(self._open[:called])[-self._limits.pending :]

    def _go_on(self, found: Advanced, joined: pa.Table, rows: int, chosen: Int64s) -> None:
        self._open[chosen[found.used[found.used >= rows] - rows]] = False
        self._trace(found.placed, rows, chosen)
        self._carry = found.carry
        left = joined.take(np.sort(found.left[found.left >= self._begun]))
        self._begun = int(found.writer >= 0)
        write = [_put_of(joined.slice(found.writer, 1), found.carry)] if found.writer >= 0 else []
        self._waiting = concat([*write, left])

    def _trace(self, placed: PlacedWrites, rows: int, chosen: Int64s) -> None:
        """Record the claims and the unplaced writes of a range (`store/revision_claims.py`)."""
        key, (clock,) = self.name[1], self._clocks
        claimed, unplaced = chosen[placed.claimed - rows], chosen[placed.unplaced - rows]
        by = zip(self._op_id[claimed].tolist(), self._called[claimed].tolist(), strict=True)
        self._claims += [
            RevisionClaim(key, revision, (op_id, call, clock))
            for revision, (op_id, call) in zip(placed.revision.tolist(), by, strict=True)
        ]
        numbers = (self._called[unplaced].tolist(), self._op_id[unplaced].tolist())
        between = zip(placed.low.tolist(), placed.high.tolist(), *numbers, placed.also(), strict=True)
        self._unplaced += [
            UnplacedWrite(key, low, high, call, clock, also, op_id) for low, high, call, op_id, also in between
        ]

    def proven(self) -> pa.Table:
        """Return one row for the key, with the columns PROVEN."""
        method = NOTHING_TO_DECIDE if self.operations == self.weak else METHODS[0]
        run_id, key = self.name
        traces = Traces(tuple(sorted(self._claims, key=lambda claim: claim.revision)), tuple(self._unplaced)).to_json()
        counts = {"operations": self.operations, "weak": self.weak, "needs_replay": False, "traces": traces}
        return pa.Table.from_pylist([{"run_id": run_id, "key": key, "method": method, **counts}], schema=PROVEN)


_ASKS = tuple(name for name in NEEDED.names)


def _lean(table: pa.Table) -> pa.Table:
    """Return the table with only the columns that matter to the order of the key."""
    return table.select([name for name in _ASKS if name in table.column_names])


def _put_of(write: pa.Table, carry: Carry) -> pa.Table:
    """Return a table with one row: the write of the carried record, as an acknowledged put at the record's revision."""
    kept = {name: write.column(name)[0].as_py() for name in _KEPT}
    row = {**kept, "op": "put", "status": "ok", "revision": carry.revision}
    columns: list[Any] = [pa.array([row.get(field.name)]).cast(field.type) for field in write.schema]
    return pa.table(columns, schema=write.schema)


_KEPT = ("run_id", "op_id", "key", "value", "call_ns", "return_ns", "clock_id")


def _weak(table: pa.Table) -> Bools:
    """Return for each row whether it promises less than linearizability."""
    weak = _among(table, "consistency", *WEAK)
    return weak | _is_valid(table.column("weak")) if "weak" in table.column_names else weak


def _is_valid(column: pa.ChunkedArray[Any]) -> Bools:
    return np.asarray(column.is_valid().to_numpy(), np.bool_)


def _among(table: pa.Table, name: str, *texts: str) -> Bools:
    """Return for each row whether this column has one of these texts; false for null."""
    wanted: Any = pc.is_in(table.column(name).cast(pa.large_string()), pa.array(texts, pa.large_string()))
    return np.asarray(wanted.to_numpy(), np.bool_)


def _numbers(table: pa.Table, name: str, null: int) -> Int64s:
    column: Any = table.column(name)
    column = column.fill_null(null)
    return np.asarray(column.to_numpy(), np.int64)
