"""`hwm auth`: turn authentication on and off."""

from __future__ import annotations

import click

from kvstore.access.calls import auth_switch, change_access, enable_auth
from kvstore.cli.common import client_options, print_json
from kvstore.cli.coordination.session import run_without_session
from kvstore.cli.output import say, show
from kvstore.protocol.access_commands import AuthDisable


@click.group()
def auth() -> None:
    """Authentication: whether each request needs a user with the right to make it.

    \b
    Exit codes: 0 done; 2 wrong usage; 3 refused, nothing has changed;
    4 unknown, look with `hwm auth status`; 5 nobody leads, or nobody can be reached.
    """


@auth.command("status")
@client_options
def status(endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Show whether authentication is on, and as which user this command was served."""
    found = run_without_session(endpoints, deadline_seconds, auth_switch)
    if as_json:
        print_json(
            {
                "is_enabled": found.is_enabled,
                "auth_revision": found.auth_revision,
                "user": found.user,
                "roles": list(found.roles),
            }
        )
        return
    show(f"authentication {'on' if found.is_enabled else 'off'}")
    show(f"auth_revision {found.auth_revision}")
    if found.user is not None:
        show(f"user {found.user}")
        show(f"roles {','.join(found.roles)}")


@auth.command("enable")
@client_options
def enable(endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Turn authentication on. There must be a user root with the role root."""
    run_without_session(endpoints, deadline_seconds, enable_auth)
    _done("authentication is on", as_json=as_json)


@auth.command("disable")
@client_options
def disable(endpoints: str, deadline_seconds: float, as_json: bool) -> None:
    """Turn authentication off. Users and roles stay."""
    run_without_session(endpoints, deadline_seconds, lambda client: change_access(client, AuthDisable()))
    _done("authentication is off", as_json=as_json)


def _done(words: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"done": True})
    else:
        say(words)
