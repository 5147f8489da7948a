"""The options of a member that is started by name: one command line for the first start and for every later one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvstore.access.credentials import credentials_of
from kvstore.cli.options.tls import client_tls
from kvstore.cli.options.user import client_user
from kvstore.errors import InvalidAddress
from kvstore.member.named import NamedConfig
from kvstore.protocol.addresses import parse_advertised
from raft import MEMBERS_MAX, InvalidConfiguration

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

if TYPE_CHECKING:
    AddressesParamType = click.ParamType[str]
else:  # Before click 8.4, `ParamType` has no type parameter.
    AddressesParamType = click.ParamType


class AddressesType(AddressesParamType):
    """`peerhost:port/clienthost:port`."""

    name = "addresses"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Called by click."""
        peer, slash, client = value.partition("/")
        if not slash:
            self.fail(f"{value!r} must be peerhost:port/clienthost:port", param, ctx)
        try:
            for address in (peer, client):
                parse_advertised(address)
        except InvalidAddress as error:
            self.fail(str(error), param, ctx)
        return str(value)


def named_options(function: FunctionT) -> FunctionT:
    """Add `--name`, `--advertise` and `--begin-with`."""
    options = [
        click.option(
            "--name",
            metavar="NAME",
            help="Start the member of this name. Its id is made with its folder. If the folder was lost, a member with "
            "a new id takes the place of the former one. Needs --advertise and --join.",
        ),
        click.option(
            "--advertise",
            type=AddressesType(),
            metavar="PEER/CLIENT",
            help="With --name: where the others find this member, peerhost:port/clienthost:port.",
        ),
        click.option(
            "--begin-with",
            type=click.IntRange(1, MEMBERS_MAX),
            metavar="N",
            help="With --name: if no cluster is found, and N members of --join have no data, the first of them begins "
            "a cluster. With --cluster-id, none is ever begun.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def named_from(
    name: str | None, advertise: str | None, join: Sequence[str], begin_with: int | None, cluster_id: bytes | None
) -> NamedConfig | None:
    """Convert the options of a member that is started by name; None without `--name`. Raises InvalidConfiguration."""
    if name is None:
        for option, value in (("--advertise", advertise), ("--begin-with", begin_with)):
            if value is not None:
                raise InvalidConfiguration(f"{option} is for members that are started by name: --name")
        return None
    if advertise is None or not join:
        raise InvalidConfiguration(
            "a member that is started by name is given its own addresses (--advertise PEER/CLIENT), and the client "
            "addresses of all names (--join HOST:PORT,...)"
        )
    peer, _, client = advertise.partition("/")
    return NamedConfig(
        name=name,
        peer_address=peer,
        client_address=client,
        endpoints=tuple(dict.fromkeys(join)),
        begin_with=begin_with or 0,
        cluster_id=cluster_id or b"",
        tls=client_tls(),
        credentials=credentials_of(*client_user()),
    )
