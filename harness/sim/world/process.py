"""Determines when a process handles an event: at once, at the end of a pause, or after a wait for processor time."""

from __future__ import annotations

from collections import deque
from typing import Any

from harness.sim.engine.event_queue import Action, EventQueue


class ProcessScheduler:
    """The scheduler of one process. Waiting events are handled in the order in which they came.

    During a pause all events wait, and at its end they are handled at once. A process that is starved of processor time
    takes `service_ns` for each event. If events arrive faster, their waits become longer and longer.
    """

    __slots__ = ("_is_on_turn", "_queue", "_turn", "_waiting", "paused_until", "service_ns")

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self.paused_until = 0
        self.service_ns = 0
        self._waiting: deque[tuple[Action, tuple[Any, ...]]] = deque()
        self._turn = 0  # The number of the only valid scheduled turn. A turn with another number does nothing.
        self._is_on_turn = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_paused(self) -> bool:
        """True during a pause."""
        return self.paused_until > self._queue.now

    def postpones(self, action: Action, *arguments: Any) -> bool:
        """Return True if `action(*arguments)` must wait.

        The caller must then do nothing, because the scheduler calls the action later. During this later call, the
        method returns False.
        """
        if self._is_on_turn or not (self._waiting or self.service_ns or self.paused_until > self._queue.now):
            return False
        self._waiting.append((action, arguments))
        if len(self._waiting) == 1:
            self._plan_next()
        return True

    def pause(self, until: int) -> None:
        """Pause until `until`, or longer if an earlier pause lasts longer."""
        self.paused_until = max(self.paused_until, until)

    def quicken(self) -> None:
        """End the starvation. Waiting events are handled now, or at the end of a pause."""
        self.service_ns = 0
        if self._waiting:
            self._plan_next()

    def wake(self) -> None:
        """End a pause and the starvation. Waiting events are handled now."""
        self.paused_until = 0
        self.quicken()

    def forget(self) -> None:
        """Drop all waiting events, because the process has ended."""
        self._waiting.clear()
        self._turn += 1
        self.paused_until = self.service_ns = 0

    def _plan_next(self) -> None:
        self._turn += 1
        self._queue.at(max(self._queue.now + self.service_ns, self.paused_until), self._take_turn, self._turn)

    def _take_turn(self, turn: int) -> None:
        if turn != self._turn:
            return
        if not self.is_paused:
            action, arguments = self._waiting.popleft()
            self._is_on_turn = True
            action(*arguments)
            self._is_on_turn = False
        if self._waiting:
            self._plan_next()
