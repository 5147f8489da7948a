"""The addresses of peers: which of them can be dialled, and which hosts only this machine can reach."""

from __future__ import annotations

import ipaddress

from raft.addresses import split_address
from raft.runtime.errors import InvalidAddress

ADDRESS_CHARACTERS_MAX = 253 + len(":65535")
"""The length of the longest host name (RFC 1035 §2.3.4) with a port."""

_PORT_DIGITS_MAX = 4_300
"""The maximum number of digits of a port. Every build has accepted leading zeros here, and Python reads numbers of up
to this many digits."""


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises InvalidAddress.

    The host is not checked further, because configurations of earlier builds may contain any host.
    """
    try:
        host, port, is_bracketed = split_address(address, port_digits_max=_PORT_DIGITS_MAX)
    except ValueError:
        raise InvalidAddress(address) from None
    if not host or (":" in host and not is_bracketed):
        raise InvalidAddress(address)
    return host, port


def is_dialable(address: str) -> bool:
    """True if a resolver accepts the form of the address. Peers state their own addresses, so an address may be any
    text."""
    try:
        host, port = parse_address(address)
        host.encode("idna")  # Python's look-up does the same; it raises UnicodeError for an empty or overlong part.
    except (InvalidAddress, UnicodeError):
        return False
    return port > 0 and len(address) <= ADDRESS_CHARACTERS_MAX and address.isprintable()


def is_loopback(host: str) -> bool:
    """True for `localhost` and for loopback addresses. False for other names, because only a look-up could tell."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
