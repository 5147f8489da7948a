"""Store-wide order and uniqueness at any size: range-partition by revision, one scan each, prefix over partitions.

A scan tells, per run and clock, the greatest call and the least return, and what is out of order inside its partition;
and, as equal revisions share a partition, which writes carry the same one.
Only where the greatest call of earlier partitions exceeds a least return is a partition scanned again, with that call
as its start. The driver sees one summary per partition and run, never rows.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f

from spark_audit.clocks import Clocks
from spark_audit.findings import order_violation, repeated_violation
from spark_audit.order import OutOfOrder
from spark_audit.verdict import SHOWN_MAX, Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGED = (
    "op in ('put', 'append') or (op = 'delete' and output.found) or (op = 'cas' and output.succeeded) or "
    "(op = 'txn' and exists(output.results, r -> r.op = 'put' or (r.op = 'delete' and r.found)))"
)
TAKES_PART = "status = 'ok' and revision is not null and coalesce(consistency, '') != 'local'"
COLUMNS = ("run_id", "revision", "reads", "call_ns", "op_id", "return_ns", "clock_id", "client", "op", "key")
_SUMMARY = "run_id string, first long, last long, late long, summary string"
_EARLIEST = -(2**63)
MEMBERS_MAX = 4  # Of the writes which share one revision, shown.


@dataclass(slots=True)
class _Segment:
    """What one partition holds of one run. `latest`: clock → the row called last; `least`: clock → least return."""

    first: int
    last: int
    latest: dict[str, dict[str, Any]] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    late: int = 0
    pairs: list[OutOfOrder] = field(default_factory=list)
    writes: int = 0
    write_revisions: list[int] = field(default_factory=list)  # [least, greatest, how many different], or empty.
    repeated: dict[str, list[Any]] = field(
        default_factory=dict
    )  # Revision (text, for JSON) → the writes that share it.
    repeated_revisions: int = 0
    last_repeated: str = ""
    last_write: dict[str, Any] = field(default_factory=dict)


def check_order(rows: "DataFrame", clocks: Mapping[str, Clocks], verdict: Verdict) -> None:
    """Record in `verdict` what breaks the store-wide order, and revisions that several acknowledged writes carry.

    `rows` are well-formed rows of any runs.
    """
    taking = rows.where(TAKES_PART).withColumn("reads", f.when(f.expr(CHANGED), 0).otherwise(1)).select(*COLUMNS)
    ranged = taking.repartitionByRange("run_id", "revision").sortWithinPartitions(*COLUMNS[:5])
    scanned = ranged.mapInArrow(_scanner(dict(clocks), {}), _SUMMARY).collect()
    by_run: dict[str, list[_Segment]] = {}
    for found in scanned:
        by_run.setdefault(found["run_id"], []).append(_unpacked(found))
    for run_id, segments in sorted(by_run.items()):
        segments.sort(key=lambda segment: segment.first)
        verdict.revision_gaps += _gaps(segments)
        carry: dict[str, dict[str, Any]] = {}
        for segment in segments:
            if _reaches(carry, segment, clocks[run_id]):
                segment = _rescan(taking, run_id, segment, carry, clocks)
            _record(verdict, run_id, segment)
            for clock, row in segment.latest.items():
                if clock not in carry or row["call_ns"] > carry[clock]["call_ns"]:
                    carry[clock] = row


def _record(verdict: Verdict, run_id: str, segment: _Segment) -> None:
    for number, pair in enumerate(segment.pairs):
        rest = segment.late - len(segment.pairs) if number == 0 else 0
        verdict.record(order_violation(run_id, pair), count=1 + rest)
    verdict.properties["unique"].checked += segment.writes
    for revision, rows in segment.repeated.items():
        verdict.record(repeated_violation(run_id, int(revision), rows), count=0)
    verdict.properties["unique"].violated += segment.repeated_revisions


def _gaps(segments: Sequence[_Segment]) -> int:
    told = [segment.write_revisions for segment in segments if segment.write_revisions]
    return max(t[1] for t in told) - min(t[0] for t in told) + 1 - sum(t[2] for t in told) if told else 0


def _reaches(carry: Mapping[str, Mapping[str, Any]], segment: _Segment, clocks: Clocks) -> bool:
    """Whether something before this segment was called after something in it had returned."""
    for clock, row in carry.items():
        for other, least in segment.least.items():
            margin = clocks.margin_ns(other, clock)
            if margin is not None and least + margin < row["call_ns"]:
                return True
    return False


def _rescan(
    taking: "DataFrame", run_id: str, segment: _Segment, carry: dict[str, dict[str, Any]], clocks: Mapping[str, Clocks]
) -> _Segment:
    """The same segment again, knowing what came before it. It was one partition, so it fits in one."""
    within = taking.where((f.col("run_id") == run_id) & f.col("revision").between(segment.first, segment.last))
    one = within.coalesce(1).sortWithinPartitions(*COLUMNS[:5])
    return _unpacked(one.mapInArrow(_scanner({run_id: clocks[run_id]}, {run_id: dict(carry)}), _SUMMARY).collect()[0])


def _unpacked(found: Any) -> _Segment:
    told = json.loads(found["summary"])
    pairs = [OutOfOrder(late, early) for late, early in told["pairs"]]
    return _Segment(**{**told, "first": found["first"], "last": found["last"], "late": found["late"], "pairs": pairs})


def _scanner(
    clocks: Mapping[str, Clocks], carries: Mapping[str, Mapping[str, dict[str, Any]]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        segments: dict[str, _Segment] = {}
        for batch in batches:
            for run_id, part in _by_run(batch):
                segment = segments.get(run_id)
                revisions = part.column("revision")
                if segment is None:
                    segment = segments[run_id] = _Segment(revisions[0].as_py(), 0, dict(carries.get(run_id, {})))
                segment.last = revisions[part.num_rows - 1].as_py()
                _scan_part(segment, part, clocks[run_id])
        yield _summaries(segments)

    return scan


def _by_run(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Rows of one run follow each other."""
    if not batch.num_rows:
        return
    encoded = batch.column("run_id").dictionary_encode()
    codes = encoded.indices.to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), batch.num_rows]
    for start, end in pairwise(edges):
        yield batch.column("run_id")[start].as_py(), batch.slice(start, end - start)


def _scan_part(segment: _Segment, part: pa.RecordBatch, clocks: Clocks) -> None:
    _note_writes(segment, part)
    calls, returns = part.column("call_ns").to_numpy(), part.column("return_ns").to_numpy()
    encoded = part.column("clock_id").dictionary_encode()
    codes, names = encoded.indices.to_numpy(), [str(name) for name in encoded.dictionary.to_pylist()]
    guilty: dict[int, dict[str, Any] | int] = {}  # Position of a late row → the row (or its position) called after it.
    for clock in {*names, *segment.latest}:
        carried = segment.latest.get(clock)
        code = names.index(clock) if clock in names else -1
        mine = np.where(codes == code, calls, _EARLIEST)
        reach = np.maximum.accumulate(np.concatenate(([carried["call_ns"] if carried else _EARLIEST], mine)))[:-1]
        for other, name in enumerate(names):
            margin = clocks.margin_ns(name, clock)
            if margin is None:
                continue
            for position in np.flatnonzero((codes == other) & (returns + margin < reach)).tolist():
                inside = np.flatnonzero(mine[:position] == reach[position])
                guilty.setdefault(position, int(inside[0]) if inside.size else carried or {})
        if code >= 0:
            _note_extremes(segment, clock, part, mine, int(returns[codes == code].min()))
    segment.late += len(guilty)
    for position, early in sorted(guilty.items())[: max(0, SHOWN_MAX - len(segment.pairs))]:
        segment.pairs.append(OutOfOrder(_row(part, position), _row(part, early) if isinstance(early, int) else early))


def _note_writes(segment: _Segment, part: pa.RecordBatch) -> None:
    """Writers come first within a revision, so equal revisions of writes follow each other, across batches too."""
    positions = np.flatnonzero(part.column("reads").to_numpy() == 0)
    if not positions.size:
        return
    revisions = part.column("revision").to_numpy()[positions]
    last = segment.write_revisions[1] if segment.write_revisions else -1
    same = np.concatenate(([last], revisions[:-1])) == revisions
    for number in np.flatnonzero(same).tolist():
        _note_repeated(segment, part, positions, revisions, number)
    least, _, different = segment.write_revisions or [int(revisions[0]), 0, 0]
    segment.write_revisions = [least, int(revisions[-1]), different + int((~same).sum())]
    segment.writes += len(revisions)
    segment.last_write = _row(part, int(positions[-1]))


def _note_repeated(segment: _Segment, part: pa.RecordBatch, positions: Any, revisions: Any, number: int) -> None:
    name = str(revisions[number])
    first_of_it = _row(part, int(positions[number - 1])) if number else segment.last_write
    if segment.last_repeated != name:
        segment.repeated_revisions += 1
        segment.last_repeated = name
    if name in segment.repeated or len(segment.repeated) < SHOWN_MAX:
        members = segment.repeated.setdefault(name, [first_of_it])
        if len(members) < MEMBERS_MAX:
            members.append(_row(part, int(positions[number])))


def _note_extremes(segment: _Segment, clock: str, part: pa.RecordBatch, mine: Any, least: int) -> None:
    top = int(np.argmax(mine))
    if clock not in segment.latest or int(mine[top]) > segment.latest[clock]["call_ns"]:
        segment.latest[clock] = _row(part, top)
    segment.least[clock] = min(segment.least.get(clock, least), least)


def _row(part: pa.RecordBatch, position: int) -> dict[str, Any]:
    return {name: part.column(name)[position].as_py() for name in COLUMNS}


def _summaries(segments: Mapping[str, _Segment]) -> pa.RecordBatch:
    names: Sequence[str] = ("run_id", "first", "last", "late", "summary")
    rows = [
        (
            run_id,
            s.first,
            s.last,
            s.late,
            json.dumps({**asdict(s), "pairs": [(pair.late, pair.early) for pair in s.pairs]}),
        )
        for run_id, s in segments.items()
    ]
    types = [pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.string()]
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(types)]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))
