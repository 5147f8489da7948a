"""The single pass of the Spark engine, tested without Spark. Chunks are cut into pieces, and the pieces are joined and
decided."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_audit import FAULTS, check_rows, inject
from spark_audit.history.clocks import Clocks
from spark_audit.history.effects import takes_part
from spark_audit.store.order import out_of_order, uniqueness
from spark_audit.tables import shuffle as scanning
from spark_audit.tables.decide_keys import decide_table
from spark_audit.tables.order_blocks import BlockSummary, blocks_of, carried
from spark_audit.tables.shuffle import (
    BAD,
    CLASH,
    CLIENTS,
    IDS,
    KEYS,
    ORDER,
    TOTALS,
    clients_clash,
    ids_clash,
    read_piece,
    shuffle_pieces,
)
from spark_audit.testing.generate import Row, Shape, generate
from tests.spark_audit.support.amounts import amounts
from tests.spark_audit.support.histories import History
from tests.spark_audit.support.tables import history_table

PARTITIONS = 5


def _gathered(chunks: list[list[Row]]) -> dict[tuple[str, int], list[bytes]]:
    """A dict of (kind, partition) → the pieces that all chunks send to this partition."""
    found: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for rows in chunks:
        for cut in shuffle_pieces(history_table(rows), PARTITIONS):
            found[cut.kind, cut.target].append(cut.payload)
    return found


def _tables(found: dict[tuple[str, int], list[bytes]], kind: str) -> Iterator[pa.Table]:
    for target in range(PARTITIONS):
        pieces = found.get((kind, target), [])
        if pieces:
            yield scanning.concat([read_piece(piece) for piece in pieces])


def _chunks(rows: list[Row], seed: int) -> list[list[Row]]:
    """The rows in chunks, which are cut anywhere and in random order."""
    random = Random(seed)
    cuts = sorted(random.sample(range(len(rows)), 3))
    parts = [rows[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    random.shuffle(parts)
    return [part for part in parts if part]


def _blocks(found: dict[tuple[str, int], list[bytes]], clocks: Clocks) -> list[BlockSummary]:
    """Join the blocks in the same way as the driver, which checks overlapping blocks again."""
    of_run: Any = defaultdict(lambda: clocks)
    blocks = [block for table in _tables(found, ORDER) for block in blocks_of(table, of_run)]
    blocks.sort(key=lambda block: block.number)
    carries = carried(blocks, clocks)
    again = [block for table in _tables(found, ORDER) for block in blocks_of(table, of_run, carries)] if carries else []
    renewed = {block.number: block for block in again}
    return [renewed.get(block.number, block) for block in blocks]


@amounts(20, 60)
@pytest.mark.parametrize("clocks", [Clocks(), Clocks({"one": 40_000, "two": 0})], ids=["no bounds", "bounds"])
def test_blocks_say_of_the_order_what_all_rows_say(
    clocks: Clocks, histories: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks have eight revisions. They report every late row, the first row called after it, and every repeated
    revision."""
    monkeypatch.setattr(scanning, "BLOCK_BITS", 3)
    monkeypatch.setattr("spark_audit.tables.order_blocks.BLOCK_BITS", 3)
    late_seen = repeated_seen = 0
    for seed in range(histories):
        random = Random(seed)
        rows = generate(Shape(operations=120, clients=5, keys=4, multi_key_share=0.1, local_share=0.1), seed)
        for row in rows:
            row["clock_id"] = random.choice(("one", "one", "two"))
        acknowledged = [row for row in rows if row["revision"]]
        for row in random.sample(acknowledged, random.choice((0, 1, 3))):
            row["revision"] = max(1, row["revision"] + random.randrange(-30, 30))

        blocks = _blocks(_gathered(_chunks(rows, seed)), clocks)

        taking = [row for row in rows if takes_part(row)]
        late = [(pair.late["op_id"], pair.early["op_id"]) for pair in out_of_order(taking, clocks)]
        assert sum(block.late for block in blocks) == len(late), f"seed {seed}"
        assert sorted(one for block in blocks for one, _ in block.pairs)[:20] == sorted(one for one, _ in late)[:20]
        unique = uniqueness(taking)
        assert sum(block.writes for block in blocks) == unique.writes
        repeated = {revision: sorted(members) for block in blocks for revision, members in block.repeated}
        assert repeated == {n: sorted(row["op_id"] for row in same) for n, same in unique.repeated.items()}
        late_seen, repeated_seen = late_seen + len(late), repeated_seen + len(repeated)
    assert late_seen > 50
    assert repeated_seen > 5


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_keys_are_decided_wherever_their_rows_come_from(fault: str | None) -> None:
    """The result equals that of all rows in memory, for listings and transactions, too."""
    shape = Shape(operations=600, keys=7, multi_key_share=0.0 if fault else 0.1, local_share=0.1)
    rows = generate(shape, 6)
    if fault:
        rows, _ = inject(rows, fault, 6)

    found = _gathered(_chunks(rows, 5))

    wrong: set[str] = set()
    keys = 0
    for table in _tables(found, KEYS):
        decided = decide_table(table, {rows[0]["run_id"]: Clocks()}, 100_000)
        others = list(decided.others)
        keys += decided.proven.num_rows + len(others)
        wrong |= {key.key for key in others if key.status == "violation"}
    verdict = check_rows(rows)
    assert keys == verdict.properties["keys"].checked
    assert wrong == {violation.key for violation in verdict.violations if violation.property == "keys"}
    totals = [json.loads(total) for total in found[TOTALS, 0]]
    assert sum(total["rows"] for total in totals) == len(rows)
    assert sum(total["taking"] for total in totals) == verdict.properties["order"].checked
    assert sum(total["multi_key"] for total in totals) == verdict.properties["store"].checked


def _clashes(chunks: list[list[Row]]) -> tuple[bool, bool]:
    """Returns two booleans. The first one is true if an op_id occurs twice, and the second one if a client may have had
    two operations open."""
    found = _gathered(chunks)
    clients = any(clients_clash(table) for table in _tables(found, CLIENTS)) or (CLASH, 0) in found
    return any(ids_clash(table) for table in _tables(found, IDS)), clients


def test_rows_that_clash_are_doubted_across_chunks_and_sound_ones_are_not() -> None:
    rows = generate(Shape(operations=400, clients=6), 3)
    parts = _chunks(rows, 3)
    assert _clashes(parts) == (False, False)

    twice = {**rows[17], "client": "another"}
    assert _clashes([*parts, [twice]]) == (True, False)
    open_ = {**rows[17], "op_id": 10**9, "call_ns": rows[17]["call_ns"] + 1, "return_ns": None, "status": "unknown"}
    assert _clashes([*parts, [open_]])[1]
    assert _clashes([[*rows, {**open_, "client": "new"}, {**twice, "op_id": 10**9 + 1, "client": "new"}]])[1]


def test_a_chunk_with_a_malformed_row_sends_nothing_but_that() -> None:
    h = History()
    h.put("a", 0, 10, 2)
    h.put("b", 20, 30, 3)
    h.rows[1]["key"] = None
    assert [cut.kind for cut in shuffle_pieces(history_table(h.rows), PARTITIONS)] == [BAD]
    h.rows[1]["key"] = "k"
    h.range({}, 40, 50, 3, limit="no number")
    assert [cut.kind for cut in shuffle_pieces(history_table(h.rows), PARTITIONS)] == [BAD]


def test_long_dictionaries_do_not_travel_with_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver gets the same rows, no matter whether a name is sent as a code or as a text."""
    rows = generate(Shape(operations=300, keys=40), 8)
    arrived = []
    for most in (4_096, 3):
        monkeypatch.setattr(scanning, "DICTIONARY_MAX", most)
        tables = _tables(_gathered([rows[:100], rows[100:]]), KEYS)
        arrived.append(sorted(row["op_id"] * 100 + len(row["key"]) for table in tables for row in table.to_pylist()))
    assert arrived[0] == arrived[1]
    assert np.unique(arrived[0]).size == 300


@pytest.mark.parametrize("first", [0, 2**31 - 40, 2**62, -(2**31) - 5])
def test_numbers_of_any_size_arrive_as_they_were(first: int) -> None:
    """A chunk sends numbers in 32 bits if all of them fit. The test joins chunks of both kinds."""
    rows = generate(Shape(operations=80, keys=3), 4)
    for row in rows[:40]:
        row["op_id"] = max(0, first) + row["op_id"]
        row["call_ns"] += first
        row["return_ns"] = None if row["return_ns"] is None else row["return_ns"] + first
        if row["output"] and row["output"].get("version"):
            row["output"]["version"] = max(1, first)
    expected = {row["op_id"]: (row["call_ns"], row["return_ns"], (row["output"] or {}).get("version")) for row in rows}

    arrived = [row for table in _tables(_gathered([rows[:40], rows[40:]]), KEYS) for row in table.to_pylist()]

    assert {
        row["op_id"]: (row["call_ns"], row["return_ns"], (row["output"] or {}).get("version")) for row in arrived
    } == expected


def test_an_operation_number_within_a_long_stretch_clashes_with_the_same_number_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine groups numbers by ranges of 2¹⁶. This test uses ranges of four numbers, so ten operations extend over
    three ranges."""
    monkeypatch.setattr(scanning, "_IDS_BITS", 2)
    h = History()
    for i in range(10):
        h.put(f"v{i}", 10 * i, 10 * i + 5, i + 2)

    assert _clashes([h.rows, [{**h.rows[5], "client": "another", "key": "other"}]])[0]
    assert not _clashes([h.rows])[0]
