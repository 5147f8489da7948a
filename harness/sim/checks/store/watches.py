"""Checks that a watch delivers every change of its keys from its first revision on, in order and once.

The messages of each watch are compared with the replay. A watch may begin at any member, and may continue at any other
member.

See docs/concepts/watches.md#what-a-watch-promises and docs/reference/specification.md#messages-of-a-watch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

from harness.sim.checks.store.replay import Event, StoreReplay, in_range
from harness.sim.engine.errors import broken, require

IS_HISTORY = "a watch is the history of its keys: each change once, in order, and none left out"
WHOLE = "a message of a watch ends with a whole revision"
COMMITTED = "a watch delivers only committed changes"
PROGRESS_IS_TRUE = "a watch gets a progress message only after everything before it"
BEGINS_RIGHT = "a watch counts from the revision that was asked for"
ENDS_RIGHT = "a watch ends only if a change that it needs is no longer kept, and says so"
COST = "a message of a watch costs its window the bytes that it holds"

MESSAGE_BYTES_MAX = 1 << 20
"""Only a revision with more bytes than this is split into several messages."""

EVENT_COST_MIN = 64


class Flag(IntFlag):
    """The options of a watch, as on the wire."""

    PREVIOUS = 1
    NO_PUTS = 2
    NO_DELETIONS = 4
    PROGRESS = 8


@dataclass(slots=True)
class FollowedWatch:
    """One watch, over all members that have served it.

    `next_revision`: the first revision that is not yet completely received.

    If the watch is to begin with the next change, `next_revision` is 0 until a member has accepted the watch.
    """

    name: str
    start: bytes
    end: bytes | None
    flags: Flag
    next_revision: int
    window_bytes: int = 0  # While the window is above 0, the member may begin to send another revision.
    # The received events of a revision that is not yet complete.
    part: list[tuple[int, Any]] = field(default_factory=list)

    def wants(self, event: Event) -> bool:
        """True if the event is in the range of the watch and passes its filters."""
        is_out = Flag.NO_DELETIONS if event.after is None else Flag.NO_PUTS
        return in_range(event.key, self.start, self.end) and not self.flags & is_out


class WatchChecker:
    """Checks all watches of a run. `cover` is called with coverage points."""

    def __init__(self, replay: StoreReplay, cover: Callable[[str], None]) -> None:
        self._replay, self._cover = replay, cover

    def created(self, watch: FollowedWatch, present: int, next_revision: int) -> None:
        """Check the answer to a request for a watch. `present`: the newest revision of the member that answers."""
        self._check_committed(watch, present)
        wanted = watch.next_revision or present + 1
        require(next_revision == wanted, BEGINS_RIGHT, f"{watch} was to begin at {wanted}, and at {next_revision}")
        if next_revision > present + 1:
            self._cover("a watch began ahead of its member")
        watch.next_revision = next_revision

    def events(self, watch: FollowedWatch, revision: int, cost: int, *, is_whole: bool, items: Sequence[Any]) -> None:
        """Check a message with events."""
        self._check_committed(watch, revision)
        require(watch.next_revision > 0 and bool(items), BEGINS_RIGHT, watch, items)
        changes = [(_revision_of(item), item) for item in items]
        require(changes[-1][0] == revision, WHOLE, f"{watch}: the last event of a message of {revision} is {items[-1]}")
        require(cost >= EVENT_COST_MIN * len(items), COST, watch, cost, len(items))
        is_one = len({each for each, _ in changes}) == 1
        if not (is_one or watch.part):
            size = cost - EVENT_COST_MIN * len(items)
            require(size <= watch.window_bytes, COST, f"{watch}: {size} bytes of several revisions")
        require(watch.window_bytes > 0 or bool(watch.part), COST, f"{watch} had no window for {items}")
        watch.window_bytes -= cost
        received = [*watch.part, *changes]
        self._compare(watch, received, revision, is_whole=is_whole)
        if is_whole:
            watch.part, watch.next_revision = [], revision + 1
        else:
            self._cover("a large revision came in parts")
            watch.part = received

    def _compare(self, watch: FollowedWatch, received: list[tuple[int, Any]], revision: int, *, is_whole: bool) -> None:
        wanted = [
            (at, _item(watch, at, event))
            for at, event in self._replay.events_in(watch.start, watch.end, watch.next_revision, revision)
            if watch.wants(event)
        ]
        if not is_whole:
            require(len(received) < len(wanted), WHOLE, f"{watch}: nothing of {revision} is left after {received}")
            wanted = wanted[: len(received)]
        if [(at, _plain(item)) for at, item in received] != wanted:
            broken(IS_HISTORY, f"{watch} received {received} up to {revision}, the replay has {wanted}")

    def progress(self, watch: FollowedWatch, revision: int) -> None:
        """Check a message of progress: the watch must have received every event of its filter up to this revision."""
        self._check_committed(watch, revision)
        require(not watch.part, PROGRESS_IS_TRUE, f"{watch} was told {revision} within a revision")
        require(revision + 1 >= watch.next_revision, PROGRESS_IS_TRUE, f"{watch} was told {revision}")
        left = [
            (at, event)
            for at, event in self._replay.events_in(watch.start, watch.end, watch.next_revision, revision)
            if watch.wants(event)
        ]
        if left:
            broken(PROGRESS_IS_TRUE, f"{watch} was told {revision}, and has not received {left}")
        watch.next_revision = revision + 1

    def compacted(self, watch: FollowedWatch, oldest_revision: int) -> None:
        """Check a watch that a compaction has ended, or that was refused because of a compaction.

        At least one revision that the watch needs must have been dropped. `oldest_revision`: every event from this
        revision on is kept.
        """
        require(
            watch.next_revision < oldest_revision <= self._replay.first_revision,
            ENDS_RIGHT,
            f"{watch} ended because {oldest_revision} is the oldest; the oldest is {self._replay.first_revision}",
        )

    def moved(self, watch: FollowedWatch, window_bytes: int) -> None:
        """Record that the watch continues over another connection, from the first revision that it has not completely
        received.
        """
        watch.part.clear()
        watch.window_bytes = window_bytes

    def listed(self, watch: FollowedWatch, revision: int, items: Sequence[Any]) -> None:
        """Check the listing at the beginning of a watch, which contains all records of its range at one revision."""
        self._check_committed(watch, revision)
        rows = [[key, *record] for key, record in self._replay.state_at(watch.start, watch.end, revision)]
        if _plain(items) != rows:
            broken("a listing shows the state as of its revision", f"{watch}: {items} at {revision}, not {rows}")
        watch.next_revision = revision + 1

    def _check_committed(self, watch: FollowedWatch, revision: int) -> None:
        if revision > self._replay.revision:
            broken(
                COMMITTED, f"{watch} got revision {revision}, but the newest committed one is {self._replay.revision}"
            )


def _revision_of(item: Sequence[Any]) -> int:
    """Return the revision of an event on the wire."""
    what = item[1]
    return int(what if isinstance(what, int) else what[2])


def _item(watch: FollowedWatch, revision: int, event: Event) -> list[Any]:
    """Return the event in its form on the wire."""
    what = revision if event.after is None else list(event.after)
    if not watch.flags & Flag.PREVIOUS:
        return [event.key, what]
    return [event.key, what, None if event.before is None else list(event.before)]


def _plain(item: Any) -> Any:
    return [_plain(part) for part in item] if isinstance(item, tuple | list) else item
