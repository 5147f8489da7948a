"""Decides when a process handles an event: at once, after a pause, or one by one if it is starved of processor time."""

from __future__ import annotations

from collections import deque
from typing import Any

from harness.sim.engine.event_queue import Action, EventQueue


class ProcessScheduler:
    """The scheduler of one process. Waiting events are handled in the order in which they came.

    A pause holds all events until its end; then they are handled at once. A process that is starved of processor time
    takes `service_ns` for each event, so that faster arrivals wait longer and longer.
    """

    __slots__ = ("_is_on_turn", "_queue", "_turn", "_waiting", "paused_until", "service_ns")

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self.paused_until = 0
        self.service_ns = 0
        self._waiting: deque[tuple[Action, tuple[Any, ...]]] = deque()
        self._turn = 0  # The number of the only valid turn; a scheduled turn with another number does nothing.
        self._is_on_turn = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_paused(self) -> bool:
        """True while the process stands still."""
        return self.paused_until > self._queue.now

    def postpones(self, action: Action, *arguments: Any) -> bool:
        """Return True if `action(*arguments)` has to wait. When its turn comes, the action is called again, and then
        this method returns False.
        """
        if self._is_on_turn or not (self._waiting or self.service_ns or self.paused_until > self._queue.now):
            return False
        self._waiting.append((action, arguments))
        if len(self._waiting) == 1:
            self._plan_next()
        return True

    def pause(self, until: int) -> None:
        """Stand still until `until`, or longer if an earlier pause lasts longer."""
        self.paused_until = max(self.paused_until, until)

    def quicken(self) -> None:
        """Give the process all processor time: waiting events are handled, now or after the pause."""
        self.service_ns = 0
        if self._waiting:
            self._plan_next()

    def wake(self) -> None:
        """End pause and starvation: waiting events are handled now."""
        self.paused_until = 0
        self.quicken()

    def forget(self) -> None:
        """Drop all waiting events: the process is gone."""
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
