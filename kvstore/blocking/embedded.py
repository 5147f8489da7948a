"""A member inside a program with plain threads. The member runs on trio in its own thread, and ends with its block."""

from __future__ import annotations

from types import TracebackType

from kvstore.access.credentials import Credentials
from kvstore.asyncio.embedded import AsyncioStore
from kvstore.blocking.client import BlockingClient
from kvstore.client.recording.recorder import OperationRecorder
from kvstore.embedded import NodeOptions
from kvstore.node_thread import NodeThread
from kvstore.protocol.addresses import IN_PROCESS_ADDRESS
from kvstore.tls import Tls
from kvstore.wrong_forms import EnteredPlainly


class BlockingStore(BlockingClient):
    """A client that reaches the member in this process without a port."""

    def __init__(
        self,
        node: NodeThread,
        deadline_seconds: float,
        tls: Tls | None,
        credentials: Credentials | None,
        record: OperationRecorder | None = None,
    ) -> None:
        store = AsyncioStore(node, deadline_seconds, tls, credentials, record)
        self._use(store, deadline_seconds)
        self.in_thread._known_addresses = {node.store.node_id: IN_PROCESS_ADDRESS}
        self._node = node

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


class BlockingNode(NodeOptions, EnteredPlainly):
    """Run a member during the block `with open_node(...) as store`. Its arguments and errors are those of
    `kvstore.open_node`. A thread cannot be cancelled. If the member fails, calls raise Unavailable, and the member's
    error is raised at the end of the block."""

    _right_form = (
        "kvstore.blocking.open_node is entered by `with`; in an event loop use `async with` and kvstore.open_node "
        "(trio) or kvstore.asyncio.open_node"
    )

    def __enter__(self) -> BlockingStore:
        self._node = NodeThread(self.node())
        self._node.start()
        self._store = BlockingStore(
            self._node, self._deadline_seconds, self._client_tls, self._credentials, self._record
        )
        try:
            return self._store.__enter__()
        except BaseException:
            self._node.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._store.__exit__(None, None, None)
        finally:
            self._node.stop()
