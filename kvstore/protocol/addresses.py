"""Addresses of members as text, `host:port`. Checks whether an address is valid, and whether a member can advertise
it."""

from __future__ import annotations

import ipaddress
import re
import socket

import idna

from kvstore.errors import InvalidAddress
from raft import split_address

HOST_NAME_BYTES_MAX, LABEL_BYTES_MAX = 253, 63
"""The greatest lengths of a host name and of one label, in the ASCII form (RFC 1035 §2.3.4). A dot at the end of the
name is not counted."""

_LABEL = re.compile(r"[A-Za-z0-9_-]+")
"""RFC 952 allows no underscore in a host name, but many names in container networks contain underscores, and resolvers
accept these names."""

_ZONE = re.compile(r"(?=.{1,15}$)[A-Za-z0-9_~-]+(\.[A-Za-z0-9_~-]+)*")
"""The name or number of a network interface after the `%` of a link-local IPv6 address (RFC 4007 §11): `eth0.100`."""


IN_PROCESS_ADDRESS = "in-process:0"
"""The address of the member in this program. No network socket has this address."""


def parse_address(text: str) -> tuple[str, int]:
    """Split `host:port` (`[::1]:7101` for IPv6). Raises InvalidAddress, whose text explains the mistake.

    The host is an IP address, a name that a resolver accepts, or `*`. No name is looked up.
    """
    try:
        host, port, is_bracketed = split_address(text)
    except ValueError as error:
        raise InvalidAddress(text, str(error)) from None
    if is_bracketed and not _is_ipv6(host):
        raise InvalidAddress(text, "its host in brackets is not an IPv6 address")
    if flaw := host_flaw(host):
        raise InvalidAddress(text, flaw)
    return host, port


def parse_advertised(text: str) -> tuple[str, int]:
    """Split an address at which others reach a member, as `parse_address` does. The address must not be a wildcard.
    Raises InvalidAddress."""
    host, port = parse_address(text)
    if _is_wildcard(host):
        why = f"others cannot find it at {host}; to listen there, use --listen-peer and --listen-client"
        raise InvalidAddress(text, why)
    if ":" in host and not text.startswith("["):  # Peers would not connect to such an address.
        raise InvalidAddress(text, f"an IPv6 address stands in brackets: [{host}]:{port}")
    return host, port


def host_flaw(host: str) -> str:
    """Return the reason why no resolver would accept `host`, as text; empty if `host` is valid."""
    if host == "*" or _is_ipv6(host):
        return ""
    if ":" in host:
        return "its host has a colon and is not an IPv6 address (an address is host:port; `connect` reads hwm:// URLs)"
    if len(host) > HOST_NAME_BYTES_MAX + 1:  # The ASCII form is never shorter than the host itself.
        return f"its host has {len(host)} characters; a name has up to {HOST_NAME_BYTES_MAX}"
    if not host.isprintable():
        return "its host has a character that cannot be seen"
    try:
        name = ascii_form(host).removesuffix(".")
    except UnicodeError:
        return "its host cannot be written as an internationalized name (IDNA)"
    if len(name) > HOST_NAME_BYTES_MAX:
        return f"its host has {len(name)} bytes; a name has up to {HOST_NAME_BYTES_MAX}"
    for label in name.split("."):
        if not label:
            return "its host has an empty part between dots"
        if len(label) > LABEL_BYTES_MAX:
            return f"a part of its host has {len(label)} bytes; up to {LABEL_BYTES_MAX} can stand between dots"
        if not _LABEL.fullmatch(label):
            return "its host has a character that is not allowed in names: use letters, digits, - and _"
    return ""


def ascii_form(host: str) -> str:
    """Return a name in the ASCII form that trio looks up. Raises UnicodeError."""
    if host.isascii():
        return host
    host.encode("idna")  # Must not raise, because trio makes the same call before it resolves a name.
    return idna.encode(host, uts46=True).decode("ascii")


def _is_ipv6(host: str) -> bool:
    address, percent, zone = host.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return not percent or _ZONE.fullmatch(zone) is not None


def _is_wildcard(host: str) -> bool:
    """Return True if the address means all interfaces. A process can listen on such an address, but others cannot
    connect to it. `0` means 0.0.0.0."""
    if host == "*":
        return True
    try:
        if ":" in host:
            return ipaddress.IPv6Address(host.partition("%")[0]).is_unspecified
        return not any(socket.inet_aton(ascii_form(host)))
    except (OSError, UnicodeError):
        return False
