"""The interface through which a load generator uses a wire protocol, and blocking functions to set up a connection."""

from __future__ import annotations

import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from benchmarks.load.workload import Operation

RECEIVE_BYTES_MAX = 1 << 18


class Dialect(Protocol):
    """The protocol state of one connection. Each operation has a token: 0, 1, 2, … in the order of writing."""

    errors: Counter[str]

    def setup(self, link: socket.socket) -> int:
        """Carry out the handshake on the socket, which is still in blocking mode. Returns the revision of the store."""

    def revision(self, link: socket.socket) -> int:
        """Request and return the revision of the store. No other request may be open."""

    def write(self, operations: Sequence[Operation], answered_below: int, /) -> None:
        """Queue the requests of these operations. All tokens below `answered_below` have been answered."""

    def read(self, data: bytes) -> list[int]:
        """Parse received bytes. Returns the tokens of all answered operations, including those with an error."""

    def take_output(self) -> bytes:
        """Return the bytes that may be sent now, and remove them from the queue."""


def dialed(address: str, tls_ca: str | None = None, tls_cert: str | None = None) -> socket.socket:
    """Return a blocking connection to `host:port` that sends small frames without delay (TCP_NODELAY). With `tls_ca`,
    the connection has TLS."""
    host, _, port = address.rpartition(":")
    link = socket.create_connection((host, int(port)), timeout=10.0)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls_ca is None:
        return link
    context = ssl.create_default_context(cafile=tls_ca)
    if tls_cert is not None:
        context.load_cert_chain(tls_cert)
    return context.wrap_socket(link, server_hostname=host)


def receive_exactly(link: socket.socket, size: int) -> bytes:
    """Wait for exactly `size` bytes and return them. Raises ConnectionError if the peer closes the connection first."""
    parts = b""
    while len(parts) < size:
        data = link.recv(size - len(parts))
        if not data:
            raise ConnectionError("the server closed the connection")
        parts += data
    return parts
