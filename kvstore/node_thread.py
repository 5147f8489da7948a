"""A member in a thread of its own, for programs that do not run on trio.

The thread runs a trio loop with the member from `start` to `stop`. Clients of the program reach the member by socket
pairs, without a port. If the program ends without `stop`, the member is stopped when the interpreter ends.
"""

from __future__ import annotations

import atexit
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import trio

from kvstore.embedded import EmbeddedNode, EmbeddedStore


class NodeThread:
    """The thread of one member. `ended` is called in this thread if the member ends by itself."""

    def __init__(self, node: EmbeddedNode, ended: Callable[[], None] = lambda: None) -> None:
        self._node, self._ended = node, ended
        self._store: EmbeddedStore
        self._is_decided = threading.Event()  # The member runs, or could not be started.
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event
        self._thread = threading.Thread(target=self._run, name="kvstore member", daemon=True)

    @property
    def store(self) -> EmbeddedStore:
        """The store of the member, for what does not change: its id and its addresses."""
        return self._store

    def start(self) -> None:
        """Start the member, and wait until it runs. Raises what `open_node` raises before its block runs."""
        self._thread.start()
        atexit.register(self._stop_thread)
        self._is_decided.wait()
        if self._token is None:
            self.stop()

    def stop(self) -> None:
        """Stop the member, and wait for the end of the thread. Raises the error with which the member has ended."""
        self._stop_thread()
        if self._failure is not None:
            raise self._failure

    def connect(self, address: str) -> socket.socket | None:
        """A connection to the member if this is its address; None for another address. Raises OSError."""
        if address not in self._store.own_addresses:
            return None
        near, far = socket.socketpair()
        near.setblocking(False)
        assert self._token is not None
        try:
            self._token.run_sync_soon(self._serve, far)
        except trio.RunFinishedError:
            near.close()
            far.close()
            raise ConnectionRefusedError("the member in this program has ended") from None
        return near

    def _serve(self, far: socket.socket) -> None:
        self._store.serve_soon(trio.socket.from_stdlib_socket(far))

    def _stop_thread(self) -> None:
        atexit.unregister(self._stop_thread)
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
            if self._token is not None:
                self._ended()
        finally:
            self._is_decided.set()

    async def _main(self) -> None:
        async with self._node as self._store:
            self._stop = trio.Event()
            self._token = trio.lowlevel.current_trio_token()
            self._is_decided.set()
            await self._stop.wait()
