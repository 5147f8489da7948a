"""The interface of a wire protocol for load generators, and blocking helpers for its set-up."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from benchmarks.load.workload import Operation

RECEIVE_BYTES_MAX = 1 << 18


class Dialect(Protocol):
    """One connection. Operations are known by tokens: 0, 1, 2, … in the order in which they were written."""

    errors: Counter[str]

    def setup(self, link: socket.socket) -> int:
        """Greet, while the socket still blocks. Returns the revision of the store."""

    def revision(self, link: socket.socket) -> int:
        """Ask for it, while nothing else is under way."""

    def write(self, operations: Sequence[Operation], answered_below: int, /) -> None:
        """Queue requests. All tokens below `answered_below` have been answered."""

    def read(self, data: bytes) -> list[int]:
        """Take what the socket gave; returns the tokens that it answered, in errors, too."""

    def take_output(self) -> bytes:
        """What may be sent now."""


def dialed(address: str) -> socket.socket:
    """A blocking connection to `host:port`, which sends small frames at once."""
    host, _, port = address.rpartition(":")
    link = socket.create_connection((host, int(port)), timeout=10.0)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def receive_exactly(link: socket.socket, size: int) -> bytes:
    """Block for `size` bytes. Raises ConnectionError if the peer ends before."""
    parts = b""
    while len(parts) < size:
        data = link.recv(size - len(parts))
        if not data:
            raise ConnectionError("the server closed the connection")
        parts += data
    return parts
