"""Hot keys of the Spark engine, tested without Spark. A sample finds the hot keys and cuts them into ranges. The rows
of the hot keys are sent by range, and the keys are decided."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from spark_audit.history.clocks import Clocks
from spark_audit.history.paths import history_files
from spark_audit.key.decide import CONFIGURATIONS_MAX
from spark_audit.spark.scan import sources
from spark_audit.tables import hot_keys as hot
from spark_audit.tables.ranges import Limits
from spark_audit.tables.shuffle import HOT, KEYS, concat, read_piece, shuffle_pieces
from spark_audit.testing.generate import Row, Shape, generate
from tests.spark_audit.support.histories import write_lines
from tests.spark_audit.support.tables import history_table

PARTITIONS = 3


def _history(seed: int) -> list[Row]:
    """A history of three keys. Most of its operations are on one key."""
    shape = Shape(operations=400, clients=8, keys=3, local_share=0.05, unknown_share=0.03)
    rows = generate(shape, seed)
    random = Random(seed)
    return [row for row in rows if row["key"] == rows[0]["key"] or random.random() < 0.3]


def _sample(rows: list[Row], stride: int) -> pa.Table:
    names = ["run_id", "key", "revision", "call_ns"]
    sampled_rows = [{**{name: row[name] for name in names}, "weight": stride} for row in rows[::stride]]
    return pa.Table.from_pylist(sampled_rows)


def test_a_hot_key_goes_to_a_partition_of_its_own_by_ranges_and_is_proven_there() -> None:
    for seed in range(4):
        rows = _history(seed)
        name = rows[0]["key"]
        (found,) = hot.hot_keys([_sample(rows, 5)], rows_min=80, range_rows=50)
        assert found.key == name

        chunks = [rows[:150], rows[150:]]
        cuts = [cut for chunk in chunks[::-1] for cut in shuffle_pieces(history_table(chunk), PARTITIONS, [found])]

        mine = sorted((cut for cut in cuts if cut.kind == HOT), key=lambda cut: cut.place)
        assert {cut.target for cut in mine} == {PARTITIONS}
        parts = [
            (place, concat([read_piece(cut.payload) for cut in some]))
            for place, some in groupby(mine, key=lambda cut: cut.place)
        ]
        assert len(parts) >= 3
        others = concat([read_piece(cut.payload) for cut in cuts if cut.kind == KEYS])
        assert name not in others.column("key").to_pylist()
        decided = hot.decide_parts(parts, Clocks(), CONFIGURATIONS_MAX, Limits(range=60, ahead=8, whole=0))
        (key,) = decided.proven.to_pylist()
        assert (key["key"], key["method"]) == (name, "witness")
        speaks = [row for row in rows if row["key"] == name and row["status"] != "fail"]
        speaks = [row for row in speaks if row["status"] == "ok" or row["op"] != "get"]
        assert key["operations"] == len(speaks)
        assert key["weak"] == sum(row["consistency"] == "local" and row["status"] == "ok" for row in speaks)


def test_ranges_of_one_revision_are_told_apart_by_calls() -> None:
    """A key that is rarely written can be hot, too. In this case, all reads of the key show the same revision."""
    one = hot.HotKey("r", "k", ranks=(5, 9, 9, 9, 13), calls=(0, 10, 20, 30, 0))
    ranks, calls = np.array([4, 5, 8, 9, 9, 9, 9, 10, 13, 14]), np.array([99, 0, 99, 0, 10, 25, 30, 0, 5, 0])
    assert one.ranges_of(ranks, calls).tolist() == [0, 1, 1, 1, 2, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("lines", [True, False], ids=["lines", "Parquet"])
def test_a_sample_of_a_file_is_of_every_part_of_it(
    tmp_path: Path, lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot, "SAMPLE_STRIDE", 4)
    monkeypatch.setattr(hot, "_LINES_EVERY_BYTES", 20_000)
    monkeypatch.setattr(hot, "_LINES_BYTES", 5_000)
    rows = _history(1)
    if lines:
        path = tmp_path / "a.jsonl"
        write_lines(path, rows)
    else:
        path = tmp_path / "a.parquet"
        parquet.write_table(history_table(rows), path)

    (source,) = sources(history_files([str(path)]))
    (table,) = hot.sampled([(source.path, source.first, source.last, source.lines)], 1)

    assert len(rows) * 0.7 < np.sum(table.column("weight").to_numpy()) < len(rows) * 1.3
    highest = np.nanmax(table.column("revision").to_numpy())
    assert highest > 0.8 * max(row["revision"] or 0 for row in rows)
    if not lines:
        (nothing,) = hot.sampled([(source.path, source.first, source.last, False)], len(rows))
        assert nothing.num_rows == 0  # No key has this many rows.
    assert not list(hot.sampled([(str(tmp_path / "none.parquet"), 0, 1, False)], 1))


def test_a_file_without_a_column_of_keys_has_no_sample(tmp_path: Path) -> None:
    """For example, a file may contain only watches."""
    parquet.write_table(pa.table({"op": ["watch"], "run_id": ["r"]}), tmp_path / "a.parquet")

    assert hot.sample_table(str(tmp_path / "a.parquet"), 0, 1, rows_min=1).num_rows == 0
