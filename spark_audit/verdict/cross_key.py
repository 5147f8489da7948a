"""Compares the traces of a run (claims and unplaced writes, `store/revision_claims.py`) with all rows of the run.

The results are contradictions, and the keys that still need a replay. All engines use this module; each engine
implements the access to the rows (`RunRows`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import changed, rank, takes_part
from spark_audit.history.operation import FOREVER
from spark_audit.store.gap_matching import choices_of, unmatched
from spark_audit.store.gap_reassignment import ROWS_MAX, NearbyRows, RevisionWindow, reassign
from spark_audit.store.revision_claims import (
    CallStamp,
    RevisionClaim,
    RevisionRange,
    Traces,
    is_taken,
    merge_ranges,
    to_ranges,
)
from spark_audit.store.unknown_writes import ReturnedRevisions
from spark_audit.verdict.findings import early_claim, repeated_claim
from spark_audit.verdict.verdict import SHOWN_MAX, Verdict

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RevisionQuery:
    """A query over all rows of a run.

    The answer to a query has the highest revision among the operations that returned before each of `calls`, and the
    taken revisions from `low` to `high`.
    """

    calls: tuple[CallStamp, ...]
    low: int
    high: int

    @classmethod
    def about(cls, traces: Traces, open_keys: Sequence[str] = ()) -> RevisionQuery:
        """Return the query about these traces and open keys. There must be at least one trace or open key.

        `calls` has first the calls of claims with a known write, then the calls of unplaced writes. If there are
        unplaced writes or open keys, the query includes all revisions, because keys may be decided again.
        """
        calls = [(claim.by[1], claim.by[2]) for claim in traces.claims if claim.by is not None]
        calls += [(write.call_ns, write.clock) for write in traces.unplaced]
        if traces.unplaced or open_keys:
            return cls(tuple(calls), 1, FOREVER)
        named = [claim.revision for claim in traces.claims]
        return cls(tuple(calls), min(named), max(named))


@dataclass(frozen=True, slots=True)
class RevisionFacts:
    """The answer to a query, from the rows that *take part*.

    A row takes part if it is completed, has a revision and promises linearizability. `reached`: for each call of the
    query, the highest revision among the rows that returned before it; 1 if there is none. `taken`: the revisions of
    changes, from `low` to `high` of the query, as ascending ranges that are not adjacent.
    """

    reached: Sequence[int]
    taken: Sequence[RevisionRange]


class RunRows(NearbyRows, Protocol):
    """Access to the rows of one run that findings show, or that are needed to decide keys again."""

    def by_id(self, op_ids: Sequence[int]) -> Mapping[int, Row]:
        """Return the rows with these op_ids, by op_id."""
        ...

    def changes(self, revisions: Sequence[int]) -> Sequence[Row]:
        """Return the changes that take part and carry one of these revisions."""
        ...

    def returned_before(self, claim: RevisionClaim) -> Row:
        """Return the first row, by `place`, that contradicts the claim.

        Such a row takes part and returned before the call of the claimed write, but it carries the claimed revision or
        a higher one.
        """
        ...


def check_across_keys(
    run_id: str, traces: Traces, facts: RevisionFacts, rows: RunRows, verdict: Verdict, open_keys: Sequence[str] = ()
) -> list[str]:
    """Record the contradictions between the claims and the rows; return the keys that need a replay.

    `open_keys`: keys without a known order by revisions. Such a key needs a replay if `reassign` finds no order for it.
    If a key is not in `open_keys` and has unplaced writes without a possible revision, the parts around these writes
    are decided again. The key needs a replay if even then one of its unplaced writes has no possible revision.
    """
    placed = [claim for claim in traces.claims if claim.by is not None]
    _note_twice(run_id, traces.claims, rows, facts.taken, verdict)
    early = [claim for claim, floor in zip(placed, facts.reached, strict=False) if floor >= claim.revision]
    _note_early(run_id, early, rows, verdict)
    claimed = to_ranges(sorted({claim.revision for claim in traces.claims}))
    taken, reached = merge_ranges(facts.taken, claimed), facts.reached[len(placed) :]
    if not open_keys and not unmatched(choices_of(traces.unplaced, reached), taken):
        return []
    return reassign(traces.unplaced, reached, traces.claims, taken, rows, open_keys)


def _note_twice(
    run_id: str, claims: Sequence[RevisionClaim], rows: RunRows, taken: Sequence[RevisionRange], verdict: Verdict
) -> None:
    by_revision: dict[int, list[RevisionClaim]] = {}
    for one in sorted(claims, key=lambda one: (one.revision, one.key)):
        by_revision.setdefault(one.revision, []).append(one)
    wrong = [revision for revision, some in by_revision.items() if len(some) > 1 or is_taken(taken, revision)]
    verdict.properties["unique"].violated += len(wrong)
    shown = wrong[:SHOWN_MAX]
    if not shown:
        return
    changes = sorted(rows.changes(shown), key=rank)
    ids = [one.by[0] for revision in shown for one in by_revision[revision] if one.by is not None]
    unknown = rows.by_id(ids)
    for revision in shown:
        some = by_revision[revision]
        mine = [unknown[one.by[0]] for one in some if one.by is not None]
        same = [row for row in changes if row["revision"] == revision]
        verdict.record(repeated_claim(run_id, revision, some, mine, same), count=0)


def _note_early(run_id: str, early: list[RevisionClaim], rows: RunRows, verdict: Verdict) -> None:
    early.sort(key=lambda claim: (claim.revision, claim.key))
    verdict.properties["order"].violated += len(early)
    shown = early[:SHOWN_MAX]
    unknown = rows.by_id([claim.by[0] for claim in shown if claim.by is not None]) if shown else {}
    for claim in shown:
        assert claim.by is not None
        verdict.record(early_claim(run_id, claim, unknown[claim.by[0]], rows.returned_before(claim)), count=0)


class RowsInMemory:
    """An implementation of `RunRows` for the rows of one run in memory."""

    def __init__(self, rows: Sequence[Row], clocks: Clocks) -> None:
        self._rows, self._clocks = rows, clocks
        self._taking = [row for row in rows if takes_part(row)]

    def facts(self, query: RevisionQuery) -> RevisionFacts:
        """Return the answer to the query from these rows."""
        reached = self.reached(query.calls)
        revisions = {row["revision"] for row in self._taking if changed(row)}
        within = (revision for revision in sorted(revisions) if query.low <= revision <= query.high)
        return RevisionFacts(reached, to_ranges(within))

    def reached(self, calls: Sequence[CallStamp]) -> list[int]:
        """Return for each call the highest revision among the rows that returned before it; 1 if there is none."""
        returned = ReturnedRevisions(self._taking, self._clocks)
        return [returned.highest_before(call_ns, clock) for call_ns, clock in calls]

    def rows_in(self, windows: Sequence[RevisionWindow]) -> Iterator[Sequence[Row] | None]:
        """Yield for each window its rows, sorted by rank; None if it has more than ROWS_MAX from `low` to `high`."""
        for one in windows:
            mine = sorted((row for row in self._taking if row["key"] == one.key), key=rank)
            revisions = [row["revision"] for row in mine]
            first, end = bisect_left(revisions, one.low), bisect_right(revisions, one.high)
            yield mine[max(0, first - one.around) : end + one.around] if end - first <= ROWS_MAX else None

    def unknown_writes(self, keys: Sequence[str]) -> Mapping[str, Sequence[Row]]:
        """Return for each of these keys its unknown writes."""
        writes = [row for row in self._rows if row["status"] == "unknown" and row["op"] != "get"]
        return {key: [row for row in writes if row["key"] == key] for key in keys}

    def by_id(self, op_ids: Sequence[int]) -> Mapping[int, Row]:
        """Return the rows with these op_ids, by op_id."""
        wanted = set(op_ids)
        return {row["op_id"]: row for row in self._rows if row["op_id"] in wanted}

    def changes(self, revisions: Sequence[int]) -> Sequence[Row]:
        """Return the changes that take part and carry one of these revisions."""
        wanted = set(revisions)
        return [row for row in self._taking if row["revision"] in wanted and changed(row)]

    def returned_before(self, claim: RevisionClaim) -> Row:
        """Return the first row, by `place`, that contradicts the claim (see `RunRows`)."""
        return min((row for row in self._taking if _before(row, claim, self._clocks)), key=place)


def place(row: Row) -> tuple[int, int, int]:
    """Return the sort key by which `returned_before` chooses the first row."""
    return row["revision"], row["call_ns"], row["op_id"]


def _before(row: Row, claim: RevisionClaim, clocks: Clocks) -> bool:
    assert claim.by is not None
    _, call_ns, clock = claim.by
    margin = clocks.margin_ns(row["clock_id"], clock)
    return row["revision"] >= claim.revision and margin is not None and row["return_ns"] + margin < call_ns
