"""`hwm role`: roles, and the ranges of keys that they may read and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvstore.access.calls import change_access, list_roles
from kvstore.cli.common import Data, client_options, print_json, print_table
from kvstore.cli.coordination.session import run_without_session
from kvstore.cli.output import say
from kvstore.protocol.access_commands import AccessCommand, Right, RoleAdd, RoleGrant, RoleRemove, RoleRevoke
from kvstore.protocol.commands import prefix_range
from kvstore.protocol.text import to_text

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

RIGHTS = {"read": Right.READ, "write": Right.WRITE, "readwrite": Right.READ | Right.WRITE}


def _range_options(function: FunctionT) -> FunctionT:
    """Add the argument and the options that select keys: one key, all keys with a prefix, or a range up to an end."""
    options = [
        click.argument("key", type=Data()),
        click.option("--prefix", is_flag=True, help="All keys that begin with KEY; with an empty KEY, all keys."),
        click.option("--end", type=Data(), metavar="KEY", help="All keys from KEY to before this one."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _range_of(key: bytes, end: bytes | None, *, prefix: bool) -> tuple[bytes, bytes | None]:
    if prefix and end is not None:
        raise click.UsageError("--prefix and --end exclude each other.")
    if prefix:
        return prefix_range(key)
    if end is not None and end <= key:
        raise click.UsageError("--end is above KEY.")
    if end is None and not key:
        raise click.UsageError("A key has at least one byte. For all keys: an empty KEY with --prefix.")
    return key, key + b"\0" if end is None else end


def _words_of(key: bytes, end: bytes | None, *, prefix: bool) -> str:
    """Describe the keys that the argument and the options select."""
    if prefix:
        return f"{to_text(key)}…" if key else "all keys"
    return to_text(key) if end is None else f"{to_text(key)} to before {to_text(end)}"


@click.group()
def role() -> None:
    """Roles: rights on ranges of keys, which users have by their roles.

    The role root always exists, and has every right.

    \b
    Exit codes: 0 done; 2 wrong usage; 3 refused, nothing has changed;
    4 unknown, look with `hwm role list`; 5 nobody leads, or nobody can be reached.
    """


@role.command("list")
@client_options
def list_command(endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Show the roles and their rights. A range goes up to before its end; without an end, up to the last key."""
    roles = run_without_session(endpoints, deadline_seconds, list_roles)
    words = {int(right): word for word, right in RIGHTS.items()}
    if as_json:
        rows = [
            {
                "role": each.name,
                "rights": [
                    {"right": words[right], "start": start, "end": end} for start, end, right in each.permissions
                ],
            }
            for each in roles
        ]
        print_json({"roles": rows})
        return
    lines: list[tuple[str, ...]] = []
    for each in roles:
        lines += [
            (each.name, words[right], to_text(start), "" if end is None else to_text(end))
            for start, end, right in each.permissions
        ] or [(each.name, "", "", "")]
    print_table(("role", "right", "start", "end"), lines)


@role.command("add")
@click.argument("role_name", metavar="ROLE")
@client_options
def add(role_name: str, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Add the role ROLE, without rights."""
    _change(RoleAdd(role_name), f"role {role_name} is added", endpoints, deadline_seconds, as_json=as_json)


@role.command("remove")
@click.argument("role_name", metavar="ROLE")
@client_options
def remove(role_name: str, endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Remove the role ROLE, and take it away from all users."""
    _change(RoleRemove(role_name), f"role {role_name} is removed", endpoints, deadline_seconds, as_json=as_json)


@role.command("grant")
@click.argument("role_name", metavar="ROLE")
@click.argument("right", type=click.Choice(list(RIGHTS)))
@_range_options
@client_options
def grant(
    role_name: str,
    right: str,
    key: bytes,
    prefix: bool,
    end: bytes | None,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Give the role ROLE a right on KEY, on all keys with a prefix, or on a range."""
    start, last = _range_of(key, end, prefix=prefix)
    command = RoleGrant(role_name, int(RIGHTS[right]), start, last)
    words = f"role {role_name} may {right} {_words_of(key, end, prefix=prefix)}"
    _change(command, words, endpoints, deadline_seconds, as_json=as_json)


@role.command("revoke")
@click.argument("role_name", metavar="ROLE")
@_range_options
@client_options
def revoke(
    role_name: str,
    key: bytes,
    prefix: bool,
    end: bytes | None,
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
) -> None:
    """Take the rights on exactly this key, prefix or range away from the role ROLE."""
    start, last = _range_of(key, end, prefix=prefix)
    words = f"role {role_name} no longer has the rights on {_words_of(key, end, prefix=prefix)}"
    _change(RoleRevoke(role_name, start, last), words, endpoints, deadline_seconds, as_json=as_json)


def _change(command: AccessCommand, words: str, endpoints: str, deadline_seconds: float, *, as_json: bool) -> None:
    run_without_session(endpoints, deadline_seconds, lambda client: change_access(client, command))
    if as_json:
        print_json({"done": True})
    else:
        say(words)
