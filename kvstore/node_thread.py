"""A member in a thread of its own, for programs that do not run on trio.

The thread runs a trio loop with the member from `start` to `stop`. Clients of the program reach the member by socket
pairs, without a port. If the program ends without `stop`, the member is stopped when the interpreter ends.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import trio

from kvstore.embedded import EmbeddedNode, EmbeddedStore
from kvstore.trio_thread import TrioThread


class NodeThread(TrioThread[EmbeddedStore]):
    """The thread of one member. `ended` is called in this thread if the member ends with an error. `clock`: the clock
    of its loop; None: the clock of the machine.

    `start` raises the errors that `open_node` raises before its block runs. `stop` raises the error with which the
    member has ended, if there is one.
    """

    def __init__(
        self, node: EmbeddedNode, ended: Callable[[], None] = lambda: None, clock: trio.abc.Clock | None = None
    ) -> None:
        super().__init__(node, "kvstore member", ended, clock)

    @property
    def store(self) -> EmbeddedStore:
        """The store of the member. Other threads may read only the fields that never change: its id and its
        addresses."""
        return self.value

    def connect(self, address: str) -> socket.socket | None:
        """Return a connection to the member if `address` is one of its addresses, else None. Raises OSError."""
        if address not in self.store.own_addresses:
            return None
        near, far = socket.socketpair()
        near.setblocking(False)
        try:
            self.post(self._serve, far)
        except trio.RunFinishedError:
            near.close()
            far.close()
            raise ConnectionRefusedError("the member in this program has ended") from None
        return near

    def _serve(self, far: socket.socket) -> None:
        self.store.serve_soon(trio.socket.from_stdlib_socket(far))
