"""Opens a TCP connection from asyncio: the addresses of a name are tried in turn, and the first that responds is used.

`create_connection(happy_eyeballs_delay=…)` of asyncio does the same, but it can lose a socket: if it is cancelled in
the turn of the loop in which an attempt succeeds, it does not close the socket. The socket of a client that is closed
while it connects would then stay open.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from typing import Any

ATTEMPT_SECONDS = 0.25
"""If a name has several IP addresses, the next address is tried after this time (RFC 8305 §5)."""


async def open_socket(host: str, port: int) -> socket.socket:
    """Connect to a host. Raises OSError. If the host has several addresses, the text of the error names the failure of
    each attempt."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    remaining = _alternating(found)
    opened: list[socket.socket] = []
    failures: list[OSError] = []
    attempts: set[asyncio.Task[None]] = set()
    try:
        while not opened:
            if remaining:
                attempts.add(asyncio.create_task(_attempt(remaining.pop(0), opened, failures)))
            elif not attempts:
                raise _failure(failures)
            patience = ATTEMPT_SECONDS if remaining else None
            _, attempts = await asyncio.wait(attempts, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        return opened.pop(0)
    finally:
        for attempt in attempts:
            attempt.cancel()  # A cancelled attempt closes its socket itself.
        for extra in opened:
            extra.close()


async def _attempt(info: tuple[Any, ...], opened: list[socket.socket], failures: list[OSError]) -> None:
    family, kind, protocol, _, address = info
    attempted: socket.socket | None = None
    try:
        attempted = socket.socket(family, kind, protocol)
        attempted.setblocking(False)
        await asyncio.get_running_loop().sock_connect(attempted, address)
    except BaseException as error:
        if attempted is not None:
            attempted.close()
        if not isinstance(error, OSError):
            raise
        failures.append(error)
    else:
        opened.append(attempted)


def _alternating(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The addresses in the order given, but alternating between IPv6 and IPv4 (RFC 8305 §4)."""
    first = [info for info in found if info[0] == found[0][0]]
    second = [info for info in found if info[0] != found[0][0]]
    return [info for pair in itertools.zip_longest(first, second) for info in pair if info is not None]


def _failure(failures: list[OSError]) -> OSError:
    if len(failures) == 1:
        return failures[0]
    return OSError("no address of the host accepts a connection: " + "; ".join(str(each) for each in failures))
