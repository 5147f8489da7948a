"""The clients of the port on trio, one for each user: anonymous, or the user whom a token names.

A client of the port reaches its own member without a socket of the network, and the other members as any client does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from kvstore.access.calls import auth_switch
from kvstore.access.credentials import Credentials
from kvstore.client.calls import CallEnded
from kvstore.client.client import ClientCalls
from kvstore.client.pump import ClientPump, Dialer, now_ns
from kvstore.client.watches.watch_stream import WatchStream
from kvstore.errors import OperationFailed, Unauthenticated
from kvstore.etcd.coroutines import Abort, Resume
from kvstore.etcd.errors import AUTH_NOT_ENABLED, AUTHENTICATION_FAILED, INVALID_TOKEN
from kvstore.etcd.renewer import Renewer
from kvstore.protocol.messages import Request

logger = logging.getLogger("kvstore.etcd")

IDENTITIES_MAX = 64
"""The greatest number of tokens with a client of their own, besides the anonymous client. A further token replaces the
one that was used least recently, and whose calls then end."""

CHECKS_MAX = 8
"""The greatest number of passwords and unknown tokens that are checked at the same time: each check runs a client."""

SESSION_TTL_NS = 60_000_000_000
RARE_CALL_SECONDS_MAX = 7.0
RENEWAL_NS_MAX = 7_000_000_000


class SubmittedCall:
    """A call without a waiting task: `ended` is called with its end."""

    __slots__ = ("ended",)

    def __init__(self, ended: Callable[[CallEnded], None]) -> None:
        self.ended = ended


class WatchListener:
    """Calls `news` whenever there is something new about a watch, until `is_closed`. Stands in the place of an event
    that a task waits for."""

    def __init__(self, news: Callable[[], None], listen_again: Callable[[WatchListener], None]) -> None:
        self._news, self._listen_again = news, listen_again
        self.is_closed = False

    def is_set(self) -> bool:
        """False, because there may be more news."""
        return False

    def set(self) -> None:
        """Take the news, and listen for the next news."""
        if not self.is_closed:
            self._listen_again(self)
            self._news()

    async def wait(self) -> None:
        """No task waits for a listener."""
        raise AssertionError


class PortPump(ClientPump):
    """A pump for calls and watches without waiting tasks: functions take their ends and news.

    These functions run while the pump flushes, and often submit the next call, so the pump flushes until nothing new is
    submitted.
    """

    _is_flushing = False
    _wants_flush = False

    def submit(self, request: Request, deadline: int, ended: Callable[[CallEnded], None]) -> int:
        """Send a request: `ended` is called once, by `deadline` (monotonic ns). Returns a ticket for `withdraw`. Raises
        ClientClosed, WrongContext, Busy."""
        core = self._running()
        ticket = self._last_ticket + 1
        if request.address is not None and not core.has_connection(request.address):
            core.tick(self._now_ns())  # The silence of a new connection is measured from now on.
        core.submit(ticket, request, deadline)
        self._last_ticket = ticket
        self._waiters[ticket] = SubmittedCall(ended)  # type: ignore[assignment]
        self._flush_soon()
        return ticket

    def withdraw(self, ticket: int) -> None:
        """Give up a call, unless it has ended. Its outcome is unknown."""
        if self._core is not None and self._waiters.pop(ticket, None) is not None:
            self._core.cancel(ticket)
            self._give_room(1)

    def listen(self, stream: WatchStream, news: Callable[[], None]) -> None:
        """Begin a watch, and call `news` whenever it has begun, has something to take, or has ended. Raises
        ClientClosed, WrongContext."""
        self._running().open_watch(stream)
        self._watchers[stream] = WatchListener(news, partial(self._watchers.__setitem__, stream))
        stream.note_return = self._flush_soon
        self._flush_soon()

    def close_watch(self, stream: WatchStream) -> None:
        """End a watch, without further news."""
        listener = self._watchers.get(stream)
        if isinstance(listener, WatchListener):
            listener.is_closed = True
        super().close_watch(stream)

    def _flush_soon(self) -> None:
        if self._is_flushing:
            self._wants_flush = True
        else:
            super()._flush_soon()

    def _flush(self) -> None:
        if self._is_flushing:
            self._wants_flush = True
            return
        self._is_flushing = self._wants_flush = True
        try:
            while self._wants_flush:
                self._wants_flush = False
                super()._flush()
        finally:
            self._is_flushing = False

    def _wake(self, waiter: trio.lowlevel.Task | SubmittedCall, ended: CallEnded) -> None:
        if isinstance(waiter, SubmittedCall):
            waiter.ended(ended)
        else:
            super()._wake(waiter, ended)


class Identity:
    """The client of one user. Implements `Backend`."""

    def __init__(self, pump: PortPump, nursery: trio.Nursery, identities: Identities) -> None:
        self._pump, self._nursery, self._identities = pump, nursery, identities
        self.client = ClientCalls(pump, RARE_CALL_SECONDS_MAX)
        self.renewer = Renewer(self._submit_renewal)
        self.scope = trio.CancelScope()

    def now(self) -> int:
        """The clock of the port: monotonic ns."""
        return now_ns()

    def submit(self, request: Request, deadline: int, ended: Callable[[CallEnded], None]) -> Abort:
        """Send a request; `ended` is called once, by the deadline (monotonic ns), unless it is abandoned."""
        try:
            ticket = self._pump.submit(request, deadline, ended)
        except OperationFailed as error:
            ended(CallEnded(0, None, error))
            return _nothing
        return partial(self._pump.withdraw, ticket)

    def open_watch(self, stream: WatchStream, news: Callable[[], None]) -> None:
        """Begin a watch. `news` is called whenever the stream has begun, has something to take, or has ended."""
        self._pump.listen(stream, news)

    def close_watch(self, stream: WatchStream) -> None:
        """End a watch."""
        self._pump.close_watch(stream)

    def ask_progress(self, stream: WatchStream) -> None:
        """Ask for the progress of a watch."""
        self._pump.ask_progress(stream)

    def run(self, function: Callable[[ClientCalls], Awaitable[Any]], resume: Resume[Any]) -> Abort:
        """Run an async function with the client of the user, for rare calls, and resume with its result or error."""
        return self._in_task(partial(function, self.client), resume)

    def authenticate(self, name: str, password: str, resume: Resume[str]) -> Abort:
        """Check a password, and resume with a token, or with an EtcdError."""
        return self._in_task(partial(self._identities.authenticate, name, password), resume)

    async def run_in_thread(self, function: Callable[[str], bytes], argument: str) -> bytes:
        """Run a function that takes long in a thread."""
        return await trio.to_thread.run_sync(function, argument)

    def _submit_renewal(self, request: Request, ended: Callable[[CallEnded], None]) -> object:
        return self.submit(request, now_ns() + RENEWAL_NS_MAX, ended)

    def _in_task(self, function: Callable[[], Awaitable[Any]], resume: Resume[Any]) -> Abort:
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                try:
                    value = await function()
                except Exception as error:
                    resume.error(error)
                else:
                    resume.value(value)

        self._nursery.start_soon(run)
        return scope.cancel

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the client until `scope` is cancelled."""
        with self.scope:
            await self._pump.start()
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                await self._pump.stop()


class Identities:
    """The clients of the port, by token. The anonymous client has the token ""."""

    def __init__(self, own_address: str, dial: Dialer, nursery: trio.Nursery) -> None:
        self._own_address, self._dial, self._nursery = own_address, dial, nursery
        self._by_token: dict[str, Identity] = {}  # Least recently used first.
        self._checks = trio.CapacityLimiter(CHECKS_MAX)
        self.note_replaced: Callable[[str], None] = lambda _: None  # Called with a token whose client ends.

    async def start(self) -> None:
        """Start the anonymous client."""
        self._by_token[""] = await self._start(None)

    def find(self, token: str) -> Identity | None:
        """The client of the user whom the token names; None if no client has the token."""
        found = self._by_token.get(token)
        if found is not None and token:
            self._by_token[token] = self._by_token.pop(token)
        return found

    @property
    def anonymous(self) -> Identity:
        """The client without a user."""
        return self._by_token[""]

    def adopt(self, token: str, resume: Resume[Identity]) -> Abort:
        """Make the client for a token that another member has made. Resumes with an EtcdError if it is no token."""
        return self.anonymous._in_task(partial(self._adopt, token), resume)

    async def authenticate(self, name: str, password: str) -> str:
        """Check a password, and return a token. Raises EtcdError, StoreError."""
        if not await self._is_enabled():
            raise AUTH_NOT_ENABLED
        if not name or not password:
            raise AUTHENTICATION_FAILED
        async with self._checks:
            identity = await self._start(Credentials(name, password))
            try:
                await auth_switch(identity.client)
            except Unauthenticated:
                identity.scope.cancel()
                raise AUTHENTICATION_FAILED from None
            except BaseException:
                identity.scope.cancel()
                raise
        token = f"{name}.{identity._pump.token.hex()}"
        self._keep(token, identity)
        return token

    async def _adopt(self, token: str) -> Identity:
        name, _, signature = token.rpartition(".")
        try:
            proof = bytes.fromhex(signature)
        except ValueError:
            raise INVALID_TOKEN from None
        if not name or not proof or not await self._is_enabled():
            raise INVALID_TOKEN
        async with self._checks:
            return await self._check_token(token, name, proof)

    async def _check_token(self, token: str, name: str, proof: bytes) -> Identity:
        if (found := self.find(token)) is not None:
            return found
        identity = await self._start(Credentials(name, "", proof))
        try:
            is_enabled = (await auth_switch(identity.client)).is_enabled
        except BaseException as error:
            identity.scope.cancel()
            if isinstance(error, Unauthenticated):
                raise INVALID_TOKEN from None
            raise
        if not is_enabled:
            identity.scope.cancel()
            raise INVALID_TOKEN
        return self._keep(token, identity)

    async def _is_enabled(self) -> bool:
        """True if authentication is on. The anonymous client may then not ask."""
        try:
            return (await auth_switch(self.anonymous.client)).is_enabled
        except Unauthenticated:
            return True

    async def _start(self, credentials: Credentials | None) -> Identity:
        pump = PortPump([self._own_address], session_ttl_ns=SESSION_TTL_NS, dialer=self._dial)
        pump.credentials = credentials
        identity = Identity(pump, self._nursery, self)
        await self._nursery.start(identity.serve)
        return identity

    def _keep(self, token: str, identity: Identity) -> Identity:
        """Keep the client of a token. Returns the client that the token has from now on."""
        if (found := self.find(token)) is not None:
            identity.scope.cancel()  # The token was made or checked twice at once, and the other client has calls.
            return found
        self._by_token[token] = identity
        if len(self._by_token) > IDENTITIES_MAX + 1:  # The anonymous client has no token.
            oldest = next(each for each in self._by_token if each)
            replaced = self._by_token.pop(oldest)
            self.note_replaced(oldest)
            replaced.scope.cancel()
        return identity


def _nothing() -> None:
    """Abandon nothing."""
