"""One store and its clients in virtual time: the production `Client` and machine, and a network of random delays.

Leader time is the clock of trio, so a test that uses `autojump_clock` waits for nothing. The same seed gives the same
run. Sockets, elections and retries are tested with whole members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Literal, Self

import trio

from kvstore import Client
from kvstore.client.leases.renewals import Renewals
from kvstore.errors import OutcomeUnknown, RevisionCompacted, StoreError, Unavailable, refusal_of
from kvstore.event_loop import TRIO_LOOP
from kvstore.limits import HISTORY_LEVEL
from kvstore.protocol.commands import (
    Command,
    LeaseRenew,
    RaiseFeatureLevel,
    Txn,
    encode_command,
    prefix_range,
)
from kvstore.protocol.messages import Request, RequestKind, Response
from kvstore.protocol.results import Record, ResultItem
from kvstore.protocol.text import Text, as_bytes
from kvstore.protocol.validation import only_reads
from kvstore.protocol.watches import Change
from kvstore.server.lease_responses import lease_fields, leases_fields
from kvstore.store.machine import KvMachine
from raft import Entry, EntryKind, encode_batch

SECOND_NS = 1_000_000_000


class SimulatedStore:
    """A store that applies each command immediately. `commands`: its log without the empty transactions of expiry.

    Use it as a context manager: the tasks of clients and of expiry run until its end.
    """

    def __init__(self, seed: int = 0, *, delay_seconds: float = 0.01, lost_share: float = 0.0) -> None:
        self.random = Random(seed)
        self.delay_seconds, self.lost_share = delay_seconds, lost_share
        self.machine = KvMachine()
        self.commands: list[Command] = []
        self.entries = self.reads = 0
        self.changed = trio.Event()
        self.nursery: trio.Nursery
        self._manager = trio.open_nursery()

    async def __aenter__(self) -> Self:
        self.nursery = await self._manager.__aenter__()
        self._apply(RaiseFeatureLevel(HISTORY_LEVEL))
        self.nursery.start_soon(self._expire)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)

    def client(self) -> SimulatedClient:
        """A further client."""
        return SimulatedClient(self)

    def carry_out(self, command: Command) -> ResultItem:
        """Apply a command of a client."""
        self.commands.append(command)
        return self._apply(command)

    def _apply(self, command: Command) -> ResultItem:
        self.entries += 1
        payload = encode_batch(self.leader_time(), [encode_command(command)])
        (result,) = self.machine.apply(Entry(self.entries, 1, EntryKind.COMMANDS, payload))
        self.machine.check()
        self._tell()
        return result

    def leader_time(self) -> int:
        """The leader time now, in ns."""
        return int(trio.current_time() * SECOND_NS)

    def _tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def _expire(self) -> None:
        """Apply an empty transaction when something is due, as an idle leader does."""
        while True:
            due = self.machine.next_deadline
            if due is not None and due <= self.leader_time():
                self._apply(Txn())
            elif due is None:
                await self.changed.wait()
            else:
                changed = self.changed
                with trio.move_on_at((due + 1) / SECOND_NS):
                    await changed.wait()


class SimulatedClient(Client):
    """A client whose requests go to a simulated store."""

    def __init__(self, store: SimulatedStore) -> None:
        super().__init__(["simulated:1"], dialer=_no_dialer)
        self.store = store
        # Until this time no message leaves or reaches this program, as if the program did not run.
        self.paused_until = 0.0
        self._pump = SimulatedPump(self)  # type: ignore[assignment]
        self._renewals = Renewals(self._renew_all, self._pump.start_soon, self.loop)

    def pause(self, seconds: float) -> None:
        """Stop the program for a while."""
        self.paused_until = trio.current_time() + seconds

    async def travel(self) -> None:
        """Wait for as long as a message to or from this program takes."""
        await trio.sleep(self.store.random.uniform(0, self.store.delay_seconds))
        await trio.sleep_until(self.paused_until)

    def watch(  # type: ignore[override]
        self,
        key: Text | None = None,
        *,
        prefix: Text | None = None,
        start: Text | None = None,
        end: Text | None = None,
        from_revision: int = 0,
        only: Literal["put", "delete"] | None = None,
        window_bytes: int = 1 << 20,
    ) -> SimulatedWatch:
        """Watch a key, all keys with a prefix, or a range."""
        first, last = as_bytes(start or b""), None if end is None else as_bytes(end)
        if key is not None:
            first, last = as_bytes(key), as_bytes(key) + b"\0"
        elif prefix is not None:
            first, last = prefix_range(as_bytes(prefix))
        return SimulatedWatch(self, first, last, from_revision, only)


async def _no_dialer(address: str) -> trio.abc.Stream:
    raise OSError(f"{address} is no address")


class SimulatedPump:
    """Carries requests to the store and responses back, but loses the share `lost_share` of the responses."""

    members = None
    loop = TRIO_LOOP

    def __init__(self, client: SimulatedClient) -> None:
        self._client, self._store = client, client.store

    def start_soon(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run a task of the client."""
        self._store.nursery.start_soon(function)

    async def ask(self, request: Request, seconds: float) -> tuple[Response, int]:
        """Send a request, and return its response."""
        with trio.move_on_after(seconds):
            await self._client.travel()
            is_lost = request.has_effect and self._store.random.random() < self._store.lost_share
            response = self._respond(request)
            await self._client.travel()
            if not is_lost:
                if response.code:
                    raise refusal_of(response.code, response.fields)
                return response, 0
        raise (OutcomeUnknown if request.has_effect else Unavailable)("the answer was lost")

    def _respond(self, request: Request) -> Response:
        machine = self._store.machine
        item: ResultItem
        if request.kind is RequestKind.COMMAND:
            assert request.command is not None
            item = self._store.carry_out(request.command)
        elif request.kind is RequestKind.READ:
            self._store.reads += 1
            body = request.items[1]
            assert only_reads(body), body
            item = machine.read(body)
        else:
            answer = {RequestKind.LEASE: lease_fields, RequestKind.LEASES: leases_fields}[request.kind]
            item = (0, machine.revision, *answer(machine.leases, self._store.leader_time(), request.items))
        code, revision, *fields = item
        return Response(1, code, revision, 1, "s1", tuple(fields))


class SimulatedWatch:
    """A watch that reads the history of the store. `revision` is its progress, without delay. `failure`: the error with
    which the member ends the watch."""

    def __init__(
        self, client: SimulatedClient, start: bytes, end: bytes | None, from_revision: int, only: str | None
    ) -> None:
        self._client, self._store, self._start, self._end = client, client.store, start, end
        self._only = only
        self._next = from_revision or client.store.machine.revision + 1
        self._changes: deque[Change] = deque()
        self.revision = self._next - 1
        self.failure: StoreError | None = None

    async def __aenter__(self) -> Self:
        await self._client.travel()
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        await self._wait()
        change = self._changes.popleft()
        if not self._changes or self._changes[0].revision > change.revision:
            self.revision = change.revision
        return change

    async def next_batch(self) -> tuple[Change, ...]:
        """All changes of the next revision."""
        await self._wait()
        batch = [self._changes.popleft()]
        while self._changes and self._changes[0].revision == batch[0].revision:
            batch.append(self._changes.popleft())
        self.revision = batch[0].revision
        return tuple(batch)

    async def _wait(self) -> None:
        while not self._changes:
            if self.failure is not None:
                raise self.failure
            changed = self._store.changed
            self._take()
            if self._changes:
                await self._client.travel()
            else:
                self.revision = self._next - 1
                await changed.wait()

    def _take(self) -> None:
        machine = self._store.machine
        history = machine.history
        if self._next < history.first_revision:
            raise RevisionCompacted(self._next, machine.compact_revision)
        if self._next > machine.revision:
            return
        number = history.number_from(self._next)
        for event in history.events(number, history.end_number - number):
            if event.key >= self._start and (self._end is None or event.key < self._end):
                after = None if event.after is None else Record(*event.after)
                before = None if event.before is None else Record(*event.before)
                kind: Any = "delete" if after is None else "put"
                if self._only in (None, kind):
                    self._changes.append(Change(kind, event.key, after, before, event.revision))
        self._next = machine.revision + 1


def renewals_in(commands: list[Command]) -> int:
    """The number of commands that only renew leases."""
    return sum(isinstance(command, LeaseRenew) for command in commands)
