"""Checks listings and transactions against the whole store, by a replay in the order of revisions.

A listing must report exactly the live keys of its interval at its revision, in order and up to its limit, and the right
count of these keys. A transaction must have evaluated its comparisons correctly. If no write has an unknown outcome,
the rows are streamed, and only the store is in memory. Otherwise, `store/backtracking.py` searches for the revision of
each unknown write. All responses, including those about single keys, must follow from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from spark_audit.history.clocks import Clocks
from spark_audit.history.requests import is_multi_key, parse_request
from spark_audit.model.store import WholeStore
from spark_audit.store.backtracking import STEPS_AGAIN_MAX, BacktrackingSearch, Contradiction, Outcome
from spark_audit.store.replay_plan import Hint, ReplayPlan, hint_of, plan_replay, position

Row: TypeAlias = Mapping[str, Any]

# A run without listings and transactions is replayed only if it has at most this many rows, because all of them are in
# memory at once.
REPLAY_ROWS_MAX = 200_000

__all__ = [
    "Contradiction",
    "Hint",
    "contradictions",
    "hint_of",
    "left_open",
    "position",
    "replayable",
    "worth_replaying",
]


def contradictions(
    unknown: Iterable[Row],
    hints: Iterable[Hint],
    ordered: Iterable[Row],
    *,
    clocks: Clocks,
    wrong: Iterable[str] = (),
    steps_again_max: int = STEPS_AGAIN_MAX,
) -> Iterator[Contradiction]:
    """Replay one run. `ordered`: the rows that take part, sorted by `position`.

    `unknown`: the rows of unknown outcome; `hints`: the reports of weak reads; `wrong`: keys that are a violation by
    themselves. The live store is in memory, and, if there are unknown writes, all rows of the run, too.
    """
    unsettled = [row for row in unknown if row["op"] not in ("get", "range")]
    hinted = sorted(hints, key=lambda hint: (hint.revision, hint.key, hint.value or "")) if unsettled else ()
    prepared = plan_replay(unsettled, rows := list(ordered), hinted, clocks, frozenset(wrong)) if unsettled else None
    if prepared is not None:
        yield from _search(prepared, steps_again_max).found
    else:
        yield from _stream(rows if unsettled else ordered, frozenset(wrong))


def _stream(ordered: Iterable[Row], wrong: frozenset[str]) -> Iterator[Contradiction]:
    store = WholeStore(reversible=False)
    for row in ordered:
        request = parse_request(row) if row["op"] in ("range", "txn") else None
        conflict = store.meet(row, request)
        if conflict is not None and conflict.keys.isdisjoint(wrong):  # Wrong keys have already been reported.
            yield Contradiction(row, conflict.reason, True)


def _search(prepared: ReplayPlan, steps_again_max: int) -> Outcome:
    """Run a fast search, then a wide search, then a wide search without hints, until one of them explains the run.

    The last search ignores hints, because a hint may suggest a wrong candidate. Only a wide search proves a
    contradiction.
    """
    for wide in (False, True):
        outcome = BacktrackingSearch(prepared, hints=True, wide=wide, steps_again_max=steps_again_max).run(stop=True)
        if outcome.explained:
            return outcome
    return BacktrackingSearch(prepared, hints=False, wide=True, steps_again_max=steps_again_max).run(stop=False)


def worth_replaying(multi_key: int, rows: int, unproven: bool) -> bool:
    """Return whether to replay a run. `multi_key`: how many listings and transactions over several keys the run has.

    A run with listings or such transactions is always replayed. Any other run is replayed only if some key needs a
    replay (`unproven`) and the run is small.
    """
    return multi_key > 0 or (unproven and rows <= REPLAY_ROWS_MAX)


def left_open(rows: int, keys: Sequence[str] = ()) -> str:
    """Return the reason why a run stays undecided if some key needs a replay, but the run has too many rows for a
    replay.

    `keys`: the keys for which no order with the free revisions was found.
    """
    found = f"(of {len(keys)} keys, the first is {keys[0]}, no order was found with the revisions that are free)"
    named = f" {found}" if keys else ""
    return (
        f"whether one order of all revisions explains all keys was not shown{named}: that needs a replay of the run, "
        f"and its {rows} operations are more than {REPLAY_ROWS_MAX}"
    )


def replayable(rows: Iterable[Row]) -> tuple[int, str | None]:
    """Return the number of rows that no single key can decide, and the reason why they cannot be replayed (None if they
    can)."""
    multi_key, without_revision = 0, 0
    for row in rows:
        multi_key += row["status"] != "fail" and is_multi_key(row)
        without_revision += row["status"] == "ok" and row.get("revision") is None
    return multi_key, no_order(without_revision)


def no_order(without_revision: int) -> str | None:
    """Return the reason why completed operations without a revision prevent a replay; None if there are no such
    operations."""
    return (
        f"{without_revision} operations carry no revision, so there is no order in which to replay the store"
        if without_revision
        else None
    )
