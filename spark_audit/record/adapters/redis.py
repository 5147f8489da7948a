"""redis-py: commands of one key, as operations of a register."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, NoReturn, overload

from spark_audit.record.adapters.calls import Call, ClientName, library, name_of
from spark_audit.record.errors import BadSetting, NotRecorded
from spark_audit.record.recorder import Recorder

if TYPE_CHECKING:
    import redis
    import redis.asyncio

PACKAGE = "redis>=6,<8"
_CERTAIN_ERRORS = (
    "AskError",  # Also MovedError: another server has the key.
    "AuthenticationError",
    "BusyLoadingError",
    "ClusterDownError",  # Also MasterDownError.
    "DataError",  # The client has sent nothing.
    "MaxConnectionsError",  # The pool of the client is empty.
    "NoPermissionError",
    "OutOfMemoryError",
    "ReadOnlyError",
    "TryAgainError",
)
# First words of other answers that Redis gives before it carries out a command. The word ERR does not count, because
# proxies also answer with it when their server is gone.
_CERTAIN_WORDS = ("BUSY ", "MISCONF ", "NOREPLICAS ", "WRONGTYPE ")
_REFUSED = f"Error {errno.ECONNREFUSED} connecting to "


@overload
def recorded_redis(recorder: Recorder, store: redis.Redis, *, client: ClientName = None) -> RecordedRedis: ...


@overload
def recorded_redis(
    recorder: Recorder, store: redis.asyncio.Redis, *, client: ClientName = None
) -> RecordedAsyncRedis: ...


def recorded_redis(recorder: Recorder, store: Any, *, client: ClientName = None) -> RecordedRedis | RecordedAsyncRedis:
    """Return an object whose `get`, `set` and `delete` call those of `store`, and are recorded.

    `client`: the name of the client of all calls, or a function that returns it; None: each thread and each asyncio
    task is a client. The calls raise what the store raises, and the errors of the recorder. Raises BadSetting if
    `store` is no client of one Redis, or sends a command again after an error, and MissingLibrary.
    """
    commands = _Commands(recorder, store, client)
    if isinstance(store, library("redis.asyncio", PACKAGE).Redis):
        return RecordedAsyncRedis(commands, store)
    return RecordedRedis(commands, store)


class RecordedRedis:
    """A client of Redis whose calls are recorded. `unrecorded`: the client itself.

    Every other command raises NotRecorded, because no row can state what it does. Use `unrecorded` for keys that no
    recorded call uses.
    """

    def __init__(self, commands: _Commands, store: redis.Redis) -> None:
        self._commands, self.unrecorded = commands, store

    def get(self, name: str | bytes) -> Any:
        """Return the value of a key, or None."""
        return self._commands.get(name).send(self.unrecorded.get, name)

    def set(
        self,
        name: str | bytes,
        value: Any,
        *more: Any,
        nx: bool = False,
        xx: bool = False,
        get: bool = False,
        **named: Any,
    ) -> Any:
        """Set a key. `nx`: only if it is absent; `xx`: only if it is present; `get`: return the old value.

        Raises NotRecorded if the key would expire, and for every other argument.
        """
        call = self._commands.set(name, value, more, named, nx=nx, xx=xx, get=get)
        return call.send(self.unrecorded.set, name, value, nx=nx, xx=xx, get=get)

    def delete(self, *names: str | bytes) -> Any:
        """Delete one key. Returns the number of deleted keys. Raises NotRecorded for several keys."""
        return self._commands.delete(names).send(self.unrecorded.delete, *names)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name)


class RecordedAsyncRedis:
    """A client of redis.asyncio whose calls are recorded. Apart from that it is like RecordedRedis."""

    def __init__(self, commands: _Commands, store: redis.asyncio.Redis) -> None:
        self._commands, self.unrecorded = commands, store

    async def get(self, name: str | bytes) -> Any:
        """Do what `RecordedRedis.get` does."""
        return await self._commands.get(name).send_async(self.unrecorded.get, name)

    async def set(
        self,
        name: str | bytes,
        value: Any,
        *more: Any,
        nx: bool = False,
        xx: bool = False,
        get: bool = False,
        **named: Any,
    ) -> Any:
        """Do what `RecordedRedis.set` does."""
        call = self._commands.set(name, value, more, named, nx=nx, xx=xx, get=get)
        return await call.send_async(self.unrecorded.set, name, value, nx=nx, xx=xx, get=get)

    async def delete(self, *names: str | bytes) -> Any:
        """Do what `RecordedRedis.delete` does."""
        return await self._commands.delete(names).send_async(self.unrecorded.delete, *names)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name)


class _Commands:
    """What each command means for a register."""

    def __init__(self, recorder: Recorder, store: Any, client: ClientName) -> None:
        _check(store)
        errors = library("redis.exceptions", PACKAGE)
        self._recorder, self._client = recorder, client
        self._encode = store.get_encoder().encode  # A recorded value has the bytes that the client sends.
        self._certain = tuple(getattr(errors, name) for name in _CERTAIN_ERRORS)
        self._lost, self._answered = errors.ConnectionError, errors.ResponseError

    def get(self, name: Any) -> Call:
        operation = self._recorder.get(name_of(self._client), self._bytes(name))
        return self._call(operation, lambda value: operation.ok(None if value is None else self._bytes(value)))

    def set(
        self, name: Any, value: Any, more: tuple[Any, ...], named: dict[str, Any], *, nx: bool, xx: bool, get: bool
    ) -> Call:
        if unknown := [*map(repr, more), *(f"{key}={each!r}" for key, each in named.items() if each)]:
            given = ", ".join(unknown)
            hint = "only nx, xx and get are recorded; a key that expires changes without a client"
            raise NotRecorded(f"set was called with {given}; {hint}")
        client, key, new = name_of(self._client), self._bytes(name), self._bytes(value)
        if nx:
            compared = self._recorder.cas(client, key, None, new)

            def created(returned: Any) -> None:
                succeeded = returned is None if get else bool(returned)
                old = self._bytes(returned) if get and not succeeded else None
                compared.ok(succeeded=succeeded, value=old)

            return self._call(compared, created)
        written = self._recorder.put(client, key, new)

        def replaced(returned: Any) -> None:
            # No row states that a write needs a key that is present. So only the write is judged, if there was one.
            if xx and returned is None:
                written.failed("Absent")
            else:
                written.ok()

        return self._call(written, replaced)

    def delete(self, names: tuple[Any, ...]) -> Call:
        if len(names) != 1:
            raise NotRecorded(f"delete was called with {len(names)} keys; delete one key per call")
        operation = self._recorder.delete(name_of(self._client), self._bytes(names[0]))
        return self._call(operation, lambda deleted: operation.ok(found=bool(deleted)))

    def _call(self, operation: Any, answer: Any) -> Call:
        return Call(operation, answer, self._is_certain)

    def _bytes(self, given: Any) -> bytes:
        return bytes(self._encode(given))

    def _is_certain(self, error: Exception) -> bool:
        if isinstance(error, self._certain):
            return True
        if isinstance(error, self._answered):
            return str(error).startswith(_CERTAIN_WORDS)
        return isinstance(error, self._lost) and str(error).startswith(_REFUSED)


def _check(store: Any) -> None:
    """Raise BadSetting unless `store` sends each command at most once, to one Redis."""
    plain, asynchronous = library("redis", PACKAGE), library("redis.asyncio", PACKAGE)
    pipelines = (plain.client.Pipeline, asynchronous.client.Pipeline)
    if not isinstance(store, (plain.Redis, asynchronous.Redis)) or isinstance(store, pipelines):
        hint = "give a redis.Redis or a redis.asyncio.Redis; a pipeline and a cluster are not recorded"
        raise BadSetting(f"store is {store!r}; {hint}")
    pool = store.connection_pool
    retries = pool.connection_class(**pool.connection_kwargs).retry.get_retries()
    if retries != 0:
        # The write would take effect twice, but its row would be there once.
        hint = "give it retry=Retry(NoBackoff(), 0), and no retry_on_error or retry_on_timeout"
        raise BadSetting(f"store sends a command again after an error, {retries} times; {hint}")


def _refuse(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    hint = "get, set and delete of one key are recorded; call it on `unrecorded`, for keys that no recorded call uses"
    raise NotRecorded(f"{name} of Redis cannot be recorded; {hint}")
