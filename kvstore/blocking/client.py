"""The client for programs with plain threads."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar

from kvstore.asyncio.client import AsyncioClient
from kvstore.asyncio.connection import SocketDialer
from kvstore.blocking.consumers import BlockingConsumer, work_in_thread
from kvstore.blocking.context import BlockingContext, HeldBlock, like
from kvstore.blocking.leases import BlockingElection, BlockingLease, BlockingLock, BlockingPlainTransaction
from kvstore.blocking.loop_thread import LoopThread
from kvstore.blocking.thread_pump import ThreadPump, finish
from kvstore.blocking.typed_values import BlockingTypedValues
from kvstore.blocking.watch import BlockingWatch
from kvstore.client.client import (
    DEADLINE_SECONDS_DEFAULT,
    PAGE_LIMIT_DEFAULT,
    ClientCalls,
)
from kvstore.client.recording.recorder import OperationRecorder
from kvstore.connection_url import parse_url
from kvstore.protocol.commands import Compare, Range
from kvstore.protocol.messages import Consistency
from kvstore.protocol.results import KeyRecord, RangeResult
from kvstore.protocol.text import Text
from kvstore.recipes.consumers.consumer import CONSUMER_TTL_SECONDS_DEFAULT, WINDOW_BYTES_DEFAULT, Consumer
from kvstore.recipes.consumers.members import HANDOVER_SECONDS_DEFAULT
from kvstore.recipes.election import ELECTION_TTL_SECONDS_DEFAULT
from kvstore.recipes.lease import Lease, LeaseHandle
from kvstore.recipes.lock import LOCK_TTL_SECONDS_DEFAULT, Lock
from kvstore.recipes.optimistic_transaction import ATTEMPTS_MAX_DEFAULT, OptimisticTransaction
from kvstore.recipes.typed_values import Codec
from kvstore.tls import Tls
from kvstore.wrong_forms import EnteredPlainly

ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")
DefaultT = TypeVar("DefaultT")
ValueT = TypeVar("ValueT")

BlockingDialer = Callable[[str], socket.socket | None]
"""Opens a connected socket to an address, in a thread; None: the client opens the socket as usual. Raises OSError or
InvalidAddress."""


def _inline(
    function: Callable[Concatenate[ClientCalls, ParametersT], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[Any, ParametersT], ResultT]:
    """Make a method from a call that only sends requests: the call runs in the caller's thread, which sleeps while it
    waits."""

    def call(client: BlockingClient, /, *arguments: ParametersT.args, **options: ParametersT.kwargs) -> ResultT:
        return finish(function(client.in_thread, *arguments, **options))

    return like(function, call)


def _in_loop(
    function: Callable[Concatenate[ClientCalls, ParametersT], Awaitable[ResultT]],
) -> Callable[Concatenate[Any, ParametersT], ResultT]:
    """Make a method from a call that also waits for other events: the call runs in the loop."""

    def call(client: BlockingClient, /, *arguments: ParametersT.args, **options: ParametersT.kwargs) -> ResultT:
        return client.loop_thread.run(function, client.in_loop, *arguments, **options)

    return like(function, call)


class _Listing(Generic[ItemT]):
    """Yield the items of an async iterator that never suspends."""

    def __init__(self, items: AsyncIterator[ItemT]) -> None:
        self._items = items

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ItemT:
        try:
            return finish(_next_of(self._items))
        except StopAsyncIteration:
            raise StopIteration from None


async def _next_of(items: AsyncIterator[ItemT]) -> ItemT:
    return await anext(items)


class BlockingTransaction:
    """The reads and writes of one attempt of `transact`, as `OptimisticTransaction` describes them."""

    def __init__(self, inner: OptimisticTransaction) -> None:
        self._inner = inner

    @property
    def revision(self) -> int:
        """The revision of all reads; 0 before the first read."""
        return self._inner.revision

    def get(self, key: Text, default: DefaultT = None) -> bytes | DefaultT:  # type: ignore[assignment]
        """The value of a key, or `default` if the key is absent."""
        return finish(self._inner.get(key, default))

    def record(self, key: Text) -> KeyRecord | None:
        """The record of a key as it was before this transaction; None if the key is absent."""
        return finish(self._inner.record(key))

    def range(self, prefix: Text) -> list[KeyRecord]:
        """All records with a prefix, as they were before this transaction."""
        return finish(self._inner.range(prefix))

    def put(self, key: Text, value: Text, *, lease: LeaseHandle | int | None = None) -> None:
        """Write a value when the attempt ends."""
        self._inner.put(key, value, lease=lease)

    def delete(self, key: Text) -> None:
        """Remove a key when the attempt ends."""
        self._inner.delete(key)


class BlockingClient(EnteredPlainly):
    """A client of one cluster, for all threads of a program. Its arguments, calls and errors are those of
    `kvstore.Client`; a `dialer` opens connected sockets.

    The client runs an asyncio loop in its own thread, from the beginning of its block to the end. A call blocks its
    thread. If Ctrl-C interrupts a call, the outcome of the call is unknown. A thread cannot be cancelled. If a lease or
    lock is lost, `kvstore.Client` cancels the block, but this client raises the error at the end of the block.
    """

    _right_form = (
        "kvstore.blocking.Client is entered by `with`; in an event loop use `async with` and kvstore.Client (trio) or "
        "kvstore.asyncio.Client"
    )

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        deadline_seconds: float = DEADLINE_SECONDS_DEFAULT,
        session: bool = True,
        dialer: BlockingDialer | None = None,
        tls: Tls | None = None,
        cluster_id: bytes | str = b"",
        user: str | None = None,
        password: str | None = None,
        record: OperationRecorder | None = None,
    ) -> None:
        in_loop = AsyncioClient(
            endpoints,
            deadline_seconds=deadline_seconds,
            session=session,
            dialer=None if dialer is None else _in_a_thread(dialer),
            tls=tls,
            cluster_id=cluster_id,
            user=user,
            password=password,
            record=record,
        )
        self._use(in_loop, deadline_seconds)

    def _use(self, in_loop: AsyncioClient, deadline_seconds: float) -> None:
        self.in_loop = in_loop
        self.loop_thread = LoopThread("kvstore.blocking")
        self._pump = ThreadPump(self.in_loop.pump, self.loop_thread)
        self.in_thread = ClientCalls(self._pump, deadline_seconds, in_loop._recording)

    def __enter__(self) -> Self:
        finish(self._pump.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        finish(self._pump.stop())

    @property
    def deadline_seconds(self) -> float:
        """The deadline of operations for which the caller gives no deadline."""
        return self.in_thread.deadline_seconds

    # Operations on keys.

    put = _inline(ClientCalls.put)
    put_many = _inline(ClientCalls.put_many)
    get = _inline(ClientCalls.get)
    get_many = _inline(ClientCalls.get_many)
    delete = _inline(ClientCalls.delete)
    delete_range = _inline(ClientCalls.delete_range)
    append = _inline(ClientCalls.append)
    add = _inline(ClientCalls.add)
    compare_and_set = _inline(ClientCalls.compare_and_set)
    compare_and_delete = _inline(ClientCalls.compare_and_delete)
    txn = _inline(ClientCalls.txn)
    range = _inline(ClientCalls.range)
    compact = _inline(ClientCalls.compact)
    execute = _inline(ClientCalls.execute)

    def pages(
        self,
        request: Range | None = None,
        *,
        prefix: Text | None = None,
        page_limit: int = PAGE_LIMIT_DEFAULT,
        one_revision: bool = False,
        at_revision: int = 0,
        consistency: Consistency | str = Consistency.LINEARIZABLE,
        max_staleness_ms: int | None = None,
        deadline_seconds: float | None = None,
    ) -> Iterator[RangeResult]:
        """Read page after page, as `kvstore.Client.pages` does."""
        pages = self.in_thread.pages(
            request,
            prefix=prefix,
            page_limit=page_limit,
            one_revision=one_revision,
            at_revision=at_revision,
            consistency=consistency,
            max_staleness_ms=max_staleness_ms,
            deadline_seconds=deadline_seconds,
        )
        return _Listing(pages)

    def items(self, request: Range | None = None, *, prefix: Text | None = None) -> Iterator[KeyRecord]:
        """All records of a listing, one by one. Pages are fetched as needed."""
        return _Listing(self.in_thread.items(request, prefix=prefix))

    def transact(
        self,
        work: Callable[[BlockingTransaction], ResultT],
        *,
        attempts_max: int = ATTEMPTS_MAX_DEFAULT,
    ) -> ResultT:
        """Read, compute and write as one step, as `kvstore.Client.transact` does. `work` is a plain function."""

        async def attempt(transaction: OptimisticTransaction) -> ResultT:
            return work(BlockingTransaction(transaction))

        return finish(self.in_thread.transact(attempt, attempts_max=attempts_max))

    def watch(
        self,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        start: Text | None = None,
        end: Text | None = None,
        from_revision: int = 0,
        initial: bool = False,
        previous: bool = False,
        only: Literal["put", "delete"] | None = None,
        window_bytes: int = 1 << 20,
        deadline_seconds: float | None = None,
    ) -> BlockingWatch:
        """Watch a key, all keys with a prefix, a range, or all keys, as `kvstore.Client.watch` does."""
        watch = self.in_loop.watch(
            key,
            prefix=prefix,
            start=start,
            end=end,
            from_revision=from_revision,
            initial=initial,
            previous=previous,
            only=only,
            window_bytes=window_bytes,
            deadline_seconds=deadline_seconds,
        )
        return BlockingWatch(watch, self.loop_thread)

    def when(self, *compares: Compare) -> BlockingPlainTransaction:
        """Begin a transaction, step by step, as `kvstore.Client.when` does."""
        return BlockingPlainTransaction(self.in_thread).when(*compares)

    def under(self, prefix: Text) -> Self:
        """A view of this client in which all keys are below `prefix`, as `kvstore.Client.under` describes it."""
        view = copy(self)
        view.in_loop, view.in_thread = self.in_loop.under(prefix), self.in_thread.under(prefix)
        return view

    def typed(self, encode: Callable[[ValueT], Text], decode: Callable[[bytes], ValueT]) -> BlockingTypedValues[ValueT]:
        """A view of this client whose values are objects, as `kvstore.Client.typed` describes it."""
        return BlockingTypedValues(self, Codec(encode, decode))

    # Leases, and the recipes that are built on them.

    lease_grant = _inline(ClientCalls.lease_grant)
    lease_renew = _in_loop(ClientCalls.lease_renew)
    lease_revoke = _inline(ClientCalls.lease_revoke)
    lease_time_to_live = _inline(ClientCalls.lease_time_to_live)
    leases = _inline(ClientCalls.leases)

    def lease(
        self, ttl_seconds: float, *, deadline_seconds: float | None = None
    ) -> AbstractContextManager[BlockingLease]:
        """Keep a lease during a block, as `kvstore.Client.lease` does. If the lease is lost, LeaseLost is raised at the
        end of the block."""

        def face(lease: Lease, held: HeldBlock) -> BlockingLease:
            return BlockingLease(lease, held.thread)

        block = partial(self.in_loop.lease, ttl_seconds, deadline_seconds=deadline_seconds)
        return BlockingContext(self.loop_thread, block, face)

    def lock(
        self, name: Text, *, ttl_seconds: float = LOCK_TTL_SECONDS_DEFAULT, wait_seconds: float = math.inf
    ) -> AbstractContextManager[BlockingLock]:
        """Hold a lock during a block, as `kvstore.Client.lock` does. If the lock is lost, LeaseLost is raised at the
        end of the block. Until then, `guarded` transactions and fences protect the next holder."""

        def face(lock: Lock, held: HeldBlock) -> BlockingLock:
            return BlockingLock(lock, held, self.in_thread)

        owner = threading.current_thread()
        block = partial(self.in_loop._lock_of, owner, name, ttl_seconds, wait_seconds)
        return BlockingContext(self.loop_thread, block, face)

    def election(self, name: Text, *, ttl_seconds: float = ELECTION_TTL_SECONDS_DEFAULT) -> BlockingElection:
        """An election, which the caller can observe or enter as a candidate. Needs feature level 2."""
        inner = self.in_loop.election(name, ttl_seconds=ttl_seconds)
        return BlockingElection(inner, self.loop_thread, self.in_thread)

    def consume(
        self,
        prefix: Text,
        *,
        group: Text,
        member: Text = b"",
        from_revision: int = 0,
        only: Literal["put", "delete"] | None = None,
        ttl_seconds: float = CONSUMER_TTL_SECONDS_DEFAULT,
        wait_seconds: float = math.inf,
        window_bytes: int = WINDOW_BYTES_DEFAULT,
    ) -> AbstractContextManager[BlockingConsumer]:
        """Consume the changes of all keys with a prefix, as `kvstore.Client.consume` does. If the lease is lost,
        LeaseLost is raised by the next call of the consumer and at the end of the block."""

        def face(consumer: Consumer, held: HeldBlock) -> BlockingConsumer:
            return BlockingConsumer(consumer, held, self.in_thread)

        consumed = self.in_loop.consume(
            prefix,
            group=group,
            member=member,
            from_revision=from_revision,
            only=only,
            ttl_seconds=ttl_seconds,
            wait_seconds=wait_seconds,
            window_bytes=window_bytes,
        )
        return BlockingContext(self.loop_thread, lambda: consumed, face)

    def consume_shares(
        self,
        prefix: Text,
        work: Callable[[BlockingConsumer], None],
        *,
        group: Text,
        shares: int | Sequence[Text],
        member: Text = b"",
        from_revision: int = 0,
        only: Literal["put", "delete"] | None = None,
        ttl_seconds: float = CONSUMER_TTL_SECONDS_DEFAULT,
        handover_seconds: float = HANDOVER_SECONDS_DEFAULT,
        window_bytes: int = WINDOW_BYTES_DEFAULT,
    ) -> None:
        """Consume the changes of all keys with a prefix together with the other members of a group, as
        `kvstore.Client.consume_shares` does. `work` is a plain function. For each share, it is called in a separate
        thread. After `handover_seconds`, the consumer of the share refuses every call. The thread ends only when `work`
        returns."""
        self.loop_thread.run(
            self.in_loop.consume_shares,
            prefix,
            work_in_thread(self.loop_thread, self.in_thread, work),
            group=group,
            shares=shares,
            member=member,
            from_revision=from_revision,
            only=only,
            ttl_seconds=ttl_seconds,
            handover_seconds=handover_seconds,
            window_bytes=window_bytes,
        )

    consumer_group = _inline(ClientCalls.consumer_group)
    consumer_groups = _inline(ClientCalls.consumer_groups)

    # About the cluster.

    ask = _inline(ClientCalls.ask)

    def learn(self, addresses: Sequence[str]) -> None:
        """Set the current client addresses of all members."""
        self.in_thread.learn(addresses)

    status = _inline(ClientCalls.status)
    cluster_status = _in_loop(ClientCalls.cluster_status)
    transfer_leadership = _in_loop(ClientCalls.transfer_leadership)
    read_log = _inline(ClientCalls.read_log)
    outcome_of = _inline(ClientCalls.outcome_of)
    members = _inline(ClientCalls.members)
    membership = _inline(ClientCalls.membership)
    change_members = _inline(ClientCalls.change_members)
    add_member = _in_loop(ClientCalls.add_member)
    promote_member = _in_loop(ClientCalls.promote_member)
    remove_member = _in_loop(ClientCalls.remove_member)
    update_member = _in_loop(ClientCalls.update_member)
    replace_member = _in_loop(ClientCalls.replace_member)

    # Calls about sessions and limits.

    sessions = _inline(ClientCalls.sessions)
    close_session = _inline(ClientCalls.close_session)
    close_sessions = _inline(ClientCalls.close_sessions)
    limits = _inline(ClientCalls.limits)

    def set_limits(self, *, force: bool = False, deadline_seconds: float | None = None, **limits: int) -> None:
        """Change replicated limits by name, as `kvstore.Client.set_limits` does."""
        finish(self.in_thread.set_limits(force=force, deadline_seconds=deadline_seconds, **limits))


def connect(url: str, *, password: str | None = None, record: OperationRecorder | None = None) -> BlockingClient:
    """A client from a text such as `hwm://user@host:port/prefix?deadline=2`, as `kvstore.connect` reads it."""
    found = parse_url(url)
    client = BlockingClient(found.endpoints, record=record, **found.client_options(password))
    return client.under(found.prefix) if found.prefix else client


def _in_a_thread(dialer: BlockingDialer) -> SocketDialer:
    async def dial(address: str) -> socket.socket | None:
        return await asyncio.to_thread(dialer, address)

    return dial
