"""The options of TLS: those of commands that connect to a cluster, and those of `hwm serve`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvstore.tls import MemberTls, Tls
from raft import InvalidConfiguration

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_FILES = "kvstore.tls_files"  # Set in `Context.meta`: the option's name → its path.
_MEMBER = "kvstore.member_tls"

_FILE = click.Path(path_type=Path, dir_okay=False, readable=False)


def _keep(place: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that stores the value of an option in the context, so that the command needs no parameter for
    this value."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        context.meta.setdefault(place, {})[parameter.name] = value

    return keep


def _client_option(name: str, variable: str, help_text: str) -> Callable[[FunctionT], FunctionT]:
    return click.option(
        f"--{name}",
        f"own_{name}",  # `cert` and `key` are other parameters of `hwm serve`.
        envvar=variable,
        type=_FILE,
        metavar="FILE",
        expose_value=False,
        callback=_keep(_FILES),
        help=f"{help_text} [env: {variable}]",
    )


def kept_values(context: click.Context) -> dict[str, Any]:
    """The values of this module's options in the running command, by the names of their parameters."""
    return {**context.meta.get(_FILES, {}), **context.meta.get(_MEMBER, {})}


TLS_OPTIONS: list[Callable[[Any], Any]] = [
    _client_option("ca", "HWM_CA", "Use TLS; members' certificates must be signed by an authority in this file."),
    _client_option("cert", "HWM_CERT", "The certificate to show to members."),
    _client_option("key", "HWM_KEY", "The private key of --cert, if it is in a file of its own."),
]
"""The options of a command that connects to a cluster. `client_tls` returns their values."""


def client_tls() -> Tls | None:
    """The certificates that the options of the running command name; None: a connection without TLS. Raises
    click.UsageError."""
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.meta.get(_FILES, {})
    if not any(given.values()):
        return None
    ca, cert, key = (given.get(f"own_{name}") for name in ("ca", "cert", "key"))
    if ca is None:
        raise click.UsageError("--cert and --key need --ca: the authorities that have signed the members' certificates")
    try:
        return Tls(ca=ca, cert=cert, key=key)
    except InvalidConfiguration as error:
        raise click.UsageError(f"--key without --cert: {error}") from error


def _member_option(name: str, parameter: str, help_text: str) -> Callable[[FunctionT], FunctionT]:
    return click.option(
        f"--{name}",
        parameter,
        type=_FILE,
        metavar="FILE",
        expose_value=False,
        callback=_keep(_MEMBER),
        help=help_text,
    )


def join_tls_options(function: FunctionT) -> FunctionT:
    """Add `--ca`, `--cert` and `--key`, with which a new member connects to the client ports of its cluster."""
    for option in reversed(TLS_OPTIONS):
        function = option(function)
    return function


def member_tls_options(function: FunctionT) -> FunctionT:
    """Add the options of the certificates of a member. `member_tls` returns their values."""
    options = [
        _member_option("tls-cert", "cert", "Use TLS at the client port and at --metrics, with this certificate."),
        _member_option("tls-key", "key", "The private key of --tls-cert, if it is in a file of its own."),
        _member_option("client-ca", "client_ca", "Require a certificate of one of these authorities from each client."),
        _member_option("peer-cert", "peer_cert", "Use TLS between members. The certificate must name this node id."),
        _member_option("peer-key", "peer_key", "The private key of --peer-cert, if it is in a file of its own."),
        _member_option("peer-ca", "peer_ca", "The authorities that have signed the certificates of the members."),
        click.option(
            "--tls-mixed",
            "mixed",
            is_flag=True,
            expose_value=False,
            callback=_keep(_MEMBER),
            help="Allow connections without TLS, too. Only while TLS is turned on or off in a running cluster.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def member_tls() -> MemberTls | None:
    """The certificates that the options of `hwm serve` name; None: ports without TLS. Raises InvalidConfiguration,
    click.UsageError."""
    given = click.get_current_context().meta.get(_MEMBER, {})
    client = client_tls()
    if not any(given.values()):
        return None
    return MemberTls(**given, client=client)
