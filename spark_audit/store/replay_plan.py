"""Plans a replay with unknown writes.

The steps of the plan are the rows in the order of revisions, and, before each row, the gaps up to its revision. A gap
is a revision that no acknowledged change carries. At a gap, either an unknown write took effect, or a write that has no
row in the history. If no response names any of several consecutive gaps, the plan keeps only as many of these gaps as
there are writes to place.

The end of a lease deletes its keys at one revision. So several deletions by one lease may have taken effect at the same
gap. They may also have taken effect at the revision of an acknowledged row that stands for a deletion by this lease.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import changed, rank
from spark_audit.history.operation import WEAK
from spark_audit.history.requests import Request, covers, parse_request
from spark_audit.history.services import ended_lease
from spark_audit.model.store import intervals
from spark_audit.store.lookahead import Lookahead, Observation
from spark_audit.store.unknown_writes import UnknownWrite, by_lease, unknown_writes

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hint:
    """A suggestion by a weak read: the key was written at this revision. The suggestion proves nothing.

    `value`: the value written; None for a deletion, or if the value was not reported.
    """

    key: str
    revision: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """A step of the replay: a row, or, if `row` is None, a gap.

    `request`: the request of a range or transaction. `touched`: the keys of `Lookahead` about which the row shows
    something. `lease`: the lease whose end made the row; None for any other row.
    """

    revision: int
    row: Row | None = None
    request: Request | None = None
    touched: tuple[str, ...] = ()
    lease: str | None = None


@dataclass(slots=True)
class ReplayPlan:
    """The plan of a replay.

    `shown`: gap → key → (value, row), for each record that a row reports with the revision of the gap; the value is
    None if the row does not report a value. `hinted`: gap → key → value, from weak reads. `owner`: gap → the write that
    is pinned to it. `by_lease`: lease → the unknown deletions that its end may have made.
    """

    steps: list[ReplayStep]
    lookahead: Lookahead
    unknowns: list[UnknownWrite]
    wrong: frozenset[str]
    shown: dict[int, dict[str, tuple[str | None, Row]]] = field(default_factory=dict)
    hinted: dict[int, dict[str, str | None]] = field(default_factory=dict)
    owner: dict[int, UnknownWrite] = field(default_factory=dict)
    by_key: dict[str, list[UnknownWrite]] = field(default_factory=dict)
    by_lease: dict[str, list[UnknownWrite]] = field(default_factory=dict)
    part_of: dict[str, int] = field(default_factory=dict)  # Key → `UnknownWrite.part` of the writes that name it.
    first_gap: int = 0  # The lowest revision that an unknown write can have.

    def keys_of(self, step: ReplayStep, keys: Iterable[str]) -> frozenset[str]:
        """Return the keys of a conflict at this step.

        A `*` in `keys` stands for all keys of the step's listings. In this case, those keys of the listings are
        returned that an unknown write may change.
        """
        if "*" not in keys or step.row is None or step.request is None:
            return frozenset(keys)
        listings = list(intervals(step.row, step.request))
        return frozenset(key for key in self.by_key if any(covers(listing, key) for listing in listings))


def position(row: Row) -> tuple[int, int, int, int]:
    """Return the sort key of a row in the replay. A listing that is pinned to a revision comes at this revision."""
    pinned = parse_request(row)["revision"] if row["op"] == "range" else None
    return (pinned, 1, row["call_ns"], row["op_id"]) if pinned else rank(row)


def plan_replay(
    unknown: Iterable[Row], rows: Sequence[Row], hints: Iterable[Hint], clocks: Clocks, wrong: frozenset[str]
) -> ReplayPlan | None:
    """Plan the replay of one run; return None if there is no unknown write to place.

    `rows`: sorted by `position`. `wrong`: keys that are a violation by themselves.
    """
    found = unknown_writes(unknown, rows, clocks)
    if not found:
        return None
    hints = list(hints)
    gaps = list(_gaps(rows, found, _named_revisions(rows, found, hints)))
    by_key: dict[str, list[UnknownWrite]] = {}
    for one in found:
        for key in one.keys:
            by_key.setdefault(key, []).append(one)
    lookahead = Lookahead(by_key, gaps)
    made = ReplayPlan([], lookahead, found, wrong, by_key=by_key, first_gap=min(one.earliest for one in found))
    made.by_lease = by_lease(found)
    made.part_of = {key: one.part for one in found for key in one.named}
    _lay_out(made, rows, gaps)
    lookahead.forget(wrong)
    _pin(made)
    is_gap = frozenset(gaps)
    for hint in hints:
        if hint.revision in is_gap:
            made.hinted.setdefault(hint.revision, {})[hint.key] = hint.value
            writers = [one for one in by_key.get(hint.key, ()) if hint.value and one.may_write(hint.key, hint.value)]
            if len(writers) == 1:
                writers[0].hinted = hint.revision
    return made


def _lay_out(made: ReplayPlan, rows: Sequence[Row], gaps: Sequence[int]) -> None:
    next_gap, is_gap = 0, frozenset(gaps)
    for row in rows:
        revision = position(row)[0]
        while next_gap < len(gaps) and gaps[next_gap] <= revision:
            made.steps.append(ReplayStep(gaps[next_gap]))
            next_gap += 1
        request = parse_request(row) if row["op"] in ("range", "txn") else None
        noted = made.lookahead.note(len(made.steps), revision, row, request)
        lease = ended_lease(row)
        touched = tuple({key: None for key, _ in noted})
        made.steps.append(ReplayStep(revision, row, request, touched, lease if lease in made.by_lease else None))
        for key, observation in noted:
            if key not in made.wrong:
                _note_shown(made, key, observation, row, is_gap)


def _note_shown(made: ReplayPlan, key: str, observation: Observation, row: Row, is_gap: frozenset[int]) -> None:
    seen = observation.seen
    mod = seen.get("mod_revision") if seen is not None and seen["found"] else None
    if mod not in is_gap:
        return
    assert mod is not None
    assert seen is not None
    value = seen.get("value")
    if any(one.may_write(key, value) and one.earliest <= mod for one in made.by_key[key]):
        by_key = made.shown.setdefault(mod, {})
        if by_key.get(key, (None, row))[0] is None:
            by_key[key] = (value, row)


def _pin(made: ReplayPlan) -> None:
    """Pin an unknown write to a gap if only this write can have made a record that is reported with the revision of the
    gap."""
    for gap, by_key in made.shown.items():
        for key, (value, _) in by_key.items():
            if value is None:
                continue
            writers = [one for one in made.by_key[key] if one.may_write(key, value) and one.earliest <= gap]
            if len(writers) == 1:
                one = writers[0]
                one.pinned = gap
                one.sure = sum(branch.get(key) == value for branch in one.branches) == 1
                made.owner[gap] = one


def _named_revisions(rows: Iterable[Row], found: Iterable[UnknownWrite], hints: Iterable[Hint]) -> list[int]:
    """Return the revisions that a response, a request or a hint names, ascending.

    A comparison with revision r also names the revisions r - 1 and r + 1.
    """
    named = {hint.revision for hint in hints}
    for row in [*rows, *(one.row for one in found)]:
        named.update(_numbers(row.get("output")))
        if row.get("expected_mod_revision"):
            named.add(row["expected_mod_revision"])
        if row["op"] == "txn":
            for compare in parse_request(row)["compares"]:
                if compare["target"] in ("mod_revision", "create_revision"):
                    named.update(range(compare["value"] - 1, compare["value"] + 2))
    return sorted(named)


def _numbers(output: Row | None) -> Iterator[int]:
    if output:
        names = ("mod_revision", "create_revision", "deleted_revision")
        yield from (number for name in names if (number := output.get(name)))
        for inner in (*(output.get("items") or ()), *(output.get("results") or ())):
            yield from _numbers(inner)


def _gaps(rows: Sequence[Row], found: Sequence[UnknownWrite], named_revisions: Sequence[int]) -> Iterator[int]:
    """Yield the gaps, ascending. Revisions above all rows are left out, because no response can show a write there."""
    taken = {row["revision"] for row in rows if changed(row)}
    earliest = sorted(one.earliest for one in found)
    before = 1  # The revision of the empty store.
    for here in sorted({position(row)[0] for row in rows}):
        low, high = max(before + 1, earliest[0]), here if here not in taken else here - 1
        named = named_revisions[bisect_left(named_revisions, low) : bisect_right(named_revisions, high)]
        enough = bisect_right(earliest, high)
        for last in (*named, high + 1):
            yield from range(max(low, last - enough), last)
            if last <= high:
                yield last
            low = last + 1
        before = here


def hint_of(row: Row) -> Iterator[Hint]:
    """Yield the hint of a weak read, if it reports the revision of a write. Other rows yield nothing."""
    if row["op"] != "get" or row["status"] != "ok" or row.get("consistency") not in WEAK:
        return
    output = row["output"]
    if output["found"] and output.get("mod_revision"):
        yield Hint(row["key"], output["mod_revision"], output.get("value"))
    elif not output["found"] and output.get("exact") and output.get("deleted_revision"):
        yield Hint(row["key"], output["deleted_revision"], None)
