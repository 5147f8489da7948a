"""Peers that answer quickly are waited for, as a quick disk is: a lone request costs two turns of the loop less.

A turn of the loop takes some 50 µs where the caches are cold, beside 15 µs for the system calls in it. A leader with
one request open has nothing better to do than to wait for the answers to it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from raft.wire import FrameSplitter

RECEIVE_BYTES = 256 * 1024

WAIT_MS = 1
"""The longest wait, and the shortest that `poll` knows. Nothing else happens on the loop meanwhile."""

WAITS_SPARED = 256
"""After a wait in vain, so many are left out: these peers, or the way to them, are slow."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One connection: whose it is, what splits its bytes, and what ends it."""

    number: int  # Its file descriptor.
    peer_id: str
    splitter: FrameSplitter
    scope: trio.CancelScope


class EarlyReader:
    """Connections that may be read between two turns of the loop, besides their readers, who are never told."""

    def __init__(self) -> None:
        self._poll = select.poll() if hasattr(select, "poll") else None
        self._ways: dict[int, Way] = {}  # By file descriptor.
        self._spared = 0

    @contextmanager
    def watched(
        self, stream: trio.abc.ReceiveStream, peer_id: str, splitter: FrameSplitter, scope: trio.CancelScope
    ) -> Iterator[Way | None]:
        """While this lasts, `stream` may be read early. Its reader feeds the same `splitter`, and sees the end.

        `scope` is the reader's: whoever gets nonsense cancels it, and says `forget`.
        """
        number = stream.socket.fileno() if type(stream) is trio.SocketStream else -1
        if self._poll is None or number < 0:
            yield None
            return
        way = Way(number, peer_id, splitter, scope)
        self._watch(way)
        try:
            yield way
        finally:
            self.forget(way)

    @contextmanager
    def paused(self, way: Way | None) -> Iterator[None]:
        """While this lasts, the connection is not read early: its reader has not handed over all that it read."""
        if way is None or self._ways.get(way.number) is not way:
            yield
            return
        self.forget(way)
        try:
            yield
        finally:
            self._watch(way)

    def read(self, *, may_wait: bool) -> list[tuple[Way, bytes]]:
        """What has come, and by which way, to be fed to its splitter; waits for the first if it may."""
        if self._poll is None or not self._ways:
            return []
        if may_wait and self._spared > 0:
            self._spared -= 1
            may_wait = False
        ready = self._poll.poll(WAIT_MS if may_wait else 0)
        if may_wait and not ready:
            self._spared = WAITS_SPARED
        arrived = []
        for number, _ in ready[:1] if may_wait else ready:  # One may be enough: the others follow when that is told.
            way = self._ways[number]
            data = _read(number)
            if data:
                arrived.append((way, data))
            else:
                self.forget(way)  # Its reader will see why.
        return arrived

    def watches(self, way: Way) -> bool:
        """False while its reader has something in hand that came before, and once there is no more to read."""
        return self._ways.get(way.number) is way

    def _watch(self, way: Way) -> None:
        assert self._poll is not None
        self._ways[way.number] = way
        self._poll.register(way.number, select.POLLIN)

    def forget(self, way: Way) -> None:
        """Read no more of it."""
        assert self._poll is not None
        if self._ways.get(way.number) is way:
            del self._ways[way.number]
            self._poll.unregister(way.number)


def _read(number: int) -> bytes:
    try:
        return os.read(number, RECEIVE_BYTES)
    except OSError:
        return b""
