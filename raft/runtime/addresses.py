"""The addresses of peers: which of them can be dialled, and which hosts only this machine can reach."""

from __future__ import annotations

import ipaddress

from raft.addresses import split_address
from raft.runtime.errors import InvalidAddress

ADDRESS_CHARACTERS_MAX = 253 + len(":65535")
"""The length of the longest host name (RFC 1035 §2.3.4) with a port."""

_PORT_DIGITS_MAX = 4_300
"""The maximum number of digits of a port. Leading zeros have always been accepted here, and Python reads numbers of up
to this many digits."""


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises InvalidAddress.

    The host is not checked further, so that the addresses in a configuration of an earlier build are still dialled.
    """
    try:
        host, port, is_bracketed = split_address(address, port_digits_max=_PORT_DIGITS_MAX)
    except ValueError:
        raise InvalidAddress(address) from None
    if not host or (":" in host and not is_bracketed):
        raise InvalidAddress(address)
    return host, port


def is_dialable(address: str) -> bool:
    """True if the form of the address allows a resolver to look its host up. Peers state their addresses themselves."""
    try:
        host, port = parse_address(address)
        host.encode("idna")  # As Python does to look a name up: an empty or overlong part raises UnicodeError.
    except (InvalidAddress, UnicodeError):
        return False
    return port > 0 and len(address) <= ADDRESS_CHARACTERS_MAX and address.isprintable()


def is_loopback(host: str) -> bool:
    """True for `localhost` and for loopback addresses. False for other names: they would have to be looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
