"""One running member: its folder, its node, its two ports. `hwm serve` and `open_node` both run this."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random, SystemRandom
from typing import TYPE_CHECKING

import trio

from kvstore.errors import StoreError
from kvstore.limits import FEATURE_LEVELS, ServiceLimits
from kvstore.member.joining import Joining, MemberRemoved, open_or_join
from kvstore.protocol.addresses import parse_address
from kvstore.resources.descriptor_budget import budget_descriptors
from kvstore.server.client_listener import ClientListener
from kvstore.server.service import Service
from kvstore.store.gc_tuning import note_allocations
from kvstore.store.machine import KvMachine, initial_header
from raft import (
    Configuration,
    Identity,
    InvalidConfiguration,
    Member,
    NewerBuildNeeded,
    Node,
    NodeStopped,
    RaftConfig,
    derive_cluster_id,
)
from raft.runtime import CompletionQueue, Driver, Lingerer, Transport, is_loopback, now_ns
from storage import (
    DataFolder,
    Files,
    NotInitialized,
    OpenedStorage,
    RealFiles,
    StorageLimits,
    create_data_folder,
    open_data_folder,
    open_storage,
)

if TYPE_CHECKING:
    from kvstore.monitoring.metrics_http import MetricsServer

logger = logging.getLogger("kvstore.member")

STOP_SECONDS_MAX = 5.0
"""A member that is asked to stop and cannot finish its last sync in this time stops anyway: nothing durable is lost."""


class CannotServe(StoreError):
    """A port could not be opened. `purpose`: clients, peers or metrics."""

    def __init__(self, purpose: str, address: str, reason: str) -> None:
        super().__init__(purpose, address, reason)
        self.purpose, self.address, self.reason = purpose, address, reason

    def __str__(self) -> str:
        return f"cannot listen for {self.purpose} on {self.address}: {self.reason}"

    @property
    def hint(self) -> str:
        option = {"peers": "--listen-peer", "metrics": "--metrics"}.get(self.purpose, "--listen-client")
        return f"stop what uses the port, or name another address with {option}"


class ReachableByOthers(StoreError):
    """A port would be reachable from other machines, and nothing there is encrypted or authenticated yet."""

    def __init__(self, purpose: str, address: str) -> None:
        super().__init__(purpose, address)
        self.purpose, self.address = purpose, address

    def __str__(self) -> str:
        return (
            f"the port for {self.purpose} would listen on {self.address}, where other machines may reach it, without "
            "encryption or authentication"
        )

    @property
    def hint(self) -> str:
        return "listen on 127.0.0.1, or say --insecure if the network is yours alone"


class NotAMember(StoreError):
    """The node id of this member is not in the member list."""

    def __init__(self, node_id: str, member_ids: tuple[str, ...]) -> None:
        super().__init__(node_id, member_ids)
        self.node_id, self.member_ids = node_id, member_ids

    def __str__(self) -> str:
        return f"node {self.node_id} is not in the member list, which has {', '.join(self.member_ids)}"

    @property
    def hint(self) -> str:
        return "every member is started with the same list, and with its own id from it"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """What one member is started with.

    `members`: the whole cluster as all members are given it, or None: what the folder says; for a new folder, a store
    of one member. `bootstrap`: make the folder if there is no member in it. `joining`: make it that of a new member of
    a running cluster instead; then there are no `members`, which are the founders. `listen_*`: `host:port` or None for
    this member's own advertised address. `dial`: where peers are reached, if not at their advertised addresses.
    Raises InvalidAddress.
    """

    folder: Path
    node_id: str | None = None
    members: tuple[Member, ...] | None = None
    cluster_token: str = ""
    bootstrap: bool = False
    joining: Joining | None = None
    listen_peer: str | None = None
    listen_client: str | None = None
    metrics: str | None = None  # `host:port` of `/metrics`, `/livez` and `/readyz`; None: nothing is counted.
    listen_when_alone: bool = True  # False: a store of one node opens no client port; in-process streams only.
    dial: Mapping[str, str] = field(default_factory=dict)
    insecure: bool = False
    raft: RaftConfig = field(default_factory=RaftConfig)
    storage: StorageLimits = field(default_factory=StorageLimits)
    service: ServiceLimits = field(default_factory=ServiceLimits)
    has_own_loop: bool = False  # Nothing else happens on it that could not wait for some ms.
    wrap_files: Callable[[Files], Files] = lambda files: files  # For tests that watch the disk.

    def __post_init__(self) -> None:
        if self.joining is not None and (self.bootstrap or self.members is not None or self.cluster_token):
            raise InvalidConfiguration(
                "a member that joins a cluster is not one of its founders: no bootstrap, no token"
            )
        for address in (self.listen_peer, self.listen_client, self.metrics, *self.dial.values()):
            if address is not None:
                parse_address(address)

    @property
    def configuration(self) -> Configuration | None:
        """The canonical member list. Raises InvalidConfiguration, NotAMember."""
        if self.members is None:
            return None
        configuration = Configuration.of(self.members)
        _check_addresses(configuration)
        if self.node_id is not None and configuration.member(self.node_id) is None:
            raise NotAMember(self.node_id, configuration.voter_ids)
        _check_dial(self.dial, configuration)
        return configuration


def _check_addresses(configuration: Configuration) -> None:
    """The list is written into every folder for all time, so an address that cannot work is refused before that."""
    is_alone = len(configuration.voters) == 1  # Nobody else needs to find it, so any port will do.
    addresses = [each for member in configuration.voters for each in (member.peer_address, member.client_address)]
    for address in filter(None, addresses):
        is_any_port = parse_address(address)[1] == 0
        if is_any_port and not is_alone:
            raise InvalidConfiguration(f"{address}: port 0 (any) is no address at which the other members find it")
        if not is_any_port and addresses.count(address) > 1:
            raise InvalidConfiguration(f"the member list has {address} twice: every member needs two of its own")


def _check_dial(dial: Mapping[str, str], configuration: Configuration) -> None:
    for node_id in sorted(set(dial) - set(configuration.voter_ids)):
        known = ", ".join(configuration.voter_ids)
        raise InvalidConfiguration(f"no member to dial has the id {node_id}; the member list has {known}")


def initialize_folder(config: MemberConfig) -> Identity:
    """The explicit first start: make the data folder of a new member. Raises StorageError, InvalidConfiguration."""
    configuration = config.configuration
    node_id = config.node_id or "s1"
    token: str | bytes = config.cluster_token
    if configuration is None:
        configuration = Configuration.of([Member(node_id)])  # It tells clients where it listens, wherever that is.
        token = config.cluster_token or uuid.uuid4().bytes  # A store of one: no other one may be taken for it.
    elif config.node_id is None:
        raise InvalidConfiguration("a member of a cluster is started with its own node id")
    identity = Identity(
        cluster_id=derive_cluster_id(token, configuration),
        group_id=0,
        node_id=node_id,
        incarnation_id=os.urandom(16),
    )
    create_data_folder(config.folder, identity=identity, configuration=configuration, machine_header=initial_header())
    return identity


def open_or_bootstrap(config: MemberConfig) -> DataFolder:
    """Open the folder, which must be of this cluster and this node; make it first if `bootstrap` says so."""
    configuration = config.configuration
    expected = None if configuration is None else derive_cluster_id(config.cluster_token, configuration)
    try:
        return open_data_folder(config.folder, expect_cluster_id=expected, expect_node_id=config.node_id)
    except NotInitialized:
        if not config.bootstrap:
            raise
    initialize_folder(config)
    return open_data_folder(config.folder, expect_cluster_id=expected, expect_node_id=config.node_id)


class RunningMember:
    """A member that serves. `client_address` and the others are where it listens; empty if nowhere."""

    def __init__(self, driver: Driver, port: ClientListener, listeners: _Listeners) -> None:
        self.node = driver.node
        self.port = port
        self.client_address = _address_of(listeners.clients)
        self.peer_address = _address_of(listeners.peers)
        self.metrics_address = _address_of(listeners.metrics)
        self.is_stopping = False
        self._driver = driver

    @property
    def node_id(self) -> str:
        """Its id in the cluster."""
        return self.node.identity.node_id

    def request_stop(self) -> None:
        """Take no more requests, finish what was written, and let `run_member` return."""
        self.is_stopping = True
        self._driver.request_stop()


async def run_member(
    config: MemberConfig, *, task_status: trio.TaskStatus[RunningMember] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run one member until it is cancelled or `request_stop` is done; started with the running member.

    The soft limit on open files of the process is raised (`descriptor_budget`), and bounds its clients.

    Raises TooFewDescriptors, StorageError, CannotServe, ReachableByOthers, InvalidConfiguration, NotAMember,
    MetricsNotInstalled, and what `open_or_join` raises, before anything is served; NodeStopped when the node can
    promise no more, or what a peer sent and only newer builds know (NewerBuildNeeded); MemberRemoved when it is no
    member of its cluster any more.
    """
    config = replace(config, service=budget_descriptors(config.service))
    joining = config.joining
    folder = open_or_bootstrap(config) if joining is None else await open_or_join(config.folder, joining)
    try:
        completions = CompletionQueue()
        files = folder.files(completions.post)
        storage = await _open(config, config.wrap_files(files), folder.identity, completions)
        files.hold()
        own = folder.joins_as or Member(folder.identity.node_id)
        await _run(config, folder.identity, own, storage, completions, files, task_status)
    finally:
        folder.close()


async def _open(config: MemberConfig, files: Files, identity: Identity, completions: CompletionQueue) -> OpenedStorage:
    """Recovery: nothing is handed out before all of it is durable (docs/reference/specification.md#35-recovery)."""
    opened: list[OpenedStorage | BaseException] = []
    open_storage(files, identity=identity, limits=config.storage, done=opened.append)
    await completions.run_until(lambda: bool(opened))
    if isinstance(opened[0], BaseException):
        raise opened[0]
    return opened[0]


async def _run(
    config: MemberConfig,
    identity: Identity,
    joins_as: Member,
    storage: OpenedStorage,
    completions: CompletionQueue,
    files: RealFiles,
    task_status: trio.TaskStatus[RunningMember],
) -> None:
    for damage in storage.warnings:
        place = f"{damage.path}: damaged at byte {damage.offset}: {damage.reason}"
        logger.warning("%s: %s; an older snapshot stands in for it. Look after this disk", identity.node_id, place)
    if storage.torn_bytes:
        torn = "of a write that was under way when it last ended were cut off the log; nothing of it was promised"
        logger.info("%s: %d bytes %s", identity.node_id, storage.torn_bytes, torn)
    random = Random(SystemRandom().getrandbits(64))
    machine = KvMachine(on_applied=note_allocations)
    node = Node(
        identity=identity,
        config=config.raft,
        log=storage.log,
        snapshots=storage.snapshots,
        pins=storage.pins,
        hard_state=storage.hard_state,
        machine=machine,
        random=random,
        now=now_ns(),
        levels=FEATURE_LEVELS,
    )
    configuration = node.core.configuration
    if node.is_removed:
        raise MemberRemoved(identity.node_id)
    own = configuration.member(identity.node_id)
    is_configured, own = own is not None, own or joins_as
    has_peers = not is_configured or len(configuration.members) > 1 or bool(config.listen_peer or own.peer_address)
    metrics = None if config.metrics is None else _metrics_server(config, files, identity)
    listeners = await _listen_all(config, own, has_peers=has_peers)
    lingerer = Lingerer() if config.has_own_loop else None
    transport = (
        Transport(
            identity=identity,
            configuration=configuration,
            random=random,
            dial=config.dial,
            own_address=_advertised_address(config, node, own, listeners),
            listeners=listeners.peers,
            insecure=config.insecure,
            levels=FEATURE_LEVELS,
            lingerer=lingerer,
        )
        if has_peers
        else None
    )
    service = (metrics.service if metrics else Service)(node, machine, config.service)
    service.cluster.own_address = _address_of(listeners.clients)
    service.cluster.own_peer_address = _address_of(listeners.peers)
    port = ClientListener(service, lingerer)
    if transport is not None:
        service.cluster.duplicate_members = lambda: transport.duplicate_members
    driver = (metrics.driver if metrics else Driver)(
        node, completions=completions, application=port, transport=transport, start_io=files.start, lingerer=lingerer
    )
    port.attach(driver.wake, driver.flush, lambda: driver.turns)
    try:
        await _serve(RunningMember(driver, port, listeners), driver, listeners, metrics, task_status)
    finally:
        if lingerer is not None:
            lingerer.close()


def _advertised_address(config: MemberConfig, node: Node, own: Member, listeners: _Listeners) -> Callable[[], str]:
    """Where this member says that others find it. `own`: as its folder knew it when it was opened.

    Who listens at the address that the folder knew is there as long as it lives, though a move may be told already.
    Who was given another place to listen at is reached by its advertised address, or has moved there before its folder
    knows: the configuration says which address that is, as soon as it has caught up.
    """
    at_start = own.peer_address or _address_of(listeners.peers)
    if config.listen_peer in (None, at_start):
        return lambda: at_start

    def advertised() -> str:
        member = node.core.configuration.member(own.node_id)
        return (member.peer_address if member is not None else "") or at_start

    return advertised


def _metrics_server(config: MemberConfig, files: RealFiles, identity: Identity) -> MetricsServer:
    from kvstore.monitoring.metrics_http import MetricsServer  # A member that is not watched does without.

    return MetricsServer(config.raft, files, identity.group_id)


async def _serve(
    member: RunningMember,
    driver: Driver,
    listeners: _Listeners,
    metrics: MetricsServer | None,
    task_status: trio.TaskStatus[RunningMember],
) -> None:
    failure: NodeStopped | None = None
    async with trio.open_nursery() as nursery:

        async def drive(*, task_status: trio.TaskStatus[int]) -> None:
            nonlocal failure
            try:
                await driver.run(task_status=task_status)
            except NodeStopped as error:
                failure = error
            nursery.cancel_scope.cancel()

        await nursery.start(drive)
        await nursery.start(member.port.serve, listeners.clients)
        if metrics is not None:
            await nursery.start(metrics.serve, listeners.metrics, lambda: member.is_stopping)
        task_status.started(member)
    if failure is not None:
        cause = failure.__cause__
        raise cause if isinstance(cause, NewerBuildNeeded) else failure  # Which has its own remedy.
    if member.node.is_removed and not member.is_stopping:
        raise MemberRemoved(member.node_id)


@dataclass(slots=True)
class _Listeners:
    """The sockets of one member, by who connects."""

    clients: list[trio.SocketListener] = field(default_factory=list)
    peers: list[trio.SocketListener] = field(default_factory=list)
    metrics: list[trio.SocketListener] = field(default_factory=list)


async def _listen_all(config: MemberConfig, own: Member, *, has_peers: bool) -> _Listeners:
    """All of them, or none."""
    listeners = _Listeners()
    try:
        if has_peers or config.listen_when_alone:
            listeners.clients = await _listen("clients", config.listen_client or own.client_address, config)
        if has_peers:
            listeners.peers = await _listen("peers", config.listen_peer or own.peer_address, config)
        if config.metrics is not None:
            listeners.metrics = await _listen("metrics", config.metrics, config)
    except BaseException:
        await _close([*listeners.clients, *listeners.peers])
        raise
    return listeners


async def _listen(purpose: str, address: str, config: MemberConfig) -> list[trio.SocketListener]:
    host, number = parse_address(address or "127.0.0.1:0")
    if not config.insecure and not is_loopback(host):
        raise ReachableByOthers(purpose, address)
    try:
        listeners = await trio.open_tcp_listeners(number, host=host)
    except OSError as error:
        raise CannotServe(purpose, address, (error.strerror or str(error)).lower()) from error
    except ValueError as error:  # UnicodeError among them: a name that the resolver of this system cannot be given.
        raise CannotServe(purpose, address, f"its host cannot be looked up: {error}") from error
    await _close(listeners[1:] if number == 0 else [])  # A name with several addresses would get several ports.
    return listeners[:1] if number == 0 else listeners


async def _close(listeners: Sequence[trio.SocketListener]) -> None:
    for listener in listeners:
        await listener.aclose()


def _address_of(listeners: Sequence[trio.SocketListener]) -> str:
    if not listeners:
        return ""
    host, number = listeners[0].socket.getsockname()[:2]
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
