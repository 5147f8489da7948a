"""Virtual time: an event queue ordered by (time in integer nanoseconds, sequence number), without threads or tasks."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[..., None]


class EventQueue:
    """The future events in order. Events at the same time run in the order in which they were added."""

    __slots__ = ("_events", "_sequence", "done_count", "now")

    def __init__(self) -> None:
        self.now = 0
        self.done_count = 0
        self._events: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._events)

    def at(self, time_ns: int, action: Action, *arguments: Any) -> None:
        """Call `action(*arguments)` at `time_ns`, which is now or later."""
        assert time_ns >= self.now, (time_ns, self.now, action)
        self._sequence += 1
        heappush(self._events, (time_ns, self._sequence, action, arguments))

    def after(self, delay_ns: int, action: Action, *arguments: Any) -> None:
        """Call `action(*arguments)` `delay_ns` from now."""
        self.at(self.now + delay_ns, action, *arguments)

    def next_time(self) -> int | None:
        """The time of the next event; None if the queue is empty."""
        return self._events[0][0] if self._events else None

    def step(self) -> None:
        """Run the next event. The queue must not be empty."""
        time_ns, _, action, arguments = heappop(self._events)
        assert time_ns >= self.now, (time_ns, self.now)
        self.now = time_ns
        self.done_count += 1
        action(*arguments)
