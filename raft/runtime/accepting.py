"""Accepting connections, even when file descriptors run out.

`trio.serve_listeners` is not enough: when descriptors run out, it logs a traceback ten times a second, and callers stay
in the kernel's queue.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence

import trio

logger = logging.getLogger("raft.accepting")

NO_DESCRIPTOR_LEFT = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of `accept` that occur when the process (EMFILE) or the whole system (ENFILE) has no file descriptor left."""

NO_ROOM = NO_DESCRIPTOR_LEFT | {errno.ENOMEM, errno.ENOBUFS}
"""Errors of `accept` whose cause may go away by itself."""

REFUSALS_PER_PAUSE = 64
ACCEPT_PAUSE_SECONDS = 0.05
"""While no descriptor is left, the acceptor refuses up to REFUSALS_PER_PAUSE callers in a row. After that it accepts no
caller for ACCEPT_PAUSE_SECONDS, and callers wait in the kernel's queue. Without this pause, callers that connect again
immediately could take all the time of the event loop."""

EPISODE_SECONDS_MIN = 10.0
"""A shortage of descriptors counts as over once `accept` has not failed for this long. So a shortage that comes and
goes causes only one log line."""

Handler = Callable[[trio.SocketStream], Awaitable[object]]


def descriptor_limit() -> int | None:
    """Return the number of file descriptors that this process may have open; None if there is no limit, or if the limit
    is unknown."""
    try:
        import resource
    except ImportError:  # On Windows there is no module `resource`.
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


class Acceptor:
    """Accepts connections for one purpose: `clients`, `peers` or `metrics`. The log lines of the acceptor name the
    purpose.

    The acceptor keeps a spare file descriptor open. When no other descriptor is left, the acceptor closes the spare
    one, accepts a caller with the free descriptor, and closes this connection at once. So the caller can try another
    member instead of waiting for this member.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._spare = -1
        self._short_until = -1.0
        self.refused = 0  # The number of connections that were closed at once because no descriptor was left.

    async def serve(
        self,
        handler: Handler,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run `handler` for each accepted stream until cancelled, and finally close the listeners. Each handler must
        close its stream."""
        self._take_spare()
        try:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(self._accept_forever, listener, handler, nursery)
                task_status.started()
        finally:
            self._give_up_spare()

    async def _accept_forever(self, listener: trio.SocketListener, handler: Handler, nursery: trio.Nursery) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in NO_ROOM:
                        raise
                    self._note(error)
                    self._refuse(listener)
                    await trio.sleep(ACCEPT_PAUSE_SECONDS)
                else:
                    nursery.start_soon(handler, stream)

    def _refuse(self, listener: trio.SocketListener) -> None:
        """Accept waiting callers with the spare descriptor, and close their connections. These calls block the event
        loop."""
        callers = socket.socket(fileno=listener.socket.fileno())  # This is a plain socket with the same descriptor.
        callers.setblocking(False)  # A new socket object has the default time-out, so `accept` could block.
        try:
            for _ in range(REFUSALS_PER_PAUSE):
                self._give_up_spare()
                caller, _ = callers.accept()
                caller.close()
                self.refused += 1
        except OSError:
            pass  # No more callers are waiting, or another thread has taken the descriptor that was freed.
        finally:
            callers.detach()
            self._take_spare()

    def _note(self, error: OSError) -> None:
        now = trio.current_time()
        if now >= self._short_until:
            what = os.strerror(error.errno or 0).lower()
            if error.errno in NO_DESCRIPTOR_LEFT:
                limit = descriptor_limit()
                remedy = "raise the limit (`ulimit -n`, `LimitNOFILE=` of a systemd unit), or find the cause"
                what += f" (the limit of this process is {'none' if limit is None else limit}); {remedy}"
            logger.error("new connections of %s are closed, open ones are served: %s", self._purpose, what)
        self._short_until = now + EPISODE_SECONDS_MIN

    def _take_spare(self) -> None:
        if self._spare < 0:
            try:
                self._spare = os.open(os.devnull, os.O_RDONLY)
            except OSError:
                self._spare = -1  # The next call of this method tries again.

    def _give_up_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
