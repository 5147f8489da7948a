"""The configuration of one member, checked as far as possible without its data folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvstore.errors import StoreError
from kvstore.etcd import HTTP2
from kvstore.limits import FEATURE_LEVEL_MAX, FEATURE_LEVELS, ServiceLimits
from kvstore.member.joining import JoinConfig
from kvstore.member.named import NamedConfig
from kvstore.protocol.addresses import parse_address
from kvstore.tls import MemberTls
from raft import Configuration, InvalidConfiguration, Member, RaftConfig
from storage import Files, StorageLimits


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
    """The configuration of one member at its start. Raises InvalidAddress.

    `members`: the first members of the cluster, which are all started with the same list. If `members` is None, an
    existing folder determines the members, and `bootstrap` makes a store with only this member. `bootstrap`: make the
    folder if it contains no member. `feature_level`: the level at which a new cluster begins, which must be the same
    for all first members. `joining`: if the folder contains no member, make it the folder of a new member of a running
    cluster. With `joining`, `members` must be None. `named`: start this member by its name, which is not its id; then
    `node_id`, `members`, `bootstrap` and `joining` are not given. `listen_*`: `host:port`, or None for this member's
    own advertised address. `dial`: the node id of a peer → the address at which this member dials the peer, instead of
    the peer's advertised address. `in_memory`: make a new member whose folder is in memory, for tests of programs;
    `folder` is then only a name.
    """

    folder: Path
    node_id: str | None = None
    members: tuple[Member, ...] | None = None
    cluster_token: str = ""
    bootstrap: bool = False
    feature_level: int = FEATURE_LEVEL_MAX
    joining: JoinConfig | None = None
    named: NamedConfig | None = None
    listen_peer: str | None = None
    listen_client: str | None = None
    metrics: str | None = None  # `host:port` of `/metrics`, `/livez` and `/readyz`; None: no metrics.
    etcd: bool = False  # True: the client port also serves etcd's clients.
    http2: str = HTTP2[0]  # The implementation of HTTP/2 for these clients: one of HTTP2.
    listen_when_alone: bool = True  # False: a store of one node has no client port.
    dial: Mapping[str, str] = field(default_factory=dict)
    insecure: bool = False  # True: ports without TLS may listen where other machines can connect.
    tls: MemberTls | None = None
    root_password: str | None = field(default=None, repr=False)  # Root's new password, set once this member leads.
    raft: RaftConfig = field(default_factory=RaftConfig)
    storage: StorageLimits = field(default_factory=StorageLimits)
    service: ServiceLimits = field(default_factory=ServiceLimits)
    wrap_files: Callable[[Files], Files] = lambda files: files  # For tests that watch the disk.
    in_memory: bool = False

    def __post_init__(self) -> None:
        if self.joining is not None and (self.bootstrap or self.members is not None or self.cluster_token):
            raise InvalidConfiguration(
                "a member that joins a cluster is not one of its founders: no bootstrap, no token"
            )
        if self.in_memory and (self.joining is not None or self.metrics is not None):
            raise InvalidConfiguration("a member in memory is a founder, and has no metrics, which measure a disk")
        founds = self.bootstrap or self.members is not None or self.cluster_token
        if self.named is not None and (founds or self.node_id is not None or self.joining is not None):
            raise InvalidConfiguration(
                "a member that is started by name has no id, member list, token or bootstrap of its own: it finds them"
            )
        if self.feature_level not in FEATURE_LEVELS:
            raise InvalidConfiguration(
                f"a new cluster cannot begin at feature level {self.feature_level}; this build knows {FEATURE_LEVELS}"
            )
        if self.http2 not in HTTP2:
            raise InvalidConfiguration(f"there is no implementation {self.http2!r} of HTTP/2: {' or '.join(HTTP2)}")
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

    @property
    def own(self) -> Member | None:
        """This member, with its addresses; None if only its data folder, or its name, says which member it is."""
        if self.joining is not None:
            return self.joining.own
        members = self.members or ()
        if self.node_id is None:
            return members[0] if len(members) == 1 else None
        return next((member for member in members if member.node_id == self.node_id), None)


def _check_addresses(configuration: Configuration) -> None:
    """Refuse addresses that cannot work, because the list is written into the data folder of every member."""
    is_alone = len(configuration.voters) == 1  # Peers need not find this member, so any port is valid.
    addresses = [each for member in configuration.voters for each in (member.peer_address, member.client_address)]
    for address in filter(None, addresses):
        is_any_port = parse_address(address)[1] == 0
        if is_any_port and not is_alone:
            raise InvalidConfiguration(f"{address}: the other members cannot find it at port 0 (any)")
        if not is_any_port and addresses.count(address) > 1:
            raise InvalidConfiguration(f"the member list has {address} twice: each member needs two different ones")


def _check_dial(dial: Mapping[str, str], configuration: Configuration) -> None:
    for node_id in sorted(set(dial) - set(configuration.voter_ids)):
        known = ", ".join(configuration.voter_ids)
        raise InvalidConfiguration(f"no member to dial has the id {node_id}; the member list has {known}")
