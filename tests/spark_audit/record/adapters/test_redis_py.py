"""redis-py, with a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from harness.cluster.ports import free_ports
from spark_audit.record import BadSetting, NotRecorded, Recorder
from spark_audit.record.adapters import RecordedRedis, recorded_redis
from tests.spark_audit.record.helpers import ROOT, checked, rows_of, verdict_of
from tests.spark_audit.record.redis_server import running_redis

pytestmark = pytest.mark.process

CLIENTS = 4
CALLS = 60


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with running_redis(tmp_path) as url:
        yield url


@contextlib.contextmanager
def client_of(url: str, **options: Any) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)
    with client:
        yield client
        client.connection_pool.disconnect()


@pytest.fixture
def plain(url: str) -> Iterator[redis.Redis]:
    with client_of(url) as client:
        yield client


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "history", values="plain") as recorder:
        yield recorder


def outcomes(recorder: Recorder) -> list[tuple[Any, ...]]:
    """The rows in the order of their calls: operation, status, error, output."""
    recorder.flush()
    rows = sorted(rows_of(recorder.folder), key=lambda row: row["op_id"])
    return [(row["op"], row["status"], row.get("error"), row.get("output")) for row in rows]


def arguments(random: Random, name: str, number: int) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A random call: its name, its arguments and its options."""
    key, value = random.choice(("a", "b")), f"{name}-{number}"
    return random.choice(
        [
            ("get", (key,), {}),
            ("get", (key,), {}),
            ("set", (key, value), {}),
            ("set", (key, value), {"nx": True}),
            ("set", (key, value), {"nx": True, "get": True}),
            ("set", (key, value), {"xx": True}),
            ("set", (key, value), {"xx": True, "get": True}),
            ("set", (key, number), {"get": True}),
            ("delete", (key,), {}),
        ]
    )


@pytest.mark.parametrize("decode", [False, True])
def test_threads_see_a_linearizable_store(decode: bool, url: str, recorder: Recorder) -> None:
    def work(name: str) -> None:
        random = Random(name)
        for number in range(CALLS):
            call, given, options = arguments(random, name, number)
            getattr(store, call)(*given, **options)

    with client_of(url, decode_responses=decode) as client:
        store = recorded_redis(recorder, client)
        threads = [threading.Thread(target=work, args=(f"client-{each}",)) for each in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    recorder.close()

    verdict = verdict_of(recorder.folder)
    assert (verdict["status"], verdict["operations"]) == ("linearizable", CLIENTS * CALLS)
    clients = {row["client"].split()[0] for row in rows_of(recorder.folder)}
    assert clients == {thread.name.split()[0] for thread in threads}


def test_tasks_see_a_linearizable_store(url: str, recorder: Recorder) -> None:
    async def work(store: Any, name: str) -> None:
        random = Random(name)
        for number in range(CALLS):
            call, given, options = arguments(random, name, number)
            await getattr(store, call)(*given, **options)

    async def main() -> None:
        client = redis.asyncio.Redis.from_url(url, retry=redis.asyncio.retry.Retry(NoBackoff(), 0))
        store = recorded_redis(recorder, client)
        await asyncio.gather(*(work(store, f"client-{each}") for each in range(CLIENTS)))
        await client.aclose()

    asyncio.run(main())
    recorder.close()

    verdict = verdict_of(recorder.folder)
    assert (verdict["status"], verdict["operations"]) == ("linearizable", CLIENTS * CALLS)
    assert len({row["client"] for row in rows_of(recorder.folder)}) == CLIENTS


def test_each_command_is_the_operation_that_it_means(plain: redis.Redis, recorder: Recorder) -> None:
    store = recorded_redis(recorder, plain, client="c")

    returned = [
        store.set("k", "v", xx=True),
        store.set("k", 1, nx=True),
        store.set("k", "2", nx=True),
        store.set(b"k", "3", nx=True, get=True),
        store.set("k", "4", xx=True, get=True),
        store.set("k", "5", get=True),
        store.get("k"),
        store.delete("k"),
        store.delete("k"),
        store.get("k"),
    ]

    assert returned == [None, True, None, b"1", b"1", b"4", b"5", 1, 0, None]
    assert outcomes(recorder) == [
        ("put", "fail", "Absent", None),
        ("cas", "ok", None, {"succeeded": True}),
        ("cas", "ok", None, {"succeeded": False, "found": True}),
        ("cas", "ok", None, {"succeeded": False, "found": True, "value": "1"}),
        ("put", "ok", None, {"succeeded": True}),
        ("put", "ok", None, {"succeeded": True}),
        ("get", "ok", None, {"found": True, "value": "5"}),
        ("delete", "ok", None, {"found": True}),
        ("delete", "ok", None, {"found": False}),
        ("get", "ok", None, {"found": False}),
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.incr("n"),
        lambda store: store.eval("return 1", 0),
        lambda store: store.pipeline(),
        lambda store: store.expire("k", 1),
        lambda store: store.set("k", "v", 10),
        lambda store: store.set("k", "v", ex=10),
        lambda store: store.delete("a", "b"),
        lambda store: store.delete(),
    ],
)
def test_a_call_that_no_row_can_state_is_refused_and_not_sent(
    call: Callable[[RecordedRedis], Any], plain: redis.Redis, recorder: Recorder
) -> None:
    with pytest.raises(NotRecorded):
        call(recorded_redis(recorder, plain))

    assert (plain.dbsize(), outcomes(recorder)) == (0, [])


def test_clients_that_would_send_a_write_twice_are_refused(url: str, recorder: Recorder) -> None:
    clients: tuple[Any, ...] = (
        redis.Redis.from_url(url, retry=Retry(NoBackoff(), 1)),
        redis.Redis.from_url(url, retry=None, retry_on_timeout=True),
        redis.asyncio.Redis.from_url(url, retry=redis.asyncio.retry.Retry(NoBackoff(), 3)),
    )
    for client in clients:
        with pytest.raises(BadSetting, match="sends a command again after an error"):
            recorded_redis(recorder, client)


def test_other_objects_are_refused(plain: redis.Redis, recorder: Recorder) -> None:
    others: tuple[Any, ...] = (plain.pipeline(), None, {})
    for other in others:
        with pytest.raises(BadSetting, match=r"give a redis\.Redis"):
            recorded_redis(recorder, other)


def test_a_server_that_refuses_a_write_has_certainly_not_done_it(plain: redis.Redis, recorder: Recorder) -> None:
    store = recorded_redis(recorder, plain, client="c")
    plain.rpush("list", "1")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        store.set("list", "v", get=True)
    plain.config_set("maxmemory", "1")
    with pytest.raises(redis.OutOfMemoryError):
        store.set("k", "v")
    plain.config_set("maxmemory", "0")
    plain.config_set("min-replicas-to-write", "1")
    with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
        store.delete("k")
    plain.replicaof("127.0.0.1", "1")
    with pytest.raises(redis.ReadOnlyError):
        store.set("k", "v", nx=True)
    with pytest.raises(redis.DataError):
        store.set("k", "v", nx=True, xx=True)

    assert [each[:3] for each in outcomes(recorder)] == [
        ("put", "fail", "ResponseError"),
        ("put", "fail", "OutOfMemoryError"),
        ("delete", "fail", "ResponseError"),
        ("cas", "fail", "ReadOnlyError"),
        ("cas", "fail", "DataError"),
    ]


def test_an_error_without_a_word_of_its_own_leaves_a_write_unknown(tmp_path: Path, recorder: Recorder) -> None:
    """A proxy also answers with the word ERR when it has lost its server."""
    (tmp_path / "other").mkdir()
    with (
        running_redis(tmp_path / "other", "--rename-command", "SET", "") as url,
        client_of(url) as client,
        pytest.raises(redis.ResponseError, match="unknown command"),
    ):
        recorded_redis(recorder, client).set("k", "v")

    assert [each[:3] for each in outcomes(recorder)] == [("put", "unknown", "ResponseError")]


def test_a_refused_connection_is_certain(recorder: Recorder) -> None:
    (port,) = free_ports(1)
    address = f"redis://127.0.0.1:{port}"

    async def ask() -> None:
        client = redis.asyncio.Redis.from_url(address, retry=redis.asyncio.retry.Retry(NoBackoff(), 0))
        with pytest.raises(redis.ConnectionError):
            await recorded_redis(recorder, client).set("k", "v")
        await client.aclose()

    with client_of(address) as client, pytest.raises(redis.ConnectionError):
        recorded_redis(recorder, client).set("k", "v")
    asyncio.run(ask())

    assert outcomes(recorder) == [("put", "fail", "ConnectionError", None)] * 2


def test_time_outs_and_lost_connections_leave_writes_unknown(url: str, plain: redis.Redis, recorder: Recorder) -> None:
    plain.client_pause(60_000, all=False)  # Writes wait in the server.
    with client_of(url, socket_timeout=0.01) as hasty, pytest.raises(redis.TimeoutError):
        recorded_redis(recorder, hasty, client="c").set("k", "v")

    def cut() -> None:
        clients: Any = plain.client_list()
        while not any(each["cmd"] == "del" for each in clients):
            clients = plain.client_list()
        plain.client_kill_filter(_type="normal", skipme=True)

    cutting = threading.Thread(target=cut)
    cutting.start()
    with client_of(url) as client, pytest.raises(redis.ConnectionError):
        recorded_redis(recorder, client, client="c").delete("k")
    cutting.join()

    assert [each[:3] for each in outcomes(recorder)] == [
        ("put", "unknown", "TimeoutError"),
        ("delete", "unknown", "ConnectionError"),
    ]


def test_a_write_that_takes_effect_after_its_time_out_is_no_violation(
    url: str, plain: redis.Redis, recorder: Recorder
) -> None:
    information: Any = plain.info("server")
    store = recorded_redis(recorder, plain, client="patient")
    with client_of(url, socket_timeout=0.01) as hasty:
        hasty.ping()  # Now it is connected.
        os.kill(information["process_id"], signal.SIGSTOP)
        try:
            with pytest.raises(redis.TimeoutError):
                recorded_redis(recorder, hasty, client="hasty").set("k", "v")
        finally:
            os.kill(information["process_id"], signal.SIGCONT)
    while store.get("k") != b"v":
        pass
    recorder.close()

    assert verdict_of(recorder.folder)["status"] == "linearizable"


def test_a_cancelled_task_leaves_its_write_unknown(url: str, plain: redis.Redis, recorder: Recorder) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis.from_url(url, retry=redis.asyncio.retry.Retry(NoBackoff(), 0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await recorded_redis(recorder, client).set("k", "v")
        await client.aclose()

    plain.client_pause(60_000, all=False)
    asyncio.run(main())

    assert [each[:3] for each in outcomes(recorder)] == [("put", "unknown", "CancelledError")]


def test_reads_of_a_replica_that_is_behind_are_a_violation(tmp_path: Path, recorder: Recorder) -> None:
    """Writes go to the primary and reads to a replica, as with `read_from_replicas`; then replication stops."""
    (port,) = free_ports(1)
    (tmp_path / "primary").mkdir()
    (tmp_path / "replica").mkdir()
    listens = ("--port", str(port), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0")
    with (
        running_redis(tmp_path / "primary", *listens) as primary_url,
        running_redis(tmp_path / "replica", "--replicaof", f"127.0.0.1 {port}") as replica_url,
        client_of(primary_url) as primary,
        client_of(replica_url) as replica,
    ):
        writes = recorded_redis(recorder, primary, client="writer")
        reads = recorded_redis(recorder, replica, client="reader")
        for number in range(10):
            writes.set("color", f"old-{number}")
        assert primary.wait(1, 60_000) == 1
        assert reads.get("color") == b"old-9"
        replica.replicaof("127.0.0.1", "1")  # Nothing listens there, so the replica keeps what it has.
        for number in range(10):
            writes.set("color", f"new-{number}")
            reads.get("color")
    recorder.close()

    assert checked(recorder.folder).exit_code == 3
    (violation, *_) = verdict_of(recorder.folder)["violations"]
    assert len(violation["operations"]) <= 4


def test_a_restart_without_a_log_loses_acknowledged_writes(tmp_path: Path, recorder: Recorder) -> None:
    with running_redis(tmp_path) as url, client_of(url) as client:
        store = recorded_redis(recorder, client)
        for number in range(10):
            store.set("color", f"v-{number}")
    with running_redis(tmp_path) as url, client_of(url) as client:
        assert recorded_redis(recorder, client).get("color") is None
    recorder.close()

    assert checked(recorder.folder).exit_code == 3
    (violation, *_) = verdict_of(recorder.folder)["violations"]
    assert len(violation["operations"]) <= 4


def test_a_kill_with_a_synced_log_is_linearizable(tmp_path: Path, recorder: Recorder) -> None:
    """The clients go on through the kill. Some of their writes are unknown, and some of these took effect."""
    synced = ("--appendonly", "yes", "--appendfsync", "always")
    is_up, done, succeeded = threading.Event(), threading.Event(), threading.Semaphore(0)

    def work(name: str) -> None:
        random = Random(name)
        with client_of(f"unix://{tmp_path / 'socket'}") as client:
            store = recorded_redis(recorder, client)
            for number in count():
                is_up.wait()
                if done.is_set():
                    return
                call, given, options = arguments(random, name, number)
                try:
                    getattr(store, call)(*given, **options)
                except redis.ConnectionError:
                    continue
                succeeded.release()

    threads = [threading.Thread(target=work, args=(f"client-{each}",)) for each in range(CLIENTS)]
    try:
        for _ in range(3):
            with running_redis(tmp_path, *synced):
                is_up.set()
                for thread in threads:
                    if thread.ident is None:
                        thread.start()
                for _ in range(CLIENTS * CALLS):
                    succeeded.acquire()
                is_up.clear()
    finally:
        done.set()
        is_up.set()
    for thread in threads:
        thread.join()
    recorder.close()

    assert verdict_of(recorder.folder)["status"] == "linearizable"


def test_a_lost_update_is_linearizable(plain: redis.Redis, recorder: Recorder) -> None:
    """Two clients read, and then both write: the store did what it was asked to do."""
    one, two = (recorded_redis(recorder, plain, client=name) for name in ("one", "two"))
    one.set("n", 0)
    first, second = int(one.get("n")), int(two.get("n"))
    one.set("n", first + 1)
    two.set("n", second + 1)
    assert one.get("n") == b"1"
    recorder.close()

    assert verdict_of(recorder.folder)["status"] == "linearizable"


def test_the_chapter_needs_no_client_library() -> None:
    script = (
        "import sys; sys.modules.update(redis=None, psycopg=None, etcd3gw=None)\n"
        "from spark_audit.record import MissingLibrary, Recorder\n"
        "from spark_audit.record.adapters import recorded_redis\n"
        "try: recorded_redis(None, None)\n"
        "except MissingLibrary as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert "pip install 'redis>=6,<8'" in done.stdout


def test_the_guide_leads_to_the_verdict_linearizable(url: str, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "record-with-adapters.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)

    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "REDIS_URL": url}, timeout=60, check=True
    )

    assert "hwm-audit check history\n" in guide
    verdict = verdict_of(tmp_path / "history")
    assert (verdict["status"], verdict["operations"]) == ("linearizable", 800)
