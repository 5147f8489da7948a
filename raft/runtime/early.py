"""Peers that answer quickly are waited for, as a quick disk is: a lone request costs two turns of the loop less.

A turn of the loop takes some 50 µs where the caches are cold, beside 15 µs for the system calls in it. A leader with
one request open has nothing better to do than to wait for the answers to it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from raft.wire import FrameSplitter

RECEIVE_BYTES = 256 * 1024

WAIT_MS = 1
"""The longest wait, and the shortest that `poll` knows. Nothing else happens on the loop meanwhile."""

WAITS_SPARED = 256
"""After a wait in vain, so many are left out: these peers, or the way to them, are slow."""


class EarlyReader:
    """Connections that may be read between two turns of the loop, besides their readers, who are never told."""

    def __init__(self) -> None:
        self._poll = select.poll() if hasattr(select, "poll") else None
        self._ways: dict[int, tuple[str, FrameSplitter]] = {}  # By file descriptor.
        self._spared = 0

    @contextmanager
    def watched(self, stream: trio.abc.ReceiveStream, peer_id: str, splitter: FrameSplitter) -> Iterator[None]:
        """While this lasts, `stream` may be read early. Its reader feeds the same `splitter`, and sees the end."""
        number = stream.socket.fileno() if type(stream) is trio.SocketStream else -1
        if self._poll is None or number < 0:
            yield
            return
        self._ways[number] = (peer_id, splitter)
        self._poll.register(number, select.POLLIN)
        try:
            yield
        finally:
            self._forget(number)

    def read(self, *, may_wait: bool) -> list[tuple[str, FrameSplitter, bytes]]:
        """What has come from whom, to be fed to the splitter given with it; waits for the first if it may."""
        if self._poll is None or not self._ways:
            return []
        if may_wait and self._spared > 0:
            self._spared -= 1
            may_wait = False
        ready = self._poll.poll(WAIT_MS if may_wait else 0)
        if may_wait and not ready:
            self._spared = WAITS_SPARED
        arrived = []
        for number, _ in ready:
            peer_id, splitter = self._ways[number]
            data = _read(number)
            if data:
                arrived.append((peer_id, splitter, data))
            else:
                self._forget(number)  # Its reader will see why.
        return arrived

    def _forget(self, number: int) -> None:
        assert self._poll is not None
        if self._ways.pop(number, None) is not None:
            self._poll.unregister(number)


def _read(number: int) -> bytes:
    try:
        return os.read(number, RECEIVE_BYTES)
    except OSError:
        return b""
