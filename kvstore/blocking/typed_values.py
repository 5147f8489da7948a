"""Values as objects, for programs with plain threads."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from kvstore.blocking.context import IN_PLAIN_WITH
from kvstore.blocking.thread_pump import finish
from kvstore.blocking.watch import BlockingWatch
from kvstore.client.client import ClientCalls
from kvstore.protocol.results import CompareAndSetResult, DeleteResult, KeyRecord, PutResult
from kvstore.protocol.text import Text
from kvstore.recipes.lease import LeaseHandle
from kvstore.recipes.typed_values import Codec, TypedChange, TypedItem, TypedResult, TypedValues
from kvstore.wrong_forms import EnteredPlainly

ValueT = TypeVar("ValueT")


class ThreadValues(Protocol):
    """The part of a blocking client that typed values use."""

    @property
    def in_thread(self) -> ClientCalls:
        """The calls that block the thread of the caller."""
        ...

    def items(self, *, prefix: Text | None = None) -> Iterator[KeyRecord]:
        """All records of a listing."""
        ...

    def watch(self, key: Text | None = None, *, prefix: Text | None = None, from_revision: int = 0) -> BlockingWatch:
        """Watch keys."""
        ...


class BlockingTypedValues(Generic[ValueT]):
    """A view of a client whose values are objects, as `TypedValues` describes it."""

    def __init__(self, store: ThreadValues, codec: Codec[ValueT]) -> None:
        self._store, self._codec = store, codec
        self._inner = TypedValues(store.in_thread, codec)

    def put(self, key: Text, value: ValueT, *, lease: LeaseHandle | int | None = None) -> PutResult:
        """Write an object. `lease`: the store removes the key when this lease ends."""
        return finish(self._inner.put(key, value, lease=lease))

    def get(self, key: Text, *, at_revision: int = 0) -> TypedResult[ValueT]:
        """Read an object."""
        return finish(self._inner.get(key, at_revision=at_revision))

    def delete(self, key: Text) -> DeleteResult:
        """Remove a key. `found` of the result is true if the key existed."""
        return finish(self._inner.delete(key))

    def compare_and_set(self, key: Text, value: ValueT, mod_revision: int) -> CompareAndSetResult:
        """Write an object if the last write of the key has the revision `mod_revision`; 0: if the key is absent."""
        return finish(self._inner.compare_and_set(key, value, mod_revision))

    def items(self, *, prefix: Text | None = None) -> Iterator[TypedItem[ValueT]]:
        """All keys with a prefix and their objects, one by one."""
        return map(self._codec.item, self._store.items(prefix=prefix))

    def watch(
        self, key: Text | None = None, *, prefix: Text | None = None, from_revision: int = 0
    ) -> BlockingTypedWatch[ValueT]:
        """Watch a key, all keys with a prefix, or all keys, as `Client.watch` does."""
        return BlockingTypedWatch(self._store.watch(key, prefix=prefix, from_revision=from_revision), self._codec)


class BlockingTypedWatch(EnteredPlainly, Generic[ValueT]):
    """A watch whose changes contain objects."""

    _right_form = IN_PLAIN_WITH

    def __init__(self, watch: BlockingWatch, codec: Codec[ValueT]) -> None:
        self._watch, self._codec = watch, codec

    @property
    def revision(self) -> int:
        """The caller has received all changes up to this revision."""
        return self._watch.revision

    def __enter__(self) -> Self:
        self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watch.__exit__(kind, error, traceback)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TypedChange[ValueT]:
        return self._codec.change(next(self._watch))
