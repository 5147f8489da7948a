"""The addresses of peers: which addresses have a valid form, and which hosts can be reached only from this machine."""

from __future__ import annotations

import ipaddress

from raft.addresses import split_address
from raft.runtime.errors import InvalidAddress

ADDRESS_CHARACTERS_MAX = 253 + len(":65535")
"""The length of the longest possible host name (RFC 1035 §2.3.4), followed by a port."""

_PORT_DIGITS_MAX = 4_300
"""The maximum number of digits of a port, leading zeros included. Python does not convert a longer text to a number.
Earlier builds accept this many leading zeros, so this build must accept them, too."""


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises InvalidAddress.

    The host is not checked further, because a configuration that an earlier build has stored may contain any host.
    """
    try:
        host, port, is_bracketed = split_address(address, port_digits_max=_PORT_DIGITS_MAX)
    except ValueError:
        raise InvalidAddress(address) from None
    if not host or (":" in host and not is_bracketed):
        raise InvalidAddress(address)
    return host, port


def is_dialable(address: str) -> bool:
    """True if a resolver would accept the form of this address. The check is needed because peers state their own
    addresses, so an address may be any text."""
    try:
        host, port = parse_address(address)
        # Python encodes a name in this way before a look-up, and raises UnicodeError for an empty or overlong label.
        host.encode("idna")
    except (InvalidAddress, UnicodeError):
        return False
    return port > 0 and len(address) <= ADDRESS_CHARACTERS_MAX and address.isprintable()


def is_loopback(host: str) -> bool:
    """True for `localhost` and for loopback addresses. The result is False for all other names; no name is looked
    up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
