"""What a task says of the revisions that calls reach, without Spark: what all rows of a frame say."""

from random import Random

import numpy as np
import pytest

from spark_audit.clocks import Clocks
from spark_audit.generate import Shape, generate
from spark_audit.local.columns import conform
from spark_audit.local.frame import Frame
from spark_audit.local.revisions import RowsOfFrame, taking_part
from spark_audit.spark_revisions import _Calls, _reached
from tests.spark_audit.test_table_keys import history_table


@pytest.mark.parametrize("bound", [0, 40_000, 2**62, 2**63, 2**70])
def test_what_calls_reach_is_told_alike_by_chunks_and_by_all_rows(bound: int) -> None:
    """Two clocks, whose bounds may be of any size; calls at both ends of 64 bits too, in no order."""
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

    told = list(every.reached(calls))

    assert _reached(every, _Calls.of(calls)).tolist() == told
    assert len(set(told)) > (10 if bound < 10**6 else 0)
