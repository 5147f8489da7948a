"""Answers the queries of `verdict/cross_key.py` from all rows of a run, or from some of them, in numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spark_audit.history.clocks import Clocks
from spark_audit.store.gap_reassignment import ROWS_MAX, RevisionWindow
from spark_audit.store.revision_claims import CallStamp, RevisionClaim, RevisionRange
from spark_audit.tables.frame import Bools, Frame, Int64s, Row, distinct
from spark_audit.verdict.cross_key import RevisionFacts, RevisionQuery

_EARLIEST = -(2**63)
SHOWN = ("op_id", "client", "op", "key", "call_ns", "return_ns", "clock_id", "revision")
_FOR_RANK = (*SHOWN, "output")
# The fields of a row that are needed to decide the row's key again.
TO_DECIDE = (*_FOR_RANK, "value", "expected", "expected_mod_revision", "status", "consistency")


@dataclass(frozen=True, slots=True)
class RowsOfFrame:
    """An implementation of `RunRows` for some rows of a frame.

    `rows`: the numbers of these rows. `taking`: the numbers of the rows that take part. `changed`: the numbers of the
    rows that take part and changed the store.
    """

    frame: Frame
    rows: Int64s
    taking: Int64s
    changed: Int64s
    clocks: Clocks

    def reached(self, calls: Sequence[CallStamp]) -> list[int]:
        """Return for each call the highest revision among the rows that returned before it; 1 if there is none."""
        return [int(revision) for revision in self.reached_by(calls).tolist()]

    def reached_by(self, calls: Sequence[CallStamp]) -> Int64s:
        """Return the result of `reached` as an array."""
        found = np.ones(len(calls), np.int64)
        clock = self.frame.codes("clock_id")
        ended, revision = (self.frame.numbers(name, 0)[self.taking] for name in ("return_ns", "revision"))
        names = np.array([name for _, name in calls], object)
        for other in np.unique(clock.ids[self.taking]).tolist():
            mine = clock.ids[self.taking] == other
            for name in sorted(set(names.tolist())):
                margin = self.clocks.margin_ns(clock.texts[other], name)
                if margin is not None:
                    places = np.flatnonzero(names == name)
                    stamps = [max(_EARLIEST, calls[place][0] - margin) for place in places.tolist()]
                    highest = highest_before(ended[mine], revision[mine], np.array(stamps, np.int64))
                    found[places] = np.maximum(found[places], highest)
        return found

    def taken(self, low: int, high: int) -> Int64s:
        """Return the revisions from `low` to `high` that changes carry, ascending, each once."""
        revision = self.frame.numbers("revision", 0)[self.changed]
        return distinct(revision[(revision >= low) & (revision <= high)])

    def facts(self, query: RevisionQuery) -> RevisionFacts:
        """Return the answer to the query from these rows."""
        return RevisionFacts(self.reached(query.calls), revision_ranges(self.taken(query.low, query.high)))

    def rows_in(self, windows: Sequence[RevisionWindow]) -> Iterator[Sequence[Row] | None]:
        """Yield the rows of each window as dicts; None for a window with more than ROWS_MAX rows from `low` to
        `high`."""
        for one, mine, first, end in self._found(windows):
            if end - first > ROWS_MAX:
                yield None
            else:
                yield list(self.frame.dicts(mine[max(0, first - one.around) : end + one.around], TO_DECIDE))

    def numbers_in(self, windows: Sequence[RevisionWindow]) -> Int64s:
        """Return the numbers of the rows that are needed to answer `rows_in` for these windows, ascending.

        If the rows of a run are in several frames, this method is called for each frame. The rows that it returns for
        all frames are together enough to compute `rows_in` of the whole run.
        """
        found = [np.zeros(0, np.int64)]
        for one, mine, first, end in self._found(windows):
            found.append(mine[max(0, first - one.around) : min(end, first + ROWS_MAX + 1)])
            found.append(mine[end : end + one.around])
        return distinct(np.concatenate(found))

    def _found(self, windows: Sequence[RevisionWindow]) -> Iterator[tuple[RevisionWindow, Int64s, int, int]]:
        """Yield for each window: the window, the rows of its key, sorted by rank, and two positions in these rows.

        Between these two positions are the rows with revisions from `low` to `high`.
        """
        ranked: dict[str, tuple[Int64s, Int64s]] = {}
        for one in windows:
            if one.key not in ranked:
                ranked[one.key] = self._ranked(one.key)
            mine, revision = ranked[one.key]
            first, end = np.searchsorted(revision, one.low), np.searchsorted(revision, one.high, side="right")
            yield one, mine, int(first), int(end)

    def _ranked(self, key: str) -> tuple[Int64s, Int64s]:
        mine = self._of_key(self.taking, key)
        changed = np.isin(mine, self._of_key(self.changed, key))
        revision, call, op_id = (self.frame.numbers(name, 0)[mine] for name in ("revision", "call_ns", "op_id"))
        order = np.lexsort((op_id, call, ~changed, revision))
        return mine[order], revision[order]

    def unknown_writes(self, keys: Sequence[str]) -> Mapping[str, Sequence[Row]]:
        """Return the unknown writes of each of these keys, as dicts."""
        writes = self.numbers_of_unknown(keys)
        return {key: list(self.frame.dicts(self._of_key(writes, key), TO_DECIDE)) for key in keys}

    def numbers_of_unknown(self, keys: Sequence[str]) -> Int64s:
        """Return the numbers of the rows that are unknown writes of these keys."""
        writes = self.frame.codes("status").among("unknown") & ~self.frame.codes("op").among("get")
        mine = self.rows[writes[self.rows]]
        return mine[self.frame.codes("key").among(*keys)[mine]]

    def _of_key(self, rows: Int64s, key: str) -> Int64s:
        return rows[self.frame.codes("key").among(key)[rows]]

    def by_id(self, op_ids: Sequence[int]) -> Mapping[int, Row]:
        """Return the rows with these op_ids, by op_id."""
        mine = self.rows[np.isin(self.frame.numbers("op_id", -1)[self.rows], np.array(op_ids, np.int64))]
        return {row["op_id"]: row for row in self.frame.dicts(mine, SHOWN)}

    def changes(self, revisions: Sequence[int]) -> Sequence[Row]:
        """Return the changes that take part and carry one of these revisions."""
        same = np.isin(self.frame.numbers("revision", 0)[self.changed], np.array(revisions, np.int64))
        return list(self.frame.dicts(self.changed[same], _FOR_RANK))

    def returned_before(self, claim: RevisionClaim) -> Row:
        """Return the first row, by (revision, call, op_id), that contradicts the claim (see `RunRows`)."""
        assert claim.by is not None
        _, call, name = claim.by
        frame, rows, clock = self.frame, self.taking, self.frame.codes("clock_id")
        late: Bools = np.zeros(len(rows), np.bool_)
        for other, text in enumerate(clock.texts):
            margin = self.clocks.margin_ns(text, name)
            if margin is not None:
                late |= (clock.ids[rows] == other) & (frame.numbers("return_ns", 0)[rows] < call - margin)
        rows = rows[late & (frame.numbers("revision", 0)[rows] >= claim.revision)]
        by = (frame.numbers("op_id", 0)[rows], frame.numbers("call_ns", 0)[rows], frame.numbers("revision", 0)[rows])
        return next(iter(frame.dicts(rows[np.lexsort(by)[:1]], SHOWN)))


def highest_before(ended: Int64s, revision: Int64s, stamps: Int64s) -> Int64s:
    """Return for each stamp the highest revision of the rows that ended before it; 1 if there are none."""
    order = np.argsort(stamps, kind="stable")
    # For each row, the index of the first stamp after its end.
    first = np.searchsorted(stamps[order], ended, side="right")
    best = np.ones(len(stamps) + 1, np.int64)
    np.maximum.at(best, first, revision)
    found = np.empty(len(stamps), np.int64)
    found[order] = np.maximum.accumulate(best[:-1])
    return found


def revision_ranges(revisions: Int64s) -> list[RevisionRange]:
    """Return ascending, distinct revisions as ranges."""
    if not len(revisions):
        return []
    cut = np.flatnonzero(np.diff(revisions) > 1)
    firsts = revisions[np.concatenate(([0], cut + 1))]
    lasts = revisions[np.concatenate((cut, [len(revisions) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
