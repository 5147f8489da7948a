"""The audit decides keys a second time, with the free revisions. In these tests the audit is not allowed to replay the
run.

HWM_AUDIT_HISTORIES=20000 makes this number of small histories, instead of a few.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from benchmarks.audit.histories import Shape, generate, write
from spark_audit import check_rows
from spark_audit.history.operation import Operation, operation_of
from spark_audit.local.job import audit
from spark_audit.model.key import ABSENT
from spark_audit.store.segment_solver import Segment, solve, verifies
from spark_audit.testing.generate import Row
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.simulated_store import FAULTS, Mix, has_an_order, history

HISTORIES = int(os.environ.get("HWM_AUDIT_HISTORIES", "60"))

WRITES = Shape(name="writes", clients=20, keys=1, put_share=0.5, delete_share=0.15, cas_share=0.2, unknown_share=0.1)
MANY = Shape(name="deletions", clients=40, keys=40, put_share=0.6, delete_share=0.2, cas_share=0.1, unknown_share=0.1)
SWAPS = Shape(name="swaps", clients=20, keys=20, put_share=0.15, delete_share=0.05, cas_share=0.4, unknown_share=0.1)


@pytest.fixture
def no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_audit.store.replay.REPLAY_ROWS_MAX", 0)


@pytest.mark.usefixtures("no_replay")
@pytest.mark.timeout(120 + HISTORIES // 10)
def test_small_stores_are_green_exactly_where_trying_every_order_finds_one() -> None:
    """The histories have several keys, and up to half of the writes are unknown. Two of three histories are wrong.
    Without a replay, the slots of unknown writes (docs/internals/audit-proofs.md) decide."""
    seen: Counter[tuple[bool, str]] = Counter()
    for seed in range(HISTORIES):
        random = Random(seed)
        mix = Mix(
            operations=random.choice((8, 12, 14)), keys=random.choice((1, 2, 3)), clients=random.choice((2, 4, 6)),
            unknown=random.choice((0.2, 0.3, 0.5)), put=0.3, delete=0.2, cas=0.2, txn=0, listing=0,
        )  # fmt: skip
        rows = history(mix, random, random.choice((None, "stale", "lost", "phantom", *FAULTS[:1])))
        if not any(row["status"] == "ok" for row in rows):
            continue
        truth, status = has_an_order(rows), check_rows(rows).status
        seen[truth, status] += 1
        assert (status == "linearizable") == truth, f"seed {seed}: {status}, by every order {truth}"
    assert seen[True, "linearizable"] > HISTORIES / 4, seen
    assert seen[False, "violation"] > HISTORIES / 10, seen


@pytest.mark.usefixtures("no_replay")
@pytest.mark.parametrize(
    ("shape", "seeds"), [(WRITES, (2, 5)), (MANY, (0, 7)), (SWAPS, (1, 2))], ids=["writes", "deletions", "swaps"]
)
def test_true_histories_of_which_slots_found_no_revision_are_decided(
    shape: Shape, seeds: tuple[int, int], tmp_path: Path
) -> None:
    """A tenth of the writes is unknown. If the audit used only the first proposed order for each key, every history
    would stay undecided."""
    for seed in seeds:
        verdict = audit([str(write(generate(shape, 10_000, seed), tmp_path / str(seed)))])
        assert verdict.status == "linearizable", (seed, verdict.undecided)


def _behind_a_deletion() -> list[Row]:
    """A history in which an unknown put took effect between two deletions. Two puts are possible, but no revision fits
    the put that was called last."""
    h = History()
    h.put("1", 0, 5, 2, key="x")
    h.delete(True, 6, 8, 3, key="x")
    h.put("early", 9, None, key="x")
    h.put("a", 10, 15, 5, key="y")
    h.put("late", 16, None, key="x")
    h.put("b", 12, 30, 6, key="y")
    h.delete(True, 20, 30, 7, key="x")
    return h.rows


@pytest.mark.usefixtures("no_replay")
def test_a_deletion_does_not_say_which_put_it_found() -> None:
    rows = _behind_a_deletion()
    assert check_rows(rows).status == "linearizable"

    rows[3]["revision"], rows[5]["revision"] = 4, 5  # Now only revision 6 is free, and either put may have it.
    assert check_rows(rows).status == "linearizable"
    rows[5]["call_ns"] = rows[3]["call_ns"]
    rows[2]["status"], rows[2]["return_ns"], rows[2]["output"], rows[2]["revision"] = "fail", 10_000, None, None
    rows[3]["revision"], rows[5]["revision"] = 5, 6
    # Only 4 is free, but a higher revision returned before the call of `late`.
    assert check_rows(rows).status != "linearizable"


def _segment(unknown: dict[str, int], offered: dict[int, int]) -> Segment:
    """Puts at revisions 2 and 6, and a read at revision 9. The version in the read shows two hidden writes between the
    two puts. `unknown` has unknown puts with their lowest possible revisions. `offered` has the free revisions."""
    h = History()
    h.put("1", 0, 5, 2)
    h.put("2", 10, 60, 6)
    h.get("2", 70, 80, 9, mod_revision=6, create_revision=2, version=4)
    completed = [operation_of(row)[0] for row in h.rows]
    writes: list[tuple[Operation, int]] = []
    for value, floor in unknown.items():
        writes.append((operation_of(h.put(value, 6, None))[0], floor))
    return Segment(ABSENT, completed, offered, writes)


def test_a_stretch_takes_the_cheapest_revisions_that_are_above_what_had_returned() -> None:
    free = dict.fromkeys((3, 4, 5, 7, 8), 0)
    found = solve(_segment({"a": 2, "b": 2}, {**free, 4: 100}))
    assert found is not None
    assert sorted(revision for _, revision in found) == [3, 5]

    found = solve(_segment({"late": 4, "a": 2}, free))
    assert found is not None
    assert sorted((op.steps[0].value, revision) for op, revision in found)[1] == ("late", 5)
    assert solve(_segment({"late": 4, "later": 4}, free)) is None  # Only 5 fits. 7 and 8 are above the second put.
    assert solve(_segment({"a": 2}, free)) is None


def test_what_is_placed_twice_too_early_or_at_what_is_not_free_does_not_follow() -> None:
    segment = _segment({"a": 2, "b": 3}, dict.fromkeys((3, 4, 5), 0))
    (a, _), (b, _) = segment.unknown

    assert verifies(segment, ((a, 3), (b, 4)))
    assert not verifies(segment, ((a, 4), (b, 3)))  # Revision 3 had returned before b was called.
    assert not verifies(segment, ((a, 3), (a, 4)))
    assert not verifies(segment, ((a, 4), (b, 4)))
    assert not verifies(segment, ((a, 3), (b, 7)))
    assert not verifies(segment, ((a, 3),))
