"""How a member is started: the arguments of `hwm serve`, and the disk and clock of its process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cluster.certificates import ClusterCertificates
from harness.cluster.process import MemberProcess
from harness.cluster.volumes import SMALL_BYTES, USUAL_BYTES, FileSystem, Volume
from kvstore import Tls


@dataclass(frozen=True, slots=True)
class MemberAddress:
    """The ports of a member, on 127.0.0.1.

    `proxy_port`: the port of the proxy through which peers reach the member; 0: peers use `peer_port`.
    `metrics_port`: the port for metrics and probes; 0: the member has no such port.
    """

    peer_port: int
    client_port: int
    proxy_port: int = 0
    metrics_port: int = 0

    @property
    def client(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer(self) -> str:
        """The peer address that the member advertises."""
        return f"127.0.0.1:{self.proxy_port or self.peer_port}"


BOOTSTRAP = "--bootstrap"
"""The option for the first start of a member. A later start must omit it: with this option, a member that has lost its
data folder would make a new one and so hide the loss.
"""

LEASE_READS = "--lease-reads"

NO_LEADER_LOSS_HINT = "--no-leader-loss-hint"

USUAL_STORAGE: tuple[str, ...] = ()
SMALL_STORAGE = ("--snapshot-log-bytes=32768", "--segment-bytes=16384", "--retention-bytes=65536")
"""Small limits, so that within seconds members write snapshots and delete segments, and send snapshots to members that
fell behind.
"""


def serve_arguments(
    node_id: str,
    data: Path,
    founders: Mapping[str, MemberAddress],
    options: Sequence[str] = (),
) -> list[str]:
    """Return the arguments of `hwm` for a founding member. The first start of the member also needs BOOTSTRAP."""
    members = [f"--member={name}={address.peer}/{address.client}" for name, address in founders.items()]
    return ["serve", str(data), f"--node-id={node_id}", *members, *_listening(founders[node_id]), *options]


def join_arguments(
    node_id: str,
    data: Path,
    address: MemberAddress,
    endpoints: Sequence[str],
    options: Sequence[str] = (),
) -> list[str]:
    """Return the arguments of `hwm` for a member that joins later. `endpoints`: client addresses of current members."""
    own = f"--member={node_id}={address.peer}/{address.client}"
    join = f"--join={','.join(endpoints)}"
    return ["serve", str(data), f"--node-id={node_id}", own, join, *_listening(address), *options]


def _listening(address: MemberAddress) -> list[str]:
    peers = [f"--listen-peer=127.0.0.1:{address.peer_port}"] if address.proxy_port else []
    return [*peers, f"--metrics=127.0.0.1:{address.metrics_port}"] if address.metrics_port else peers


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """The options with which all members of a cluster are started.

    `file_system`: the file system of each member's own volume; None: each member gets a plain folder. `faketime`: the
    path of libfaketime, if wall clocks are to be faked. `tampered`: faults can be injected into the log's disk and the
    monotonic clock (`harness.cluster.os_faults`); this slows the member down a little. `has_metrics`: each member has a
    port for metrics and probes. `descriptors_max`: the soft and hard limit of open files of each member; None: the
    limit of the harness. `certificates`: those of all members and clients; None: the cluster has no TLS.
    """

    small_storage: bool = False
    lease_reads: bool = False
    leader_loss_hint: bool = True
    file_system: FileSystem | None = None
    faketime: Path | None = None
    tampered: bool = False
    has_metrics: bool = False
    descriptors_max: int | None = None
    certificates: ClusterCertificates | None = None

    @property
    def tls(self) -> Tls | None:
        """The certificates with which clients connect; None: without TLS."""
        return None if self.certificates is None else self.certificates.client

    def options_of(self, node_id: str) -> Sequence[str]:
        """The options of `hwm serve` for one member, and its certificates if there are any."""
        return (*self.options, *(self.certificates.options(node_id) if self.certificates is not None else ()))

    @property
    def options(self) -> Sequence[str]:
        """The options of `hwm serve` that are the same for all members."""
        storage = SMALL_STORAGE if self.small_storage else USUAL_STORAGE
        switches = [LEASE_READS] if self.lease_reads else []
        switches += [] if self.leader_loss_hint else [NO_LEADER_LOSS_HINT]
        return (*storage, *switches)

    def volume(self, home: Path, node_id: str) -> Volume | None:
        """Return an unopened volume for a new member; None if members get plain folders."""
        if self.file_system is None:
            return None
        size_bytes = SMALL_BYTES if self.small_storage else USUAL_BYTES
        return Volume(home / "volumes", node_id, file_system=self.file_system, size_bytes=size_bytes)

    def process(self, home: Path, node_id: str, arguments: Sequence[str]) -> MemberProcess:
        """Return the process of a new member, not yet started."""
        member = MemberProcess(node_id, arguments, home / f"{node_id}.log")
        member.descriptors_max = self.descriptors_max
        if self.faketime is not None:
            member.give_wall_clock(self.faketime)
        if self.tampered:
            member.give_controls()
        return member
