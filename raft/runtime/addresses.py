"""Addresses as `host:port` texts, and which of them only this machine can reach."""

from __future__ import annotations

import ipaddress

from raft.runtime.errors import InvalidAddress

ADDRESS_CHARACTERS_MAX = 253 + len(":65535")
"""The longest host name there is (RFC 1035 §2.3.4), and a port."""


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises InvalidAddress."""
    host, separator, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidAddress(address)
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidAddress(address)
    return host, int(port)


def is_dialable(address: str) -> bool:
    """True if a resolver can be asked for the host, as far as its form says. Peers say addresses of themselves."""
    try:
        host, port = parse_address(address)
        host.encode("idna")  # As Python does when the name is looked up. It has no empty or overlong part then.
    except (InvalidAddress, UnicodeError):
        return False
    return port > 0 and len(address) <= ADDRESS_CHARACTERS_MAX and address.isprintable()


def is_loopback(host: str) -> bool:
    """True for `localhost` and for loopback addresses; a name that would have to be looked up is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
