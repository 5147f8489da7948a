"""One running member: its folder, its node and its ports. Both `hwm serve` and `open_node` run it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random, SystemRandom
from typing import TYPE_CHECKING

import trio

from kvstore.client.dial import dialer_of
from kvstore.limits import FEATURE_LEVELS, with_etcd_limits
from kvstore.member.certificates import MemberCertificates
from kvstore.member.config import MemberConfig
from kvstore.member.first_start import open_or_start
from kvstore.member.folder import open_or_bootstrap
from kvstore.member.joining import MemberRemoved, open_or_join
from kvstore.member.listeners import Listeners, address_of, open_listeners
from kvstore.member.replacement import PlaceKeeper
from kvstore.member.root_password import reset_root_password
from kvstore.member.start_checks import check_start, check_way_to_others
from kvstore.monitoring.audit_trail import AuditTrail
from kvstore.protocol.addresses import IN_PROCESS_ADDRESS, parse_address
from kvstore.resources.descriptor_budget import budget_descriptors
from kvstore.server.client_listener import ClientListener
from kvstore.server.service import Service
from kvstore.store.gc_tuning import note_allocations
from kvstore.store.machine import KvMachine
from raft import (
    Identity,
    Member,
    NewerBuildNeeded,
    Node,
    NodeStopped,
)
from raft.runtime import CompletionQueue, Driver, Transport, is_loopback, now_ns
from storage import (
    DataFolder,
    Files,
    MemoryFiles,
    MemoryFolder,
    OpenedStorage,
    RealFiles,
    open_storage,
)

if TYPE_CHECKING:
    from kvstore.etcd.port import EtcdPort
    from kvstore.monitoring.metrics_http import MetricsServer

logger = logging.getLogger("kvstore.member")

STOP_SECONDS_MAX = 5.0
"""The greatest duration of the last sync of a stopping member. After this time the member stops without the sync. Data
that was already durable is not lost."""


class RunningMember:
    """A member that serves requests. The member listens at its addresses. An address is empty if the member has no such
    port."""

    def __init__(
        self, driver: Driver, port: ClientListener, listeners: Listeners, certificates: MemberCertificates
    ) -> None:
        self.node = driver.node
        self.port = port
        self.client_address = address_of(listeners.clients)
        self.peer_address = address_of(listeners.peers)
        self.metrics_address = address_of(listeners.metrics)
        self.is_stopping = False
        self.certificates = certificates
        self._driver = driver

    @property
    def node_id(self) -> str:
        """The id of this member in the cluster."""
        return self.node.identity.node_id

    def request_stop(self) -> None:
        """Stop the member. The member accepts no more requests and finishes the writes under way. Then `run_member`
        returns."""
        self.is_stopping = True
        self._driver.request_stop()


async def run_member(
    config: MemberConfig, *, task_status: trio.TaskStatus[RunningMember] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run one member until it is cancelled, or has stopped after `request_stop`. `task_status` gets the running member.

    At its start, a member raises the soft limit of the process on open files, because this limit bounds the number of
    clients (`descriptor_budget`).

    Before the member serves requests, raises TooFewDescriptors, StorageError, CannotServe, ReachableByOthers,
    InvalidConfiguration, NotAMember, MetricsNotInstalled, EtcdNotInstalled, UnusableCertificates, and the errors of
    `open_or_join`.
    Later, raises NodeStopped if the node has failed, NewerBuildNeeded if a peer sent data that only newer builds know,
    and MemberRemoved if this member was removed from its cluster.
    """
    limits = with_etcd_limits(config.service) if config.etcd else config.service
    config = replace(config, service=budget_descriptors(limits))
    check_start(config)
    folder = await _open_folder(config)
    try:
        completions = CompletionQueue()
        files = folder.files(completions.post)
        storage = await _open(config, config.wrap_files(files), folder.identity, completions)
        files.hold()
        own = folder.joins_as or Member(folder.identity.node_id)
        await _run(config, folder.identity, own, storage, completions, files, task_status)
    finally:
        folder.close()


async def _open_folder(config: MemberConfig) -> DataFolder | MemoryFolder:
    if config.named is not None:
        return await open_or_start(config, config.named)
    return open_or_bootstrap(config) if config.joining is None else await open_or_join(config.folder, config.joining)


async def _open(config: MemberConfig, files: Files, identity: Identity, completions: CompletionQueue) -> OpenedStorage:
    """Recover the storage, and return the storage once all its data is durable
    (docs/reference/specification.md#35-recovery)."""
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
    files: RealFiles | MemoryFiles,
    task_status: trio.TaskStatus[RunningMember],
) -> None:
    for damage in storage.warnings:
        place = f"{damage.path}: damaged at byte {damage.offset}: {damage.reason}"
        logger.warning("%s: %s; an older snapshot is used instead. Check this disk", identity.node_id, place)
    if storage.torn_bytes:
        torn = "of a write that was under way when it last ended were cut off the log; no promise depended on it"
        logger.info("%s: %d bytes %s", identity.node_id, storage.torn_bytes, torn)
    random = Random(SystemRandom().getrandbits(64))
    metrics = _metrics_server(config, files, identity) if isinstance(files, RealFiles) else None
    machine = (metrics.machine if metrics else KvMachine)(on_applied=note_allocations)
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
    certificates = MemberCertificates(identity.node_id, config.tls, etcd=config.etcd)
    if config.etcd and len(configuration.members) > 1:
        check_way_to_others(config)
    listeners = await open_listeners(config, own, has_peers=has_peers)
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
            credentials=certificates.peers,
        )
        if has_peers
        else None
    )
    service = (metrics.service if metrics else Service)(node, machine, config.service)
    service.cluster.own_address = address_of(listeners.clients)
    service.cluster.own_peer_address = address_of(listeners.peers)
    port = ClientListener(service, certificates.clients)
    etcd = None if not config.etcd else _etcd_port(config, node, machine, port, own, listeners)
    port.http = etcd
    if transport is not None:
        service.cluster.duplicate_members = lambda: transport.duplicate_members
    driver = (metrics.driver if metrics else Driver)(
        node, completions=completions, application=port, transport=transport, files=files
    )
    port.attach(driver)
    AuditTrail(node, machine, service, port.origin_of)
    reset = None
    if config.root_password is not None:
        reset = partial(reset_root_password, config.root_password, node, machine, service, driver.wake)
    keeper = None if config.named is None else PlaceKeeper(config.named, node)
    member = RunningMember(driver, port, listeners, certificates)
    await _serve(member, driver, listeners, metrics, reset, keeper, etcd, task_status)


def _advertised_address(config: MemberConfig, node: Node, own: Member, listeners: Listeners) -> Callable[[], str]:
    """Return a function that returns the peer address which this member reports to its peers.

    `own`: this member, as described in its folder at the start. A member that listens at the address in its folder
    reports this address until it stops, even if the configuration already has a new address. `listen_peer` can differ
    from the address in the folder for two reasons: peers reach the member at an advertised address of another program
    (for example, a proxy), or the member has moved and its folder still has the old address. In both cases the member
    reports the address in the configuration, which is correct as soon as the member has caught up.
    """
    at_start = own.peer_address or address_of(listeners.peers)
    if config.listen_peer in (None, at_start):
        return lambda: at_start

    def advertised() -> str:
        member = node.core.configuration.member(own.node_id)
        return (member.peer_address if member is not None else "") or at_start

    return advertised


def _etcd_port(
    config: MemberConfig, node: Node, machine: KvMachine, port: ClientListener, own: Member, listeners: Listeners
) -> EtcdPort:
    """Return the port for etcd's clients. The port has clients of its own, which reach this member without a network
    socket."""
    # Loaded only if etcd's clients are served.
    from kvstore.etcd.member_facts import MemberFacts
    from kvstore.etcd.port import EtcdPort

    address = address_of(listeners.clients)
    near_addresses = {IN_PROCESS_ADDRESS, own.client_address, address}
    dial_there = dialer_of(None if config.tls is None else config.tls.client)

    async def dial(wanted: str) -> trio.abc.Stream:
        if wanted not in near_addresses:
            return await dial_there(wanted)
        near, far = trio.socket.socketpair()
        trio.lowlevel.spawn_system_task(_serve_near, port, far)
        return trio.SocketStream(near)

    has_tls = config.tls is not None and config.tls.protects("clients")
    facts = MemberFacts(node, machine, IN_PROCESS_ADDRESS, has_tls=has_tls)
    local = bool(address) and is_loopback(parse_address(address)[0])
    return EtcdPort(facts, dial, is_loopback=local, http2=config.http2)


async def _serve_near(port: ClientListener, connection: trio.socket.SocketType) -> None:
    """Serve a client in this program."""
    with suppress(BaseException):
        await port.serve_stream(trio.SocketStream(connection))


def _metrics_server(config: MemberConfig, files: RealFiles, identity: Identity) -> MetricsServer | None:
    if config.metrics is None:
        return None
    from kvstore.monitoring.metrics_http import MetricsServer  # Loaded only if metrics are served.

    return MetricsServer(config.raft, files, identity.group_id)


async def _serve(
    member: RunningMember,
    driver: Driver,
    listeners: Listeners,
    metrics: MetricsServer | None,
    reset: Callable[[], Awaitable[None]] | None,
    keeper: PlaceKeeper | None,
    etcd: EtcdPort | None,
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
        if etcd is not None:
            await nursery.start(etcd.serve)
        await nursery.start(member.port.serve, listeners.clients)
        if metrics is not None:
            await nursery.start(
                metrics.serve,
                listeners.metrics,
                lambda: member.is_stopping,
                member.certificates.metrics,
                (lambda: None) if keeper is None else lambda: keeper.problem,
                member.certificates.all,
            )
        if member.certificates.all:
            nursery.start_soon(member.certificates.keep_fresh)
        if reset is not None:
            nursery.start_soon(reset)
        if keeper is not None:
            nursery.start_soon(keeper.run)
        task_status.started(member)
    if failure is not None:
        cause = failure.__cause__
        raise cause if isinstance(cause, NewerBuildNeeded) else failure  # The cause has the more useful hint.
    if member.node.is_removed and not member.is_stopping:
        raise MemberRemoved(member.node_id)
