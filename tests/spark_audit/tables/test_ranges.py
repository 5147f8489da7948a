"""Compares one key that is cut into ranges with the same key uncut. The facts that the ranges prove must be right. If
the ranges do not decide the key, all its rows together decide it.

HWM_AUDIT_HISTORIES=20000 makes this number of histories of each sort, instead of a few.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import changed
from spark_audit.key.decide import CONFIGURATIONS_MAX
from spark_audit.key.weak_reads import misfits
from spark_audit.store.revision_claims import Traces
from spark_audit.tables.decide_keys import decide_table
from spark_audit.tables.ranges import Limits, decide_in_ranges
from spark_audit.testing.generate import Row, Shape, generate
from spark_audit.verdict.findings import KeyFindings
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.small_histories import ONE_CLOCK, corrupt, has_an_order, operations_in, small_history
from tests.spark_audit.support.tables import history_table

HISTORIES = int(os.environ.get("HWM_AUDIT_HISTORIES", "60"))  # Of each sort.
TINY = Limits(range=3, ahead=1, left=10**6, pending=10**6)


def _rank(row: Row) -> tuple[int, int, int]:
    return row["revision"], not changed(row), row["call_ns"]


def in_ranges(rows: list[Row], random: Random, limits: Limits, *, whole: bool) -> tuple[str, str, Traces]:
    """The (status, method, traces) of the only key, cut at random places. If `whole` is true, all rows may be read
    together."""
    ranked = sorted((row for row in rows if row["status"] == "ok" and row["revision"]), key=_rank)
    names = {id(row) for row in ranked}
    unranked = [row for row in rows if id(row) not in names]
    random.shuffle(unranked)
    ranges = [history_table(part) for part in _cut(ranked, random)]
    found = decide_in_ranges(
        history_table(unranked) if unranked else history_table(rows).slice(0, 0),
        ranges,
        lambda: history_table(rows) if whole else None,
        {rows[0]["run_id"]: Clocks()},
        CONFIGURATIONS_MAX,
        limits,
    )
    return _result(found.proven, list(found.others))


def _cut(rows: list[Row], random: Random) -> Iterator[list[Row]]:
    """Cut the rows into ranges. The ranges are in order, but the rows within a range are not."""
    while rows:
        size = random.choice((1, 2, 2, 3, 5, 8))
        part, rows = rows[:size], rows[size:]
        random.shuffle(part)
        yield part


def _result(proven: pa.Table, others: list[KeyFindings]) -> tuple[str, str, Traces]:
    if proven.num_rows:
        assert not others
        (row,) = proven.to_pylist()
        traces = Traces() if row["traces"] is None else Traces.from_json(row["key"], row["traces"])
        return "linearizable", row["method"], traces
    (key,) = others
    return key.status, key.method, key.traces


def _uncut(rows: list[Row]) -> tuple[str, str, Traces]:
    found = decide_table(history_table(rows), {rows[0]["run_id"]: Clocks()}, CONFIGURATIONS_MAX)
    return _result(found.proven, list(found.others))


def _longer(random: Random) -> list[Row]:
    """A history of some twenty operations on one key. Half of these histories are corrupted."""
    shape = Shape(
        operations=20, clients=random.choice((2, 4)), keys=1, put_share=0.35, delete_share=0.15, cas_share=0.15,
        local_share=random.choice((0.0, 0.15)), unknown_share=random.choice((0.0, 0.1, 0.3)),
    )  # fmt: skip
    rows = generate(shape, random.randrange(2**32))
    if random.random() < 0.5:
        corrupt(rows, random)
    return rows


@pytest.mark.parametrize("values", [0, 2], ids=["unique-values", "repeated-values"])
def test_what_ranges_prove_has_an_order(values: int) -> None:
    """The test tries all permutations of a few operations. Most histories are corrupted, and all are cut at random
    places."""
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in range(HISTORIES):
        random = Random(seed)
        rows = small_history(random, revisions=True, values=values)
        limits = Limits(ahead=random.randrange(3), left=10**6, pending=random.choice((1, 10**6)))
        status, _, _ = in_ranges(rows, random, limits, whole=False)
        truth = has_an_order(rows)
        seen[status, truth] += 1
        assert truth or status == "undecided", f"seed {seed}"
        if status == "linearizable":
            assert not list(misfits(operations_in(rows), ONE_CLOCK)), f"seed {seed}"
    assert seen["linearizable", True] > 0.85 * (seen["linearizable", True] + seen["undecided", True]), seen
    assert seen["undecided", False] > HISTORIES / 20, seen


def test_a_key_is_decided_alike_cut_anywhere_or_uncut() -> None:
    """The histories are longer. They have local reads, and up to a third of the operations is unknown. The histories
    are cut at random. If the ranges prove nothing, all rows together decide."""
    seen: Counter[tuple[str, str]] = Counter()
    traces = 0
    for seed in range(HISTORIES):
        random = Random(seed)
        rows = _longer(random)
        cut = in_ranges(rows, random, Limits(ahead=random.randrange(5)), whole=False)
        uncut = _uncut(rows)
        status = uncut[0]
        seen[cut[0], status] += 1
        if cut[0] == "linearizable":
            assert status == "linearizable", f"seed {seed}"
            assert cut[1] == "witness" or cut[1] == uncut[1], f"seed {seed}"
            traces += _compared(cut[2], uncut[2]) if uncut[1] == "witness" else 0
        elif seed % 10 == 0:
            again = in_ranges(rows, random, TINY, whole=True)
            assert again == uncut or again[:2] == ("linearizable", "witness")
    fine = seen["linearizable", "linearizable"] + seen["undecided", "linearizable"]
    assert seen["linearizable", "linearizable"] > 0.8 * fine, seen
    assert seen["undecided", "violation"] > HISTORIES / 20, seen
    assert traces > HISTORIES / 10


def _compared(cut: Traces, uncut: Traces) -> int:
    """Assert that the cut key and the uncut key give the same revisions to unknown writes. Returns the number of
    unknown writes of the cut key. The cut key may give a write a slot with a single revision instead of this
    revision."""
    claimed = {one.revision for one in uncut.claims}
    assert {one.revision for one in cut.claims} <= claimed
    assert claimed <= {one.revision for one in cut.claims} | {
        write.low for write in cut.unplaced if write.low == write.high
    }
    assert all(write.low >= 2 for write in cut.unplaced)
    return len(cut.claims) + len(cut.unplaced)


def test_an_operation_that_returned_before_a_call_in_an_earlier_range_is_out_of_order() -> None:
    """The latest call is carried from range to range. Revision 4 returned before the call of revision 2, at 100."""
    h = History()
    h.put("a", 0, 5, 2)
    h.get("a", 100, 110, 2, mod_revision=2)
    h.put("c", 20, 200, 3)  # This row is in the second range.
    h.put("b", 30, 50, 4)
    h.get("b", 300, 310, 4, mod_revision=4)
    ranges = [history_table(h.rows[:3]), history_table(h.rows[3:])]

    found = decide_in_ranges(
        history_table(h.rows).slice(0, 0),
        ranges,
        lambda: history_table(h.rows),
        {"by-hand": Clocks()},
        CONFIGURATIONS_MAX,
        TINY,
    )

    assert _result(found.proven, list(found.others))[0] == "violation"
