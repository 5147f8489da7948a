"""Between two messages of a lone client a member waits for the next one itself, instead of in a turn of the loop.

A turn of the loop takes some 50 µs of CPU time where the caches are cold, and a lone request took a leader two and each
of its followers one. So when a flush has done all there was to do, and hardly anybody asks for anything, the member
looks for a moment at all connections at once, peers' and clients', and takes what comes as their readers would. They
sleep meanwhile, keep their connections, and see their ends; what was taken here they never see.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

WAIT_MS = 2
"""The longest wait: a lone client that puts one thing after the other has its next one here in 1 ms."""

WAITS_SPARED = 64
"""After a wait in vain so many are left out: there is nobody who asks one thing after the other."""

RECEIVE_BYTES = 16 * 1024
"""Whoever sends more has no need of us: a turn of the loop gathers, and nobody is kept from his."""

ARRIVALS_MAX = 4
"""Of connections in one wait. Where more bring something it is a crowd: whoever is left has a reader."""


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """One connection: what takes its bytes, and whether it would now."""

    number: int  # Its file descriptor.
    take: Callable[[bytes], None]
    may_take: Callable[[], bool]


class Lingerer:
    """Connections that may be waited for between two turns of the loop, besides their readers.

    One for each loop of its own: a program that does other things on the same loop would stand still meanwhile.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None  # `poll` would look at each connection.
        self._ways: dict[int, _Way] = {}  # By file descriptor.
        self._spared = 0

    @contextmanager
    def watched(
        self, stream: trio.abc.Stream, take: Callable[[bytes], None], may_take: Callable[[], bool]
    ) -> Iterator[None]:
        """While this lasts, `take` may be given what `stream` holds, whenever `may_take` is true.

        Its reader must bear that nothing is there when it is told that there is.
        """
        number = stream.socket.fileno() if type(stream) is trio.SocketStream else -1
        if self._epoll is None or number < 0:
            yield
            return
        way = self._ways[number] = _Way(number, take, may_take)
        self._epoll.register(number, select.EPOLLIN)
        try:
            yield
        finally:
            self._forget(way)

    def wait(self) -> bool:
        """Have the next that comes taken, for at most WAIT_MS; False if nothing did, or this is no time to wait."""
        if self._epoll is None or not self._ways:
            return False
        if self._spared > 0:
            self._spared -= 1
            return False
        has_taken = False
        for number, _ in self._epoll.poll(WAIT_MS / 1000, ARRIVALS_MAX):
            way = self._ways.get(number)
            if way is None or not way.may_take():
                continue  # Its reader's.
            data = _read(number)
            if data:
                way.take(data)
                has_taken = True
                if len(data) == RECEIVE_BYTES:
                    self._spared = WAITS_SPARED
            else:
                self._forget(way)  # Its reader will see why.
        if not has_taken:
            self._spared = WAITS_SPARED
        return has_taken

    def spare(self) -> None:
        """Leave it for a while: there are others to wait for."""
        self._spared = WAITS_SPARED

    def close(self) -> None:
        """Wait no more."""
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def _forget(self, way: _Way) -> None:
        if self._epoll is not None and self._ways.get(way.number) is way:
            del self._ways[way.number]
            self._epoll.unregister(way.number)


def _read(number: int) -> bytes:
    try:
        return os.read(number, RECEIVE_BYTES)
    except OSError:
        return b""
