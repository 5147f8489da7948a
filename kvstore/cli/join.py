"""Options of `hwm init` and `hwm serve` for a new member of a running cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kvstore.cli.common import FunctionT
from kvstore.errors import InvalidAddress
from kvstore.member.joining import Joining, joining_of
from kvstore.protocol.addresses import parse_address
from raft import InvalidConfiguration, Member

if TYPE_CHECKING:
    EndpointsParamType = click.ParamType[tuple[str, ...]]
    ClusterIdParamType = click.ParamType[bytes]
else:  # Before click 8.4 it takes no parameter.
    EndpointsParamType = ClusterIdParamType = click.ParamType


class Endpoints(EndpointsParamType):
    """`host:port,host:port`."""

    name = "endpoints"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Called by click."""
        if isinstance(value, tuple):
            return value
        addresses = tuple(part.strip() for part in value.split(",") if part.strip())
        if not addresses:  # A shell variable that is not set: without it `init` would found a cluster of its own.
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
    """`--join` and `--cluster-id`."""
    options = [
        click.option(
            "--join",
            type=Endpoints(),
            default=(),
            metavar="HOST:PORT,...",
            help="Client addresses of some members of a running cluster: be a new member of it. --member is then this "
            "one alone. Add it with `hwm member add`, before or after.",
        ),
        click.option(
            "--cluster-id",
            type=ClusterId(),
            metavar="HEX",
            help="Join this cluster and no other. Without --join it is asked for at the other --member's addresses.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def joining_from(
    join: Sequence[str], cluster_id: bytes | None, node_id: str | None, members: Sequence[Member], cluster_token: str
) -> Joining | None:
    """What the options say; None if they say nothing of joining. Raises InvalidConfiguration."""
    if not join and cluster_id is None:
        return None
    if cluster_token:
        raise InvalidConfiguration(
            "--cluster-token is for founders; a member that joins takes the cluster's id from it"
        )
    if not members:
        raise InvalidConfiguration(
            "a member that joins is given its own id and addresses: --member ID=PEER/CLIENT, itself alone"
        )
    return joining_of(node_id=node_id, members=members, endpoints=join, cluster_id=cluster_id or b"")
