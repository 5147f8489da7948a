"""Whole members (node, storage, service) and clients in one thread: virtual time, immediate delivery, real files.

These are the classes of production. A client's bytes go straight into a service.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import ClassVar

from kvstore.access.credentials import Credentials
from kvstore.client.calls import CallEnded
from kvstore.client.client_limits import MILLISECOND_NS, ClientLimits
from kvstore.client.core import ClientStateMachine
from kvstore.limits import FEATURE_LEVELS, ServiceLimits
from kvstore.protocol.commands import Command, Get, Range
from kvstore.protocol.messages import Consistency, Request, Response, command_request, read_request
from kvstore.protocol.results import Result, read_result
from kvstore.server.service import Service
from kvstore.store.machine import KvMachine, initial_header
from raft import Configuration, Effects, Identity, LevelRange, Member, Message, Node, RaftConfig, derive_cluster_id
from storage import (
    Delete,
    Done,
    InlineFiles,
    OpenedStorage,
    Operation,
    StorageLimits,
    Write,
    create_data_folder,
    open_storage,
)

SECOND = 1000 * MILLISECOND_NS


class HeldFiles(InlineFiles):
    """A disk that reports completions immediately, or when the test says so. The disk and each file may have a size
    bound."""

    opened: ClassVar[list[HeldFiles]] = []
    """All disks that the present test has opened. A fixture of tests/kvstore/conftest.py closes their descriptors."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.opened.append(self)
        self.bytes_max: int | None = None
        self.file_bytes_max: int | None = None  # As `ulimit -f`.
        self.is_held = False
        self._submitted = False

    @property
    def has_work(self) -> bool:
        """True if `run` would report a completion."""
        return self._submitted and not self.is_held

    def submit(self, operations: Sequence[Operation], done: Done) -> None:
        self._submitted = True
        for place, operation in enumerate(operations):
            if isinstance(operation, Write) and (number := self._why_refused(operation, operations[: place + 1])):
                super().submit(operations[:place], partial(_refuse, done, OSError(number, os.strerror(number))))
                return
        super().submit(operations, done)

    @property
    def used_bytes(self) -> int:
        """The bytes that the files of the folder take."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def _why_refused(self, write: Write, operations: Sequence[Operation]) -> int:
        if self.file_bytes_max is not None and write.offset + sum(map(len, write.buffers)) > self.file_bytes_max:
            return errno.EFBIG
        return errno.ENOSPC if self._leaves_no_room(operations) else 0

    def _leaves_no_room(self, operations: Sequence[Operation]) -> bool:
        if self.bytes_max is None:
            return False
        deleted = [self.folder / each.path for each in operations if isinstance(each, Delete)]
        freed = sum(path.stat().st_size for path in deleted if path.exists())
        taken = sum(len(buffer) for each in operations if isinstance(each, Write) for buffer in each.buffers)
        return self.used_bytes - freed + taken > self.bytes_max

    def run(self) -> None:
        if not self.is_held:
            self._submitted = False
            super().run()


def _refuse(done: Done, refusal: OSError, error: BaseException | None) -> None:
    done(error or refusal)


@dataclass(frozen=True)
class Sizes:
    """The bounds on a member's log and snapshots."""

    raft: RaftConfig = field(
        # No time passes in `Cluster.settle`, so a snapshot must be sent without waiting for its rate.
        default_factory=lambda: RaftConfig(snapshot_bytes_per_second=1 << 40)
    )
    storage: StorageLimits = field(default_factory=StorageLimits)


class Host:
    """One member's process. A `Host` starts from its folder. To kill it, a test drops the object."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        now: int,
        seed: int,
        limits: ServiceLimits,
        sizes: Sizes,
        levels: LevelRange,
    ) -> None:
        self.identity = identity
        self.files = HeldFiles(folder)
        opened: list[OpenedStorage | BaseException] = []
        open_storage(self.files, identity=identity, limits=sizes.storage, done=opened.append)
        self.files.run()
        (storage,) = opened
        assert isinstance(storage, OpenedStorage), storage
        self.machine = KvMachine(levels=levels)
        self.node = Node(
            identity=identity,
            config=sizes.raft,
            log=storage.log,
            snapshots=storage.snapshots,
            pins=storage.pins,
            hard_state=storage.hard_state,
            machine=self.machine,
            random=Random(seed),
            now=now,
            levels=levels,
        )
        self.service = Service(self.node, self.machine, limits)

    def kill(self) -> None:
        self.files.close()


class Cluster:
    """Members s1, s2, … and any number of clients."""

    def __init__(
        self,
        folder: Path,
        size: int,
        service_limits: ServiceLimits | None = None,
        sizes: Sizes | None = None,
        levels: LevelRange = FEATURE_LEVELS,
    ) -> None:
        self.now = 1_000 * SECOND
        self._sizes = sizes or Sizes()
        self._folder, self._limits = folder, service_limits or ServiceLimits()
        members = [Member(f"s{i}", f"s{i}:2", f"s{i}:1") for i in range(1, size + 1)]
        configuration = Configuration.of(members)
        self.identities = {
            member.node_id: Identity(
                cluster_id=derive_cluster_id("test", configuration),
                group_id=0,
                node_id=member.node_id,
                incarnation_id=member.node_id.encode().ljust(16, b"\0"),
            )
            for member in members
        }
        self.hosts: dict[str, Host] = {}
        self.levels: dict[str, LevelRange] = {}
        self.cut: set[str] = set()  # Members without connections to other members, which clients still reach.
        self.clients: list[SimClient] = []
        self._starts = 0
        for node_id, identity in self.identities.items():
            create_data_folder(
                folder / node_id, identity=identity, configuration=configuration, machine_header=initial_header()
            )
            self.start(node_id, levels)
        self.settle()

    def start(self, node_id: str, levels: LevelRange = FEATURE_LEVELS, says: LevelRange | None = None) -> None:
        """`levels`: the levels that the member's build applies from now on. `says`: the levels that the member reports
        to its peers, if they differ from `levels`."""
        self._starts += 1
        self.levels[node_id] = levels
        place, identity = self._folder / node_id, self.identities[node_id]
        host = Host(place, identity, self.now, self._starts, self._limits, self._sizes, levels)
        self.hosts[node_id] = host
        for peer_id, peer in self.hosts.items():
            if peer_id != node_id:
                host.node.peer_hello(peer_id, peer.identity.incarnation_id, self.levels[peer_id])
                peer.node.peer_hello(node_id, host.identity.incarnation_id, says or levels)

    def kill(self, node_id: str) -> None:
        self.hosts.pop(node_id).kill()
        for client in self.clients:
            client.member_died(node_id)
        self.settle()

    def leader(self) -> str:
        """The leader of the highest term; time passes until there is one."""
        for _ in range(200):
            leading = [host for host in self.hosts.values() if host.node.core.role.value == "leader"]
            if leading:
                return max(leading, key=lambda host: host.node.core.term).identity.node_id
            self.wait(0.05)
        raise AssertionError("nobody was elected in 10 seconds")

    def client(
        self,
        *,
        ttl_ns: int = 60 * SECOND,
        limits: ClientLimits | None = None,
        credentials: Credentials | None = None,
    ) -> SimClient:
        client = SimClient(self, ttl_ns, limits or ClientLimits(), credentials)
        self.clients.append(client)
        return client

    def settle(self) -> None:
        """Carry out everything that needs no time."""
        is_busy = True
        while is_busy:
            is_busy = False
            for node_id, host in list(self.hosts.items()):
                effects = host.node.take_effects()
                host.node.begin_sync()
                is_busy |= host.files.has_work
                host.files.run()
                assert effects.failure is None, effects.failure
                host.service.complete(effects.completions, effects.events)
                is_busy |= not effects.is_empty
                while host.service.has_work:
                    is_busy = True
                    host.service.work()
                self._deliver(node_id, effects)
            for client in self.clients:
                is_busy |= client.flush()

    def _deliver(self, node_id: str, effects: Effects) -> None:
        sent: deque[tuple[str, Message]] = deque(effects.send)
        for peer_id, message in sent:
            if peer_id in self.hosts and not {node_id, peer_id} & self.cut:
                self.hosts[peer_id].node.receive(node_id, message)

    def wait(self, seconds: float) -> None:
        """Let time pass, from deadline to deadline."""
        end = self.now + int(seconds * SECOND)
        while self.now < end:
            deadlines = [host.node.next_deadline for host in self.hosts.values()]
            deadlines += [deadline for client in self.clients if (deadline := client.core.next_deadline()) is not None]
            self.now = min(end, max(self.now + MILLISECOND_NS, min(deadlines, default=end)))
            for host in self.hosts.values():
                host.node.tick(self.now)
            for client in self.clients:
                client.core.tick(self.now)
            self.settle()


class SimClient:
    """A `ClientStateMachine` whose connections end in the services of a `Cluster`."""

    def __init__(
        self, cluster: Cluster, ttl_ns: int, limits: ClientLimits, credentials: Credentials | None = None
    ) -> None:
        self._cluster = cluster
        self.core = ClientStateMachine(
            [f"{node_id}:1" for node_id in cluster.identities],
            random=Random(len(cluster.clients)),
            now=cluster.now,
            limits=limits,
            session_ttl_ns=ttl_ns,
            credentials=credentials,
        )
        self._serial = (len(cluster.clients) + 1) * 1_000_000
        self.connections: dict[int, str] = {}  # The id of the client's connection → the member.
        self.ended: dict[int, CallEnded] = {}
        self._last_ticket = 0

    def submit(self, request: Request, seconds: float = 5) -> int:
        self._last_ticket += 1
        self.core.submit(self._last_ticket, request, self._cluster.now + int(seconds * SECOND))
        self._cluster.settle()
        return self._last_ticket

    def do(self, command: Command, seconds: float = 5, consistency: Consistency = Consistency.LINEARIZABLE) -> Result:
        """Carry the command out and wait; raises what the client would raise."""
        if isinstance(command, Get | Range):
            ticket = self.submit(read_request(command, consistency), seconds)
        else:
            ticket = self.submit(command_request(command), seconds)
        return self.result(ticket, seconds)

    def ask(self, request: Request, seconds: float = 5) -> Response:
        """Ask a member something and wait; raises what the client would raise."""
        return self._response(self.submit(request, seconds), seconds)

    def result(self, ticket: int, seconds: float = 5) -> Result:
        response = self._response(ticket, seconds)
        return read_result((response.code, response.revision, *response.fields))

    def _response(self, ticket: int, seconds: float) -> Response:
        for _ in range(int(seconds * 100) + 10):
            if ticket in self.ended:
                break
            self._cluster.wait(0.01)
        ended = self.ended[ticket]
        if ended.error is not None:
            raise ended.error
        assert ended.response is not None
        return ended.response

    def flush(self) -> bool:
        """Move bytes both ways once; True if anything moved."""
        effects = self.core.take_effects()
        for ended in effects.ended:
            assert ended.ticket not in self.ended, ended
            self.ended[ended.ticket] = ended
        for connection_id in effects.close:
            self._hang_up(connection_id)
        for connection_id, address in effects.dial:
            self._dial(connection_id, address.removesuffix(":1"))
        for connection_id, data in effects.send:
            if connection_id in self.connections:
                self._host(connection_id).service.receive(self._serial + connection_id, data)
        moved = bool(effects.dial or effects.send or effects.close)
        for connection_id in list(self.connections):
            moved |= self._fetch(connection_id)
        return moved

    def _host(self, connection_id: int) -> Host:
        return self._cluster.hosts[self.connections[connection_id]]

    def _dial(self, connection_id: int, node_id: str) -> None:
        host = self._cluster.hosts.get(node_id)
        if host is None:
            self.core.disconnected(connection_id, f"{node_id}: connection refused")
            return
        self.connections[connection_id] = node_id
        host.service.connected(self._serial + connection_id)
        self.core.connected(connection_id)

    def _hang_up(self, connection_id: int) -> None:
        if connection_id in self.connections:
            self._host(connection_id).service.disconnected(self._serial + connection_id)
            del self.connections[connection_id]

    def _fetch(self, connection_id: int) -> bool:
        if connection_id not in self.connections:
            return False
        service = self._host(connection_id).service
        moved = False
        for served_id, data in service.take_output():
            for client in self._cluster.clients:
                own_id = served_id - client._serial
                if client.connections.get(own_id) == self.connections.get(connection_id):
                    client.core.receive(own_id, data)
                    moved = True
            service.sent(served_id, len(data))
        return moved

    def member_died(self, node_id: str) -> None:
        for connection_id, member_id in list(self.connections.items()):
            if member_id == node_id:
                del self.connections[connection_id]
                self.core.disconnected(connection_id, f"{node_id}: connection reset")
