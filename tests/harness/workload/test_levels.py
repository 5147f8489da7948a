"""`--levels`: the acknowledgement levels of writes, and how such writes are recorded.

See docs/reference/specification.md#1011-acknowledgement-levels.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import trio

from harness.errors import BadInput
from harness.recording.clock import RunClock
from harness.recording.history import Row, RunWriter, read_rows
from harness.runs.settings import RunSettings
from harness.runs.soak import Soak
from harness.workload.bulk import Bulks
from harness.workload.level_writes import ACCEPTED_KEPT_MAX, AcceptedWrites, ask_outcome, level_of, record_write
from harness.workload.levels import NO_LEVELS, LevelShares, min_in_sync_of
from harness.workload.row_fields import asked
from harness.workload.tally import Tally, Worker
from kvstore import (
    Accepted,
    Acknowledge,
    Client,
    Command,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    Get,
    Put,
    PutResult,
    Target,
    Txn,
    UnderReplicated,
    open_node,
)

PATIENCE_SECONDS = 5.0


@pytest.mark.parametrize("text", ["none=0.05,leader=0.2,in_sync=0.2", "leader=1", "none"])
def test_shares_are_read_and_written_alike(text: str) -> None:
    assert str(LevelShares.parse(text)) == text
    assert bool(LevelShares.parse(text)) == (text != "none")


@pytest.mark.parametrize("text", ["majority=1", "leader=x", "leader=-0.1", "leader=0.6,in_sync=0.6", "none=1,none=1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--levels"):
        LevelShares.parse(text)


def test_the_levels_of_writes_have_their_shares() -> None:
    random, shares = Random(1), LevelShares(none=0.1, leader=0.3, in_sync=0.2)
    drawn = Counter(shares.next(random) for _ in range(10_000))
    assert [round(drawn[level] / 10_000, 1) for level in Acknowledge] == [0.1, 0.3, 0.4, 0.2]
    assert {NO_LEVELS.next(random) for _ in range(100)} == {Acknowledge.MAJORITY}


def test_a_command_that_may_delete_a_key_is_not_answered_early() -> None:
    deletes = Txn((), (Put(b"a", b"1"), Delete(b"b")), ())
    for early in (Acknowledge.NONE, Acknowledge.LEADER):
        assert [level_of(command, early) for command in (Put(b"a", b"1"), Delete(b"a"), deletes)] == [
            early, Acknowledge.MAJORITY, Acknowledge.MAJORITY,
        ]  # fmt: skip
    assert level_of(deletes, Acknowledge.IN_SYNC) is Acknowledge.IN_SYNC
    assert level_of(Get(b"a"), Acknowledge.IN_SYNC) is Acknowledge.MAJORITY


def test_the_settings_of_a_run_without_levels_say_nothing_of_them(tmp_path: Path) -> None:
    settings = RunSettings(out=tmp_path)
    assert settings.min_in_sync is None
    assert not {"levels", "min_in_sync"} & settings.about().keys()
    leveled = RunSettings(out=tmp_path, nodes=3, levels=LevelShares(in_sync=0.5)).about()
    assert (leveled["levels"], leveled["min_in_sync"]) == ("in_sync=0.5", 3)
    assert "min_in_sync" not in RunSettings(out=tmp_path, levels=LevelShares(leader=0.5)).about()


def test_all_runs_of_a_soak_have_the_levels(tmp_path: Path) -> None:
    """The limit depends on the number of members, which alternates between runs."""
    soak = Soak(
        out=tmp_path,
        kills=1,
        seconds=30,
        kinds=("kill",),
        interval_seconds=3,
        seed=1,
        clients=1,
        keys=1,
        operations_per_second=0,
        in_flight=1,
        audit=False,
        levels=LevelShares(in_sync=0.5),
    )
    runs = [soak.run(number).about() for number in range(2)]
    assert [(run["levels"], run["min_in_sync"]) for run in runs] == [("in_sync=0.5", 3), ("in_sync=0.5", 4)]


@pytest.mark.parametrize(
    ("levels", "status"),
    [(LevelShares(none=1), "unknown"), (LevelShares(leader=1), "unknown"), (LevelShares(in_sync=1), "ok")],
)
def test_the_puts_of_a_bulk_have_one_level_and_its_fields(tmp_path: Path, levels: LevelShares, status: str) -> None:
    (word,) = [word for word in ("none", "leader", "in_sync") if getattr(levels, word)]
    writer = RunWriter(tmp_path / "run", run_id="r1", clock=RunClock(), ops_format="jsonl", about={})
    accepted = AcceptedWrites()
    keys = [b"k%d" % number for number in range(8)]

    async def main() -> None:
        with trio.fail_after(20):
            async with open_node(tmp_path / "data", bootstrap=True) as store:
                bulks = Bulks(writer, Tally(), seed=1, client=0, keys=keys, size=8, levels=levels, accepted=accepted)
                while not any(accepted.open) and bulks._written < 16:
                    await bulks.run(store, trio.current_time() + 0.01, lambda _: PATIENCE_SECONDS)

    trio.run(main)
    writer.finish()
    rows = list(read_rows(tmp_path / "run"))
    puts = [row for row in rows if row["op"] == "put"]
    assert len(puts) >= 8
    assert {(row["acknowledge"], row["status"]) for row in puts} == {(word, status)}
    assert all(bool(row.get("accepted_index")) == (word == "leader") for row in puts)
    assert all(bool(row.get("acknowledged_by")) == (word == "in_sync") for row in puts)
    assert all("acknowledge" not in row for row in rows if row["op"] == "get")
    clients = [row["client"] for row in rows if row["status"] == "unknown"]
    assert len(clients) == len(set(clients))  # An unknown write stays open, so its client does nothing more.


def test_min_in_sync_is_one_more_than_a_majority() -> None:
    assert [min_in_sync_of(nodes) for nodes in (1, 2, 3, 4, 5, 9)] == [1, 2, 3, 4, 4, 6]


def test_only_the_newest_accepted_entries_are_kept_until_they_are_decided() -> None:
    accepted = AcceptedWrites()
    for index in range(ACCEPTED_KEPT_MAX + 10):
        accepted.open.append(Accepted(index, 1))
    assert [accepted.open[0].index, len(accepted.open)] == [10, ACCEPTED_KEPT_MAX]
    accepted.decided(Accepted(10, 1))
    accepted.decided(Accepted(11, 2))
    assert [accepted.open[0].index, len(accepted.open)] == [11, ACCEPTED_KEPT_MAX - 1]


def recorded(folder: Path, levels: dict[Command, Acknowledge], store: Client | None = None) -> list[Row]:
    """The rows of these writes and of the queries about the outcomes of accepted writes. Each write has a client of its
    own."""
    writer = RunWriter(folder / "run", run_id="r1", clock=RunClock(), ops_format="jsonl", about={})

    async def carry_out(store: Client) -> None:
        accepted = AcceptedWrites()
        for number, (command, level) in enumerate(levels.items()):
            worker = Worker(store, f"c{number}", count())
            known: Row = {"client": worker.client, **asked(command)}
            await record_write(writer, worker, command, level, known, PATIENCE_SECONDS, accepted)
        for entry in list(accepted.open):
            await ask_outcome(writer, Worker(store, "settler", count()), entry, accepted, PATIENCE_SECONDS)
        assert not accepted.open

    async def main() -> None:
        with trio.fail_after(20):
            if store is not None:
                await carry_out(store)
                return
            async with open_node(folder / "data", bootstrap=True) as one:
                await carry_out(one)

    trio.run(main)
    writer.finish()
    return list(read_rows(folder / "run"))


def test_the_row_of_a_write_has_its_level_and_what_its_answer_says(tmp_path: Path) -> None:
    """The test makes every kind of write of the load, at every level but MAJORITY, on a real store."""
    txn = Txn((Compare(b"d", Target.VERSION, Comparison.EQUAL, 0),), (Put(b"d", b"4"),), ())
    rows = recorded(
        tmp_path,
        {
            Put(b"a", b"1"): Acknowledge.IN_SYNC,
            Put(b"b", b"2"): Acknowledge.LEADER,
            CompareAndSet(b"a", b"3", b"1"): Acknowledge.IN_SYNC,
            txn: Acknowledge.LEADER,
            Delete(b"a"): Acknowledge.NONE,
        },
    )
    in_sync, leader, compared, transaction, none, *questions = cast("list[dict[str, Any]]", rows)

    assert (in_sync["acknowledge"], in_sync["status"], in_sync["acknowledged_by"]) == ("in_sync", "ok", ["s1"])
    assert in_sync["output"] == {"succeeded": True}
    assert "under_replicated" not in in_sync
    assert (compared["status"], compared["output"], compared["revision"]) == ("ok", {"succeeded": True}, 4)
    for row in (leader, transaction):
        assert (row["acknowledge"], row["status"], row["return_ns"]) == ("leader", "unknown", None)
        assert row["accepted_index"] > 0
        assert row["accepted_term"] == 1
        assert "output" not in row
    assert (none["acknowledge"], none["status"]) == ("none", "unknown")
    assert "accepted_index" not in none
    assert [json.loads(row["request"]) for row in questions] == [
        {"index": row["accepted_index"], "term": row["accepted_term"]} for row in (leader, transaction)
    ]
    assert [json.loads(row["output"]["answer"]) for row in questions] == [{"outcome": "committed"}] * 2
    assert {(row["op"], row["status"], row["client"]) for row in questions} == {("outcome", "ok", "settler.0")}


class _UnderReplicatingStore:
    """A stand-in for a client. Every put ends with UnderReplicated."""

    async def put(self, key: bytes, value: bytes, **options: object) -> PutResult:
        raise UnderReplicated(PutResult(7, acknowledged_by=("n1", "n2")), ("n1", "n2"), 3)


def test_an_under_replicated_write_has_taken_effect(tmp_path: Path) -> None:
    store = cast(Client, _UnderReplicatingStore())
    (row,) = recorded(tmp_path, {Put(b"a", b"1"): Acknowledge.IN_SYNC}, store)
    assert (row["status"], row["revision"], row["output"]) == ("ok", 7, {"succeeded": True})
    assert (row["acknowledged_by"], row["under_replicated"]) == (["n1", "n2"], True)


def test_a_file_without_levels_has_the_columns_that_it_had_before(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from harness.recording.parquet import SCHEMA, ParquetFiles

    plain: Row = {"run_id": "r1", "op_id": 0, "op": "put", "status": "unknown", "return_ns": None}
    leveled = plain | {"op_id": 1, "acknowledge": "leader", "accepted_index": 4, "accepted_term": 2}
    held = plain | {"op_id": 2, "acknowledge": "in_sync", "acknowledged_by": ["n1"], "under_replicated": True}
    files = ParquetFiles(tmp_path, rows_max=1)
    files.add(plain)
    files.flush()
    files.add(leveled)
    files.add(held)
    files.close()

    first, second = sorted(tmp_path.glob("*.parquet"))
    assert parquet.read_schema(first) == SCHEMA
    assert set(parquet.read_schema(second).names) - set(SCHEMA.names) == {
        "acknowledge", "acknowledged_by", "under_replicated", "accepted_index", "accepted_term",
    }  # fmt: skip
    from harness.recording.parquet import read_parquet

    assert [*read_parquet(first), *read_parquet(second)] == [plain, leveled, held]
