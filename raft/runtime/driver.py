"""The loop that runs a node. The loop passes time, messages and completed I/O to the node, and carries out the node's
effects.

The loop does no work per request: one flush handles everything that has gathered since the last turn.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import trio

from raft.effects import CompletionBatch
from raft.errors import NodeStopped
from raft.node.feature_levels import INITIAL_LEVELS, LevelRange
from raft.node.node import Node
from raft.protocol.messages import Message
from raft.runtime.completions import CompletionQueue
from raft.runtime.transport import Transport
from raft.types import TraceEvent

logger = logging.getLogger("raft.driver")

INFO_EVENTS = frozenset(
    {
        "became_leader",
        "leader_connection_lost",
        "stepped_down",
        "transfer_began",
        "transfer_given_up",
        "snapshot_built",
        "snapshot_installed",
        "snapshot_given_up",
        "truncated",
        "disk_hangs",
        "disk_answers",
        "disk_full",
        "disk_has_room",
        "descriptors_lack",
        "descriptors_found",
        "in_sync_joined",
        "in_sync_left",
    }
)
WARNING_EVENTS = frozenset({"disk_full", "descriptors_lack", "disk_hangs", "snapshot_given_up"})
"""Events that need an operator's attention. They are logged as warnings."""

DISK_SPACE_EVENTS = frozenset({"disk_full", "disk_has_room"})
"""Events to which the driver adds the disk usage of the Raft log."""

MUTED_EVENTS = frozenset({"commit_advanced", "low_watermark_advanced", "read_round"})
"""Frequent events, which the driver turns off. The status shows the same information. Only the simulator observes these
events."""

SECOND_NS = 1_000_000_000

ROUNDS_MAX = 64
ROUNDS_NS_MAX = 5_000_000
"""The bounds of one flush, in rounds and in time. Another round follows if the disk has completed its work at once, or
if there is more to do. If a round has applied a full slice of entries, the flush ends, so that peers and timers are
handled before the next slice."""

REMOVED_SECONDS = 0.3
"""How long a removed member continues to run after it knows that its removal is committed: a few heartbeats. During
this time, the member's answers show the leader that the member has applied its removal. The leader can then stop
replicating to it."""

ALARM_NEAR_NS = 3_000_000
"""A deadline that passes within this time probably passes before the next turn, because turns for lone puts are 1 to 3
ms apart."""


def now_ns() -> int:
    """The node's clock: the monotonic clock of trio, in integer ns. Each run of trio has its own zero, so times of
    different runs cannot be compared."""
    return int(trio.current_time() * SECOND_NS)


class Application(Protocol):
    """The application that uses the node. It receives the completions of its requests."""

    def complete(self, completions: Sequence[CompletionBatch], events: Sequence[TraceEvent]) -> None:
        """Process the completions and events of a flush. The driver calls this synchronously after each flush that has
        produced completions or events, and after every flush while `tells_each_flush` is set. The application may call
        the node from here."""
        ...


class DeferredFiles(Protocol):
    """The files of the node's storage, whose operations wait until the driver starts them (`storage.RealFiles`)."""

    has_waiting: bool
    """True if operations were submitted since the last `start`."""

    def start(self) -> bool:
        """Begin the waiting operations. Return True if one of these operations is already done."""
        ...


class Driver:
    """Runs one node in a loop. The node must have been made with `now=now_ns()` in this run of trio.

    From any task of this run, the application calls `node.propose` and `node.read` synchronously, and then `wake` or
    `flush`. A node without peers needs no `transport`.
    """

    def __init__(
        self,
        node: Node,
        *,
        completions: CompletionQueue,
        application: Application,
        transport: Transport | None = None,
        files: DeferredFiles | None = None,
    ) -> None:
        """`files` are the files of the node's storage. Pass None if the operations of these files begin without
        `start`."""
        self.node = node
        self._seconds = trio.current_time  # `run` replaces this function by a faster method of trio's clock.
        node.mute_events(MUTED_EVENTS)
        self._completions = completions
        self._application = application
        self._transport = transport
        self._files = files
        self.turns = 0  # The number of times that the node's effects have been carried out.
        # True while the application waits for something that a flush without completions and events may bring.
        self.tells_each_flush = False
        self._now = 0  # The time (monotonic ns) at which this turn began.
        self._next_alarm = 0  # The `node.next_alarm` (monotonic ns) at the end of the last flush.
        self._woken = trio.Event()
        # The first event is set when this member is removed. The second event is set when a peer refuses this member
        # because of its removal.
        self._removed, self._refused = trio.Event(), trio.Event()
        self._scope: trio.CancelScope | None = None  # Set while the driver's own task sleeps in `_wait`.
        self._is_over = False
        self._failure: NodeStopped | None = None
        self._error: Exception | None = None  # An unexpected error of a flush in another task.

    def _read_clock(self) -> int:
        """Return `now_ns()`, with two function calls instead of five, because the clock is read several times per
        request."""
        return int(self._seconds() * SECOND_NS)

    def wake(self) -> None:
        """Request a flush in the next turn of the event loop. This flush will handle everything that arrives in the
        current turn."""
        self._woken.set()

    def flush(self) -> None:
        """Flush now, in the caller's task. Waking the driver's own task instead would cost a turn of the event loop.

        If another flush is under way, or is due in the next turn, that flush does the work instead.
        """
        if not self._is_asleep:
            self.wake()
            return
        try:
            self._run_completions()
            self._flush_here(self._now)
        except Exception as error:  # The caller may contain its errors, but the node must not go on after this one.
            self._error, self._is_over = error, True
            self.wake()
            raise

    @property
    def _is_asleep(self) -> bool:
        """True while the driver's own task waits, so that another task may flush in its place."""
        return self._scope is not None and not self._woken.is_set()

    def _flush_here(self, now: int | None) -> None:
        """Flush in another task while the driver's own task sleeps in `_wait`. `now`: as in `_flush`."""
        scope, self._scope = self._scope, None
        assert scope is not None, "a flush is under way"
        if self._flush(now):
            self.wake()
        else:
            self._scope = scope
            self._set_alarm(scope)

    def request_stop(self) -> None:
        """Begin to stop the node (`Node.begin_stop`). `run` returns once the node has stopped."""
        self.node.begin_stop()
        self.wake()

    async def run(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the node until this task is cancelled, or until the stop that `request_stop` has begun is complete.

        `nursery.start` returns the peer port, or 0 if there is no transport.

        Raises CannotListen, and NodeStopped if the node fails. Any other exception means that an invariant is broken,
        and ends the node at once.
        """
        self._seconds = trio.lowlevel.current_clock().current_time
        if self._transport is not None:
            # Listen before the nursery opens, because the nursery would wrap an error of listening in a group.
            await self._transport.listen()
        with self._completions.watched():
            async with trio.open_nursery() as nursery:
                port = 0
                if self._transport is not None:
                    self._transport.connect_to(self.node.peers)
                    port = await nursery.start(self._transport.run, self)
                nursery.start_soon(self._take_completions)
                nursery.start_soon(self._leave_when_removed)
                task_status.started(port)
                await self._drive()
                nursery.cancel_scope.cancel()
        if self._error is not None:
            raise self._error
        if self._failure is not None:
            raise self._failure

    async def _drive(self) -> None:
        """Flush at each `wake` and at each alarm, until the node has ended."""
        self._next_alarm = self.node.next_alarm
        try:
            while not self._is_over:
                with trio.CancelScope() as scope:
                    while not self._is_over:
                        await self._wait(scope)
                        self._flush_in_turn()
                if scope.cancelled_caught:
                    self._heed_alarm()
        finally:
            self._scope = None

    async def _wait(self, scope: trio.CancelScope) -> None:
        """Wait until `wake` is called, or until `scope` is cancelled because its deadline has passed.

        One scope serves many turns, because a new scope or a new deadline per turn would cost 10 µs.
        """
        if self._woken.is_set():
            await trio.lowlevel.checkpoint()  # Let the tasks that read from sockets receive more messages first.
        else:
            self._scope = scope
            self._set_alarm(scope)
            try:
                await self._woken.wait()
            finally:
                self._scope = None
        if not self._is_over:
            self._woken = trio.Event()

    def _set_alarm(self, scope: trio.CancelScope) -> None:
        """Set the deadline of `scope` to the node's next alarm.

        If the deadline is too early, it is moved only shortly before it passes, because moving it costs ten times as
        much as this check. After a single put the next alarm is 5 ms away. Usually another put arrives earlier and
        makes this alarm unnecessary.
        """
        # The deadline is rounded up. Otherwise, if the clock stands still while tasks run, the deadline could pass
        # before the node is due.
        deadline = (self._next_alarm + 1) / SECOND_NS  # If work is left, `wake` was called, so the work needs no alarm.
        set_to = scope.deadline
        if deadline < set_to or (deadline > set_to and set_to * SECOND_NS - self._now < ALARM_NEAR_NS):
            scope.deadline = deadline

    async def _take_completions(self) -> None:
        while True:
            await self._completions.wait()
            if self._completions.pending:  # If no callback ran, another flush has already run the callbacks.
                self.flush()

    def _run_completions(self) -> bool:
        """Run the callbacks of completed disk operations, then read the clock. Return True if any callback ran. If the
        clock were read first, a delay of the event loop would look like a stalled disk.
        """
        has_run = bool(self._completions.pending) and not self._is_over and self._completions.run_pending() > 0
        self._now = self._read_clock()
        return has_run

    def _catch_up(self) -> bool:
        """Like `_run_completions`; then also advance the node's clock."""
        has_run = self._run_completions()
        self.node.tick(self._now)
        return has_run

    def _flush_in_turn(self) -> None:
        if not self._is_over:
            self._run_completions()
            self._flush(self._now)

    def _heed_alarm(self) -> None:
        """Handle the deadline of the scope, which has passed: flush if there is work to do. There may be no work,
        because the node's alarm may have moved to a later time since the deadline was set."""
        if self._is_over:
            return
        if self._catch_up() or self.node.wants_turn or self.node.next_alarm <= self._now:
            self._flush(None)
        else:
            self._next_alarm = self.node.next_alarm

    def _flush(self, now: int | None) -> bool:
        """Do all work that is due, including work that follows from I/O that completes at once. Return True if the node
        has ended.

        The caller must first run `_run_completions` or `_catch_up`. If the caller has run `_run_completions`, `now` is
        the time to which the node's clock is advanced; otherwise it is None.

        In each round, messages to peers and clients are sent before disk operations begin, because disk I/O may block
        the loop.
        """
        node, files, began = self.node, self._files, self._now
        for _ in range(ROUNDS_MAX):
            if self._carry_out(now):
                return True
            now = None
            has_applied = node.begin_sync()
            has_io_ended = files is not None and files.has_waiting and files.start()
            has_more = node.wants_turn if has_io_ended or has_applied else node.has_more
            if not has_more:
                self._next_alarm = node.next_alarm
                return False
            if (has_applied and node.has_unapplied) or self._read_clock() - began > ROUNDS_NS_MAX:
                break  # A member that is behind applies one slice of entries per turn.
        self.wake()
        return False

    def _carry_out(self, now: int | None) -> bool:
        """Carry out all effects of the node. Return True if the node has ended."""
        self.turns += 1
        effects = self.node.take_effects(now)
        if effects.peers_changed:
            self._peers_changed()
        if effects.send and self._transport is not None:
            self._transport.send(effects.send)
        if effects.events:
            self._log(effects.events)
        if effects.completions or effects.events or self.tells_each_flush:
            self._application.complete(effects.completions, effects.events)
        if effects.failure is not None:
            reason = effects.failure.reason
            self._log_event(logging.ERROR, "failed", f"has stopped: {reason}", reason=reason)
        self._failure = effects.failure
        # If the node has failed after these effects were taken, another round is needed. The effects of that round
        # report the failure and end the open requests.
        self._is_over = effects.failure is not None or (self.node.is_stopped and self.node.failure is None)
        return self._is_over

    def _log(self, events: Sequence[TraceEvent]) -> None:
        is_wanted = logger.isEnabledFor(logging.INFO)
        for event in events:
            is_trouble = event.name in WARNING_EVENTS
            if is_wanted or is_trouble:
                level = logging.DEBUG if event.name not in INFO_EVENTS else logging.INFO
                level = logging.WARNING if is_trouble else level
                fields = self._disk_usage() if event.name in DISK_SPACE_EVENTS else {}
                told = {"node_id": self.node.identity.node_id, "event": event.name, "fields": event.fields | fields}
                logger.log(level, "%(node_id)s: %(event)s %(fields)s", told)

    def _disk_usage(self) -> dict[str, object]:
        """The information that an operator needs to make room: the size of the log, and the cause that keeps the log
        from shrinking."""
        status = self.node.status()
        return {"log_bytes": status.log_bytes, "log_held_by": status.log_held_by, "last_index": status.last_index}

    def _log_event(self, level: int, event: str, words: str, **fields: object) -> None:
        told = {"node_id": self.node.identity.node_id, "event": event, "fields": fields, "message": words}
        logger.log(level, "%(node_id)s: %(message)s", told)

    def _peers_changed(self) -> None:
        if self._transport is not None:
            self._transport.connect_to(self.node.peers)
        if self.node.is_removed:
            self._removed.set()

    async def _leave_when_removed(self) -> None:
        """Wait until the removal of this member is final, then call `request_stop` after a short time."""
        await self._removed.wait()
        with trio.move_on_after(REMOVED_SECONDS):
            await self._refused.wait()
        self.request_stop()

    # Events from the transport.

    def peer_hello(self, peer_id: str, incarnation_id: bytes, levels: LevelRange = INITIAL_LEVELS) -> None:
        """Report to the node that a peer has stated its identity and the feature levels of its build. Raises
        PeerRefused."""
        self.node.tick(self._read_clock())
        self.node.peer_hello(peer_id, incarnation_id, levels)
        self.wake()

    def receive(self, peer_id: str, messages: Sequence[Message]) -> None:
        """Give messages from a peer to the node."""
        has_run = self._catch_up()
        try:
            for message in messages:
                self.node.receive(peer_id, message)
        finally:
            if has_run or self.node.wants_turn:
                if self._is_asleep:
                    self._flush_here(None)
                else:
                    self.wake()

    def peer_unreachable(self, peer_id: str) -> None:
        """Report to the node that the connection to a peer was lost."""
        self.node.tick(self._read_clock())
        self.node.peer_unreachable(peer_id)
        self.wake()

    def peer_gone(self, peer_id: str) -> None:
        """Report to the node that both connections with a peer are closed, and that the last one was closed by the peer
        or its machine."""
        self.node.tick(self._read_clock())
        self.node.peer_gone(peer_id)
        self.wake()

    def peer_refused(self, peer_id: str, code: str, reason: str) -> None:
        """Report to the node that a peer has rejected our connection."""
        self.node.tick(self._read_clock())
        self.node.peer_refused(peer_id, code)
        if self.node.failure is not None:
            self.wake()  # The peer knows this member with another data folder, so the node has failed.
        if self.node.is_removed and not self._is_over:
            self._log_event(logging.WARNING, "removed", f"peer {peer_id}: {reason}", peer_id=peer_id, reason=reason)
            self._removed.set()
            self._refused.set()
