"""psycopg 3: the rows of a table as registers. Each call is one statement, in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from spark_audit.record.adapters.calls import Call, ClientName, library, name_of
from spark_audit.record.errors import BadAnswer, BadSetting
from spark_audit.record.recorder import Recorder

if TYPE_CHECKING:
    import psycopg

PACKAGE = "psycopg[binary]>=3.2,<4"
# Classes of SQLSTATE, and single ones, with which PostgreSQL reports that it has aborted a statement. Other states
# prove nothing: those of lost connections (08), of an ending server (57P), of internal errors (XX).
_CERTAIN_STATES = ("0A", "22", "23", "25", "40001", "40002", "40P01", "42", "55", "57014")
Text = str | bytes


@overload
def recorded_table(
    recorder: Recorder,
    connection: psycopg.Connection[Any],
    table: str,
    *,
    key: str = "key",
    value: str = "value",
    client: ClientName = None,
) -> RecordedTable: ...


@overload
def recorded_table(
    recorder: Recorder,
    connection: psycopg.AsyncConnection[Any],
    table: str,
    *,
    key: str = "key",
    value: str = "value",
    client: ClientName = None,
) -> RecordedAsyncTable: ...


def recorded_table(
    recorder: Recorder,
    connection: Any,
    table: str,
    *,
    key: str = "key",
    value: str = "value",
    client: ClientName = None,
) -> RecordedTable | RecordedAsyncTable:
    """Return an object that reads and writes the rows of a table, and records each call.

    `connection`: with autocommit. `table`: its name, or `schema.name`. `key`, `value`: columns of type `text` or
    `bytea`, both NOT NULL; the key has a unique index. `client`: the name of the client of all calls, or a function
    that returns it; None: each thread and each asyncio task is a client. The calls raise what psycopg raises, and the
    errors of the recorder. Raises BadSetting and MissingLibrary.
    """
    psycopg = library("psycopg", PACKAGE)
    if not isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        hint = "give a psycopg.Connection or a psycopg.AsyncConnection"
        raise BadSetting(f"connection is {connection!r}; {hint}")
    statements = _Statements(recorder, connection, table, key, value, client)
    statements.check()
    if isinstance(connection, psycopg.AsyncConnection):
        return RecordedAsyncTable(statements, connection)
    return RecordedTable(statements, connection)


class RecordedTable:
    """A table whose rows are recorded registers."""

    def __init__(self, statements: _Statements, connection: psycopg.Connection[Any]) -> None:
        self._statements, self._connection = statements, connection

    def get(self, key: Text) -> Any:
        """Return the value of a key, or None if there is no such row."""
        return self._execute(self._statements.get(key)).value

    def put(self, key: Text, value: Text) -> None:
        """Insert a row, or update it."""
        self._execute(self._statements.put(key, value))

    def cas(self, key: Text, expected: Text | None, value: Text) -> bool:
        """Update a row if it has the expected value; insert it if `expected` is None. Returns whether it was done."""
        return self._execute(self._statements.cas(key, expected, value)).count == 1

    def delete(self, key: Text) -> bool:
        """Delete a row. Returns whether there was one."""
        return self._execute(self._statements.delete(key)).count == 1

    def _execute(self, statement: _Statement) -> _Result:
        result: _Result = statement.call.send(self._fetch, statement)
        return result

    def _fetch(self, statement: _Statement) -> _Result:
        with self._connection.cursor(row_factory=self._statements.row_factory) as cursor:
            cursor.execute(statement.text, statement.values)
            return _result(cursor.rowcount, cursor.fetchone() if cursor.description else None)


class RecordedAsyncTable:
    """A table whose rows are recorded registers, for asyncio. Apart from that it is like RecordedTable."""

    def __init__(self, statements: _Statements, connection: psycopg.AsyncConnection[Any]) -> None:
        self._statements, self._connection = statements, connection

    async def get(self, key: Text) -> Any:
        """Do what `RecordedTable.get` does."""
        return (await self._execute(self._statements.get(key))).value

    async def put(self, key: Text, value: Text) -> None:
        """Do what `RecordedTable.put` does."""
        await self._execute(self._statements.put(key, value))

    async def cas(self, key: Text, expected: Text | None, value: Text) -> bool:
        """Do what `RecordedTable.cas` does."""
        return (await self._execute(self._statements.cas(key, expected, value))).count == 1

    async def delete(self, key: Text) -> bool:
        """Do what `RecordedTable.delete` does."""
        return (await self._execute(self._statements.delete(key))).count == 1

    async def _execute(self, statement: _Statement) -> _Result:
        result: _Result = await statement.call.send_async(self._fetch, statement)
        return result

    async def _fetch(self, statement: _Statement) -> _Result:
        async with self._connection.cursor(row_factory=self._statements.row_factory) as cursor:
            await cursor.execute(statement.text, statement.values)
            return _result(cursor.rowcount, await cursor.fetchone() if cursor.description else None)


@dataclass(frozen=True, slots=True)
class _Statement:
    """One call, and the statement that it sends."""

    call: Call
    text: Any
    values: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class _Result:
    """`count`: the rows that a statement changed or found. `value`: that of the row; None if there is no row."""

    count: int
    value: Any


def _result(count: int, row: Any) -> _Result:
    if row is None:
        return _Result(count, None)
    found, value = (1, row[0]) if len(row) == 1 else row
    return _Result(found, bytes(value) if isinstance(value, memoryview) else value)


class _Statements:
    """The statement of each operation, and what its result means for a register."""

    def __init__(
        self, recorder: Recorder, connection: Any, table: str, key: str, value: str, client: ClientName
    ) -> None:
        self._recorder, self._connection, self._client = recorder, connection, client
        self._psycopg = library("psycopg", PACKAGE)
        self.row_factory = library("psycopg.rows", PACKAGE).tuple_row
        sql = library("psycopg.sql", PACKAGE)
        names = {"t": sql.Identifier(*table.split(".")), "k": sql.Identifier(key), "v": sql.Identifier(value)}
        self._get, self._put, self._create, self._replace, self._delete = (
            sql.SQL(text).format(**names)
            for text in (
                "SELECT {v} FROM {t} WHERE {k} = %s",
                "INSERT INTO {t} ({k}, {v}) VALUES (%s, %s) ON CONFLICT ({k}) DO UPDATE SET {v} = EXCLUDED.{v}",
                "INSERT INTO {t} ({k}, {v}) VALUES (%s, %s) ON CONFLICT ({k}) DO NOTHING",
                # The last SELECT sees the rows as they were when the statement began.
                "WITH changed AS (UPDATE {t} SET {v} = %s WHERE {k} = %s AND {v} = %s RETURNING 1) "
                "SELECT (SELECT count(*) FROM changed), (SELECT {v} FROM {t} WHERE {k} = %s)",
                "DELETE FROM {t} WHERE {k} = %s",
            )
        )

    def check(self) -> None:
        """Raise BadSetting unless each statement commits by itself."""
        if not self._connection.autocommit:
            hint = "set autocommit=True: a statement inside a transaction has no outcome of its own"
            raise BadSetting(f"the connection has autocommit={self._connection.autocommit}; {hint}")
        states = self._psycopg.pq.TransactionStatus
        if self._connection.info.transaction_status in (states.INTRANS, states.INERROR):
            hint = "call the table outside of it: a statement inside a transaction has no outcome of its own"
            raise BadSetting(f"the connection is in a transaction; {hint}")
        if self._connection.info.pipeline_status != self._psycopg.pq.PipelineStatus.OFF:
            raise BadSetting("the connection is in pipeline mode; call the table outside of it")

    def get(self, key: Text) -> _Statement:
        self.check()
        operation = self._recorder.get(name_of(self._client), key)

        def answer(result: _Result) -> None:
            operation.ok(_present(result.value) if result.count else None)

        return self._statement(operation, answer, self._get, key)

    def put(self, key: Text, value: Text) -> _Statement:
        self.check()
        operation = self._recorder.put(name_of(self._client), key, value)
        return self._statement(operation, lambda result: operation.ok(), self._put, key, value)  # noqa: ARG005

    def cas(self, key: Text, expected: Text | None, value: Text) -> _Statement:
        self.check()
        operation = self._recorder.cas(name_of(self._client), key, expected, value)
        if expected is None:
            return self._statement(
                operation, lambda result: operation.ok(succeeded=result.count == 1), self._create, key, value
            )

        def answer(result: _Result) -> None:
            if result.count:
                operation.ok(succeeded=True)
            elif result.value is None:
                operation.ok(succeeded=False, found=False)
            elif result.value == expected:
                # Another client changed the row while this statement ran. What the row had then is not known.
                operation.failed("Changed")
            else:
                operation.ok(succeeded=False, found=True, value=result.value)

        return self._statement(operation, answer, self._replace, value, key, expected, key)

    def delete(self, key: Text) -> _Statement:
        self.check()
        operation = self._recorder.delete(name_of(self._client), key)
        return self._statement(operation, lambda result: operation.ok(found=result.count == 1), self._delete, key)

    def _statement(self, operation: Any, answer: Callable[[_Result], None], text: Any, *values: Text) -> _Statement:
        was_closed = self._connection.closed

        def is_certain(error: Exception) -> bool:
            if was_closed:
                return True
            if not isinstance(error, self._psycopg.Error):
                return False
            report = error.diag  # None in all fields, unless the server has reported the error.
            return report.severity_nonlocalized == "ERROR" and (report.sqlstate or "").startswith(_CERTAIN_STATES)

        return _Statement(Call(operation, answer, is_certain), text, values)


def _present(value: Any) -> Any:
    if value is None:
        raise BadAnswer("the value of a row is NULL; the column must be NOT NULL, because NULL looks like no row")
    return value
