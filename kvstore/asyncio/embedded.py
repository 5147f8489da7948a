"""A member inside an asyncio program. The member runs on trio in its own thread, and ends with its block."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from types import TracebackType

from kvstore.access.credentials import Credentials
from kvstore.asyncio.client import AsyncioClient
from kvstore.asyncio.loop import AsyncioScope
from kvstore.client.client import ClientCalls
from kvstore.client.dial import CallerCertificates
from kvstore.client.recording.recorded_calls import recording_of
from kvstore.client.recording.recorder import OperationRecorder
from kvstore.embedded import NodeOptions, open_node
from kvstore.errors import WrongContext
from kvstore.node_thread import NodeThread
from kvstore.protocol.addresses import IN_PROCESS_ADDRESS
from kvstore.tls import Tls
from kvstore.wrong_forms import EnteredAsync


class AsyncioStore(AsyncioClient):
    """A client that reaches the member in this process without a port."""

    def __init__(
        self,
        node: NodeThread,
        deadline_seconds: float,
        tls: Tls | None,
        credentials: Credentials | None,
        record: OperationRecorder | None = None,
    ) -> None:
        async def dial(address: str) -> socket.socket | None:
            return node.connect(address)

        self._node = node
        certificates = None if tls is None else CallerCertificates(tls)
        pump = self._pump_of([IN_PROCESS_ADDRESS], certificates, dial)
        ClientCalls.__init__(self, pump, deadline_seconds, recording_of(record))
        self.pump.credentials = credentials
        self._known_addresses = {node.store.node_id: IN_PROCESS_ADDRESS}

    @property
    def node_id(self) -> str:
        """The id of the member in this program."""
        return self._node.store.node_id

    @property
    def client_address(self) -> str:
        """The address at which other programs reach this member; empty if the member has no client port."""
        return self._node.store.client_address

    @property
    def peer_address(self) -> str:
        """The address at which the peers reach this member; empty if the member has no peer port."""
        return self._node.store.peer_address


class AsyncioNode(NodeOptions, EnteredAsync):
    """Run a member during the block `async with open_node(...) as store` of an asyncio program. Its arguments and
    errors are those of `kvstore.open_node`. If the member fails, the block is cancelled, and the error is raised.

    The member has its own thread and trio loop. A block that keeps the asyncio loop busy therefore does not delay the
    member's heartbeats, as long as the interpreter lets the other thread run.
    """

    _right_form = open_node._right_form

    async def __aenter__(self) -> AsyncioStore:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongContext(
                "this needs a running asyncio loop: in trio use kvstore.open_node, and in plain threads "
                "kvstore.blocking.open_node"
            ) from None
        self._block = AsyncioScope()

        def ended() -> None:
            with suppress(RuntimeError):  # The loop may be closed already.
                loop.call_soon_threadsafe(self._block.cancel)

        self._node = NodeThread(self.node(), ended)
        starting = asyncio.create_task(asyncio.to_thread(self._node.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A cancellation cannot stop the start in the thread. The call waits, because the folder must be free when
            # the call ends.
            with suppress(Exception):
                await starting
                await asyncio.to_thread(self._node.stop)
            raise
        self._store = AsyncioStore(
            self._node, self._deadline_seconds, self._client_tls, self._credentials, self._record
        )
        await self._store.__aenter__()
        self._block.__enter__()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        absorbed = self._block.__exit__(kind, error, traceback)
        try:
            await self._store.__aexit__(None, None, None)
        finally:
            await asyncio.to_thread(self._node.stop)
        return absorbed
