"""The options that name the user of a command, and the source of the user's password."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from kvstore import password_source
from kvstore.password_source import PASSWORD_FILE_VARIABLE, PASSWORD_VARIABLE, UnusablePassword

_USER = "kvstore.user"  # Set in `Context.meta`: the parameter's name → its value.


class UserOptions(NamedTuple):
    """The user of a command and the password; both are None if no user is named."""

    user: str | None
    password: str | None


NO_USER = UserOptions(None, None)


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta.setdefault(_USER, {})[parameter.name] = value


def kept_user_values(context: click.Context) -> dict[str, Any]:
    """The values of this module's options in the running command, by the names of their parameters."""
    kept: dict[str, Any] = context.meta.get(_USER, {})
    return kept


USER_OPTIONS: list[Callable[[Any], Any]] = [
    click.option(
        "--user",
        envvar="HWM_USER",
        metavar="NAME",
        expose_value=False,
        callback=_keep,
        help="The user, if authentication is on. Its password is in --password-file or HWM_PASSWORD, or is asked for. "
        "[env: HWM_USER]",
    ),
    click.option(
        "--password-file",
        envvar=PASSWORD_FILE_VARIABLE,
        type=click.Path(path_type=Path, dir_okay=False, readable=False),
        metavar="FILE",
        expose_value=False,
        callback=_keep,
        help="The file whose first line is the password of --user. [env: HWM_PASSWORD_FILE]",
    ),
]
"""The options of a command that connects to a cluster. `client_user` returns their values."""


def client_user() -> UserOptions:
    """Return the user and password from the options of the running command and from the environment. Raises
    click.UsageError."""
    context = click.get_current_context(silent=True)
    given = {} if context is None else kept_user_values(context)
    user, path = given.get("user"), given.get("password_file")
    if not user:
        if path is not None and context is not None and context.get_parameter_source("password_file") is not None:
            raise click.UsageError("--password-file is of no use without --user")
        return NO_USER
    if path is not None:
        return UserOptions(user, read_password_file(path))
    password = password_source.password_of_environment()
    return UserOptions(user, ask_password(f"Password of {user}", confirm=False) if password is None else password)


def read_password_file(path: Path) -> str:
    """Return the first line of a file. Raises click.UsageError."""
    try:
        return password_source.read_password_file(path)
    except UnusablePassword as error:
        raise click.UsageError(str(error)) from error


def ask_password(words: str, *, confirm: bool) -> str:
    """Ask for a password at the terminal. Raises click.UsageError if there is no terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(
            f"there is no terminal to ask for a password: name a file, or set {PASSWORD_VARIABLE} for --user"
        )
    password: str = click.prompt(words, hide_input=True, err=True, confirmation_prompt=confirm)
    return password
