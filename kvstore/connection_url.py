"""One text that says how to reach a store: `hwm://host:port,host:port/prefix?deadline=2&ca=ca.pem`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from kvstore.errors import StoreError
from kvstore.protocol.addresses import parse_address
from kvstore.tls import Tls

SCHEME = "hwm://"
PARAMETERS = ("deadline", "session", "cluster", "ca", "cert", "key")


class InvalidUrl(StoreError):
    """A text is no URL of a store. `reason` says why."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return f"{self.url!r} is no address of a store: {self.reason}"

    @property
    def hint(self) -> str:
        return f"write {SCHEME}host:port,host:port/prefix?deadline=2, with any of {', '.join(PARAMETERS)}"


@dataclass(frozen=True, slots=True)
class ConnectionUrl:
    """What a URL says: the addresses of members, the prefix of all keys, and the options of a client."""

    endpoints: tuple[str, ...]
    prefix: bytes = b""
    options: dict[str, Any] = field(default_factory=dict)


def parse_url(url: str) -> ConnectionUrl:
    """Read `hwm://host:port,host:port/prefix?name=value&…`. The prefix is percent-encoded; the slash before it does not
    belong to it.

    Parameters: `deadline` (seconds), `session` (yes or no), `cluster` (the id in hex), `ca`, `cert` and `key` (files of
    TLS). Raises InvalidUrl, InvalidAddress.

    >>> parse_url("hwm://10.0.0.1:7101,10.0.0.2:7101/app/?deadline=2")
    ConnectionUrl(endpoints=('10.0.0.1:7101', '10.0.0.2:7101'), prefix=b'app/', options={'deadline_seconds': 2.0})
    """
    if not url.startswith(SCHEME):
        raise InvalidUrl(url, f"it does not begin with {SCHEME}")
    whole, _, query = url.removeprefix(SCHEME).partition("?")
    hosts, _, path = whole.partition("/")
    endpoints = tuple(each for each in hosts.split(",") if each)
    if not endpoints:
        raise InvalidUrl(url, "it names no member")
    if "#" in whole or "#" in query:
        raise InvalidUrl(url, "a store has no fragments; write # in a prefix as %23")
    for endpoint in endpoints:
        parse_address(endpoint)
    return ConnectionUrl(endpoints, unquote_to_bytes(path), _options(url, query))


def _options(url: str, query: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise InvalidUrl(url, f"its parameters cannot be read: {error}") from None
    given: dict[str, str] = {}
    for name, value in pairs:
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
    return options


def _seconds(url: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InvalidUrl(url, f"deadline is a number of seconds above 0, not {text!r}")
    return seconds
