"""Compares imported registers with two checkers that try every order. One of them checks the lines, and the other
checks the rows."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from spark_audit.imports import Settings, import_histories
from spark_audit.key.decide import decide
from tests.spark_audit.support.amounts import amounts
from tests.spark_audit.support.jepsen_registers import as_edn, explained, made_up
from tests.spark_audit.support.small_histories import ONE_CLOCK, has_an_order, operations_in

_COMPLETE = {"status": None, "output": None, "revision": None, "expected_mod_revision": None, "return_ns": None}
_SEEN = {
    "succeeded": None,
    "found": None,
    "value": None,
    "create_revision": None,
    "mod_revision": None,
    "version": None,
}


def _imported(name: str, path: Path, settings: Settings) -> list[dict[str, object]]:
    import_histories(name, [path], path.with_suffix(".jsonl"), settings, replace=True)
    return [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]


@amounts(300, 1_000)
@pytest.mark.parametrize("saw_another", [False, True], ids=["no-effect", "saw-another"])
@pytest.mark.parametrize("name", ["jepsen-edn", "jepsen-log"])
def test_imported_registers_are_decided_as_trying_every_order_decides_them(
    tmp_path: Path, name: str, saw_another: bool, histories: int
) -> None:
    """The test covers the reader and the decision, with compare-and-sets, operations without an end, and nil."""
    seen = {True: 0, False: 0}
    for seed in range(histories):
        operations, lines = made_up(Random(seed))
        path = tmp_path / "history.txt"
        path.write_text("\n".join(as_edn(lines) if name == "jepsen-edn" else lines) + "\n")
        rows = _imported(name, path, Settings(failed_cas_saw_another=saw_another))
        truth = explained(operations, failed_cas_saw_another=saw_another)
        seen[truth] += 1

        whole = [{**_COMPLETE, **row, "output": row.get("output") and {**_SEEN, **row["output"]}} for row in rows]  # type: ignore[dict-item]
        assert has_an_order(whole) is truth, f"seed {seed}"
        decision = decide(operations_in(whole), ONE_CLOCK)
        assert decision.status == ("linearizable" if truth else "violation"), f"seed {seed}: {decision}"

    assert min(seen.values()) > histories / 20, seen  # Both answers occurred.
