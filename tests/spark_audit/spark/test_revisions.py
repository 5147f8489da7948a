"""Tasks examine the parts of a run. Together, the tasks must find the same as an examination of all rows. These tests
need no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import pytest

from spark_audit.history.clocks import Clocks
from spark_audit.spark.revisions import _Calls, _reached, rows_by_run
from spark_audit.store.gap_reassignment import RevisionWindow
from spark_audit.tables.conform import conform, joined
from spark_audit.tables.effects import taking_part
from spark_audit.tables.frame import Frame
from spark_audit.tables.revisions import RowsOfFrame
from spark_audit.testing.generate import Shape, generate
from spark_audit.verdict.cross_key import RowsInMemory
from tests.spark_audit.support.tables import history_table


@pytest.mark.parametrize("bound", [0, 40_000, 2**62, 2**63, 2**70])
def test_what_calls_reach_is_told_alike_by_chunks_and_by_all_rows(bound: int) -> None:
    """The rows are in random order, with two clocks, bounds of any size, and calls at both ends of 64 bits."""
    random = Random(bound)
    rows = generate(Shape(operations=150, clients=6), 3)
    for row in rows:
        row["clock_id"] = random.choice(("one", "two"))
    frame = Frame(conform(history_table(rows)))
    taking = np.flatnonzero(taking_part(frame))
    clocks = Clocks({"one": bound, "two": 0})
    every = RowsOfFrame(frame, np.arange(frame.rows), taking, taking, clocks)
    ends = [row["return_ns"] or 0 for row in rows]
    calls = [(stamp + random.randrange(-2, 3), random.choice(("one", "two", "three"))) for stamp in ends]
    calls += [(-(2**63), "one"), (2**63 - 1, "one"), (2**63 - 1, "two")]
    random.shuffle(calls)

    expected = list(every.reached(calls))

    assert _reached(every, _Calls.of(calls)).tolist() == expected
    assert len(set(expected)) > (10 if bound < 10**6 else 0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rows_max", [200_000, 9])
def test_the_rows_near_revisions_that_chunks_send_are_enough(
    seed: int, rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of several clients are in random order and cut anywhere. All keys except one exist."""
    for module in ("spark_audit.verdict.cross_key", "spark_audit.tables.revisions"):
        monkeypatch.setattr(f"{module}.ROWS_MAX", rows_max)
    random = Random(seed)
    rows = generate(Shape(operations=400, keys=4, unknown_share=0.2, local_share=0.1), seed)
    random.shuffle(rows)
    highest = max(row["revision"] or 0 for row in rows)
    keys = sorted({row["key"] for row in rows})
    windows = [
        RevisionWindow(
            random.choice([*keys, "nobody's"]), low, low + random.choice((-1, 0, 5, 60)), random.choice((0, 1, 7))
        )
        for low in random.choices(range(1, highest + 2), k=30)
    ]
    windows.append(RevisionWindow(keys[0], 1, 2**63 - 1, 0))
    clocks = Clocks({})

    sent = []
    for begin in range(0, len(rows), 90):
        chunk = Frame(conform(history_table(rows[begin : begin + 90])))
        for _, mine in rows_by_run(chunk, {rows[0]["run_id"]: clocks}):
            sent.append(chunk.table.take(np.union1d(mine.numbers_in(windows), mine.numbers_of_unknown(keys))))
    ((_, gathered),) = rows_by_run(Frame(joined(sent)), {rows[0]["run_id"]: clocks})

    every = RowsInMemory(rows, clocks)
    assert [_ids(some) for some in gathered.rows_in(windows)] == [_ids(some) for some in every.rows_in(windows)]
    expected, wanted = gathered.unknown_writes(keys), every.unknown_writes(keys)
    assert {key: set(_ids(expected[key]) or ()) for key in keys} == {key: set(_ids(wanted[key]) or ()) for key in keys}
    assert any(some is None for some in every.rows_in(windows)) == (rows_max == 9)


def _ids(rows: Sequence[Mapping[str, object]] | None) -> list[object] | None:
    return None if rows is None else [row["op_id"] for row in rows]
