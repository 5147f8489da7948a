"""Where the members are, and whom to ask next: the client's address book. Pure: time and randomness come in."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from random import Random

import idna

from kvstore.errors import InvalidAddress

MEMBERS_LEARNED_MAX = 16
"""A cluster has at most nine members; a few more are believed, so that a list cannot grow the book without end."""


HOST_NAME_BYTES_MAX, LABEL_BYTES_MAX = 253, 63
"""Of a name in its ASCII form (RFC 1035 §2.3.4), without a dot at its end."""

PORT_DIGITS_MAX = 5

_LABEL = re.compile(r"[A-Za-z0-9_-]+")
"""Underscores are in no host name of RFC 952, and in many of container networks, whose resolvers find them."""

_ZONE = re.compile(r"(?=.{1,15}$)[A-Za-z0-9_~-]+(\.[A-Za-z0-9_~-]+)*")
"""The name or number of an interface, behind `%` of a link-local IPv6 address (RFC 4007 §11); `eth0.100` is one."""


def parse_address(text: str) -> tuple[str, int]:
    """Split `host:port` (`[::1]:7101` for IPv6). Raises InvalidAddress, which says what is wrong.

    The host is an IP address, a name that a resolver can be asked for, or `*`. Nothing is looked up.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise InvalidAddress(text, "it has no host or no port")
    if not (port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX and int(port) <= 65535):
        raise InvalidAddress(text, "its port is no number from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        reason = "its host in brackets is no IPv6 address" if not _is_ipv6(host) else ""
    else:
        reason = host_flaw(host)
    if reason:
        raise InvalidAddress(text, reason)
    return host, int(port)


def parse_advertised(text: str) -> tuple[str, int]:
    """As `parse_address`, of a place at which others are to find a member: no wildcard. Raises InvalidAddress."""
    host, port = parse_address(text)
    if _is_wildcard(host):
        why = f"{host} is no address at which others find it; where it listens say --listen-peer and --listen-client"
        raise InvalidAddress(text, why)
    if ":" in host and not text.startswith("["):  # Peers would not dial it.
        raise InvalidAddress(text, f"an IPv6 address stands in brackets: [{host}]:{port}")
    return host, port


def host_flaw(host: str) -> str:
    """Why no resolver could be asked for `host`, in words; empty if one can."""
    if host == "*" or _is_ipv6(host):
        return ""
    if ":" in host:
        return "its host has a colon and is no IPv6 address"
    if len(host) > HOST_NAME_BYTES_MAX + 1:  # Its ASCII form would be no shorter.
        return f"its host has {len(host)} characters; a name has up to {HOST_NAME_BYTES_MAX}"
    if not host.isprintable():
        return "its host has a character that cannot be seen"
    try:
        ascii_form = host if host.isascii() else _ascii_form(host)
    except UnicodeError:
        return "its host cannot be written as an internationalized name (IDNA)"
    name = ascii_form.removesuffix(".")
    if len(name) > HOST_NAME_BYTES_MAX:
        return f"its host has {len(name)} bytes; a name has up to {HOST_NAME_BYTES_MAX}"
    for label in name.split("."):
        if not label:
            return "its host has an empty part between dots"
        if len(label) > LABEL_BYTES_MAX:
            return f"a part of its host has {len(label)} bytes; up to {LABEL_BYTES_MAX} can stand between dots"
        if not _LABEL.fullmatch(label):
            return "its host has a character that no name has: letters, digits, - and _ are in names"
    return ""


def _ascii_form(host: str) -> str:
    """Raises UnicodeError."""
    host.encode("idna")  # trio has the system look first whether it is a number, and Python then takes the name so.
    return idna.encode(host, uts46=True).decode("ascii")


def _is_ipv6(host: str) -> bool:
    address, percent, zone = host.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return not percent or _ZONE.fullmatch(zone) is not None


def _is_wildcard(host: str) -> bool:
    """To listen on; whoever connects there meets itself. The system reads `0`, too, as 0.0.0.0."""
    if host == "*":
        return True
    try:
        if ":" in host:
            return ipaddress.IPv6Address(host.partition("%")[0]).is_unspecified
        return not any(socket.inet_aton(host if host.isascii() else _ascii_form(host)))
    except (OSError, UnicodeError):
        return False


class AddressBook:
    """All known client addresses. An address that failed is not tried again before its pause is over."""

    def __init__(self, endpoints: Sequence[str], *, random: Random, pause_min_ns: int, pause_max_ns: int) -> None:
        if not endpoints:
            raise InvalidAddress("", "at least one member must be named")
        self._endpoints = list(dict.fromkeys(endpoints))
        self._learned: list[str] = []
        self._random = random
        self._pause_min_ns, self._pause_max_ns = pause_min_ns, pause_max_ns
        self._failures: dict[str, int] = {}  # In a row, since the address last answered.
        self._paused_until: dict[str, int] = {}
        self._silent_until: dict[str, int] = {}
        self._turn = random.randrange(len(self._endpoints))
        self._hint: str | None = None

    @property
    def addresses(self) -> list[str]:
        """Given endpoints first, then what members told, without repeats."""
        return list(dict.fromkeys([*self._endpoints, *self._learned]))

    def learn(self, addresses: Sequence[str]) -> None:
        """A member listed these client addresses; they replace what was learned before."""
        self._learned = [address for address in addresses if address][:MEMBERS_LEARNED_MAX]
        kept = set(self.addresses)
        for book in (self._failures, self._paused_until, self._silent_until):
            for address in set(book) - kept:
                del book[address]

    def suggest(self, address: str | None) -> None:
        """A member said who leads: that address is next, unless it was silent."""
        self._hint = address or None

    def silent(self, address: str, until: int) -> None:
        """It takes connections and answers nothing (paused, or cut off): leave it alone even if others name it."""
        self._silent_until[address] = until

    def failed(self, address: str, now: int) -> None:
        """No connection, or no answer: leave it alone for a while, longer each time, never in step with others."""
        failures = min(self._failures.get(address, 0) + 1, 20)
        self._failures[address] = failures
        pause = min(self._pause_max_ns, self._pause_min_ns << (failures - 1))
        self._paused_until[address] = now + pause // 2 + self._random.randrange(pause // 2 + 1)

    def may_follow(self, address: str, now: int) -> bool:
        """May it be asked because somebody names it? One that refused a moment ago may be back; a silent one costs."""
        return self._silent_until.get(address, 0) <= now

    def _may_try(self, address: str, now: int) -> bool:
        return max(self._paused_until.get(address, 0), self._silent_until.get(address, 0)) <= now

    def answered(self, address: str) -> None:
        """It works: forget its failures."""
        self._failures.pop(address, None)
        self._paused_until.pop(address, None)
        self._silent_until.pop(address, None)

    def next_candidate(self, now: int) -> str | None:
        """The leader somebody named, else the next in turn; None if all are paused (until `earliest()`)."""
        hint, self._hint = self._hint, None
        if hint is not None and self.may_follow(hint, now):
            return hint
        addresses = self.addresses
        for _ in addresses:
            self._turn = (self._turn + 1) % len(addresses)
            address = addresses[self._turn]
            if self._may_try(address, now):
                return address
        return None

    def earliest(self) -> int:
        """When the first paused address may be tried again."""
        paused, silent = self._paused_until, self._silent_until
        return min(max(paused.get(address, 0), silent.get(address, 0)) for address in self.addresses)
