"""The traces of a run (`store/revision_claims.py`) held against all of its rows: what is wrong, and whether a replay is
still needed.

The same for all engines; each says in its own way what it is asked of the rows (`Rows`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import changed, rank, takes_part
from spark_audit.history.operation import FOREVER
from spark_audit.store.gap_matching import choices, unfit
from spark_audit.store.gap_reassignment import ROWS_MAX, Near, mended
from spark_audit.store.gap_reassignment import Rows as RowsNear
from spark_audit.store.revision_claims import Asked, Stretch, Told, Traces, is_taken, merged, stretches
from spark_audit.store.unknown_writes import Returned
from spark_audit.verdict.findings import told_early, told_twice
from spark_audit.verdict.verdict import SHOWN_MAX, Verdict

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of all rows of a run: of each of these calls, and of the revisions from `low` to `high`."""

    calls: tuple[Asked, ...]
    low: int
    high: int

    @classmethod
    def about(cls, traces: Traces, open_keys: Sequence[str] = ()) -> Question:
        """Calls: of those told whose writer is known, then of the slots. There must be traces, or open keys. Of slots
        any revision may matter: keys near them may be decided again."""
        calls = [(told.by[1], told.by[2]) for told in traces.told if told.by is not None]
        calls += [(slot.call_ns, slot.clock) for slot in traces.slots]
        if traces.slots or open_keys:
            return cls(tuple(calls), 1, FOREVER)
        named = [told.revision for told in traces.told]
        return cls(tuple(calls), min(named), max(named))


@dataclass(frozen=True, slots=True)
class Answer:
    """Of the rows that *take part*: completed ones that carry a revision and are not `local`.

    `reached`: for each call the highest revision that had returned before it; 1 if none. `taken`: the revisions asked
    about that changes carry; ascending, none touching the next.
    """

    reached: Sequence[int]
    taken: Sequence[Stretch]


class Rows(RowsNear, Protocol):
    """The rows of one run, where some have to be shown, or looked at again."""

    def by_id(self, op_ids: Sequence[int]) -> Mapping[int, Row]:
        """These rows."""
        ...

    def changes(self, revisions: Sequence[int]) -> Sequence[Row]:
        """The changes which take part that carry one of these."""
        ...

    def returned_before(self, told: Told) -> Row:
        """Of those that take part, carry its revision or a higher one and had returned before its call: the first."""
        ...


def hold(
    run_id: str, traces: Traces, answer: Answer, rows: Rows, verdict: Verdict, open_keys: Sequence[str] = ()
) -> list[str]:
    """Record what contradicts the revisions told. The keys of slots that find no revision, not even if these keys are
    decided again near them, and of `open_keys`, those of which no order by revisions is known, the ones that find none
    so; none: no replay."""
    placed = [told for told in traces.told if told.by is not None]
    _note_twice(run_id, traces.told, rows, answer.taken, verdict)
    early = [told for told, floor in zip(placed, answer.reached, strict=False) if floor >= told.revision]
    _note_early(run_id, early, rows, verdict)
    told = stretches(sorted({told.revision for told in traces.told}))
    taken, reached = merged(answer.taken, told), answer.reached[len(placed) :]
    if not open_keys and not unfit(choices(traces.slots, reached), taken):
        return []
    return mended(traces.slots, reached, traces.told, taken, rows, open_keys)


def _note_twice(run_id: str, told: Sequence[Told], rows: Rows, taken: Sequence[Stretch], verdict: Verdict) -> None:
    by_revision: dict[int, list[Told]] = {}
    for one in sorted(told, key=lambda one: (one.revision, one.key)):
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
        verdict.record(told_twice(run_id, revision, some, mine, same), count=0)


def _note_early(run_id: str, early: list[Told], rows: Rows, verdict: Verdict) -> None:
    early.sort(key=lambda told: (told.revision, told.key))
    verdict.properties["order"].violated += len(early)
    shown = early[:SHOWN_MAX]
    unknown = rows.by_id([told.by[0] for told in shown if told.by is not None]) if shown else {}
    for told in shown:
        assert told.by is not None
        verdict.record(told_early(run_id, told, unknown[told.by[0]], rows.returned_before(told)), count=0)


class RowsInHand:
    """`Rows` of rows in memory, of one run."""

    def __init__(self, rows: Sequence[Row], clocks: Clocks) -> None:
        self._rows, self._clocks = rows, clocks
        self._taking = [row for row in rows if takes_part(row)]

    def answer(self, question: Question) -> Answer:
        reached = self.reached(question.calls)
        revisions = {row["revision"] for row in self._taking if changed(row)}
        asked = (revision for revision in sorted(revisions) if question.low <= revision <= question.high)
        return Answer(reached, stretches(asked))

    def reached(self, calls: Sequence[Asked]) -> list[int]:
        returned = Returned(self._taking, self._clocks)
        return [returned.highest_before(call_ns, clock) for call_ns, clock in calls]

    def near(self, asked: Sequence[Near]) -> Iterator[Sequence[Row] | None]:
        for one in asked:
            mine = sorted((row for row in self._taking if row["key"] == one.key), key=rank)
            revisions = [row["revision"] for row in mine]
            first, end = bisect_left(revisions, one.low), bisect_right(revisions, one.high)
            yield mine[max(0, first - one.around) : end + one.around] if end - first <= ROWS_MAX else None

    def unknown_writes(self, keys: Sequence[str]) -> Mapping[str, Sequence[Row]]:
        writes = [row for row in self._rows if row["status"] == "unknown" and row["op"] != "get"]
        return {key: [row for row in writes if row["key"] == key] for key in keys}

    def by_id(self, op_ids: Sequence[int]) -> Mapping[int, Row]:
        wanted = set(op_ids)
        return {row["op_id"]: row for row in self._rows if row["op_id"] in wanted}

    def changes(self, revisions: Sequence[int]) -> Sequence[Row]:
        wanted = set(revisions)
        return [row for row in self._taking if row["revision"] in wanted and changed(row)]

    def returned_before(self, told: Told) -> Row:
        return min((row for row in self._taking if _before(row, told, self._clocks)), key=place)


def place(row: Row) -> tuple[int, int, int]:
    """In which order `returned_before` looks."""
    return row["revision"], row["call_ns"], row["op_id"]


def _before(row: Row, told: Told, clocks: Clocks) -> bool:
    assert told.by is not None
    _, call_ns, clock = told.by
    margin = clocks.margin_ns(row["clock_id"], clock)
    return row["revision"] >= told.revision and margin is not None and row["return_ns"] + margin < call_ns
