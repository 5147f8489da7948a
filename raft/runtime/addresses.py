"""The addresses of peers: which of them can be dialled, and which hosts only this machine can reach."""

from __future__ import annotations

import ipaddress

from raft.addresses import split_address
from raft.runtime.errors import InvalidAddress

ADDRESS_CHARACTERS_MAX = 253 + len(":65535")
"""The longest host name there is (RFC 1035 §2.3.4), and a port."""

_PORT_DIGITS_MAX = 4_300
"""Zeros in front of a port have always been taken here; Python reads numbers of up to so many digits."""


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises InvalidAddress.

    Nothing more is asked of the host: a configuration of an earlier build is dialled as it is.
    """
    try:
        host, port, is_bracketed = split_address(address, port_digits_max=_PORT_DIGITS_MAX)
    except ValueError:
        raise InvalidAddress(address) from None
    if not host or (":" in host and not is_bracketed):
        raise InvalidAddress(address)
    return host, port


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
