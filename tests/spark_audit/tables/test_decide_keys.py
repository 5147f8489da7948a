"""A table of keys gets the same answers as its keys one by one, no matter which code decides them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from spark_audit.history.clocks import Clocks
from spark_audit.history.projection import project
from spark_audit.history.rows import FIELDS
from spark_audit.key.decide import CONFIGURATIONS_MAX
from spark_audit.tables import decide_keys as table_keys
from spark_audit.tables.decide_keys import DecidedTable, decide_table
from spark_audit.testing.generate import Row, Shape, generate
from spark_audit.verdict.findings import KeyFindings, findings_of_key
from spark_audit.verdict.verdict import Violation
from tests.spark_audit.support.amounts import amounts
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.simulated_store import FAULTS, Mix, history
from tests.spark_audit.support.small_histories import has_an_order, small_history
from tests.spark_audit.support.tables import SCHEMA

_LEFT_OUT: Row = {**dict.fromkeys(name for name, _ in FIELDS), "weak": None, "changes_store": None}
ONE_CLOCK = Clocks()


def _table(rows: Iterable[Row]) -> pa.Table:
    """A table of these rows, in random order and in parts."""
    cut = [{**_LEFT_OUT, **part} for row in rows for _, part in project({**_LEFT_OUT, **row})]
    Random(len(cut)).shuffle(cut)
    marks: list[pa.Field[Any]] = [pa.field("weak", pa.string()), pa.field("changes_store", pa.bool_())]
    return pa.Table.from_pylist(cut, schema=pa.schema([*SCHEMA, *marks])).select(list(table_keys.NEEDED))


def _decided(rows: list[Row], clocks: Clocks = ONE_CLOCK) -> dict[tuple[str, str], KeyFindings]:
    """The findings of each key, once, no matter which code decided the key."""
    found = decide_table(_table(rows), {row["run_id"]: clocks for row in rows}, CONFIGURATIONS_MAX)
    keys = [*_proven(found), *found.others]
    by_name = {(key.run_id, key.key): key for key in keys}
    assert len(by_name) == len(keys)
    return by_name


def _proven(found: DecidedTable) -> list[KeyFindings]:
    return [
        KeyFindings(
            row["run_id"], row["key"], "linearizable", row["method"], row["weak"], 0, [], row["needs_replay"],
            row["operations"],
        )
        for row in found.proven.to_pylist()
    ]  # fmt: skip


def _one_by_one(rows: list[Row], clocks: Clocks = ONE_CLOCK) -> dict[tuple[str, str], KeyFindings]:
    by_name: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        for key, part in project({**_LEFT_OUT, **row}):
            by_name.setdefault((row["run_id"], key), []).append({**_LEFT_OUT, **part})
    return {name: findings_of_key(*name, mine, clocks, CONFIGURATIONS_MAX) for name, mine in by_name.items()}


def _comparable(key: KeyFindings) -> tuple[Any, ...]:
    """The findings that must not depend on the code that decided the key. A violation must be in the findings, not only
    in the status."""
    of_key = [type(found).__name__ for found in key.found if found.property == "keys"]
    return key.status, key.weak, key.operations, key.method == "nothing to decide", of_key


def _shown(key: KeyFindings) -> set[int]:
    return {op.op_id for found in key.found if found.property == "keys" for op in getattr(found, "operations", ())}


def _misfits(key: KeyFindings) -> set[tuple[str, int]]:
    """Reads that contradict the state at their revision. Reads that the key's violation already shows are left out."""
    pairs = [found for found in key.found if isinstance(found, Violation) and found.property != "keys"]
    return {(found.property, found.operations[-1].op_id) for found in pairs}


def _same(rows: list[Row], clocks: Clocks = ONE_CLOCK) -> Counter[tuple[str, str]]:
    together, alone = _decided(rows, clocks), _one_by_one(rows, clocks)
    assert together.keys() == alone.keys()
    for name, key in alone.items():
        other = together[name]
        assert _comparable(other) == _comparable(key), (name, other, key)
        assert {read for _, read in _misfits(other) ^ _misfits(key)} <= _shown(other) | _shown(key), (name, other, key)
    return Counter((key.status, key.method) for key in together.values())


def _on_keys(histories: list[list[Row]]) -> list[Row]:
    """The histories in two runs, so that each key occurs twice."""
    return [
        {**row, "key": f"k{number // 2}", "run_id": f"run{number % 2}"}
        for number, rows in enumerate(histories)
        for row in rows
    ]


@amounts(700, 2_000)
@pytest.mark.parametrize("values", [0, 2], ids=["unique-values", "repeated-values"])
@pytest.mark.parametrize("revisions", [True, False], ids=["revisions", "no-revisions"])
def test_a_table_of_small_keys_is_decided_as_each_key_alone(revisions: bool, values: int, histories: int) -> None:
    made = [small_history(Random(seed), revisions=revisions, values=values) for seed in range(histories)]

    seen = _same(_on_keys(made))

    assert seen["linearizable", "witness" if revisions else "zones"] > histories / 20, seen
    assert seen["violation", "excerpt"] > histories / 20, seen


def test_what_a_table_says_of_small_keys_is_true() -> None:
    histories = [small_history(Random(seed), revisions=seed % 2 == 0, values=0) for seed in range(1_000)]

    for (run_id, key), found in _decided(_on_keys(histories)).items():
        rows = histories[int(key[1:]) * 2 + int(run_id[3:])]
        assert has_an_order(rows) is (found.status == "linearizable"), (run_id, key)


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_parts_of_listings_and_transactions_are_decided_as_each_key_alone(fault: str | None) -> None:
    """The histories come from small stores. Some histories are linearizable, and others are broken. They have unknown
    outcomes, pinned and local reads, and keys that share a transaction."""
    rows: list[Row] = []
    for seed in range(40):
        mix = Mix(operations=80, keys=3, txn=0.15 * (seed % 2), listing=0.1, local=0.15)
        rows += [{**row, "run_id": f"r{seed}"} for row in history(mix, Random(seed), fault)]

    seen = _same(rows)

    assert seen["linearizable", "witness"] > 30, seen
    assert fault is None or "violation" in {status for status, _ in seen}, seen


def _corrupted(seed: int) -> list[Row]:
    """A history with local reads, appends, failed rows, and half a dozen changed answers."""
    random = Random(seed)
    shape = Shape(
        operations=150, clients=5, keys=3, local_share=0.2, unknown_share=0.05, append_share=0.1 * (seed % 4 == 0)
    )
    rows = [{**row, "run_id": f"c{seed}"} for row in generate(shape, seed)]
    reads = [row for row in rows if row["op"] == "get" and row["status"] == "ok"]
    for row in random.sample(reads, random.choice((0, 0, 1, 4))):
        match random.randrange(3):
            case 0:
                row["revision"] = max(1, row["revision"] + random.randrange(-9, 9))
            case 1 if row["output"]["mod_revision"]:
                row["output"]["mod_revision"] = max(1, row["output"]["mod_revision"] + random.randrange(-5, 5))
            case _ if row["output"]["found"]:
                row["output"]["value"] = f"v{random.randrange(150)}"
    return rows


def test_reads_against_their_own_revision_are_judged_as_alone() -> None:
    rows = [row for seed in range(80) for row in _corrupted(seed)]

    _same(rows)

    properties = Counter(found.property for key in _decided(rows).values() for found in key.found)
    assert min(properties["keys"], properties["order"], properties["weak"]) > 3, properties


def test_a_table_of_keys_with_several_clocks_is_decided_as_each_key_alone() -> None:
    rows: list[Row] = []
    for seed in range(60):
        random = Random(seed)
        mine = small_history(random, revisions=True, values=0)
        rows += [{**row, "key": f"k{seed}", "clock_id": random.choice(("one", "two"))} for row in mine]
    _same(rows)
    _same(rows, Clocks({"one": 50_000, "two": 0}))


def _wide(reads: int) -> History:
    """Two values are written one after the other. Then `reads` reads return the second value."""
    h = History()
    h.put("a", 0, 10)
    h.put("b", 20, 30)
    for number in range(reads):
        h.get("b", 40 + 20 * number, 50 + 20 * number)
    return h


def test_a_wrong_key_of_many_rows_is_shown_by_what_the_columns_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python decides a whole key only if the columns cannot decide this key. So Python never decides the key of this
    test."""
    monkeypatch.setattr(table_keys, "CORE_FIRST_ROWS", 10)
    monkeypatch.setattr(table_keys, "findings_of_key", None)
    h = _wide(20)
    stale = h.get("a", 500, 510)
    h.rows.append({**h.rows[0], "op_id": 90, "status": "fail", "value": "never", "output": None})

    (key,) = _decided(h.rows).values()

    assert (key.status, key.method) == ("violation", "excerpt")
    shown = {op.op_id for found in key.found for op in found.operations}  # type: ignore[union-attr]
    assert {0, 1, stale["op_id"]} <= shown
    assert len(shown) <= 4
    nothing = dict.fromkeys(("mod_revision", "create_revision", "version"))
    assert not has_an_order(
        [{**row, "output": {**nothing, **row["output"]}} for row in h.rows if row["op_id"] in shown]
    )


@amounts(400, 1_500)
def test_what_the_columns_found_of_a_wrong_key_is_as_good_as_a_search(
    histories: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each wrong key, the search first uses only the rows that the columns found. Statuses and misfits stay the
    same, and the rows that are shown are impossible."""
    monkeypatch.setattr(table_keys, "CORE_FIRST_ROWS", 0)
    for revisions in (True, False):
        made = [small_history(Random(seed), revisions=revisions, values=0) for seed in range(histories)]
        for (run_id, key), found in _decided(_on_keys(made)).items():
            rows = made[int(key[1:]) * 2 + int(run_id[3:])]
            assert has_an_order(rows) is (found.status == "linearizable"), (run_id, key)
            if found.status == "violation":
                assert any(item.property == "keys" for item in found.found)
    _same([row for seed in range(80) for row in _corrupted(seed)])


def test_a_value_that_a_failed_write_held_is_told_of_a_wrong_key_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    h = _wide(20)
    h.rows.append({**h.rows[0], "op_id": 90, "status": "fail", "value": "never", "client": "x", "output": None})
    h.get("never", 500, 510)
    texts = []
    for rows in (10, 10_000):
        monkeypatch.setattr(table_keys, "CORE_FIRST_ROWS", rows)
        (key,) = _decided(h.rows).values()
        texts += [found.text for found in key.found]  # type: ignore[union-attr]
    assert texts[0] == texts[1]
    assert "#90" in texts[0]


def test_a_table_without_rows_has_no_keys() -> None:
    found = decide_table(_table([]), {}, CONFIGURATIONS_MAX)
    assert found.proven.num_rows == 0
    assert list(found.others) == []
