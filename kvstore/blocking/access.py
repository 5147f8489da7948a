"""Calls about users and roles, for threads. A program passes its blocking client to them.

    add_user(client, "ada", "a password")
    change_access(client, UserGrant("ada", "apps"))

The errors are those of `kvstore.access.calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kvstore.access import calls
from kvstore.access.requests import AccessSwitch, RoleView, UserView
from kvstore.blocking.thread_pump import finish
from kvstore.protocol.access_commands import AccessCommand


class AsksInThread(Protocol):
    """A blocking client, of which only the calls that block the thread of the caller are used."""

    @property
    def in_thread(self) -> calls.Asks:
        """The calls that block the thread of the caller."""
        ...


def change_access(client: AsksInThread, command: AccessCommand, deadline_seconds: float | None = None) -> None:
    """Carry out a change of users and roles, as `kvstore.change_access` does."""
    finish(calls.change_access(client.in_thread, command, deadline_seconds))


def add_user(client: AsksInThread, name: str, password: str | None) -> None:
    """Add a user. Without a password, only a certificate proves the name. Takes 50 ms to compute the verifier."""
    finish(calls.add_user(client.in_thread, name, password, _in_this_thread))


def change_password(client: AsksInThread, name: str, password: str | None) -> None:
    """Change the password of a user, who then has to authenticate again everywhere."""
    finish(calls.change_password(client.in_thread, name, password, _in_this_thread))


def enable_auth(client: AsksInThread) -> None:
    """Turn authentication on. There must be a user `root` with the role `root`."""
    finish(calls.enable_auth(client.in_thread))


def auth_switch(client: AsksInThread) -> AccessSwitch:
    """Return whether authentication is on, and who the client is."""
    return finish(calls.auth_switch(client.in_thread))


def list_users(client: AsksInThread) -> list[UserView]:
    """Return all users that the client may see, by name."""
    return finish(calls.list_users(client.in_thread))


def list_roles(client: AsksInThread) -> list[RoleView]:
    """Return all roles that the client may see, by name, without the role root."""
    return finish(calls.list_roles(client.in_thread))


async def _in_this_thread(function: Callable[[str], bytes], password: str) -> bytes:
    return function(password)
