"""A watcher is one watch of one connection, with its cursor. A group contains all watchers of one range."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import deque

from kvstore.protocol.watches import WatchFlag
from kvstore.watch.batches import EventFilter
from kvstore.watch.ranges import KeyRange

GROUP_EVENTS_MAX = 4_096
"""The greatest number of event numbers that a group keeps for watchers to which the events have not been sent yet.
Watchers that are further behind read the history."""


class WatcherState(enum.Enum):
    """The states of a watcher."""

    AHEAD = "ahead"  # The hub has not reached the first revision of the watch yet.
    IDLE = "idle"  # In its group: every event so far was sent to the watcher.
    DUE = "due"  # In the queue of its group: there are events to send.
    BEHIND = "behind"  # In a cohort that reads the history.
    STALLED = "stalled"  # There are events to send, but the connection has no room, or the watch has no window.
    GONE = "gone"


class Watcher:
    """One watch. `number` is the cursor: every matching event below this number was sent.

    `next_revision`: according to the messages so far, the client has all events below this revision. The number never
    decreases. `is_within`: some events of revision `next_revision` were sent, but not all.
    """

    __slots__ = (
        "asked_revision",
        "connection_id",
        "filter",
        "group",
        "holds_group",
        "is_within",
        "next_revision",
        "number",
        "state",
        "tells_progress",
        "watch_id",
        "window_bytes",
    )

    def __init__(self, connection_id: int, watch_id: int, group: Group, flags: WatchFlag, window_bytes: int) -> None:
        self.connection_id, self.watch_id = connection_id, watch_id
        self.group = group
        self.filter = EventFilter.of(flags)
        self.tells_progress = bool(flags & WatchFlag.PROGRESS)
        self.window_bytes = window_bytes
        self.state = WatcherState.AHEAD
        self.next_revision = 0
        self.number = 0
        self.is_within = False
        self.holds_group = False  # The watcher is stalled, and its group keeps event numbers for it.
        self.asked_revision: int | None = None  # Progress is reported once all events up to this revision were sent.

    @property
    def is_gone(self) -> bool:
        """True once the watch has ended."""
        return self.state is WatcherState.GONE

    @property
    def has_window(self) -> bool:
        """True if the window allows a message. Once a part of a revision was sent, the rest may always be sent, because
        the client restores the window only after whole revisions."""
        return self.window_bytes > 0 or self.is_within


class Group:
    """The watchers of one range. `numbers`: the numbers of the newest matching events, ascending.

    `numbers` has no gaps: it contains every matching event from its first number to the last event that the hub has
    matched.
    """

    __slots__ = ("due", "holders", "idle", "is_queued", "numbers", "range", "watchers")

    def __init__(self, key_range: KeyRange) -> None:
        self.range = key_range
        self.watchers = 0
        self.idle: dict[Watcher, None] = {}
        self.due: deque[Watcher] = deque()  # Some of these watches may have ended.
        self.is_queued = False  # True while the group is in the queue of groups with due watchers.
        self.holders = 0  # The number of stalled watchers for which `numbers` are kept.
        self.numbers: list[int] = []

    def clear(self) -> int:
        """Drop all numbers, and return their count."""
        count = len(self.numbers)
        self.numbers.clear()
        return count

    def next_number(self, watcher: Watcher) -> int | None:
        """Return the number of the first event that was not sent to a due watcher; None if there is no such event."""
        place = bisect_left(self.numbers, watcher.number)
        return self.numbers[place] if place < len(self.numbers) else None
