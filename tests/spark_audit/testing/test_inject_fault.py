"""Each fault that is injected into a linearizable history makes the history impossible."""

from __future__ import annotations

import pytest

from spark_audit import ALL_FAULTS, Shape, check_rows, generate, inject
from spark_audit.testing.generate import Row

MANY = Shape(operations=1_000, keys=12, multi_key_share=0.15, local_share=0.05, append_share=0.1)


def _changed(clean: list[Row], rows: list[Row]) -> list[Row]:
    return [row for row, true in zip(rows, clean, strict=True) if row != true]


@pytest.mark.parametrize("seed", [7, *range(12)])
def test_a_lost_write_is_lost_of_one_key_and_without_it_the_history_is_true(seed: int) -> None:
    """Reads that had returned the lost value now return the older value. Only the acknowledgement of the lost write
    shows the loss."""
    clean = generate(Shape(operations=1_000, delete_share=0.0), seed)
    rows, shown = inject(clean, "lost_write", seed)

    lost = next(row["output"]["value"] for row in clean if row["op_id"] == shown["op_id"])
    assert {row["key"] for row in _changed(clean, rows)} == {shown["key"]}
    assert {v.key for v in check_rows(rows).violations} == {shown["key"]}
    assert check_rows([row for row in rows if row["value"] != lost]).exit_code == 0


@pytest.mark.parametrize("fault", [fault for fault in ALL_FAULTS if fault != "lost_write"])
def test_a_fault_changes_one_answer_and_nothing_else(fault: str) -> None:
    """The fault `dirty_read` changes two rows: a read becomes a failed write, and another read shows its value."""
    clean = generate(MANY, 2)
    rows, shown = inject(clean, fault, 2)

    changed = _changed(clean, rows)
    assert shown in changed
    assert len(changed) == (2 if fault == "dirty_read" else 1)
    assert clean == generate(MANY, 2), "the rows that were given are left alone"


def test_a_history_without_a_place_for_a_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="no operation of this history can be given the fault 'deleted_read'"):
        inject(generate(Shape(operations=100, delete_share=0.0), 1), "deleted_read", 1)
