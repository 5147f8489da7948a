"""A client with a recorder, in each world: `hwm-audit check` judges what it saw, and gaps are no violations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

import kvstore
from kvstore import Acknowledge, Compare, Comparison, Consistency, Get, OutcomeUnknown, Put, Request, Response, Target
from kvstore import Unavailable as KvUnavailable
from kvstore.client.recording.recorded_calls import RecordedPump, Recording
from kvstore.client.recording.recorder import OperationRecorder
from kvstore.protocol.commands import KIND_OF
from kvstore.protocol.messages import RequestKind, command_request, read_request
from spark_audit.record import Recorder, RecorderClosed, RecordingFailed, RecordingFull
from tests.kvstore.worlds.world import World, in_each_world
from tests.spark_audit.record.helpers import checked, rows_of, started, verdict_of

pytestmark = [pytest.mark.timeout(120)]


class Below:
    """Stands between the recording of a client and its pump, and changes answers."""

    def __init__(self, inner: Any, change: Callable[[Request, Response], Awaitable[Response]]) -> None:
        self._inner, self._change = inner, change
        self.asked: list[Request] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def ask(self, request: Request, seconds: float) -> tuple[Response, int]:
        self.asked.append(request)
        response, session_id = await self._inner.ask(request, seconds)
        return await self._change(request, response), session_id


def change_answers(client: Any, change: Callable[[Request, Response], Awaitable[Response]]) -> Below:
    """Let all answers of a recorded client pass through `change`, before they are recorded."""
    calls = getattr(getattr(client, "_inner", client), "in_thread", getattr(client, "_inner", client))
    calls._pump._pump = below = Below(calls._pump._pump, change)
    return below


def statuses(folder: Path) -> list[tuple[str, str]]:
    return [(row["op"], row["status"]) for row in rows_of(folder)]


@in_each_world
async def test_what_a_client_saw_is_linearizable(world: World, member_address: str, name: str, tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        async with world.client([member_address], record=recorder) as client:

            async def work(number: int) -> None:
                for turn in range(10):
                    await client.put(f"{name}a", f"{number} {turn}")
                    found = await client.get(f"{name}a")
                    await client.compare_and_set(f"{name}a", f"by value {number} {turn}", found.value)
                    record = (await client.get(f"{name}a", consistency="follower")).record
                    await client.compare_and_set(f"{name}a", f"by revision {turn}", record and record.mod_revision)
                    await client.compare_and_set(f"{name}b", f"if absent {number} {turn}", None)
                    await client.get(f"{name}b", consistency=Consistency.LOCAL)
                    await client.delete(f"{name}b")

            async with world.tasks() as tasks:
                for number in range(4):
                    tasks.start(work, number)
            await client.under(name).put("in a view", "1")
            assert (await client.get(f"{name}in a view")).value == b"1"
    verdict = verdict_of(tmp_path)
    assert (verdict["status"], verdict["unknown"]) == ("linearizable", 0)
    assert verdict["operations"] == 4 * 10 * 8 + 2
    assert {row["clock_id"][:5] for row in rows_of(tmp_path)} == {"boot-"}
    written = "".join(path.read_text() for path in (tmp_path / "ops").iterdir())
    assert "by value" not in written  # Values are hashed.


@in_each_world
async def test_an_old_answer_is_found(world: World, member_address: str, name: str, tmp_path: Path) -> None:
    first: list[Response] = []

    async def old(request: Request, response: Response) -> Response:
        if request.kind is not RequestKind.READ:
            return response
        first.append(response)
        return first[1] if len(first) > 1 else response  # The first read is the one before the first operation.

    with Recorder(tmp_path) as recorder:
        async with world.client([member_address], record=recorder) as client:
            change_answers(client, old)
            await client.put(name, "1")
            assert (await client.get(name)).value == b"1"
            await client.put(name, "2")
            assert (await client.get(name)).value == b"1"
    assert verdict_of(tmp_path)["status"] == "violation"


@in_each_world
async def test_values_from_before_the_recording_are_no_violation(
    world: World, member_address: str, name: str, tmp_path: Path
) -> None:
    async with world.client([member_address]) as client:
        for key in "abcd":
            await client.put(f"{name}{key}", "old")
        revision = (await client.put(f"{name}e", "old")).revision
    with Recorder(tmp_path, values="plain") as recorder:
        async with world.client([member_address], record=recorder) as client:
            await client.get(f"{name}a", consistency="local")  # Without a first read, so without a row.
            assert (await client.get(f"{name}a")).value == b"old"
            await client.get(f"{name}a", consistency="local")
            assert (await client.delete(f"{name}b")).found
            assert (await client.compare_and_set(f"{name}c", "new", "old")).succeeded
            assert not (await client.compare_and_set(f"{name}d", "new", None)).succeeded
            assert (await client.compare_and_set(f"{name}e", "new", revision)).succeeded
            assert (await client.get(f"{name}e")).value == b"new"
    rows = rows_of(tmp_path)
    assert [row["key"] for row in rows if row["clock_id"] == "preexisting"] == [f"{name}{key}" for key in "abcde"]
    verdict = verdict_of(tmp_path)
    assert (verdict["status"], verdict["operations"]) == ("linearizable", 7 + 5)


@in_each_world
async def test_a_member_that_is_older_than_the_recording_is_not_judged(
    world: World, member_address: str, name: str, tmp_path: Path
) -> None:
    """Such a member may show a value that was replaced before the recording began."""
    older: list[Response] = []

    async def old(request: Request, response: Response) -> Response:
        is_local = request.kind is RequestKind.READ and request.items[0] == Consistency.LOCAL
        return older[0]._replace(consistency=int(Consistency.LOCAL)) if is_local else response

    async with world.client([member_address]) as client:
        await client.put(name, "older")
        older.append(await client.ask(read_request(Get(name), Consistency.LINEARIZABLE)))
        await client.put(name, "old")
    with Recorder(tmp_path) as recorder:
        async with world.client([member_address], record=recorder) as client:
            change_answers(client, old)
            assert (await client.get(name)).value == b"old"
            assert (await client.get(name, consistency="local")).value == b"older"
    assert statuses(tmp_path) == [("put", "unknown"), ("get", "ok"), ("get", "fail")]
    assert verdict_of(tmp_path)["status"] == "linearizable"


@in_each_world
async def test_a_first_read_that_fails_leaves_the_key_out(
    world: World, member_address: str, name: str, tmp_path: Path
) -> None:
    async def refuse(request: Request, response: Response) -> Response:
        if request.kind is RequestKind.READ:
            raise KvUnavailable("no member answers reads", "try again")
        return response

    with Recorder(tmp_path) as recorder:
        async with world.client([member_address], record=recorder) as client:
            below = change_answers(client, refuse)
            with pytest.raises(KvUnavailable):
                await client.get(f"{name}a")
            await client.put(f"{name}b", "1")
            with pytest.raises(KvUnavailable):
                await client.put(f"{name}c", "1", deadline_seconds=1e-9)
    assert [request.kind for request in below.asked].count(RequestKind.COMMAND) == 1
    marks = b"".join(path.read_bytes() for path in (tmp_path / "recorders").glob("*.jsonl"))
    assert marks == f'{{"key":"{name}b"}}\n'.encode()
    assert rows_of(tmp_path) == []


@in_each_world
async def test_writes_without_a_row_leave_their_keys_out(
    world: World, member_address: str, name: str, tmp_path: Path
) -> None:
    with Recorder(tmp_path) as recorder:
        async with world.client([member_address], record=recorder) as client:
            keys = [
                f"{name}{key}" for key in ("txn", "add", "many", "none", "range/1", "lease", "cad", "nested", "kept")
            ]
            for key in keys:
                await client.put(key, "1")
            await client.txn([Compare(keys[0], Target.VALUE, Comparison.EQUAL, "1")], [Put(keys[0], "2")])
            await client.txn([], [kvstore.Txn((), (Put(keys[7], "2"),), ())])
            await client.add(keys[1])
            assert await client.put_many({keys[2]: "2"})
            await client.put(keys[3], "2", acknowledge=Acknowledge.IN_SYNC)
            await client.delete_range(prefix=f"{name}range/")
            appended = (await client.append(f"{name}append/", "1")).key
            await client.put(keys[5], "2", lease=(await client.lease_grant(60)).lease_id)
            await client.compare_and_delete(keys[6], "1")
            for key in (*keys, appended):
                await client.get(key)
            assert len(await client.get_many(keys)) == len(keys)
            await client.range(prefix=name)
    result = checked(tmp_path)
    assert result.exit_code == 0, result.output
    assert "7 keys and 2 ranges of keys are left out" in result.stderr
    assert verdict_of(tmp_path)["operations"] == 2  # Of the key that only puts and gets touched.


@in_each_world
async def test_recipes_of_a_recorded_client_are_no_violation(
    world: World, member_address: str, name: str, tmp_path: Path
) -> None:
    with Recorder(tmp_path) as recorder:
        async with world.client([member_address], record=recorder) as client:
            for turn in range(3):
                async with client.lock(f"{name}lock") as lock:
                    await lock.guarded().put(f"{name}guarded", f"{turn}").commit()
                    await client.put(f"{name}plain", f"{turn}")
                assert (await client.get(f"{name}guarded")).value == str(turn).encode()
                assert (await client.get(f"{name}plain")).value == str(turn).encode()
    verdict = verdict_of(tmp_path)
    assert (verdict["status"], verdict["operations"]) == ("linearizable", 6)


@in_each_world
async def test_outcomes_are_recorded(world: World, member_address: str, name: str, tmp_path: Path) -> None:
    lost: list[BaseException] = []

    async def lose(request: Request, response: Response) -> Response:
        if lost and request.kind is RequestKind.COMMAND:
            raise lost.pop()
        return response

    with Recorder(tmp_path) as recorder:
        async with world.client([member_address], record=recorder) as client:
            change_answers(client, lose)
            for error in (OutcomeUnknown("the answer was lost"), KvUnavailable("x", "y"), KeyboardInterrupt()):
                lost.append(error)
                with pytest.raises(type(error)):
                    await client.put(name, type(error).__name__)
                if isinstance(error, OutcomeUnknown):
                    assert (await client.get(name)).value == b"OutcomeUnknown"  # It has taken effect.
            with pytest.raises(kvstore.InvalidRequest):
                await client.put(name, "x", keep_lease=True, lease=1)
    assert statuses(tmp_path) == [("put", "unknown"), ("get", "ok"), ("put", "fail"), ("put", "unknown")]
    assert verdict_of(tmp_path)["status"] == "linearizable"


def test_a_cancelled_call_of_trio_is_unknown(member_address: str, name: str, tmp_path: Path) -> None:
    async def main() -> None:
        with Recorder(tmp_path) as recorder:
            async with kvstore.Client([member_address], record=recorder) as client:
                with trio.CancelScope() as scope:

                    async def cancel(request: Request, response: Response) -> Response:
                        if request.kind is RequestKind.COMMAND:
                            scope.cancel()
                            await trio.lowlevel.checkpoint()
                        return response

                    change_answers(client, cancel)
                    await client.put(name, "1")
                assert scope.cancelled_caught
                assert (await client.get(name)).value == b"1"

    trio.run(main)
    assert statuses(tmp_path) == [("put", "unknown"), ("get", "ok")]
    assert verdict_of(tmp_path)["status"] == "linearizable"


def test_a_cancelled_call_of_asyncio_is_unknown(member_address: str, name: str, tmp_path: Path) -> None:
    async def cancel(request: Request, response: Response) -> Response:
        if request.kind is RequestKind.COMMAND:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return response

    async def main() -> None:
        with Recorder(tmp_path) as recorder:
            async with kvstore.asyncio.Client([member_address], record=recorder) as client:
                change_answers(client, cancel)
                with suppress(asyncio.CancelledError):
                    await asyncio.create_task(client.put(name, "1"))
                assert (await client.get(name)).value == b"1"

    asyncio.run(main())
    assert statuses(tmp_path) == [("put", "unknown"), ("get", "ok")]
    assert verdict_of(tmp_path)["status"] == "linearizable"


@in_each_world
async def test_a_node_in_the_program_records_its_calls(world: World, tmp_path: Path) -> None:
    with Recorder(tmp_path / "history") as recorder:
        async with world.open_node(tmp_path / "node", bootstrap=True, record=recorder) as store:
            await store.put("a", "1")
            assert (await store.get("a")).value == b"1"
    assert statuses(tmp_path / "history") == [("put", "ok"), ("get", "ok")]
    assert verdict_of(tmp_path / "history")["status"] == "linearizable"


@in_each_world
async def test_a_url_takes_a_recorder(world: World, member_address: str, name: str, tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        async with world.connect(f"hwm://{member_address}/{name}", record=recorder) as client:
            await client.put("a", "1")
    assert [row["key"] for row in rows_of(tmp_path)] == [f"{name}a"]


@in_each_world
async def test_an_operation_that_the_recorder_refuses_is_not_sent(
    world: World, member_address: str, name: str, tmp_path: Path
) -> None:
    with Recorder(tmp_path, bytes_max=1) as recorder:
        async with world.client([member_address], record=recorder) as client:
            await client.put(f"{name}a", "1")
            with pytest.raises(RecordingFull):
                await client.put(f"{name}a", "2")
            recorder.close()
            with pytest.raises(RecorderClosed):
                await client.delete(f"{name}a")
    async with world.client([member_address]) as client:
        assert (await client.get(f"{name}a")).value == b"1"


@in_each_world
async def test_a_failure_of_the_recorder_does_not_lose_a_result(
    world: World, member_address: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RecordingFailed("no space left")

    with Recorder(tmp_path) as recorder:
        async with world.client([member_address], record=recorder) as client:
            with monkeypatch.context() as patch:
                patch.setattr("spark_audit.record.files.RowFile.complete", fail)
                written = await client.put(name, "1")
            assert (await client.get(name)).record.mod_revision == written.revision
    assert statuses(tmp_path) == [("put", "unknown"), ("get", "ok")]
    assert verdict_of(tmp_path)["status"] == "linearizable"


@in_each_world
async def test_keys_outside_the_sample_cost_no_request(
    world: World, member_address: str, name: str, tmp_path: Path
) -> None:
    async def same(request: Request, response: Response) -> Response:
        return response

    with Recorder(tmp_path, sample=1e-9) as recorder:
        async with world.client([member_address], record=recorder) as client:
            below = change_answers(client, same)
            await client.put(name, "1")
            await client.get(name)
    assert len(below.asked) == 2
    assert rows_of(tmp_path) == []


@in_each_world
async def test_a_client_without_a_recorder_has_no_pump_between(world: World, member_address: str) -> None:
    client = world.client([member_address])
    calls = getattr(getattr(client, "_inner", client), "in_thread", getattr(client, "_inner", client))
    assert not isinstance(calls._pump, RecordedPump)


class Marks(Recorder):
    """Notes which keys are left out."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.ranges: list[tuple[bytes, bytes | None]] = []

    def leave_out(self, key: str | bytes) -> None:
        assert isinstance(key, bytes)
        self.keys.append(key)

    def leave_out_range(self, start: str | bytes, end: str | bytes | None) -> None:
        assert isinstance(start, bytes)
        assert end is None or isinstance(end, bytes)
        self.ranges.append((start, end))


@dataclass
class NewCommand:
    """A command of a later version."""

    name: bytes


@pytest.mark.parametrize("kind", KIND_OF, ids=lambda kind: kind.__name__)
def test_somebody_has_said_which_keys_each_command_writes(kind: type[Any]) -> None:
    marks = Marks()
    written: dict[type[Any], tuple[Any, ...]] = {
        Put: (b"k", b""),
        kvstore.Delete: (b"k",),
        kvstore.CompareAndSet: (b"k", b"", b""),
        kvstore.Add: (b"k", 1),
        kvstore.Append: (b"k", b""),
        kvstore.DeleteRange: (b"k", b"l"),
        kvstore.Txn: ((), (Put(b"k", b""),)),
    }
    command = kind(*written[kind]) if kind in written else object.__new__(kind)
    Recording(marks).leave_out(command_request(command))
    expected = [(b"k", b"l")] if kind in (kvstore.Append, kvstore.DeleteRange) else []
    assert marks.ranges == expected
    assert marks.keys == ([b"k"] if kind in written and not expected else [])


def test_an_unknown_command_leaves_everything_out() -> None:
    marks = Marks()
    Recording(marks).leave_out(command_request(NewCommand(b"k")))  # type: ignore[arg-type]
    assert marks.ranges == [(b"", None)]


WRITER = """
import os, signal, sys
from kvstore.blocking import Client
from spark_audit.record import Recorder

address, folder, name, is_killed = sys.argv[1:]
recorder = Recorder(folder)
with Client([address], record=recorder) as client:
    for turn in range(30):
        client.put(name, f"{os.getpid()} {turn}")
        client.get(name)
        client.transact(lambda tx: tx.put(name + "txn", f"{turn}"))
        client.get(name + "txn")
    print("done", flush=True)
    sys.stdin.readline()
    if is_killed == "yes":
        os.kill(os.getpid(), signal.SIGKILL)
recorder.close()
"""


def test_two_processes_record_into_one_folder_and_one_is_killed(member_address: str, name: str, tmp_path: Path) -> None:
    writers = [started(WRITER, member_address, tmp_path, name, is_killed) for is_killed in ("yes", "no")]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "done\n"
    codes = []
    for writer in writers:
        writer.communicate("\n", timeout=60)
        codes.append(writer.returncode)
    assert codes == [-9, 0]
    result = checked(tmp_path)
    assert result.exit_code == 0, result.output
    assert "was killed" in result.stderr
    assert verdict_of(tmp_path)["operations"] >= 30 + 60


def test_the_recorder_has_the_methods_that_the_client_uses(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        used: OperationRecorder = recorder  # A type check.
        assert used.records(b"a")
