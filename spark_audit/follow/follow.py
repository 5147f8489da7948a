"""Audits a growing history: each part is audited once, starting from the carry of the last cut.

A cut is a position in the order of revisions: (revision, 1 for reads, call). Rows that rank before the cut are decided
and then dropped. Only a summary of these rows, the carry, is kept. Rows that rank after the cut wait for a later cut. A
row that arrives later normally ranks after the cut. If the row ranks before the cut, the run is read again from its
first row. So the verdict on all rows does not depend on the choice of the cuts. This module reads no files: it receives
rows, and a function that reads earlier rows again. `follow/files.py` reads the histories; `follow/state.py` reads and
writes the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spark_audit.errors import NothingToCheck
from spark_audit.follow.key import BEFORE_ALL, Closed, KeyCarry, KeyPart, close
from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import changed, rank, takes_part
from spark_audit.history.projection import project
from spark_audit.history.range_set import RangeSet
from spark_audit.history.requests import is_multi_key
from spark_audit.history.services import is_service
from spark_audit.key.decide import CONFIGURATIONS_MAX
from spark_audit.local import check_rows
from spark_audit.store.gap_matching import Choice, alternatives_of, unmatched
from spark_audit.store.order import out_of_order, uniqueness
from spark_audit.store.replay import left_open, worth_replaying
from spark_audit.store.unknown_writes import ReturnedRevisions
from spark_audit.verdict.findings import KeyFindings, findings_of_key, note_key
from spark_audit.verdict.verdict import Undecided, Verdict

Row: TypeAlias = Mapping[str, Any]
# Returns all rows of the run that were read so far, from the first row on.
Again: TypeAlias = Callable[[], Iterable[Row]]

NO_REVISION = "operations without a revision have no place in its order"
BROKEN_ORDER = "the order of its revisions is not proven in parts"
SEVERAL_CLOCKS = "a cut in time needs one clock"
SERVICES = "watches, leases, locks, levels and reads at a revision are judged in the whole history"


@dataclass(slots=True)
class RunCarry:
    """The carry of one run. Times are in ns of the only clock of the run.

    `cut`: (revision, call). Rows that rank before (revision, 1, call) are *closed*. `held`: the answered rows after the
    cut. `whole`: if every verdict needs all rows of the run, the reason for this, otherwise "". `uncut`: if the run can
    be decided only at its end, the reason for this, otherwise "". `again`: keys that are decided from all their rows
    each time. `latest`: the greatest call of a closed row that takes part, or of an unknown write that took effect.
    `clients`: the last operation of each client, as (call, return or None). `writes`: the number of changes in closed
    rows, and the least and the greatest of their revisions.

    The following fields are for writes of unknown outcome (`store/revision_claims.py`). `reached`: the call of such a
    write → the highest revision among the operations that returned before this call. If the call was before an earlier
    cut, this revision is only an upper bound. `choices`: the revisions that each unplaced write of the carried keys may
    have. `taken`: the revisions of these changes, and the claimed revisions. `needs_replay`: whether `Closed.unproven`
    was true for a part of some key.
    """

    cut: tuple[int, int] = (0, BEFORE_ALL)
    held: list[Row] = field(default_factory=list)
    keys: dict[str, KeyCarry] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    whole: str = ""
    uncut: str = ""
    needs_replay: bool = False
    clock: str | None = None
    newest: int = BEFORE_ALL
    latest: int = BEFORE_ALL
    rows: int = 0
    unknown: int = 0
    failed: int = 0
    ordered: int = 0
    writes: tuple[int, int, int] = (0, 0, 0)
    reached: dict[int, int] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    taken: RangeSet = field(default_factory=RangeSet)
    op_ids: RangeSet = field(default_factory=RangeSet)
    clients: dict[str, tuple[int, int | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """A run to be followed: its name, the clocks and the limit `min_in_sync` from its run.json, and a function that
    reads its rows again."""

    run_id: str
    clocks: Sequence[Mapping[str, Any]]
    again: Again
    configurations_max: int = CONFIGURATIONS_MAX
    min_in_sync: int | None = None


def follow(run: Run, carry: RunCarry, rows: Iterable[Row], *, settled_ns: int, final: bool, verdict: Verdict) -> None:
    """Audit the new rows, move the cut, and add the result to `verdict`.

    `rows`: well-formed rows with all fields. `settled_ns`: the longest expected time from the call of an operation
    until its row is in the history. `final`: whether the history is complete. The verdict on a complete history covers
    all rows. Any other verdict covers the rows before the cut. Raises MalformedHistory if rows contradict each other.
    """
    new = list(rows)
    late = _note(run, carry, new)
    if late and not carry.whole and not carry.uncut:
        _start_again(carry)
        new = list(run.again())
    carry.held = [] if carry.uncut else [*carry.held, *(row for row in new if row["status"] == "ok")]
    cut = _next_cut(carry, settled_ns, final)
    closed, carry.held = _split(carry.held, cut)
    before, carry.cut = carry.cut, cut
    if not carry.whole and not carry.uncut:
        unanswered = [row for row in new if row["status"] != "ok"]
        for row in unanswered:
            if row["status"] == "unknown":
                carry.reached.setdefault(row["call_ns"], max(1, before[0]))
        _close(run, carry, closed, unanswered)
    _report(run, carry, final, verdict)


def _note(run: Run, carry: RunCarry, new: Sequence[Row]) -> bool:
    """Count the new rows, and check the rules that concern several rows.

    Return whether a new row ranks before the cut.
    """
    late = doubtful = False
    bound = _bound(carry.cut)
    for row in sorted(new, key=lambda row: (row["call_ns"], row["return_ns"] is None, row["return_ns"], row["op_id"])):
        doubtful |= not carry.op_ids.add(row["op_id"])
        before = carry.clients.get(row["client"])
        if before is not None and (row["call_ns"] < before[0] or before[1] is None or row["call_ns"] < before[1]):
            doubtful = True
        if before is None or row["call_ns"] >= before[0]:
            carry.clients[row["client"]] = (row["call_ns"], row["return_ns"])
        carry.newest = max(carry.newest, row["call_ns"], row["return_ns"] or BEFORE_ALL)
        carry.unknown += row["status"] == "unknown"
        carry.failed += row["status"] == "fail"
        if row["status"] == "ok" and row["revision"] is None:
            carry.uncut = NO_REVISION
        if carry.clock is None:
            carry.clock = row["clock_id"]
        elif row["clock_id"] != carry.clock:
            carry.uncut = SEVERAL_CLOCKS
        if is_service(row) or row["acknowledge"] is not None:
            carry.uncut = SERVICES
        if is_multi_key(row):
            carry.whole = carry.whole or "listings and transactions are replayed from the first row"
        late |= takes_part(row) and rank(row)[:3] < bound
    carry.rows += len(new)
    # Rows that arrive in an unusual order may still be well-formed. So all rows are checked together, and
    # MalformedHistory is raised if they break a rule.
    if doubtful:
        with suppress(NothingToCheck):
            check_rows(run.again(), clocks=run.clocks, configurations_max=1, name=run.run_id)
    return late


def _start_again(carry: RunCarry) -> None:
    carry.cut, carry.held, carry.keys, carry.again = (0, BEFORE_ALL), [], {}, set()
    carry.latest, carry.ordered, carry.writes, carry.needs_replay = BEFORE_ALL, 0, (0, 0, 0), False
    carry.reached, carry.choices, carry.taken = {}, [], RangeSet()


def _bound(cut: tuple[int, int]) -> tuple[int, int, int]:
    return cut[0], 1, cut[1]


def _next_cut(carry: RunCarry, settled_ns: int, final: bool) -> tuple[int, int]:
    """Return the next cut.

    If the run can be decided only at its end, the cut does not move. If the history is complete, the cut is after the
    last row. Otherwise the call of the cut is the settled time, which is the newest stamp minus `settled_ns`. The
    revision of the cut is the highest among the operations that returned before that time.
    """
    if carry.uncut:
        return carry.cut
    if final:
        revisions = [row["revision"] for row in carry.held]
        return max([carry.cut[0], *revisions]), max(carry.cut[1], carry.newest + 1)
    settled = max(carry.cut[1], carry.newest - settled_ns)
    settled_revisions = [row["revision"] for row in carry.held if takes_part(row) and row["return_ns"] < settled]
    return max([carry.cut[0], *settled_revisions]), settled


def _split(rows: Iterable[Row], cut: tuple[int, int]) -> tuple[list[Row], list[Row]]:
    """Split the rows into the rows before the cut and the rows after it."""
    bound = _bound(cut)
    sides: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        sides[rank(row)[:3] >= bound].append(row)
    return sides


def _close(run: Run, carry: RunCarry, closed: Sequence[Row], unanswered: Iterable[Row]) -> None:
    """Extend the order over all keys, and the order of each key, by the closed rows.

    If the order of a key, or of the run, cannot be extended, the carry records this. This key or run is then decided
    from all its rows.
    """
    clocks = Clocks.from_run(run.clocks)
    ordered = [row for row in closed if takes_part(row)]
    unique = uniqueness(ordered)
    if unique.repeated or any(row["return_ns"] < carry.latest for row in ordered) or any(out_of_order(ordered, clocks)):
        carry.whole = BROKEN_ORDER
        return
    carry.ordered += len(ordered)
    carry.latest = max([carry.latest, *(row["call_ns"] for row in ordered)])
    revisions = [row["revision"] for row in ordered if changed(row)]
    if revisions:
        count, least, greatest = carry.writes
        carry.writes = (
            count + len(revisions),
            min([*revisions, *([least] if count else [])]),
            max(greatest, *revisions),
        )
    returned = ReturnedRevisions(ordered, clocks)
    for call_ns, highest in carry.reached.items():
        carry.reached[call_ns] = max(highest, returned.highest_before(call_ns, carry.clock or ""))
    fresh = all(carry.taken.add(revision) for revision in revisions)
    for key, part in _by_key(closed, unanswered).items():
        if key in carry.again:
            continue
        done = close(key, carry.keys.get(key, KeyCarry()), part, clocks)
        if done is None:
            carry.again.add(key)
            carry.keys.pop(key, None)
        else:
            carry.keys[key] = done.carry
            carry.needs_replay |= done.unproven
            fresh &= _take(carry, done)
    if not fresh or not _writes_fit(carry):
        carry.whole = BROKEN_ORDER


def _take(carry: RunCarry, done: Closed) -> bool:
    """Add the unknown writes that took effect in this part of a key to the carry of the run.

    Return False if the revision of one of these writes is impossible.
    """
    fine = True
    for revision, call_ns in done.claims:
        fine &= carry.taken.add(revision) and carry.reached[call_ns] < revision
        carry.latest = max(carry.latest, call_ns)
    least = 0
    for write in done.unplaced:
        if write.low == write.high:
            fine &= carry.reached[write.call_ns] < write.low
        # The unplaced writes of a key are in order. So the lower bound of each write is at least the lower bound of the
        # write before it.
        least = max(least, write.low, carry.reached[write.call_ns] + 1)
        carry.choices.append(((least, write.high), *alternatives_of(write, carry.reached[write.call_ns])))
        carry.latest = max(carry.latest, write.call_ns)
    return fine


def _writes_fit(carry: RunCarry) -> bool:
    return not unmatched(carry.choices, carry.taken.ranges())


def _by_key(closed: Iterable[Row], unanswered: Iterable[Row]) -> dict[str, KeyPart]:
    found: dict[str, KeyPart] = {}
    for row in (*closed, *unanswered):
        for key, about in project(row):
            part = found.setdefault(key, KeyPart())
            if row["status"] == "unknown":
                part.unknown.append(about)
            elif row["status"] == "ok":
                part.answered.append(about)
    return found


def _report(run: Run, carry: RunCarry, final: bool, verdict: Verdict) -> None:
    decided = carry.rows - len(carry.held)
    if carry.uncut and not final:
        verdict.runs += 1
        verdict.record(Undecided("keys", run.run_id, None, f"decided at the end only: {carry.uncut}"))
        return
    if decided == carry.unknown + carry.failed and not final:
        verdict.runs += 1
        verdict.record(Undecided("keys", run.run_id, None, "none of its operations is settled yet"))
        return
    if not (carry.whole or carry.uncut):
        again = list(_decide_again(run, carry))
        unproven = carry.needs_replay or any(findings.needs_replay or findings.traces for findings in again)
        if not worth_replaying(0, decided, unproven):
            _add(carry, verdict)
            for findings in again:
                note_key(verdict, findings)
            if unproven:
                verdict.record(Undecided("store", run.run_id, None, left_open(decided)))
            return
    rows = (row for row in run.again() if carry.uncut or row["status"] != "ok" or _is_closed(row, carry.cut))
    try:
        whole = check_rows(
            rows,
            clocks=run.clocks,
            min_in_sync=run.min_in_sync,
            configurations_max=run.configurations_max,
            name=run.run_id,
        )
        add(verdict, whole)
    except NothingToCheck:
        _add(carry, verdict)


def _is_closed(row: Row, cut: tuple[int, int]) -> bool:
    return rank(row)[:3] < _bound(cut)


def _decide_again(run: Run, carry: RunCarry) -> Iterator[KeyFindings]:
    """Decide the keys of `carry.again` from all their rows.

    If the witness proves such a key, and the proof has no unplaced or claimed writes, the key gets a carry again. The
    findings of all other keys are yielded.
    """
    if not carry.again:
        return
    clocks = Clocks.from_run(run.clocks)
    mine: dict[str, list[Row]] = {key: [] for key in carry.again}
    for row in run.again():
        if row["status"] != "ok" or _is_closed(row, carry.cut):
            for key, about in project(row):
                if key in mine:
                    mine[key].append(about)
    for key, rows in sorted(mine.items()):
        part = KeyPart([row for row in rows if row["status"] == "ok"], [r for r in rows if r["status"] == "unknown"])
        done = close(key, KeyCarry(), part, clocks)
        if done is not None and not (done.claims or done.unplaced or done.unproven):
            carry.again.discard(key)
            carry.keys[key] = done.carry
        else:
            yield findings_of_key(run.run_id, key, rows, clocks, run.configurations_max)


def _add(carry: RunCarry, verdict: Verdict) -> None:
    """Add the counts of the carry to the verdict."""
    verdict.runs += 1
    verdict.operations += carry.rows - len(carry.held)
    verdict.unknown += carry.unknown
    verdict.failed += carry.failed
    verdict.properties["order"].checked += carry.ordered
    count, least, greatest = carry.writes
    verdict.properties["unique"].checked += count
    verdict.revision_gaps += greatest - least + 1 - count if count else 0
    verdict.properties["keys"].checked += len(carry.keys)
    for key in carry.keys.values():
        verdict.properties["weak"].checked += key.weak
        method = "nothing to decide" if key.rows == key.weak else "witness"
        verdict.methods[method] = verdict.methods.get(method, 0) + 1


def add(verdict: Verdict, other: Verdict) -> None:
    """Add the verdict on other runs to this verdict."""
    counts = ("operations", "unknown", "failed", "runs", "revision_gaps", "watches", "events", "settled", "lost")
    for name in (*counts, "in_sync_unjudged"):
        setattr(verdict, name, getattr(verdict, name) + getattr(other, name))
    verdict.lags.update(other.lags)
    for method, keys in other.methods.items():
        verdict.methods[method] = verdict.methods.get(method, 0) + keys
    for name, prop in other.properties.items():
        mine = verdict.of(name)
        mine.checked += prop.checked
        mine.violated += prop.violated
        mine.undecided += prop.undecided
    for violation in other.violations:
        verdict.record(violation, count=0)
    for open_ in other.undecided:
        verdict.record(open_, count=0)
