"""Addresses as `host:port` texts: the parts of one. Which hosts are good for what is decided by the callers.

`raft.runtime` dials peers with it, and `kvstore` checks with it what goes into a member list and what a client dials.
"""

from __future__ import annotations

from typing import NamedTuple

PORT_MAX = 65_535
PORT_DIGITS_MAX = 5


class AddressParts(NamedTuple):
    """The parts of an address. `host` has no brackets, and may be empty if it had some."""

    host: str
    port: int
    is_bracketed: bool  # As an IPv6 address is, whose own colons would otherwise look like that of the port.


def split_address(text: str, *, port_digits_max: int = PORT_DIGITS_MAX) -> AddressParts:
    """Split `host:port` or `[host]:port` at the last colon. The host can be any text.

    `port_digits_max`: digits of the port, zeros in front included. Raises ValueError, whose text is the reason.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError("it has no host or no port")
    if not (port.isascii() and port.isdigit() and len(port) <= port_digits_max and int(port) <= PORT_MAX):
        raise ValueError(f"its port is no number from 0 to {PORT_MAX}")
    is_bracketed = host.startswith("[") and host.endswith("]")
    return AddressParts(host[1:-1] if is_bracketed else host, int(port), is_bracketed)
