"""`hwm user`: users, their passwords, roles and bounds."""

from __future__ import annotations

from pathlib import Path

import click
import trio

from kvstore.access.calls import add_user, change_access, change_password, list_users
from kvstore.cli.common import client_options, print_json, print_table
from kvstore.cli.coordination.session import run_without_session
from kvstore.cli.options.user import ask_password, read_password_file
from kvstore.cli.output import say
from kvstore.protocol.access_commands import (
    USER_LIMIT_NAMES,
    AccessCommand,
    ChangeUserLimits,
    UserGrant,
    UserRemove,
    UserRevoke,
)
from raft import INT64_MAX

_NEW_PASSWORD = click.option(
    "--new-password-file",
    type=click.Path(path_type=Path, dir_okay=False, readable=False),
    metavar="FILE",
    help="The file whose first line is the new password. Without it, the password is asked for.",
)
_NO_PASSWORD = click.option("--no-password", is_flag=True, help="Only a certificate with this name proves the user.")


@click.group()
def user() -> None:
    """Users: who may use the store if authentication is on.

    \b
    Exit codes: 0 done; 2 wrong usage; 3 refused, nothing has changed;
    4 unknown, look with `hwm user list`; 5 nobody leads, or nobody can be reached.
    """


@user.command("list")
@client_options
def list_command(endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Show the users, their roles, and what they may use of each member (0: no bound)."""
    users = run_without_session(endpoints, deadline_seconds, list_users)
    if as_json:
        rows = [
            {
                "user": each.name,
                "has_password": each.has_password,
                "roles": list(each.roles),
                **{name: getattr(each.limits, name) for name in USER_LIMIT_NAMES},
            }
            for each in users
        ]
        print_json({"users": rows})
        return
    print_table(
        ("user", "password", "roles", *USER_LIMIT_NAMES),
        [
            (
                each.name,
                "yes" if each.has_password else "no",
                ",".join(each.roles),
                *(getattr(each.limits, name) for name in USER_LIMIT_NAMES),
            )
            for each in users
        ],
    )


@user.command("add")
@click.argument("name")
@_NEW_PASSWORD
@_NO_PASSWORD
@client_options
def add(
    name: str,
    new_password_file: Path | None,
    no_password: bool,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Add the user NAME, without any role."""
    password = _new_password(name, new_password_file, no_password=no_password)
    run_without_session(
        endpoints, deadline_seconds, lambda client: add_user(client, name, password, trio.to_thread.run_sync)
    )
    _done(f"user {name} is added", as_json=as_json)


@user.command("password")
@click.argument("name")
@_NEW_PASSWORD
@_NO_PASSWORD
@client_options
def password_command(
    name: str,
    new_password_file: Path | None,
    no_password: bool,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Change the password of the user NAME. Each connection of the user must then authenticate again."""
    password = _new_password(name, new_password_file, no_password=no_password)
    run_without_session(
        endpoints, deadline_seconds, lambda client: change_password(client, name, password, trio.to_thread.run_sync)
    )
    _done(f"the password of user {name} is changed", as_json=as_json)


@user.command("remove")
@click.argument("name")
@client_options
def remove(name: str, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Remove the user NAME."""
    _change(UserRemove(name), f"user {name} is removed", endpoints, deadline_seconds, as_json=as_json)


@user.command("grant")
@click.argument("name")
@click.argument("role")
@client_options
def grant(name: str, role: str, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Give the user NAME the role ROLE."""
    _change(UserGrant(name, role), f"user {name} has the role {role}", endpoints, deadline_seconds, as_json=as_json)


@user.command("revoke")
@click.argument("name")
@click.argument("role")
@client_options
def revoke(name: str, role: str, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Take the role ROLE away from the user NAME."""
    words = f"user {name} no longer has the role {role}"
    _change(UserRevoke(name, role), words, endpoints, deadline_seconds, as_json=as_json)


@user.command("limits")
@click.argument("name")
@click.argument("changes", metavar="BOUND=NUMBER...", nargs=-1, required=True)
@client_options
def limits(name: str, changes: tuple[str, ...], endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Bound what the user NAME may use of each member; 0 means no bound.

    The bounds are requests_per_second, bytes_per_second, connections_max and watches_max.
    """
    bounds = dict(map(_read_bound, changes))
    words = f"user {name} has the bounds " + ", ".join(f"{key}={bound}" for key, bound in bounds.items())
    _change(ChangeUserLimits(name, **bounds), words, endpoints, deadline_seconds, as_json=as_json)


def _read_bound(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if name not in USER_LIMIT_NAMES:
        raise click.UsageError(f"There is no bound {name!r}. There are: {', '.join(USER_LIMIT_NAMES)}.")
    if not number.isascii() or not number.isdigit() or int(number) > INT64_MAX:
        raise click.UsageError(f"{text!r}: the value is a whole number from 0 to 2^63-1.")
    return name, int(number)


def _new_password(name: str, path: Path | None, *, no_password: bool) -> str | None:
    if no_password:
        if path is not None:
            raise click.UsageError("--no-password and --new-password-file exclude each other.")
        return None
    if path is not None:
        return read_password_file(path)
    return ask_password(f"New password of {name}", confirm=True)


def _change(command: AccessCommand, words: str, endpoints: str, deadline_seconds: float, *, as_json: bool) -> None:
    run_without_session(endpoints, deadline_seconds, lambda client: change_access(client, command))
    _done(words, as_json=as_json)


def _done(words: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"done": True})
    else:
        say(words)
