"""Decides all keys of a table.

The columnar kernel proves most keys together, without Python code per key. `verdict/findings.py` decides the other keys
one by one. The local and the Spark engine use this module. The module needs the `audit` extra (numpy, pyarrow).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_audit.columnar import BY_WITNESS, BY_ZONES, WRONG, Columns, Triage, doubtful, encode, key_ids, triage
from spark_audit.columnar.blocks import any_of
from spark_audit.columnar.columns import NEEDED as KERNEL_NEEDED
from spark_audit.columnar.columns import Bools, Int64s
from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import Operation
from spark_audit.key.decide import Decision, decide_core
from spark_audit.store.revision_claims import RevisionClaim, Traces, UnplacedWrite, claims_of
from spark_audit.verdict.findings import KeyFindings, KeyHistory, findings_from, findings_of_key

NEEDED = (*KERNEL_NEEDED.names, "client", "request", "changes_store")
# If the kernel finds a violation in a key with more rows than this, the few operations of the violation are checked
# first. If they prove the violation by themselves, the key needs no search.
CORE_FIRST_ROWS = 20_000
NOTHING_TO_DECIDE = "nothing to decide"
METHODS = ("witness", "zones", NOTHING_TO_DECIDE)
_PROVEN: dict[str, pa.DataType] = {
    "run_id": pa.string(),
    "key": pa.string(),
    "method": pa.string(),
    "operations": pa.int64(),
    "weak": pa.int64(),
    "needs_replay": pa.bool_(),
    "traces": pa.string(),
}
PROVEN: pa.Schema = pa.schema(_PROVEN)


@dataclass(frozen=True, slots=True)
class DecidedTable:
    """The decisions for all keys of a table; each key is in one of the two fields.

    `proven`: one row for each linearizable key without findings. The columns of this table (PROVEN) are fields of
    KeyFindings, but `traces` is JSON (`Traces.from_json`), or null if the key has no traces. `method` is one of
    METHODS. `others`: all other keys. They are decided one by one during the iteration. Some are linearizable, but have
    reads that must be checked again.
    """

    proven: pa.Table
    others: Iterator[KeyFindings]


def decide_table(table: pa.Table, clocks: Mapping[str, Clocks], configurations_max: int) -> DecidedTable:
    """Decide every (run_id, key) of the table. `clocks`: run_id → the clocks of the run.

    `table`: well-formed rows, each about one key. The table must have all rows of each of its keys, including failed
    rows. Listings and transactions are given as their projections (`project`), which set `weak` and `changes_store`;
    both are null for other rows. Rows may be in any order, but rows sorted by key and call are the fastest to decide.
    The table has the columns NEEDED. A text column may be string, large_string or dictionary. `output` must have at
    least the fields that the operations use.

    Besides the table, about 300 bytes of memory per row are needed. Tables of 100,000 to 1,000,000 rows are best.
    """
    columns = encode(table)
    found = triage(columns)
    sizes, weak = np.diff(columns.starts), _weak(columns)
    proven = (found.verdict == BY_WITNESS) | (found.verdict == BY_ZONES)
    doubted = _doubted(columns, found)
    fine = proven & ~any_of(doubted.key, np.ones(len(doubted.key), np.bool_), columns.keys)
    traces = _traces(table, columns, found)
    keys = np.flatnonzero(fine)
    method = np.where(sizes[keys] == 0, METHODS.index(NOTHING_TO_DECIDE), found.verdict[keys] == BY_ZONES)
    arrays: list[pa.Array[Any]] = [
        pa.array([columns.names[key][0] for key in keys.tolist()], pa.string()),
        pa.array([columns.names[key][1] for key in keys.tolist()], pa.string()),
        pa.array(METHODS).take(method),
        pa.array(sizes[keys] + weak[keys]),
        pa.array(weak[keys]),
        pa.array(found.verdict[keys] == BY_ZONES),
        pa.array([traces[key].to_json() if key in traces else None for key in keys.tolist()], pa.string()),
    ]
    rest = _Rest(table, columns, found, doubted, traces, clocks, configurations_max)
    return DecidedTable(pa.table(arrays, schema=PROVEN), rest.decided(np.flatnonzero(~fine)))


def _weak(columns: Columns) -> Int64s:
    return np.zeros(columns.keys, np.int64) if columns.weak is None else np.diff(columns.weak.starts)


def _traces(table: pa.Table, columns: Columns, found: Triage) -> dict[int, Traces]:
    """Return the traces of proven keys: number of the key → traces.

    If the witness proves a key, its traces come from the places of its unknown writes. If zones prove a key, it has no
    unplaced writes, and its claims come from reported records.
    """
    made: dict[int, Traces] = {}
    placed = found.placed
    key = np.searchsorted(columns.starts, np.concatenate((placed.claimed, placed.unplaced)), side="right") - 1
    numbers = np.concatenate((placed.claimed, placed.unplaced))
    clock: Any = table.column("clock_id").take(columns.row[numbers])
    stamps = zip(columns.op_id[numbers].tolist(), columns.call[numbers].tolist(), clock.to_pylist(), strict=True)
    at = zip(key.tolist(), stamps, strict=True)
    claims: dict[int, list[RevisionClaim]] = {}
    unplaced: dict[int, list[UnplacedWrite]] = {}
    for revision, (number, by) in zip(placed.revision.tolist(), at, strict=False):
        claims.setdefault(number, []).append(RevisionClaim(columns.names[number][1], revision, by))
    between = zip(placed.low.tolist(), placed.high.tolist(), placed.also(), at, strict=True)
    for low, high, also, (number, (op_id, call, name)) in between:
        unplaced.setdefault(number, []).append(
            UnplacedWrite(columns.names[number][1], low, high, call, name, also, op_id)
        )
    for number in claims.keys() | unplaced.keys():
        in_order = sorted(claims.get(number, ()), key=lambda one: one.revision)
        made[number] = Traces(tuple(in_order), tuple(unplaced.get(number, ())))
    for number in _without_acknowledged_write(columns, np.flatnonzero(found.verdict == BY_ZONES)).tolist():
        rows = columns.row[columns.starts[number] : columns.starts[number + 1]]
        operations = KeyHistory.of(table.take(rows).to_pylist()).operations
        made[number] = Traces(claims_of(columns.names[number][1], operations))
    return made


def _without_acknowledged_write(columns: Columns, keys: Int64s) -> Int64s:
    """Return those of `keys` for which a response reports a record that no acknowledged write made."""
    part = columns.of_keys(keys)
    if not len(part) or part.mod.max() <= 0:
        return keys[:0]
    key, own = part.key_of_row(), (part.writes >= 0) & (part.revision > 0)
    _, number = np.unique(np.concatenate((part.mod, part.revision)), return_inverse=True)
    mod, revision = np.split(number.reshape(-1) + np.concatenate((key, key)) * len(number), 2)
    return keys[any_of(key, (part.mod > 0) & ~np.isin(mod, revision[own]), part.keys)]


@dataclass(frozen=True, slots=True)
class _Doubted:
    """The *doubted* reads, which may contradict the revision that they carry.

    For each read, `key` is the number of its key, and `row` is the number of the read's row in the table.
    """

    key: Int64s
    row: Int64s


def _doubted(columns: Columns, found: Triage) -> _Doubted:
    """Return the doubted reads.

    If the witness proves a key, only weak reads of the key can be doubted (docs/internals/audit-proofs.md, section 5).
    """
    keys: list[Int64s] = [np.zeros(0, np.int64)]
    rows: list[Int64s] = [np.zeros(0, np.int64)]
    if columns.weak is not None:
        wrong = np.flatnonzero(doubtful(columns))
        keys.append(columns.weak.key_of_row()[wrong])
        rows.append(columns.weak.row[wrong])
    suspect = np.flatnonzero((found.verdict == BY_ZONES) | (found.verdict == WRONG))
    part = columns.of_keys(suspect)
    reads = part.where((part.writes < 0) & (part.revision > 0))
    if len(reads):
        wrong = np.flatnonzero(doubtful(replace(part, weak=reads)))
        keys.append(suspect[reads.key_of_row()[wrong]])
        rows.append(reads.row[wrong])
    return _Doubted(np.concatenate(keys), np.concatenate(rows))


@dataclass(frozen=True, slots=True)
class _Rest:
    """Decides the keys that the kernel does not prove, or that have doubted reads."""

    table: pa.Table
    columns: Columns
    found: Triage
    doubted: _Doubted
    traces: Mapping[int, Traces]
    clocks: Mapping[str, Clocks]
    configurations_max: int

    def decided(self, keys: Int64s) -> Iterator[KeyFindings]:
        """Decide these keys, in this order. Only the rows of one key at a time become Python objects."""
        if not len(keys):
            return
        ids = key_ids(self.table)
        alone = np.zeros(self.columns.keys, np.bool_)
        alone[keys[~self._proven(keys)]] = True
        rows = np.flatnonzero(alone[ids])
        rows = rows[np.argsort(ids[rows], kind="stable")]
        taken = self.table.take(rows)
        begins, ends = (np.searchsorted(ids[rows], keys, side=side).tolist() for side in ("left", "right"))
        large = (self.found.verdict == WRONG) & (np.diff(self.columns.starts) > CORE_FIRST_ROWS)
        for number, key in enumerate(keys.tolist()):
            run_id, name = self.columns.names[key]
            mine = taken.slice(begins[number], ends[number] - begins[number])
            shown = self._core(key, mine) if large[key] else None
            if shown is not None:
                yield shown
            elif alone[key]:
                yield findings_of_key(run_id, name, mine.to_pylist(), self.clocks[run_id], self.configurations_max)
            else:
                yield self._reads(key, self._decision(key))

    def _proven(self, keys: Int64s) -> Bools:
        return np.isin(self.found.verdict[keys], (BY_WITNESS, BY_ZONES))

    def _decision(self, key: int) -> Decision:
        method = METHODS[int(self.found.verdict[key] == BY_ZONES)]
        return Decision("linearizable", method, needs_replay=bool(self.found.verdict[key] == BY_ZONES))

    def _operations(self, rows: Int64s) -> list[Operation]:
        return KeyHistory.of(self.table.take(rows).to_pylist()).operations

    def _reads(self, key: int, decision: Decision, failed: dict[str, int] | None = None) -> KeyFindings:
        """Return the findings of a decided key, including the findings about its doubted reads.

        Only the doubted reads and the writes of the key become operations, because `misfits` needs no other operations.
        """
        run_id, name = self.columns.names[key]
        mine = slice(*self.columns.starts[key : key + 2].tolist())
        doubted = self.doubted.row[self.doubted.key == key]
        writes = self.columns.row[mine][self.columns.writes[mine] >= 0]
        operations = self._operations(np.concatenate((writes, doubted))) if len(doubted) else []
        weak = int(_weak(self.columns)[key])
        history = KeyHistory(operations, failed or {}, mine.stop - mine.start + weak, weak)
        found = findings_from(run_id, name, history, decision, self.clocks[run_id])
        found.traces = self.traces.get(key, Traces())
        return found

    def _core(self, key: int, mine: pa.Table) -> KeyFindings | None:
        """Return the findings of a key with a violation that the kernel found.

        The result is None if the few operations of this violation are not a proof by themselves.
        """
        columns = self.columns
        core = self.found.core[key][self.found.core[key] >= 0]
        every = np.arange(columns.starts[key], columns.starts[key + 1])
        rows = np.concatenate((core, np.setdiff1d(every[_sources(columns, every, core)], core)))
        operations = self._operations(columns.row[rows])
        decision = decide_core(operations[: len(core)], operations[len(core) :])
        if decision is None:
            return None
        failed = mine.filter(pc.equal(mine.column("status"), pa.scalar("fail"))).select(["value", "op_id"]).to_pylist()
        return self._reads(key, decision, {row["value"]: row["op_id"] for row in failed if row["value"] is not None})


def _sources(columns: Columns, mine: Int64s, core: Int64s) -> Bools:
    """Return for each row of `mine` whether it is a write that the operations of `core` depend on.

    They depend on a write if one of them found or expected the value of the write, or compared with its revision.
    """
    tokens = np.unique(columns.finds[core][columns.finds[core] >= 0])
    compared = np.unique(columns.expected_revision[core][columns.expected_revision[core] > 0])
    writes = columns.writes[mine] >= 0
    found: Bools = writes & np.isin(columns.writes[mine], tokens)
    return found | (writes & np.isin(columns.revision[mine], compared))
