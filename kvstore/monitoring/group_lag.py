"""The lag of consumer groups, computed from the state that a member has applied.

The lag in revisions is the revision of the store minus the position of the group. The lag in time is the age of the
oldest change that a group has not consumed. The member finds this change in the history. Changes contain no times, so
the member records the revision of its store at intervals, together with its monotonic time. There are bounds on the
recorded times, the groups, and the changes that one measurement examines.

See docs/concepts/consumers.md#lag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from kvstore.errors import GroupMismatch
from kvstore.limits import SECOND_NS
from kvstore.protocol.commands import Get, Range, command_body, prefix_range
from kvstore.protocol.results import GetResult, RangeResult, read_result
from kvstore.recipes.consumers.group_keys import (
    GROUPS_PREFIX,
    SHARES_MAX,
    GroupAbout,
    GroupKeys,
    Share,
    StoredPosition,
    after_group,
    group_of,
)
from kvstore.store.machine import KvMachine

MARKS_MAX = 1_024
"""The greatest number of recorded times. At this bound, every second recorded time is dropped, and the interval between
two recorded times is doubled. All times then become less exact, but old changes still have a time."""

MARK_NS_MIN = SECOND_NS
"""The least interval between two recorded times."""

GROUPS_MAX = 100
"""The greatest number of groups that one measurement returns, in the order of their names."""

EVENTS_MAX = 5_000
"""The greatest number of changes of the history that one measurement examines, for all groups together: some
milliseconds of work."""


class RevisionTimes:
    """The times at which the store of this member reached its revisions, in ns of a monotonic clock."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque()  # (time, revision), both ascending.
        self._interval_ns = MARK_NS_MIN

    def note(self, time_ns: int, revision: int) -> None:
        """Record the present revision. The host calls this method about every second."""
        marks = self._marks
        if marks and (revision <= marks[-1][1] or time_ns < marks[-1][0] + self._interval_ns):
            return
        marks.append((time_ns, revision))
        if len(marks) > MARKS_MAX:
            self._marks = deque(mark for place, mark in enumerate(marks) if place % 2 == 0)
            self._interval_ns *= 2

    def age_ns(self, revision: int, now_ns: int) -> int:
        """Return the time since the first recorded time at which the store had reached `revision`; 0 if there is none
        yet. Cost: O(MARKS_MAX)."""
        return next((now_ns - time for time, seen in self._marks if seen >= revision), 0)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of the share that is farthest behind. If `seconds` is 0, everything is consumed."""

    group: bytes
    revisions: int
    seconds: float


class GroupLook:
    """One measurement of the lag of all groups of a store. `omitted`: the store has more than GROUPS_MAX groups."""

    def __init__(self, machine: KvMachine, times: RevisionTimes, now_ns: int) -> None:
        self._machine, self._times, self._now_ns = machine, times, now_ns
        self._events_left = EVENTS_MAX
        self.omitted = False

    def lags(self) -> Iterator[GroupLag]:
        """Yield the lag of each group with a position. Keys that do not belong to a group are skipped."""
        start, end = prefix_range(GROUPS_PREFIX)
        for count in range(GROUPS_MAX + 1):
            page = self._range(Range(start, end, limit=1, keys_only=True))
            if not page.items:
                return
            if count == GROUPS_MAX:
                self.omitted = True
                return
            key = page.items[0].key
            start = after_group(key)
            name = group_of(key)
            lag = None if name is None else self._lag_of(name)
            if lag is not None:
                yield lag

    def _lag_of(self, group: bytes) -> GroupLag | None:
        keys = GroupKeys(group)
        about = read_result(self._machine.read(command_body(Get(keys.about))))
        assert isinstance(about, GetResult), about
        if about.record is None:
            return None
        start, end = prefix_range(keys.prefix + b"positions/")
        page = self._range(Range(start, end, limit=SHARES_MAX))
        try:
            shares = {
                keys.position(share.number): share for share in GroupAbout.decode(group, about.record.value).shares
            }
            positions = [
                (shares[item.key], StoredPosition.decode(group, item.value or b"").position)
                for item in page.items
                if item.key in shares
            ]
        except GroupMismatch:
            return None
        if not positions:
            return None
        revisions = self._machine.revision - min(position for _, position in positions)
        ages = [self._age_ns(share, position) for share, position in positions]
        return GroupLag(group, max(0, revisions), max(ages) / SECOND_NS)

    def _age_ns(self, share: Share, position: int) -> int:
        """Return the age of the oldest change of a share after its position; 0 if there is no such change.

        If this measurement has reached EVENTS_MAX, the result is the age of the change at which it stopped. If the
        history has dropped changes after the position, the result is the age of the first revision after the position.
        """
        machine = self._machine
        history = machine.history
        if position >= machine.revision:
            return 0
        if not history.is_on or position + 1 < history.first_revision:
            return self._times.age_ns(position + 1, self._now_ns)
        number = history.number_from(position + 1)
        for event in history.events(number, min(self._events_left, history.end_number - number)):
            self._events_left -= 1
            if event.key >= share.start and (share.end is None or event.key < share.end):
                return self._times.age_ns(event.revision, self._now_ns)
            number += 1
        stopped = number < history.end_number
        return self._times.age_ns(history.revision_of(number), self._now_ns) if stopped else 0

    def _range(self, request: Range) -> RangeResult:
        page = read_result(self._machine.read(command_body(request)))
        assert isinstance(page, RangeResult), page
        return page
