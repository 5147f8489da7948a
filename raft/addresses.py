"""Splitting addresses of the form `host:port` into their parts. Each caller decides which hosts it accepts.

`raft.runtime` uses this module to dial peers. `kvstore` uses this module to check the addresses of a member list and
the addresses that a client dials.
"""

from __future__ import annotations

from typing import NamedTuple

PORT_MAX = 65_535
PORT_DIGITS_MAX = 5


class AddressParts(NamedTuple):
    """The parts of an address. `host` has no brackets around it; it is empty for `[]:port`."""

    host: str
    port: int
    is_bracketed: bool  # True for `[host]:port`. An IPv6 address needs brackets, because it contains colons.


def split_address(text: str, *, port_digits_max: int = PORT_DIGITS_MAX) -> AddressParts:
    """Split `host:port` or `[host]:port` at the last colon. The host may be any text.

    `port_digits_max`: the maximum number of digits of the port, leading zeros included.

    Raises ValueError with the reason as its text.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError("it has no host or no port")
    if not (port.isascii() and port.isdigit() and len(port) <= port_digits_max and int(port) <= PORT_MAX):
        raise ValueError(f"its port is not a number from 0 to {PORT_MAX}")
    is_bracketed = host.startswith("[") and host.endswith("]")
    return AddressParts(host[1:-1] if is_bracketed else host, int(port), is_bracketed)
