"""The one loop that runs a node: time, messages and completions in; messages and completions out.

Nothing happens per request here: whatever has gathered since the last turn is one flush.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import trio

from raft.effects import Told
from raft.errors import NodeStopped
from raft.messages import Message
from raft.node import Node
from raft.ready import TraceEvent
from raft.runtime.completions import CompletionQueue
from raft.runtime.transport import Transport

logger = logging.getLogger("raft.driver")

TOLD_TO_PEOPLE = frozenset(
    {
        "became_leader",
        "stepped_down",
        "snapshot_built",
        "snapshot_installed",
        "snapshot_given_up",
        "truncated",
        "disk_full",
        "disk_has_room",
    }
)
SECOND_NS = 1_000_000_000


def now_ns() -> int:
    """The node's clock: trio's, which is monotonic, in integer ns. Only within one run of trio."""
    return int(trio.current_time() * SECOND_NS)


class Application(Protocol):
    """What is built on the node, and is told how its requests ended."""

    def complete(self, completions: Sequence[Told], events: Sequence[TraceEvent]) -> None:
        """Called synchronously after each flush that has something to tell, in order. It may call the node again."""
        ...


class Driver:
    """Owns the loop over one node, made with `now=now_ns()` in this run of trio.

    The application calls `node.propose` and `node.read` synchronously from any task of this run, then `wake`.
    Without peers there is no `transport`.
    """

    def __init__(
        self,
        node: Node,
        *,
        completions: CompletionQueue,
        application: Application,
        transport: Transport | None = None,
    ) -> None:
        self.node = node
        self._completions = completions
        self._application = application
        self._transport = transport
        self._woken = trio.Event()
        self._failure: NodeStopped | None = None

    def wake(self) -> None:
        """Ask for a flush soon."""
        self._woken.set()

    def request_stop(self) -> None:
        """Take no more requests, finish and prove what was written, then let `run` return."""
        self.node.begin_stop()
        self.wake()

    async def run(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the node until it is cancelled or `request_stop` is done. Started with the peer port (0: no transport).

        Raises NodeStopped when the node can promise no more, and CannotListen. Any other exception from a task is a
        broken invariant: it stops the node at once.
        """
        failure: NodeStopped | None = None
        if self._transport is not None:
            await self._transport.listen()  # Outside the nursery, which would wrap its error.
        self._completions.attach(self.wake)
        try:
            async with trio.open_nursery() as nursery:
                port = 0
                if self._transport is not None:
                    port = await nursery.start(self._transport.run, self)
                task_status.started(port)
                failure = await self._drive()
                nursery.cancel_scope.cancel()
        finally:
            self._completions.detach()
        if failure is not None:
            raise failure

    async def _drive(self) -> NodeStopped | None:
        """The only task in which effects happen."""
        is_over = False
        while not is_over:
            with trio.CancelScope() as scope:
                while not is_over:
                    await self._wait(scope)
                    is_over = self._flush()
            if scope.cancelled_caught:
                is_over = self._flush()
        return self._failure

    async def _wait(self, scope: trio.CancelScope) -> None:
        """Until something happens, or `scope` is cancelled because time is up.

        It serves many turns, for one for each would cost 10 µs: its deadline is only moved to earlier ones. So it may
        fire when nothing is due any more, which is a turn for nothing, no more often than timers would have been set.
        """
        if self._woken.is_set():
            await trio.lowlevel.checkpoint()  # Let readers gather more.
        else:
            deadline = self.node.next_deadline / SECOND_NS
            if deadline < scope.deadline:
                scope.deadline = deadline
            await self._woken.wait()
        self._woken = trio.Event()

    def _flush(self) -> bool:
        """One turn; True if it was the last."""
        self._completions.run_pending()
        self.node.tick(now_ns())
        effects = self.node.take_effects()
        if effects.send and self._transport is not None:
            self._transport.send(effects.send)
        self._log(effects.events)
        if effects.completions or effects.events:
            self._application.complete(effects.completions, effects.events)
        if effects.failure is not None:
            logger.error("%s", effects.failure)
        self._failure = effects.failure
        return effects.failure is not None or self.node.is_stopped

    def _log(self, events: Sequence[TraceEvent]) -> None:
        if logger.isEnabledFor(logging.INFO):
            for event in events:
                level = logging.INFO if event.name in TOLD_TO_PEOPLE else logging.DEBUG
                logger.log(level, "%s: %s %s", self.node.identity.node_id, event.name, event.fields)

    # What the transport tells.

    def peer_hello(self, peer_id: str, incarnation_id: bytes) -> None:
        """A peer said who it is. Raises PeerRefused."""
        self.node.tick(now_ns())
        self.node.peer_hello(peer_id, incarnation_id)
        self.wake()

    def receive(self, peer_id: str, messages: Sequence[Message]) -> None:
        """Messages of a peer."""
        self.node.tick(now_ns())
        try:
            for message in messages:
                self.node.receive(peer_id, message)
        finally:
            self.wake()

    def peer_unreachable(self, peer_id: str) -> None:
        """The connection to a peer was lost."""
        self.node.tick(now_ns())
        self.node.peer_unreachable(peer_id)
        self.wake()
