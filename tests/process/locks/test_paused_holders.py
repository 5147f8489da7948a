"""Processes that hold a lock are stopped (SIGSTOP) for longer than their lease, and then go on (SIGCONT)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from harness.recording.clock import RunClock
from harness.recording.history import RunWriter, read_rows
from harness.workload.row_fields import answered, asked
from kvstore import Client, Get, GetResult, Put, PutResult, Watch
from spark_audit import Verdict, check_rows
from tests.process.locks import lock_holder
from tests.process.servers import ServerCluster, running_cluster

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

PATIENCE_SECONDS = 60.0
"""If a condition does not become true within this time, a test fails instead of hanging."""

ROUNDS = 10
"""The number of times that a holder is stopped."""

SHOWN_MAX = 6
"""The audit may use at most this number of operations to show the lost change."""

END = b"end"
"""The value of the record after both holders have ended."""


class Holder:
    """A process that runs `lock_holder`, and the reports that it writes."""

    def __init__(self, folder: Path, cluster: ServerCluster, name: str, *arguments: str) -> None:
        self.name = name
        self._reports, self._errors = folder / f"{name}.reports", folder / f"{name}.errors"
        with self._reports.open("wb") as reports, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, lock_holder.__file__, *arguments],
                env={**os.environ, "HWM_ENDPOINTS": ",".join(cluster.endpoints)},
                stdin=subprocess.DEVNULL, stdout=reports, stderr=errors,
            )  # fmt: skip

    def reports(self, kind: str) -> list[dict[str, Any]]:
        """All reports of one kind that have come so far, in order."""
        # The last line may be incomplete, because the process still writes it.
        lines = self._reports.read_bytes().split(b"\n")[:-1]
        return [line for line in map(json.loads, lines) if line["kind"] == kind]

    @property
    def fence(self) -> int:
        """The fence of the last lock under which the process has written; 0 if it has not written."""
        return max((line["fence"] for line in self.reports("wrote")), default=0)

    def refusals(self, fence: int) -> list[str]:
        """The errors of the writes with this fence that were refused."""
        return [line["error"] for line in self.reports("refused") if line["fence"] == fence]

    async def writes_above(self, fence: int) -> int:
        """Wait until the process has written under a greater fence. Return this fence."""
        with trio.fail_after(PATIENCE_SECONDS):
            while self.fence <= fence:
                await self._runs_on()
        return self.fence

    async def is_refused(self, fence: int) -> str:
        """Wait until a write with this fence is refused. Return the text of the refusal."""
        with trio.fail_after(PATIENCE_SECONDS):
            while not self.refusals(fence):
                await self._runs_on()
        (refusal,) = self.refusals(fence)
        return refusal

    async def _runs_on(self) -> None:
        assert self._process.poll() is None, self._errors.read_text()
        await trio.sleep(0.01)

    async def is_stopped(self) -> None:
        """Wait until SIGSTOP has stopped the process."""
        with trio.fail_after(PATIENCE_SECONDS):
            while not self._has_stopped():
                await self._runs_on()

    def _has_stopped(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG) is not None

    async def pause(self) -> None:
        """Stop the process at an arbitrary point of its work."""
        self._process.send_signal(signal.SIGSTOP)
        await self.is_stopped()

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def ends(self) -> None:
        """Wait until the process has done its work."""
        with trio.fail_after(PATIENCE_SECONDS):
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        assert self._process.returncode == 0, self._errors.read_text()

    def kill(self) -> None:
        """Kill the process, even if it is stopped."""
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerCluster]:
    """Three members that all tests of this file share."""
    with running_cluster(tmp_path_factory.mktemp("members"), 3) as members:
        yield members


@contextmanager
def started(folder: Path, cluster: ServerCluster, name: str, *arguments: str) -> Iterator[Holder]:
    holder = Holder(folder, cluster, name, *arguments)
    try:
        yield holder
    finally:
        holder.kill()


async def value_of(client: Client, key: str) -> bytes:
    record = (await client.get(key)).record
    assert record is not None, key
    return record.value


async def test_a_paused_holder_never_writes_over_its_successor(tmp_path: Path, cluster: ServerCluster) -> None:
    """Two processes write one record, each while it holds the lock. In each round, the holder is stopped until the
    other process has the lock and has written. Then the stopped process continues, and its next write is refused."""
    fences: list[int] = []
    rounds = {"one": 0, "two": 0}
    async with cluster.client() as client, client.watch("record") as changes, trio.open_nursery() as nursery:
        nursery.start_soon(_note_fences, changes, fences)
        with ExitStack() as processes:
            one = processes.enter_context(started(tmp_path, cluster, "one", "write", "job", "record"))
            await one.writes_above(0)
            two = processes.enter_context(started(tmp_path, cluster, "two", "write", "job", "record"))
            while sum(rounds.values()) < ROUNDS:
                first, second = (one, two) if one.fence > two.fence else (two, one)
                if await _is_refused_after_a_pause(client, first, second):
                    rounds[first.name] += 1
        await client.put("record", END)
    assert min(rounds.values()) >= ROUNDS // 4  # Both were stopped.
    assert len(set(fences)) > ROUNDS
    assert fences == sorted(fences)


async def _note_fences(changes: Watch, fences: list[int]) -> None:
    """Note the fence of each write of the record, in the order of the store, until END is written."""
    async for change in changes:
        assert change.record is not None
        if change.record.value == END:
            return
        fences.append(int(change.record.value.split()[0]))


async def _is_refused_after_a_pause(client: Client, first: Holder, second: Holder) -> bool:
    """Do one round. Returns False if the holder lost the lock before it was stopped. On a busy machine a lease may end
    without a pause, and such a round proves nothing."""
    await first.pause()
    fence = first.fence
    if second.fence > fence or first.refusals(fence):
        first.resume()
        await second.writes_above(fence)
        return False

    successor = await second.writes_above(fence)
    assert not first.refusals(fence)
    first.resume()

    refusal = await first.is_refused(fence)
    assert re.fullmatch(
        rf"nothing was done: b'job/\w{{16}}' with create revision {fence} no longer exists, because its lease has "
        "ended or it was given up",
        refusal,
    )
    written_by, _ = (await value_of(client, "record")).split()
    assert int(written_by) >= successor
    return True


@pytest.mark.parametrize("guard", ["guarded", "unguarded"])
async def test_an_audit_shows_what_a_paused_holder_does_without_a_guard(
    tmp_path: Path, cluster: ServerCluster, guard: str
) -> None:
    """Two processes replace one record. Each process does so under the lock, which should make the read and the write
    one change. The first process is stopped between its read and its write. With a guard, this write has no effect.
    Without a guard, the change of the second process is lost."""
    name, key = f"{guard}-job", f"{guard}-record"
    writer = RunWriter(tmp_path / "run", run_id="r", clock=RunClock(), ops_format="jsonl", about={})
    async with cluster.client() as client:
        await _perform(writer, client, Put(key.encode(), b"old"))
        with started(tmp_path, cluster, "first", "replace", name, key, "resumed", "paused", guard) as first:
            await first.is_stopped()
            with started(tmp_path, cluster, "second", "replace", name, key, "successor", guard) as second:
                await second.ends()
            assert await value_of(client, key) == b"successor"
            first.resume()
            await first.ends()
        await _perform(writer, client, Get(key.encode()))
        assert await value_of(client, key) == (b"successor" if guard == "guarded" else b"resumed")
    for holder in (first, second):
        for row in holder.reports("row"):
            writer.end(writer.call({"client": holder.name, **row["called"]}), **row["ended"])
    writer.finish()

    verdict = check_rows(read_rows(tmp_path / "run"))

    assert (verdict.properties["locks"].checked, verdict.properties["locks"].violated) == (2, 0)
    if guard == "guarded":
        assert verdict.status == "linearizable", verdict.to_json()
        assert verdict.failed == 1
    else:
        _shows_the_lost_change(verdict, key)


def _shows_the_lost_change(verdict: Verdict, key: str) -> None:
    assert verdict.status == "violation"
    (violation,) = verdict.violations
    assert (violation.property, violation.key) == ("keys", key)
    assert len(violation.operations) <= SHOWN_MAX
    assert {"first", "second"} <= {operation.client for operation in violation.operations}


async def _perform(writer: RunWriter, client: Client, command: Put | Get) -> None:
    """Carry out one operation of the test itself, and record it."""
    op_id = writer.call({"client": "test", **asked(command), "call_ns": writer.clock.now_ns()})
    answer = await client.execute(command)
    assert isinstance(answer.result, PutResult | GetResult)
    writer.end(
        op_id,
        status="ok",
        return_ns=writer.clock.now_ns(),
        output=answered(answer.result),
        revision=answer.revision,
    )
