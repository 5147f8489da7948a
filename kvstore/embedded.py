"""A member inside a trio program, and the client that reaches it without a network socket.

    async with open_node("data", bootstrap=True) as store:
        await store.put("greeting", "hello")

Without peers, the member is a durable store of one node, which listens on no port by default. A member of a cluster
listens for its peers and for clients. If the member is a follower, the client sends requests to the leader.
`EmbeddedStore` is a `Client`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import trio

from kvstore.access.credentials import Credentials, credentials_of
from kvstore.client.client import DEADLINE_SECONDS_DEFAULT, Client
from kvstore.client.dial import dialer_of
from kvstore.client.loop_binding import check_in_trio
from kvstore.client.recording.recorder import OperationRecorder
from kvstore.etcd import HTTP2
from kvstore.limits import FEATURE_LEVEL_MAX, ServiceLimits
from kvstore.member.config import MemberConfig
from kvstore.member.joining import join_config_of
from kvstore.member.member import STOP_SECONDS_MAX, RunningMember, run_member
from kvstore.package_check import check_not_shadowed
from kvstore.protocol.addresses import IN_PROCESS_ADDRESS
from kvstore.server.client_listener import ClientListener
from kvstore.tls import MemberTls, Tls
from kvstore.wrong_forms import EnteredAsync
from raft import Member, RaftConfig
from storage import StorageLimits

check_not_shadowed()


class EmbeddedStore(Client):
    """A client that reaches the member in this process without a network socket."""

    def __init__(
        self,
        member: RunningMember,
        nursery: trio.Nursery,
        deadline_seconds: float,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        record: OperationRecorder | None = None,
    ) -> None:
        super().__init__(
            [IN_PROCESS_ADDRESS],
            deadline_seconds=deadline_seconds,
            dialer=self._dial_here_or_there,
            user=None if credentials is None else credentials.user,
            password=None if credentials is None else credentials.password,
            record=record,
        )
        self._member = member
        self._serving = nursery
        self._dial_there = dialer_of(tls)
        own = member.node.core.configuration.member(member.node_id)
        self.own_addresses = frozenset({IN_PROCESS_ADDRESS, own.client_address if own else "", member.client_address})
        self._known_addresses = {member.node_id: IN_PROCESS_ADDRESS}

    @property
    def node_id(self) -> str:
        """The id of the member in this program."""
        return self._member.node_id

    @property
    def client_address(self) -> str:
        """The address at which other programs reach this member; empty if the member has no client port."""
        return self._member.client_address

    @property
    def peer_address(self) -> str:
        """The address at which the peers reach this member; empty if the member has no peer port."""
        return self._member.peer_address

    @property
    def port(self) -> ClientListener:
        """The server of the member, in its trio loop."""
        return self._member.port

    def serve_soon(self, connection: trio.socket.SocketType) -> None:
        """Let the member serve a client at the other end of a socket. Called in the trio loop of the member."""
        self._serving.start_soon(self._member.port.serve_stream, trio.SocketStream(connection))

    async def _dial_here_or_there(self, address: str) -> trio.abc.Stream:
        if address not in self.own_addresses:
            return await self._dial_there(address)
        near, far = trio.socket.socketpair()
        self.serve_soon(far)
        return trio.SocketStream(near)


class EmbeddedNode:
    """One member, and the block of trio during which it runs."""

    def __init__(
        self,
        config: MemberConfig,
        deadline_seconds: float,
        client_tls: Tls | None,
        credentials: Credentials | None,
        record: OperationRecorder | None = None,
    ) -> None:
        self._record = record
        self._config, self._deadline_seconds, self._client_tls = config, deadline_seconds, client_tls
        self._credentials = credentials
        self._failure: BaseException | None = None

    async def __aenter__(self) -> EmbeddedStore:
        check_in_trio()
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._stopped = trio.Event()
        self._block = trio.CancelScope()
        try:
            member: RunningMember | None = await self._nursery.start(self._run)
        except BaseException:
            await self._leave()
            raise
        if member is None:
            await self._leave()
            assert self._failure is not None
            raise self._failure
        self._member = member
        self._store = EmbeddedStore(
            member, self._nursery, self._deadline_seconds, self._client_tls, self._credentials, self._record
        )
        await self._store.__aenter__()
        self._block.__enter__()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        absorbed = self._block.__exit__(kind, error, traceback)
        try:
            await self._store.__aexit__(None, None, None)
            self._member.request_stop()
            with trio.move_on_after(STOP_SECONDS_MAX):
                await self._stopped.wait()
        finally:
            await self._leave()
        if self._failure is not None:
            raise self._failure
        return bool(absorbed)

    async def _run(self, *, task_status: trio.TaskStatus[RunningMember | None]) -> None:
        """Run the member. If the member raises an exception, `_failure` keeps the exception, which is raised later
        without an exception group."""
        started = False

        class Status:
            def started(self, value: RunningMember) -> None:
                nonlocal started
                started = True
                task_status.started(value)

        try:
            await run_member(self._config, task_status=Status())  # type: ignore[arg-type]
        except Exception as error:
            self._failure = error
            if not started:
                task_status.started(None)
            self._block.cancel()
        finally:
            self._stopped.set()

    async def _leave(self) -> None:
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)


class NodeOptions:
    """The options of `open_node`, which are the same for trio, asyncio and plain threads.

    Run a member in this program during the block `async with open_node(...) as store`.

    `members`: all members of the cluster; each of them is started with the same list. The list may be None for an
    existing folder, which contains the list, and for a new store of one node. `bootstrap`: make a new member if the
    folder has none. Without `bootstrap`, a missing folder is an error, because a member that lost its disk must not
    start again with an empty folder. `feature_level`: the level at which a new cluster begins, by default the highest
    level that this build knows. The level must be the same for all first members, and has no effect on a folder that
    exists.

    `join`: client addresses of members of a running cluster. If the folder has no member, it becomes the folder of a
    new member of that cluster. In this case `members` contains only the new member, which must also be added to the
    cluster (`Client.add_member`), before or after this call. `listen_client`: the `host:port` at which the member
    serves other programs. Without `listen_client`, a store of one node does not listen on any port. `etcd`: serve
    etcd's clients at the client port, too (needs the extra `etcd`). `http2`: serve them with the HTTP/2 of this project
    (`"engine"`), or with the library h2 (`"library"`). `tls`: the certificates of the member's ports. If this member is
    a follower, the calls of this program use the certificates in `tls.client` to reach the leader. `user`, `password`:
    the user of this program's calls, if authentication is on. A member in the same program requires them like any other
    member. `record`: records the calls of this program, as of `Client`; calls of other programs are not recorded.

    Before the block runs, raises StorageError (the folder is damaged, or belongs to another cluster), FolderLocked,
    NotInitialized, CannotServe, ReachableByOthers, InvalidConfiguration, NotAMember, JoinRefused or
    UnusableCertificates. FolderLocked and NotInitialized are StorageErrors.

    If the node fails later, the block is cancelled, and NodeStopped is raised. NewerConfiguration or NewerFormat is
    raised instead of NodeStopped if the node has received data that only a newer build knows, and MemberRemoved if the
    cluster has removed the member.
    """

    def __init__(
        self,
        data_dir: str | Path,
        *,
        node_id: str | None = None,
        members: Sequence[Member] | None = None,
        bootstrap: bool = False,
        cluster_token: str = "",
        feature_level: int = FEATURE_LEVEL_MAX,
        join: Sequence[str] = (),
        listen_peer: str | None = None,
        listen_client: str | None = None,
        dial: Mapping[str, str] | None = None,
        etcd: bool = False,
        http2: str = HTTP2[0],
        insecure: bool = False,
        tls: MemberTls | None = None,
        user: str | None = None,
        password: str | None = None,
        record: OperationRecorder | None = None,
        deadline_seconds: float = DEADLINE_SECONDS_DEFAULT,
        raft_config: RaftConfig | None = None,
        storage_limits: StorageLimits | None = None,
        service_limits: ServiceLimits | None = None,
    ) -> None:
        client_tls = None if tls is None else tls.client
        self._credentials = credentials_of(user, password)
        joining = (
            join_config_of(
                node_id=node_id,
                members=members or (),
                endpoints=join,
                tls=client_tls,
                credentials=self._credentials,
            )
            if join
            else None
        )
        self._config = MemberConfig(
            folder=Path(data_dir),
            node_id=node_id,
            members=tuple(members) if members is not None and joining is None else None,
            joining=joining,
            cluster_token=cluster_token,
            bootstrap=bootstrap,
            feature_level=feature_level,
            listen_peer=listen_peer,
            listen_client=listen_client,
            listen_when_alone=listen_client is not None or joining is not None,
            dial=dict(dial or {}),
            etcd=etcd,
            http2=http2,
            insecure=insecure,
            tls=tls,
            raft=raft_config or RaftConfig(),
            storage=storage_limits or StorageLimits(),
            service=service_limits or ServiceLimits(),
        )
        self._deadline_seconds, self._client_tls, self._record = deadline_seconds, client_tls, record

    def node(self) -> EmbeddedNode:
        """The member, which is opened in a trio loop."""
        return EmbeddedNode(self._config, self._deadline_seconds, self._client_tls, self._credentials)


class open_node(NodeOptions, EnteredAsync):  # noqa: N801 (used like a function)
    """Run a member in this trio program during the block `async with open_node(...) as store`. Its arguments and errors
    are those of `NodeOptions`."""

    _right_form = (
        "kvstore.open_node (trio) and kvstore.asyncio.open_node are entered by `async with open_node(...) as store:`; "
        "a program without an event loop uses `with kvstore.blocking.open_node(...) as store:`"
    )

    async def __aenter__(self) -> EmbeddedStore:
        self._node = EmbeddedNode(
            self._config, self._deadline_seconds, self._client_tls, self._credentials, self._record
        )
        return await self._node.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return await self._node.__aexit__(kind, error, traceback)
