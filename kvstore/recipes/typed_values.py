"""Values as objects: a view of a client that encodes written values and decodes read values."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Literal, Protocol, Self, TypeVar

from kvstore.protocol.commands import Put
from kvstore.protocol.results import CompareAndSetResult, DeleteResult, GetResult, KeyRecord, PutResult
from kvstore.protocol.text import Text, as_bytes
from kvstore.protocol.watches import Change
from kvstore.recipes.lease import LeaseHandle
from kvstore.recipes.store import KeyStore, WatchedChanges
from kvstore.wrong_forms import EnteredAsync

ValueT = TypeVar("ValueT")


class ValueStore(KeyStore, Protocol):
    """The calls of a client that typed values use."""

    async def delete(self, key: Text) -> DeleteResult:
        """Remove a key."""
        ...

    async def compare_and_set(self, key: Text, value: Text, expected: int | None) -> CompareAndSetResult:
        """Write a value if the key has a mod_revision, or is absent (None)."""
        ...

    def items(self, *, prefix: Text | None = None) -> AsyncIterator[KeyRecord]:
        """All records of a listing."""
        ...


@dataclass(frozen=True, slots=True)
class TypedItem(Generic[ValueT]):
    """A key and its value. `mod_revision`: the revision of its last write."""

    key: bytes
    value: ValueT
    mod_revision: int


@dataclass(frozen=True, slots=True)
class TypedResult(Generic[ValueT]):
    """The result of a get. If the key is absent, `value` is None, `mod_revision` is 0, and the result is false.
    `revision`: the revision of the store."""

    revision: int
    value: ValueT | None
    mod_revision: int

    def __bool__(self) -> bool:
        """True if the key exists."""
        return self.mod_revision > 0


@dataclass(frozen=True, slots=True)
class TypedChange(Generic[ValueT]):
    """A change of a key. `value`: the written value; None for a deletion."""

    kind: Literal["put", "delete"]
    key: bytes
    value: ValueT | None
    revision: int


@dataclass(frozen=True, slots=True)
class Codec(Generic[ValueT]):
    """The functions that convert objects to values and back. The calls raise the errors of both functions. Errors of
    `decode` have a note that names the key."""

    encode: Callable[[ValueT], Text]
    decode: Callable[[bytes], ValueT]

    def read(self, key: bytes, value: bytes) -> ValueT:
        """Decode the value of a key."""
        try:
            return self.decode(value)
        except Exception as error:
            error.add_note(f"while the value of {key!r:.80} was decoded")
            raise

    def result(self, key: Text, found: GetResult) -> TypedResult[ValueT]:
        """Decode the result of a get."""
        if found.record is None:
            return TypedResult(found.revision, None, 0)
        value = self.read(as_bytes(key), found.record.value)
        return TypedResult(found.revision, value, found.record.mod_revision)

    def item(self, item: KeyRecord) -> TypedItem[ValueT]:
        """Decode a record of a listing."""
        return TypedItem(item.key, self.read(item.key, item.value or b""), item.mod_revision)

    def change(self, change: Change) -> TypedChange[ValueT]:
        """Decode a change."""
        value = None if change.record is None else self.read(change.key, change.record.value)
        return TypedChange(change.kind, change.key, value, change.revision)


class TypedValues(Generic[ValueT]):
    """A view of a client whose values are objects: the calls that read and write values. For all other
    calls, a program uses the client itself, which is unchanged."""

    def __init__(self, store: ValueStore, codec: Codec[ValueT]) -> None:
        self._store, self._codec = store, codec

    async def put(self, key: Text, value: ValueT, *, lease: LeaseHandle | int | None = None) -> PutResult:
        """Write an object. `lease`: the store removes the key when this lease ends."""
        lease_id = lease.id if isinstance(lease, LeaseHandle) else lease or 0
        put = Put(as_bytes(key), as_bytes(self._codec.encode(value)), lease_id)
        result = (await self._store.execute(put)).result
        assert isinstance(result, PutResult), result
        return result

    async def get(self, key: Text, *, at_revision: int = 0) -> TypedResult[ValueT]:
        """Read an object."""
        return self._codec.result(key, await self._store.get(key, at_revision=at_revision))

    async def delete(self, key: Text) -> DeleteResult:
        """Remove a key. `found` of the result is true if the key existed."""
        return await self._store.delete(key)

    async def compare_and_set(self, key: Text, value: ValueT, mod_revision: int) -> CompareAndSetResult:
        """Write an object if the mod_revision of the key is still `mod_revision`; 0 means that the key must be
        absent."""
        return await self._store.compare_and_set(key, self._codec.encode(value), mod_revision or None)

    def items(self, *, prefix: Text | None = None) -> AsyncIterator[TypedItem[ValueT]]:
        """Iterate over all keys with a prefix and their objects."""
        return _TypedItems(self._store.items(prefix=prefix), self._codec)

    def watch(
        self, key: Text | None = None, *, prefix: Text | None = None, from_revision: int = 0
    ) -> TypedWatch[ValueT]:
        """Watch a key, all keys with a prefix, or all keys, as `Client.watch` does."""
        return TypedWatch(self._store.watch(key, prefix=prefix, from_revision=from_revision), self._codec)


class _TypedItems(Generic[ValueT]):
    def __init__(self, items: AsyncIterator[KeyRecord], codec: Codec[ValueT]) -> None:
        self._items, self._codec = items, codec

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TypedItem[ValueT]:
        return self._codec.item(await anext(self._items))


class TypedWatch(EnteredAsync, Generic[ValueT]):
    """A watch that returns objects. `revision`: the caller has received all changes up to this revision."""

    _right_form = "a watch begins and ends with `async with values.watch(...) as changes:`"

    def __init__(self, watch: AbstractAsyncContextManager[WatchedChanges], codec: Codec[ValueT]) -> None:
        self._watch, self._codec = watch, codec
        self._changes: WatchedChanges

    @property
    def revision(self) -> int:
        """The caller has received all changes up to this revision."""
        return self._changes.revision

    async def __aenter__(self) -> Self:
        self._changes = await self._watch.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._watch.__aexit__(kind, error, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TypedChange[ValueT]:
        return self._codec.change(await anext(self._changes))
