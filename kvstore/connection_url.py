"""One text that says how to reach a store: `hwm://user@host:port,host:port/prefix?deadline=2&ca=ca.pem`.

A URL names a user, and never a password: URLs get into logs, configurations and lists of processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from kvstore.errors import InvalidAddress, StoreError
from kvstore.password_source import UnusablePassword, password_of_environment, read_password_file
from kvstore.protocol.addresses import parse_address
from kvstore.tls import Tls

SCHEME = "hwm://"
PARAMETERS = ("deadline", "session", "cluster", "ca", "cert", "key", "password_file")
NO_PASSWORD = "a password does not belong in a URL: name a file with password_file=FILE"


class InvalidUrl(StoreError):
    """A text is not a URL of a store. `reason`: why it is not. `url`: the text without its parameters, and without
    anything else that may be a password."""

    def __init__(self, url: str, reason: str) -> None:
        shown = _without_password(url)
        super().__init__(shown, reason)
        self.url, self.reason = shown, reason

    def __str__(self) -> str:
        return f"{self.url!r} is no address of a store: {self.reason}"

    @property
    def hint(self) -> str:
        return f"write {SCHEME}user@host:port,host:port/prefix?deadline=2, with any of {', '.join(PARAMETERS)}"


@dataclass(frozen=True, slots=True)
class ConnectionUrl:
    """The contents of a URL: the addresses of members, the prefix of all keys, the options of a client, the user (None:
    no user), and the file with the password."""

    endpoints: tuple[str, ...]
    prefix: bytes = b""
    options: dict[str, Any] = field(default_factory=dict)
    user: str | None = None
    password_file: Path | None = None

    def client_options(self, password: str | None = None) -> dict[str, Any]:
        """The options of a client, with its user and the password.

        `password`: None means the first line of the file that the URL names, or else the password from the environment
        (`kvstore.password_source`). If the URL names no user, None means no password. May read a file. Raises
        UnusablePassword.
        """
        if password is None and self.user is not None:
            if self.password_file is not None:
                password = read_password_file(self.password_file)
            else:
                password = password_of_environment()
            if password is None:
                raise UnusablePassword(f"the URL names the user {self.user!r}, and there is no password")
        return self.options | {"user": self.user, "password": password}


def parse_url(url: str) -> ConnectionUrl:
    """Read `hwm://user@host:port,host:port/prefix?name=value&…`. The user and the prefix are percent-encoded; the
    prefix begins after the slash.

    Parameters: `deadline` (seconds), `session` (yes or no), `cluster` (the id in hex), `ca`, `cert` and `key` (files of
    TLS), `password_file` (a file whose first line is the password). Raises InvalidUrl, InvalidAddress.

    >>> found = parse_url("hwm://ada@10.0.0.1:7101,10.0.0.2:7101/app/?deadline=2")
    >>> found.endpoints, found.prefix, found.options, found.user
    (('10.0.0.1:7101', '10.0.0.2:7101'), b'app/', {'deadline_seconds': 2.0}, 'ada')
    """
    if not url.startswith(SCHEME):
        raise InvalidUrl(url, f"it does not begin with {SCHEME}")
    whole, _, query = url.removeprefix(SCHEME).partition("?")
    authority, _, path = whole.partition("/")
    name, at, hosts = authority.rpartition("@")
    if ":" in name:
        raise InvalidUrl(url, NO_PASSWORD)
    endpoints = tuple(each for each in hosts.split(",") if each)
    if not endpoints:
        raise InvalidUrl(url, "it names no member")
    if "#" in whole or "#" in query:
        raise InvalidUrl(url, "a store has no fragments; write # in a prefix as %23")
    for endpoint in endpoints:
        try:
            parse_address(endpoint)
        except InvalidAddress:
            if "@" in path + query:  # The text before the @ may contain a slash that is not encoded.
                raise InvalidUrl(url, "write a slash in the name of a user as %2F, and no password") from None
            raise
    options, password_file = _options(url, query)
    user = _user(url, name) if at else None
    if password_file is not None and user is None:
        raise InvalidUrl(url, "password_file is of no use without a user: hwm://user@host:port")
    return ConnectionUrl(endpoints, unquote_to_bytes(path), options, user, password_file)


def _without_password(url: str) -> str:
    """Remove from a URL everything that may be a password: first the text from the first colon after the scheme to the
    last @, and then all parameters."""
    scheme = SCHEME if url.startswith(SCHEME) else ""
    before, at, after = url.removeprefix(scheme).rpartition("@")
    whole = f"{before.partition(':')[0]}:…@{after}" if at and ":" in before else f"{before}{at}{after}"
    shown, question_mark, _ = whole.partition("?")
    return f"{scheme}{shown}?…" if question_mark else f"{scheme}{shown}"


def _user(url: str, name: str) -> str:
    try:
        user = unquote_to_bytes(name).decode()
    except UnicodeDecodeError:
        raise InvalidUrl(url, "the name before @ is not UTF-8") from None
    if not user:
        raise InvalidUrl(url, "there is no name before @")
    return user


def _options(url: str, query: str) -> tuple[dict[str, Any], Path | None]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise InvalidUrl(url, "its parameters cannot be read: write name=value&name=value") from None
    given: dict[str, str] = {}
    for name, value in pairs:
        if name == "password":
            raise InvalidUrl(url, NO_PASSWORD)
        if name not in PARAMETERS:
            raise InvalidUrl(url, f"there is no parameter {name!r}")
        if name in given:
            raise InvalidUrl(url, f"the parameter {name!r} is there twice")
        given[name] = value
    options: dict[str, Any] = {}
    if "deadline" in given:
        options["deadline_seconds"] = _seconds(url, given["deadline"])
    if "session" in given:
        if given["session"] not in ("yes", "no"):
            raise InvalidUrl(url, f"session is yes or no, not {given['session']!r}")
        options["session"] = given["session"] == "yes"
    if "cluster" in given:
        options["cluster_id"] = given["cluster"]
    files = {name: Path(given[name]) for name in ("ca", "cert", "key") if name in given}
    if files:
        if "ca" not in files:
            raise InvalidUrl(url, "TLS needs the authorities of the members: ca")
        options["tls"] = Tls(**files)
    return options, Path(given["password_file"]) if "password_file" in given else None


def _seconds(url: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InvalidUrl(url, f"deadline is a number of seconds above 0, not {text!r}")
    return seconds
