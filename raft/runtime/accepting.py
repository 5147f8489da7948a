"""Accepting connections when file descriptors run out.

In that case `trio.serve_listeners` logs a traceback ten times a second, and leaves callers in the kernel's queue.
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
"""Of the process, and of the whole system."""

NO_ROOM = NO_DESCRIPTOR_LEFT | {errno.ENOMEM, errno.ENOBUFS}
"""Errors of `accept` that pass by themselves."""

REFUSALS_PER_PAUSE = 64
ACCEPT_PAUSE_SECONDS = 0.05
"""Without a descriptor so many callers are refused, then none is for this long: whoever calls again at once must not
take all of the loop. In the pause callers wait in the queue of the kernel."""

EPISODE_SECONDS_MIN = 10.0
"""A shortage is over when nobody had to be refused for so long: it is logged once, however it comes and goes."""

Handler = Callable[[trio.SocketStream], Awaitable[object]]


def descriptor_limit() -> int | None:
    """How many descriptors this process may have open now; None: no limit, or none that the system tells."""
    try:
        import resource
    except ImportError:  # Not on Windows.
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


class Acceptor:
    """Accepts connections for one purpose (`clients`, `peers`, `metrics`), which its log lines name.

    A spare descriptor is kept open. When no other is left it is given up for a moment: so a caller is accepted and hung
    up on, and can go to another member at once, instead of waiting for this one.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._spare = -1
        self._short_until = -1.0
        self.refused = 0  # Callers that were hung up on for want of a descriptor.

    async def serve(
        self,
        handler: Handler,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run `handler` with each stream, and close it after that, until cancelled; closes the listeners."""
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
                    nursery.start_soon(_run, handler, stream)

    def _refuse(self, listener: trio.SocketListener) -> None:
        """Hang up on those who wait, with the spare descriptor. Nothing else on the loop runs meanwhile."""
        callers = socket.socket(fileno=listener.socket.fileno())  # The same descriptor, without trio.
        callers.setblocking(False)  # As it is; but the object has taken the default time-out of the program.
        try:
            for _ in range(REFUSALS_PER_PAUSE):
                self._give_up_spare()
                caller, _ = callers.accept()
                caller.close()
                self.refused += 1
        except OSError:
            pass  # Nobody waits any more; or another thread was quicker to take the descriptor.
        finally:
            callers.detach()
            self._take_spare()

    def _note(self, error: OSError) -> None:
        now = trio.current_time()
        if now >= self._short_until:
            what = os.strerror(error.errno or 0).lower()
            if error.errno in NO_DESCRIPTOR_LEFT:
                limit = descriptor_limit()
                remedy = "raise the limit (`ulimit -n`, `LimitNOFILE=` of a systemd unit), or find what holds so many"
                what += f" (the limit of this process is {'none' if limit is None else limit}); {remedy}"
            logger.error("new connections of %s are hung up on, those that stand are served: %s", self._purpose, what)
        self._short_until = now + EPISODE_SECONDS_MIN

    def _take_spare(self) -> None:
        if self._spare < 0:
            try:
                self._spare = os.open(os.devnull, os.O_RDONLY)
            except OSError:
                self._spare = -1  # The next refusal tries again.

    def _give_up_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1


async def _run(handler: Handler, stream: trio.SocketStream) -> None:
    try:
        await handler(stream)
    finally:
        await trio.aclose_forcefully(stream)
