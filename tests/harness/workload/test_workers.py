"""Clients that keep several operations open at a time, and a history that the audit can still read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TypeVar

import pytest
import trio
import trio.testing

from harness.recording.clock import RunClock
from harness.recording.history import Row, RunWriter, read_rows
from harness.workload import workers
from harness.workload.workers import Workload
from kvstore import (
    Acknowledge,
    Answer,
    Command,
    GetResult,
    OperationFailed,
    OutcomeUnknown,
    PutResult,
    Result,
    StoreError,
    Unavailable,
)

ResultT = TypeVar("ResultT")
ENDS: tuple[StoreError | None, ...] = (None, Unavailable("nobody leads"), OutcomeUnknown("it broke"))


class AStore:
    """A stand-in for a client. Each operation takes 10 ms, and the operations end in three ways in turn."""

    open_max = 0
    bulk_sizes: ClassVar[Counter[int]] = Counter()

    def __init__(self, endpoints: Sequence[str], *, tls: None) -> None:
        self._open = self._asked = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._open == 0, "a client was closed under an operation"

    async def execute(self, command: Command, **options: object) -> Answer[Result]:
        self._open += 1
        AStore.open_max = max(AStore.open_max, self._open)
        await trio.sleep(0.01)
        self._open -= 1
        raise self._next_end() or Unavailable("nobody leads")

    async def put_many(
        self, items: Iterable[tuple[bytes, bytes]], *, acknowledge: Acknowledge, deadline_seconds: float
    ) -> list[PutResult | OperationFailed | OutcomeUnknown]:
        assert acknowledge is Acknowledge.MAJORITY
        return [self._ended(PutResult(7)) for _ in await self._taken(items)]

    async def get_many(
        self, keys: Iterable[bytes], *, deadline_seconds: float
    ) -> list[GetResult | OperationFailed | OutcomeUnknown]:
        return [self._ended(GetResult(7, None, 0, True)) for _ in await self._taken(keys)]

    async def _taken(self, items: Iterable[object]) -> list[object]:
        taken = list(items)
        AStore.bulk_sizes[len(taken)] += 1
        await trio.sleep(0.01)
        return taken

    def _ended(self, result: ResultT) -> ResultT | OperationFailed | OutcomeUnknown:
        error = self._next_end()
        assert error is None or isinstance(error, OperationFailed | OutcomeUnknown)
        return error or result

    def _next_end(self) -> StoreError | None:
        self._asked += 1
        return ENDS[self._asked % len(ENDS)]


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunWriter]:
    monkeypatch.setattr(workers, "Client", AStore)
    AStore.open_max, AStore.bulk_sizes = 0, Counter()
    written = RunWriter(tmp_path / "run", run_id="r", clock=RunClock(), ops_format="jsonl", about={})
    yield written
    written.close()


async def rows_of(
    writer: RunWriter, *, in_flight: int = 1, bulk: int = 0, operations_per_second: float = 0.0
) -> list[Row]:
    """The rows that are recorded during one second of load."""
    load = Workload(
        writer=writer,
        endpoints=["s1"],
        seed=1,
        clients=4,
        keys=20,
        in_flight=in_flight,
        bulk=bulk,
        operations_per_second=operations_per_second,
    )
    await load.run(1.0)
    writer.finish()
    rows = list(read_rows(writer.folder))
    assert load.tally.total == len(rows) > 100
    return rows


def check_names(rows: Sequence[Row]) -> None:
    """Each value of `client` has at most one open operation at a time, and no operation after an unknown one.

    See docs/reference/specification.md#103-row.
    """
    lost: set[object] = set()
    returned: dict[object, int] = {}
    for row in sorted(rows, key=lambda row: int(str(row["op_id"]))):
        name, called = row["client"], int(str(row["call_ns"]))
        assert name not in lost, row
        assert returned.get(name, 0) <= called, row
        if row["status"] == "unknown":
            lost.add(name)
        else:
            returned[name] = int(str(row["return_ns"]))
    assert lost


async def test_a_client_with_lanes_has_as_many_operations_open_each_under_its_own_name(
    writer: RunWriter, autojump_clock: trio.testing.MockClock
) -> None:
    rows = await rows_of(writer, in_flight=5)

    assert AStore.open_max == 5
    check_names(rows)


async def test_a_rate_is_that_of_all_lanes_together(writer: RunWriter, autojump_clock: trio.testing.MockClock) -> None:
    rows = await rows_of(writer, in_flight=5, operations_per_second=200)

    assert 190 <= len(rows) <= 220


async def test_a_bulk_leaves_a_row_for_each_operation_with_its_own_end(
    writer: RunWriter, autojump_clock: trio.testing.MockClock
) -> None:
    rows = await rows_of(writer, bulk=16)

    assert set(AStore.bulk_sizes) == {16}
    check_names(rows)
    assert {row["status"] for row in rows} == {"ok", "fail", "unknown"}
    assert {row["op"] for row in rows} == {"put", "get"}
    values = [row["value"] for row in rows if row["op"] == "put"]
    assert len(set(values)) == len(values)  # A value that was read identifies the write that made it.


async def test_a_bulk_names_no_key_twice_where_there_are_enough(
    writer: RunWriter, autojump_clock: trio.testing.MockClock
) -> None:
    """Two writes of one key in a bulk would wait for each other, and the measured times would include this wait."""
    rows = await rows_of(writer, bulk=16)

    bulks = Counter((str(row["client"]).partition("-")[0], row["op"], row["key"], row["return_ns"]) for row in rows)
    assert max(count for (*_, returned), count in bulks.items() if returned is not None) == 1
