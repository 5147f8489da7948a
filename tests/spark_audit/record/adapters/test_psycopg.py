"""psycopg, with a real PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg import errors

from spark_audit.record import BadAnswer, BadSetting, Recorder
from spark_audit.record.adapters import RecordedTable, recorded_table
from tests.spark_audit.record.helpers import checked, rows_of, verdict_of
from tests.spark_audit.record.postgresql_server import running_postgresql, running_standby

pytestmark = pytest.mark.process

CLIENTS = 4
CALLS = 60
LEVELS = ("read committed", "repeatable read", "serializable")
numbers = count(1)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The connection string of a server that the tests of this file share."""
    with running_postgresql(tmp_path_factory.mktemp("postgresql") / "server") as address:
        yield address


@pytest.fixture
def connection(address: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


@pytest.fixture
def table(connection: psycopg.Connection) -> str:
    """The name of an empty table that only this test uses."""
    name = f"registers_{next(numbers)}"
    made_table(connection, name)
    return name


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with Recorder(tmp_path / "history", values="plain") as recorder:
        yield recorder


def made_table(connection: psycopg.Connection, name: str, kind: str = "text") -> None:
    connection.execute(f"CREATE TABLE {name} (key {kind} PRIMARY KEY, value {kind})".encode())


def outcomes(recorder: Recorder) -> list[tuple[Any, ...]]:
    """The rows in the order of their calls: operation, status, error, output."""
    recorder.flush()
    rows = sorted(rows_of(recorder.folder), key=lambda row: row["op_id"])
    return [(row["op"], row["status"], row.get("error"), row.get("output")) for row in rows]


class Caller:
    """Draws calls, of which some compare with the value that was read last."""

    def __init__(self, name: str) -> None:
        self._name, self._random, self._read = name, Random(name), "none"

    def call(self, number: int) -> tuple[str, tuple[Any, ...]]:
        key, value = self._random.choice("ab"), f"{self._name}-{number}"
        calls: list[tuple[str, tuple[Any, ...]]] = [("get", (key,)), ("put", (key, value)), ("delete", (key,))]
        calls += [("cas", (key, self._read, value)), ("cas", (key, None, value))]
        return self._random.choice([*calls, calls[0], calls[3]])

    def saw(self, name: str, returned: Any) -> None:
        if name == "get":
            self._read = returned or "none"


@pytest.mark.parametrize("level", LEVELS)
def test_threads_see_a_linearizable_store(level: str, address: str, table: str, recorder: Recorder) -> None:
    def work(name: str) -> None:
        options = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
        with psycopg.connect(address, autocommit=True, options=options) as connection:
            rows, caller = recorded_table(recorder, connection, table), Caller(name)
            for number in range(CALLS):
                call, given = caller.call(number)
                try:
                    caller.saw(call, getattr(rows, call)(*given))
                except errors.SerializationFailure:
                    assert level != "read committed"

    threads = [threading.Thread(target=work, args=(f"client-{each}",)) for each in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()

    verdict = verdict_of(recorder.folder)
    assert (verdict["status"], len(rows_of(recorder.folder))) == ("linearizable", CLIENTS * CALLS)


def test_tasks_see_a_linearizable_store(address: str, table: str, recorder: Recorder) -> None:
    async def work(name: str) -> None:
        async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
            rows, caller = recorded_table(recorder, connection, table), Caller(name)
            for number in range(CALLS):
                call, given = caller.call(number)
                caller.saw(call, await getattr(rows, call)(*given))

    async def main() -> None:
        await asyncio.gather(*(work(f"client-{each}") for each in range(CLIENTS)))

    asyncio.run(main())
    recorder.close()

    assert verdict_of(recorder.folder)["status"] == "linearizable"
    assert len({row["client"] for row in rows_of(recorder.folder)}) == CLIENTS


@pytest.mark.parametrize("kind", ["text", "bytea"])
def test_each_call_returns_and_records_what_the_store_did(
    kind: str, connection: psycopg.Connection, recorder: Recorder
) -> None:
    def given(text: str) -> Any:
        return text if kind == "text" else text.encode()

    connection.execute("CREATE SCHEMA IF NOT EXISTS shop")
    connection.row_factory = psycopg.rows.dict_row  # type: ignore[assignment]
    name = f"shop.each_call_{kind}"
    made_table(connection, name, kind)
    rows: Any = recorded_table(recorder, connection, name, client="c")
    key = given("k")

    returned = [
        rows.get(key),
        rows.cas(key, given("1"), given("2")),
        rows.cas(key, None, given("1")),
        rows.cas(key, None, given("2")),
        rows.cas(key, given("1"), given("3")),
        rows.cas(key, given("1"), given("4")),
        rows.put(key, given("5")),
        rows.get(key),
        rows.delete(key),
        rows.delete(key),
    ]

    assert returned == [None, False, True, False, True, False, None, given("5"), True, False]
    assert outcomes(recorder) == [
        ("get", "ok", None, {"found": False}),
        ("cas", "ok", None, {"succeeded": False, "found": False}),
        ("cas", "ok", None, {"succeeded": True}),
        ("cas", "ok", None, {"succeeded": False, "found": True}),
        ("cas", "ok", None, {"succeeded": True}),
        ("cas", "ok", None, {"succeeded": False, "found": True, "value": "3"}),
        ("put", "ok", None, {"succeeded": True}),
        ("get", "ok", None, {"found": True, "value": "5"}),
        ("delete", "ok", None, {"found": True}),
        ("delete", "ok", None, {"found": False}),
    ]


def test_a_connection_whose_statements_do_not_commit_is_refused(
    address: str, connection: psycopg.Connection, table: str, recorder: Recorder
) -> None:
    with psycopg.connect(address) as other, pytest.raises(BadSetting, match="autocommit=False"):
        recorded_table(recorder, other, table)
    rows = recorded_table(recorder, connection, table)
    with connection.transaction(), pytest.raises(BadSetting, match="in a transaction"):
        rows.put("k", "v")
    with connection.pipeline(), pytest.raises(BadSetting, match="pipeline"):
        rows.get("k")
    not_a_connection: Any = None
    with pytest.raises(BadSetting, match=r"give a psycopg\.Connection"):
        recorded_table(recorder, not_a_connection, table)

    assert outcomes(recorder) == []


def test_a_null_is_not_taken_for_no_row(connection: psycopg.Connection, table: str, recorder: Recorder) -> None:
    connection.execute(f"INSERT INTO {table} VALUES ('k', NULL)".encode())

    with pytest.raises(BadAnswer, match="NOT NULL"):
        recorded_table(recorder, connection, table).get("k")


@contextmanager
def locked(address: str, statement: str) -> Iterator[psycopg.Connection]:
    """A transaction that has carried out a statement, and still holds its locks."""
    with psycopg.connect(address) as holder:
        holder.execute(statement.encode())
        yield holder


def in_thread_while_waiting(connection: psycopg.Connection, call: Callable[[], Any], then: Callable[[], Any]) -> None:
    """Run `call` in a thread, and `then` as soon as PostgreSQL lets it wait for a lock."""
    thread = threading.Thread(target=call)
    thread.start()
    waits = b"SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while thread.is_alive() and connection.execute(waits).fetchone() is None:
        pass
    then()
    thread.join()


def test_an_aborted_statement_has_certainly_no_effect(
    address: str, connection: psycopg.Connection, table: str, recorder: Recorder
) -> None:
    rows = recorded_table(recorder, connection, table, client="c")
    rows.put("k", "old")
    with locked(address, f"UPDATE {table} SET value = 'new'"):
        connection.execute("SET lock_timeout = 1")
        with pytest.raises(errors.LockNotAvailable):
            rows.put("k", "v")
        connection.execute("SET lock_timeout = 0")
        connection.execute("SET statement_timeout = 1")
        with pytest.raises(errors.QueryCanceled):
            rows.delete("k")
        connection.execute("SET statement_timeout = 0")
    connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(errors.ReadOnlySqlTransaction):
        rows.put("k", "v")
    with pytest.raises(errors.UndefinedTable):
        recorded_table(recorder, connection, "no_table", client="c").put("k", "v")
    connection.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        rows.put("k", "v")

    assert [each[:3] for each in outcomes(recorder)[1:]] == [
        ("put", "fail", "LockNotAvailable"),
        ("delete", "fail", "QueryCanceled"),
        ("put", "fail", "ReadOnlySqlTransaction"),
        ("put", "fail", "UndefinedTable"),
        ("put", "fail", "OperationalError"),
    ]


def test_an_error_that_the_commit_reports_is_certain(connection: psycopg.Connection, recorder: Recorder) -> None:
    """The statement itself succeeds. PostgreSQL checks a deferred constraint when it commits, and aborts."""
    connection.execute("CREATE TABLE colors (name text PRIMARY KEY)")
    connection.execute(
        "CREATE TABLE deferred (key text PRIMARY KEY, value text REFERENCES colors DEFERRABLE INITIALLY DEFERRED)"
    )
    rows = recorded_table(recorder, connection, "deferred")
    with pytest.raises(errors.ForeignKeyViolation):
        rows.put("k", "no color")

    assert rows.get("k") is None
    assert outcomes(recorder)[0][:3] == ("put", "fail", "ForeignKeyViolation")


def test_a_serialization_failure_is_certain(
    address: str, connection: psycopg.Connection, table: str, recorder: Recorder
) -> None:
    with psycopg.connect(address, autocommit=True) as other:
        other.execute("SET default_transaction_isolation = 'repeatable read'")
        rows = recorded_table(recorder, other, table)
        rows.put("k", "old")

        def write() -> None:
            with pytest.raises(errors.SerializationFailure):
                rows.put("k", "v")

        with locked(address, f"UPDATE {table} SET value = 'new'") as holder:
            in_thread_while_waiting(connection, write, holder.commit)

    assert outcomes(recorder)[1][:3] == ("put", "fail", "SerializationFailure")


def test_a_comparison_that_met_another_write_says_nothing_about_the_value(
    address: str, connection: psycopg.Connection, table: str, recorder: Recorder
) -> None:
    """The row has the expected value when the statement begins, and another one when its turn comes."""
    with psycopg.connect(address, autocommit=True) as other:
        rows = recorded_table(recorder, other, table)
        rows.put("k", "old")
        returned: list[bool] = []
        with locked(address, f"UPDATE {table} SET value = 'new'") as holder:
            in_thread_while_waiting(connection, lambda: returned.append(rows.cas("k", "old", "v")), holder.commit)

    assert returned == [False]
    assert outcomes(recorder)[1] == ("cas", "fail", "Changed", None)


def test_a_lost_connection_leaves_a_write_unknown(
    address: str, connection: psycopg.Connection, table: str, recorder: Recorder
) -> None:
    with psycopg.connect(address, autocommit=True) as other:
        rows = recorded_table(recorder, other, table)
        rows.put("k", "old")

        def write() -> None:
            with pytest.raises(psycopg.OperationalError):
                rows.put("k", "v")

        with locked(address, f"UPDATE {table} SET value = 'new'"):
            pid = other.info.backend_pid
            in_thread_while_waiting(
                connection, write, lambda: connection.execute("SELECT pg_terminate_backend(%s)", [pid])
            )

    assert outcomes(recorder)[1][:3] == ("put", "unknown", "AdminShutdown")


def test_reads_of_a_standby_that_is_behind_are_a_violation(
    tmp_path: Path, address: str, connection: psycopg.Connection, table: str, recorder: Recorder
) -> None:
    with (
        running_standby(tmp_path / "standby", address) as standby_address,
        psycopg.connect(standby_address, autocommit=True) as standby,
    ):
        standby.execute("SELECT pg_wal_replay_pause()")
        while standby.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() != ("paused",):
            pass
        writes = recorded_table(recorder, connection, table, client="writer")
        reads = recorded_table(recorder, standby, table, client="reader")
        for number in range(10):
            writes.put("color", f"new-{number}")
            assert reads.get("color") is None
    recorder.close()

    assert checked(recorder.folder).exit_code == 3
    (violation, *_) = verdict_of(recorder.folder)["violations"]
    assert len(violation["operations"]) <= 4


def test_a_lost_update_is_linearizable(connection: psycopg.Connection, table: str, recorder: Recorder) -> None:
    """Two clients read, and then both write: at `read committed` nothing else is promised, and each row is atomic."""
    one, two = (recorded_table(recorder, connection, table, client=name) for name in ("one", "two"))
    one.put("n", "0")
    first, second = int(one.get("n")), int(two.get("n"))
    one.put("n", str(first + 1))
    two.put("n", str(second + 1))
    assert one.get("n") == "1"
    recorder.close()

    assert isinstance(one, RecordedTable)
    assert verdict_of(recorder.folder)["status"] == "linearizable"
