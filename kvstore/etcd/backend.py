"""What the services of the port need from their member: a client of the cluster, and facts about the member.

On trio, `kvstore.etcd.identities` implements `Backend` with the project's own client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import Any, Protocol, TypeVar

from kvstore.access.calls import auth_switch
from kvstore.access.state import ROOT
from kvstore.client.calls import CallEnded
from kvstore.client.client import ClientCalls
from kvstore.client.watches.watch_stream import WatchStream
from kvstore.errors import Unavailable
from kvstore.etcd.call import EtcdCall
from kvstore.etcd.coroutines import Abort, Resume, Wait
from kvstore.etcd.errors import DEADLINE, PERMISSION, EtcdError, Status
from kvstore.etcd.range_gate import RangeGate
from kvstore.etcd.renewer import Renewer
from kvstore.etcd.schema import Message, make
from kvstore.protocol.commands import Command
from kvstore.protocol.messages import Request, Response, command_request
from kvstore.protocol.results import Result, read_answer, read_result

T = TypeVar("T")

REQUEST_NS_MAX = 7_000_000_000
"""The time for which a call without a deadline waits for the cluster: etcd's 5 s, and two elections."""


class Facts(Protocol):
    """The present state of the member. `cluster_id`, `member_id`: etcd's numbers for the ids. `own_address`: the
    address at which the backend reaches the member itself. `raft_cluster_id`: the id itself."""

    cluster_id: int
    member_id: int
    raft_cluster_id: bytes
    own_address: str
    scheme: str  # Of the addresses of members: http or https.

    @property
    def term(self) -> int: ...

    @property
    def revision(self) -> int:
        """The revision that the member has applied."""

    @property
    def leader_id(self) -> str | None: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def readiness_problem(self) -> str | None:
        """Why the member is not ready to serve; None if it is ready."""


class Backend(Protocol):
    """The client of one user."""

    def now(self) -> int:
        """The clock of the port: monotonic ns."""

    def submit(self, request: Request, deadline: int, ended: Callable[[CallEnded], None]) -> Abort:
        """Send a request; `ended` is called once, by the deadline (monotonic ns), unless it is abandoned."""

    def open_watch(self, stream: WatchStream, news: Callable[[], None]) -> None:
        """Begin a watch. `news` is called whenever the stream has begun, has something to take, or has ended."""

    def close_watch(self, stream: WatchStream) -> None:
        """End a watch."""

    def ask_progress(self, stream: WatchStream) -> None:
        """Ask for the progress of a watch."""

    def run(self, function: Callable[[ClientCalls], Awaitable[Any]], resume: Resume[Any]) -> Abort:
        """Run an async function with the client of the user, for rare calls, and resume with its result or error."""

    def authenticate(self, name: str, password: str, resume: Resume[str]) -> Abort:
        """Check a password, and resume with a token, or with an EtcdError."""

    async def run_in_thread(self, function: Callable[[str], bytes], argument: str) -> bytes:
        """Run a function that takes long in a thread. Only for functions that `run` runs."""

    @property
    def renewer(self) -> Renewer:
        """The renewals of leases of the user."""


def number_of(cluster_id: bytes, node_id: str) -> int:
    """etcd's number for a member, which is not 0."""
    return int.from_bytes(sha256(cluster_id + node_id.encode()).digest()[:8]) or 1


class Context:
    """What the handler of one call uses."""

    def __init__(self, facts: Facts, backend: Backend, call: EtcdCall[Any], gate: RangeGate) -> None:
        self.facts, self.backend, self.call, self.gate = facts, backend, call, gate

    @property
    def deadline(self) -> int:
        """The time by which a request of this call must end (monotonic ns)."""
        own, usual = self.call.deadline, self.backend.now() + REQUEST_NS_MAX
        return usual if own is None else min(own, usual)

    async def ask(self, request: Request, deadline: int | None = None) -> Response:
        """Send a request of the store's own protocol. Raises StoreError, EtcdError."""
        moment = self.deadline if deadline is None else deadline
        ended: CallEnded = await Wait(partial(self._submit, request, moment))
        if ended.error is not None:
            own = self.call.deadline
            if own is not None and isinstance(ended.error, Unavailable) and self.backend.now() >= own:
                raise DEADLINE
            raise ended.error
        assert ended.response is not None, ended
        return ended.response

    async def execute(self, command: Command) -> Result:
        """Carry out a command. Raises StoreError, EtcdError."""
        return read_answer(await self.ask(command_request(command)), result_of, has_effect=True)

    def forget(self, command: Command) -> None:
        """Carry out a command without waiting for it. Its outcome is not told."""
        self.backend.submit(command_request(command), self.backend.now() + REQUEST_NS_MAX, lambda _: None)

    async def run(self, function: Callable[[ClientCalls], Awaitable[T]]) -> T:
        """Carry out an async function of the client. Raises StoreError, EtcdError."""
        result: T = await Wait(partial(self.backend.run, function))
        return result

    async def is_root(self) -> bool:
        """True if the user may do everything: root, or anybody while authentication is off."""
        switch = await self.run(auth_switch)
        return not switch.is_enabled or ROOT in switch.roles

    async def check_root(self) -> None:
        """Raise EtcdError if the user may not do everything."""
        if not await self.is_root():
            raise EtcdError(Status.PERMISSION_DENIED, PERMISSION)

    def header(self, revision: int | None = None) -> Message:
        """The header of a response. Without `revision`, the header has the revision that this member has applied."""
        return make(
            "ResponseHeader",
            cluster_id=self.facts.cluster_id,
            member_id=self.facts.member_id,
            revision=self.facts.revision if revision is None else revision,
            raft_term=self.facts.term,
        )

    def _submit(self, request: Request, deadline: int, resume: Resume[CallEnded]) -> Abort:
        return self.backend.submit(request, deadline, resume.value)


def result_of(response: Response) -> Result:
    """Read a result of the store."""
    return read_result((response.code, response.revision, *response.fields))
