"""`hwm init` and `hwm serve`: makes the folder of a member, and runs its process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import trio

from kvstore.access.credentials import credentials_of
from kvstore.cli.common import ExitCode, Failure, FunctionT, MemberType
from kvstore.cli.daemon.configuration import ConfiguredCommand, show_configuration
from kvstore.cli.daemon.process import failure_of_member, serve
from kvstore.cli.options.named import named_from, named_options
from kvstore.cli.options.tls import client_tls, join_tls_options, member_tls, member_tls_options
from kvstore.cli.options.user import USER_OPTIONS, client_user, read_password_file
from kvstore.cli.output import OPERATION, say
from kvstore.client.dial import dialer_of
from kvstore.errors import InvalidAddress
from kvstore.etcd import HTTP2
from kvstore.limits import (
    FEATURE_LEVEL_MAX,
    FEATURE_LEVEL_MIN,
    SECOND_NS,
    AdmissionLimits,
    ServiceLimits,
)
from kvstore.member.config import MemberConfig
from kvstore.member.folder import initialize_folder
from kvstore.member.joining import JoinConfig, join_config_of, make_joining_folder
from kvstore.member.start_checks import check_start
from kvstore.monitoring.log_format import start_logging
from kvstore.protocol.addresses import parse_address
from raft import PRIORITY_MAX, InvalidConfiguration, Member, RaftConfig
from storage import StorageLimits

MILLISECOND_NS = 1_000_000
MINUTE_NS = 60 * SECOND_NS

HISTORY_MINUTES_MAX = 525_600
"""A year."""

if TYPE_CHECKING:
    DialParamType = click.ParamType[tuple[str, str]]
    EndpointsParamType = click.ParamType[tuple[str, ...]]
    ClusterIdParamType = click.ParamType[bytes]
else:  # Before click 8.4, `ParamType` has no type parameter.
    DialParamType = EndpointsParamType = ClusterIdParamType = click.ParamType


class DialType(DialParamType):
    """`id=host:port`."""

    name = "dial"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Called by click."""
        if isinstance(value, tuple):
            return value
        node_id, equals, address = value.partition("=")
        if not equals:
            self.fail(f"{value!r} must be id=host:port", param, ctx)
        try:
            parse_address(address)
        except InvalidAddress as error:
            self.fail(str(error), param, ctx)
        return node_id, address


def folder_options(function: FunctionT) -> FunctionT:
    """Add the argument and the options that identify a member, which `init` and `serve` have in common."""
    options = [
        click.argument("folder", type=click.Path(path_type=Path, readable=False), metavar="DIR"),
        click.option("--node-id", metavar="ID", help="This member's id: small letters, digits and dashes."),
        click.option(
            "--member",
            "members",
            type=MemberType(),
            multiple=True,
            metavar="ID=PEER/CLIENT",
            help="A member and its advertised addresses, id=peerhost:port/clienthost:port. Give this option once for "
            "each member, and the same list to every member.",
        ),
        click.option("--cluster-token", default="", metavar="TEXT", help="Distinguishes clusters with equal members."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def level_option(function: FunctionT) -> FunctionT:
    """Add the option `--feature-level`."""
    return click.option(
        "--feature-level",
        type=click.IntRange(FEATURE_LEVEL_MIN, FEATURE_LEVEL_MAX),
        metavar="N",
        help="The feature level of a new cluster. Give the same level to all its first members, and a lower level if "
        f"some of them have an older build.  [default: {FEATURE_LEVEL_MAX}]",
    )(function)


class Endpoints(EndpointsParamType):
    """`host:port,host:port`."""

    name = "endpoints"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Called by click."""
        if isinstance(value, tuple):
            return value
        addresses = tuple(part.strip() for part in value.split(",") if part.strip())
        # An empty value may come from an unset shell variable. If an empty value were accepted, `init` would make a new
        # cluster.
        if not addresses:
            self.fail(f"{value!r} names no member of a running cluster", param, ctx)
        try:
            for address in addresses:
                parse_address(address)
        except InvalidAddress as error:
            self.fail(str(error), param, ctx)
        return addresses


class ClusterId(ClusterIdParamType):
    """32 hexadecimal digits."""

    name = "cluster id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Called by click."""
        if isinstance(value, bytes):
            return value
        try:
            found = bytes.fromhex(value)
        except ValueError:
            found = b""
        if len(found) != 16:
            self.fail(
                f"{value!r} is not the id of a cluster, 32 hexadecimal digits: see `hwm status --json`", param, ctx
            )
        return found


def join_options(function: FunctionT) -> FunctionT:
    """Add the options `--join` and `--cluster-id`, and the certificates for connections to that cluster."""
    options = [
        click.option(
            "--join",
            type=Endpoints(),
            default=(),
            metavar="HOST:PORT,...",
            help="Become a new member of a running cluster; some of its members have these client addresses. --member "
            "then names only the new member. Add it with `hwm member add`, before or after.",
        ),
        click.option(
            "--cluster-id",
            type=ClusterId(),
            metavar="HEX",
            help="Join the cluster with this id and no other. Without --join, name some of its members with --member, "
            "too.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    for option in reversed(USER_OPTIONS):
        function = option(function)
    return join_tls_options(function)


def joining_from(
    join: Sequence[str],
    cluster_id: bytes | None,
    node_id: str | None,
    members: Sequence[Member],
    cluster_token: str,
    feature_level: int | None,
) -> JoinConfig | None:
    """Convert the options about joining. Returns None if neither `--join` nor `--cluster-id` is given. Raises
    InvalidConfiguration."""
    if not join and cluster_id is None:
        return None
    if feature_level is not None:
        raise InvalidConfiguration(
            "--feature-level is for founders; a member that joins takes the level of the cluster"
        )
    if cluster_token:
        raise InvalidConfiguration(
            "--cluster-token is for founders; a member that joins takes the cluster's id from it"
        )
    if not members:
        raise InvalidConfiguration(
            "a member that joins needs its own id and addresses, and no others: --member ID=PEER/CLIENT"
        )
    return join_config_of(
        node_id=node_id,
        members=members,
        endpoints=join,
        cluster_id=cluster_id or b"",
        tls=client_tls(),
        credentials=credentials_of(*client_user()),
    )


@click.command()
@folder_options
@level_option
@join_options
def init(
    folder: Path,
    node_id: str | None,
    members: tuple[Member, ...],
    cluster_token: str,
    feature_level: int | None,
    join: tuple[str, ...],
    cluster_id: bytes | None,
) -> None:
    """Make DIR the data folder of a new member. Without --member, it is the only member of a new cluster.

    With --join, it is a new member of a running cluster, and --member names this member itself.
    """
    try:
        joining = joining_from(join, cluster_id, node_id, members, cluster_token, feature_level)
        if joining is None:
            config = MemberConfig(
                folder=folder,
                node_id=node_id,
                members=members or None,
                cluster_token=cluster_token,
                feature_level=feature_level or FEATURE_LEVEL_MAX,
            )
            identity = initialize_folder(config)
        else:
            identity = trio.run(make_joining_folder, folder, joining)
    except Exception as error:
        raise failure_of_member(error, folder) from error
    OPERATION.is_done = True
    say(f"{folder}: member {identity.node_id} of cluster {identity.cluster_id.hex()}")


@click.command("serve", cls=ConfiguredCommand)
@folder_options
@level_option
@join_options
@named_options
@click.option("--bootstrap", is_flag=True, help="Make DIR first if it has no member. Never use it after a lost disk.")
@click.option("--listen-peer", metavar="HOST:PORT", help="Where peers connect, if not at the advertised address.")
@click.option("--listen-client", metavar="HOST:PORT", help="Where clients connect, if not at the advertised address.")
@click.option(
    "--dial", "dials", type=DialType(), multiple=True, metavar="ID=HOST:PORT", help="Reach the peer ID at this address."
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve /metrics, /livez and /readyz here; port 0 for any.")
@click.option("--etcd", is_flag=True, help="Also serve etcd's clients at the client port.")
@click.option(
    "--http2",
    type=click.Choice(HTTP2),
    default=HTTP2[0],
    show_default=True,
    help="How to speak HTTP/2 with etcd's clients: with the engine of this project, or with the library h2.",
)
@member_tls_options
@click.option("--insecure", is_flag=True, help="Listen where other machines can connect, even without TLS.")
@click.option(
    "--reset-root-password",
    type=click.Path(path_type=Path, dir_okay=False, readable=False),
    metavar="FILE",
    help="Once this member leads, give the user root the password in the first line of FILE. For a lost password.",
)
@click.option("--ready-file", type=click.Path(path_type=Path), help="Also write the ready line here.")
@click.option(
    "--heartbeat-ms", type=click.IntRange(1, 30_000), default=50, show_default=True, help="The heartbeat interval."
)
@click.option(
    "--election-timeout-ms",
    type=click.IntRange(2, 60_000),
    default=300,
    show_default=True,
    help="A follower campaigns if it hears no leader for a random time between this and twice this.",
)
@click.option(
    "--lease-reads",
    is_flag=True,
    help="Answer `lease` reads. Safe only if every clock is at most 1 % too fast or too slow.",
)
@click.option(
    "--election-priority",
    type=click.IntRange(0, PRIORITY_MAX),
    default=0,
    show_default=True,
    help="A leader hands over to a member with a higher priority while the cluster is healthy.",
)
@click.option(
    "--no-leader-loss-hint",
    is_flag=True,
    help="Wait for the election time-out even if the leader has ended its connections.",
)
@click.option("--snapshot-log-bytes", type=click.IntRange(1), help="At most this much log between two snapshots.")
@click.option(
    "--snapshot-bytes-per-second",
    type=click.IntRange(1),
    help="The highest rate at which a snapshot is built, sent and installed.  [default: 33554432]",
)
@click.option("--retention-bytes", type=click.IntRange(1), help="At most this much log is kept for a slow member.")
@click.option("--segment-bytes", type=click.IntRange(256), help="Size of one file of the log.")
@click.option(
    "--session-ttl-max",
    "session_ttl_seconds_max",
    type=click.IntRange(1, 86_400),
    default=AdmissionLimits().session_ttl_ns_max // SECOND_NS,
    show_default=True,
    metavar="SECONDS",
    help="The longest time-to-live that a client's session may have.",
)
@click.option(
    "--history-minutes",
    type=click.IntRange(1, HISTORY_MINUTES_MAX),
    metavar="N",
    help="Forget history that is older than this; give the same value to all members. Without this option, only "
    "`history_bytes_max` and `history_events_max` bound the history.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Log messages of this severity and above to stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log format: human-readable text, or one JSON object per line.",
)
def serve_command(
    folder: Path,
    node_id: str | None,
    members: tuple[Member, ...],
    cluster_token: str,
    feature_level: int | None,
    join: tuple[str, ...],
    cluster_id: bytes | None,
    name: str | None,
    advertise: str | None,
    begin_with: int | None,
    bootstrap: bool,
    listen_peer: str | None,
    listen_client: str | None,
    dials: tuple[tuple[str, str], ...],
    metrics: str | None,
    etcd: bool,
    http2: str,
    insecure: bool,
    reset_root_password: Path | None,
    ready_file: Path | None,
    heartbeat_ms: int,
    election_timeout_ms: int,
    lease_reads: bool,
    election_priority: int,
    no_leader_loss_hint: bool,
    snapshot_log_bytes: int | None,
    snapshot_bytes_per_second: int | None,
    retention_bytes: int | None,
    segment_bytes: int | None,
    session_ttl_seconds_max: int,
    history_minutes: int | None,
    log_level: str,
    log_format: str,
    check_config: bool,
) -> None:
    """Run the member whose data is in DIR, until SIGTERM.

    Every option can also come from the environment (--listen-peer: HWM_LISTEN_PEER; DIR: HWM_DIR; lists are separated
    by spaces), or from the TOML file of --config (listen-peer = "..."; dir = "..."). The command line has precedence
    over the environment, and the environment over the file.

    \b
    Exit codes: 0 stopped as asked; 2 wrong options; 3 refused to start (the
    folder is locked, damaged, of another cluster, not initialised; a port is
    in use; the cluster does not let it join); 5 the cluster that it is to join
    does not answer; 6 stopped itself (its disk failed, or an invariant broke);
    7 was permanently removed from its cluster.
    """
    if not check_config:
        start_logging(log_level, as_json=log_format == "json")
    try:
        joining, named = None, named_from(name, advertise, join, begin_with, cluster_id)
        if named is None:
            joining = joining_from(join, cluster_id, node_id, members, cluster_token, feature_level)
        else:
            listen_peer, listen_client = listen_peer or named.peer_address, listen_client or named.client_address
        config = MemberConfig(
            folder=folder,
            node_id=node_id,
            members=members or None if joining is None else None,
            cluster_token=cluster_token,
            bootstrap=bootstrap,
            feature_level=feature_level or FEATURE_LEVEL_MAX,
            joining=joining,
            named=named,
            listen_peer=listen_peer,
            listen_client=listen_client,
            dial=dict(dials),
            metrics=metrics,
            etcd=etcd,
            http2=http2,
            insecure=insecure,
            tls=member_tls(),
            root_password=None if reset_root_password is None else read_password_file(reset_root_password),
            raft=_raft_config(
                heartbeat_ms,
                election_timeout_ms,
                lease_reads=lease_reads,
                election_priority=election_priority,
                leader_loss_hint=not no_leader_loss_hint,
                snapshot_log_bytes=snapshot_log_bytes,
                snapshot_bytes_per_second=snapshot_bytes_per_second,
                retention_bytes_max=retention_bytes,
            ),
            storage=StorageLimits() if segment_bytes is None else StorageLimits(segment_bytes_max=segment_bytes),
            service=ServiceLimits(
                admission=AdmissionLimits(session_ttl_ns_max=session_ttl_seconds_max * SECOND_NS),
                history_age_ns_max=(history_minutes or 0) * MINUTE_NS,
            ),
        )
    except (InvalidConfiguration, InvalidAddress) as error:
        raise Failure(str(error), ExitCode.USAGE, "see `hwm serve --help`") from error
    if check_config:
        _check(config)
        show_configuration(click.get_current_context())
    else:
        serve(config, ready_file)


def _check(config: MemberConfig) -> None:
    """Make the checks of a start that need no data folder and no port. Raises Failure, as the start does."""
    try:
        check_start(config)
        for way_in in (config.joining, config.named):
            dialer_of(None if way_in is None else way_in.tls)
    except Exception as error:
        raise failure_of_member(error, config.folder) from error


def _raft_config(
    heartbeat_ms: int,
    election_timeout_ms: int,
    *,
    lease_reads: bool,
    election_priority: int,
    leader_loss_hint: bool,
    **sizes: int | None,
) -> RaftConfig:
    if election_timeout_ms < 2 * heartbeat_ms:
        raise InvalidConfiguration(
            f"--election-timeout-ms {election_timeout_ms} must be at least twice --heartbeat-ms {heartbeat_ms}"
        )
    given = {name: value for name, value in sizes.items() if value is not None}
    return RaftConfig(
        heartbeat_interval_ns=heartbeat_ms * MILLISECOND_NS,
        election_timeout_min_ns=election_timeout_ms * MILLISECOND_NS,
        election_timeout_max_ns=2 * election_timeout_ms * MILLISECOND_NS,
        lease_reads=lease_reads,
        election_priority=election_priority,
        leader_loss_hint=leader_loss_hint,
        **given,
    )
