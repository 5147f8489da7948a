"""The hub follows the history of one member, and sends each watcher the events in the range of the watcher.

A watcher is a cursor. The hub keeps no events for a watcher; events that were not sent yet are read from the history.
If the history drops an event that a watcher still needs, the watch is cancelled. No event is ever skipped.

A watcher is *in step* once all matched events were sent to it. Watchers in step wait in their groups. The hub matches
each new event with the ranges of the groups (`_follow`), and then sends the event to the watchers of the matching
groups (`_serve`). Watchers that begin in the past, or that lag far behind, are in cohorts (`kvstore.watch.cohorts`). A
cohort reads the history until its watchers are in step (`_catch_up`).

The hub sends events of a revision only after it has matched the last event of that revision. Work is counted in units
of about 1 µs. A step ends when its units are used up. The host calls `step` again while `has_work` is true.

See docs/concepts/watches.md.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from kvstore.errors import RevisionCompacted
from kvstore.limits import ServiceLimits
from kvstore.protocol.watches import CancelReason, MessageKind, WatchSpec, events_frame, message_frame
from kvstore.store.history import History
from kvstore.watch.batches import BatchMaker
from kvstore.watch.bounds import USUAL_BOUNDS, HubBounds
from kvstore.watch.cohorts import Cohort, CohortQueue
from kvstore.watch.ranges import KeyRange, RangeIndex
from kvstore.watch.watcher import Group, Watcher, WatcherState
from raft import Busy, encode_item

STEP_UNITS = 2_000
"""The units of one step while the member has other work: about 2 ms. With shorter steps, puts would get more time, but
an event would need more steps to reach 10⁴ watchers, and the pause between two steps would stay the same."""

IDLE_STEP_UNITS = 4_000
"""The units of one step while the member has nothing else to do."""

PROGRESS_TICKS = 10
"""The interval, in ticks (seconds), of the progress messages to idle watchers with the flag PROGRESS. A watcher gets no
progress message if nothing has changed since its last message."""


class WatchSource(Protocol):
    """The store of the member."""

    @property
    def history(self) -> History:
        """The history of the store. Installing a snapshot replaces this object."""

    @property
    def revision(self) -> int:
        """The present revision."""


class WatchOutput(Protocol):
    """The connections of the member. If `send` closes the connection, `send` also calls `gone` of the hub."""

    def has_room(self, connection_id: int) -> bool:
        """True if the connection has room for another message with events."""

    def send(self, connection_id: int, data: bytes) -> None:
        """Send a frame. The frames of one connection are sent in the order of the calls."""


class _Watching:
    """A connection with watches."""

    def __init__(self) -> None:
        self.watchers: dict[int, Watcher] = {}
        self.waits_for_room: deque[Watcher] = deque()  # Stalled watchers. Some of these watches may have ended.
        self.is_queued = False  # True while the connection is in the queue of connections that have room again.


class WatchHub:
    """The watches of one member."""

    def __init__(self, source: WatchSource, output: WatchOutput, node_id: str, limits: ServiceLimits) -> None:
        self._source, self._output, self._node_id, self._limits = source, output, node_id, limits
        self._batches = BatchMaker(encode_item(node_id))
        self._bounds = USUAL_BOUNDS
        self._connections: dict[int, _Watching] = {}
        self._index: RangeIndex[Group] = RangeIndex()
        self.count = 0
        """The number of watches. While the number is 0, the hub has no work."""
        self._history = History()  # Empty while there are no watches, so that no old block stays in memory.
        self._number = 0  # The number of the next event to match.
        self._whole_number = 0  # The events below this number are matched, and form whole revisions.
        self._revision = 0  # All events up to this revision are matched.
        self._oldest = 0  # No watcher needs an event below this number.
        self._kept = 0  # The number of event numbers that all groups together keep.
        self._due_groups: deque[Group] = deque()
        self._cohorts = CohortQueue()
        self._ahead: list[tuple[int, int, Watcher]] = []  # A heap by revision.
        self._serial = 0
        self._roomy: deque[_Watching] = deque()
        self._asked: dict[Watcher, None] = {}  # Watchers that wait for a progress message.
        self._looks_at_asked = False  # True if some watchers in `_asked` may have become ready outside of a step.
        self._reports: deque[Watcher] = deque()  # Watchers that get a progress message if they are idle.
        self._ticks = 0

    @property
    def bounds(self) -> HubBounds:
        """The bounds on work and memory."""
        return self._bounds

    @bounds.setter
    def bounds(self, bounds: HubBounds) -> None:
        """Use other bounds. There must be no watches yet."""
        assert not self.count
        self._bounds = bounds
        self._batches.message_bytes_max = bounds.message_bytes_max

    # Requests.

    def count_of(self, connection_id: int) -> int:
        """Return the number of watches of a connection."""
        watching = self._connections.get(connection_id)
        return 0 if watching is None else len(watching.watchers)

    def has_watch(self, connection_id: int, watch_id: int) -> bool:
        """True if the connection has a watch with this id."""
        watching = self._connections.get(connection_id)
        return watching is not None and watch_id in watching.watchers

    def watch(self, connection_id: int, watch_id: int, spec: WatchSpec) -> None:
        """Begin a watch, and send the client the first revision that the watch covers. Raises Busy, RevisionCompacted.

        The history must be on, and the connection must not have a watch with this id.
        """
        assert self._source.history.is_on
        assert not self.has_watch(connection_id, watch_id), watch_id
        if self.count:
            self._look()
        if not self.count:
            self._begin()
        history, present = self._history, self._source.revision
        next_revision = spec.from_revision or present + 1
        if next_revision < history.first_revision:
            raise RevisionCompacted(next_revision, history.first_revision)
        key_range = KeyRange(spec.start, spec.end)
        group = self._admit(connection_id, key_range)
        if group is None:
            group = Group(key_range)
            self._index.add(key_range, group)
        watcher = Watcher(connection_id, watch_id, group, spec.flags, spec.window_bytes)
        group.watchers += 1
        self.count += 1
        self._connections.setdefault(connection_id, _Watching()).watchers[watch_id] = watcher
        watcher.next_revision = next_revision
        self._place(watcher, next_revision, 0)
        self._tell(watcher, MessageKind.CREATED, present, next_revision)

    def unwatch(self, connection_id: int, watch_id: int) -> None:
        """End a watch. Do nothing if the hub has cancelled the watch already."""
        watcher = self._find(connection_id, watch_id)
        if watcher is not None:
            self._cancel(watcher, CancelReason.UNWATCHED)

    def add_window(self, connection_id: int, watch_id: int, byte_count: int) -> None:
        """Add bytes to the window of a watch."""
        watcher = self._find(connection_id, watch_id)
        if watcher is None:
            return
        had_window = watcher.has_window
        watcher.window_bytes += byte_count
        if watcher.state is WatcherState.STALLED and not had_window and watcher.has_window:
            self._resume(watcher)

    def ask_progress(self, connection_id: int, watch_id: int) -> None:
        """Send a progress message for the watch once all events up to the present revision were sent."""
        watcher = self._find(connection_id, watch_id)
        if watcher is not None:
            watcher.asked_revision = self._source.revision
            self._asked[watcher] = None
            self._looks_at_asked = True

    def gone(self, connection_id: int) -> None:
        """Remove all watches of a connection that has ended."""
        watching = self._connections.pop(connection_id, None)
        if watching is not None:
            for watcher in watching.watchers.values():
                self._remove(watcher)
            watching.watchers.clear()

    def end_denied(self, is_allowed: Callable[[int, bytes, bytes | None], bool]) -> None:
        """Cancel the watches for which `is_allowed(connection id, start, end)` is false. Cost: O(watches)."""
        for watcher in list(self._watchers()):
            key_range = watcher.group.range
            if not is_allowed(watcher.connection_id, key_range.start, key_range.end):
                self._cancel(watcher, CancelReason.PERMISSION_DENIED)

    def note_room(self, connection_id: int) -> None:
        """Record that the connection has sent some of its output."""
        watching = self._connections.get(connection_id)
        if watching is None:
            return
        self._looks_at_asked |= bool(self._asked)
        if watching.waits_for_room and not watching.is_queued:
            watching.is_queued = True
            self._roomy.append(watching)

    def tick(self) -> None:
        """Record that a second has passed, and queue the progress messages that are due."""
        self._ticks += 1
        for connection_id, watching in self._connections.items():
            if (connection_id + self._ticks) % PROGRESS_TICKS == 0:
                self._reports.extend([each for each in watching.watchers.values() if self._wants_report(each)])

    def _wants_report(self, watcher: Watcher) -> bool:
        """True if the watcher is idle, has the flag PROGRESS, and was not sent its present progress."""
        is_idle = watcher.state is WatcherState.IDLE
        return is_idle and watcher.tells_progress and watcher.next_revision <= self._revision

    # Steps.

    @property
    def has_work(self) -> bool:
        """True if a step would send or match something."""
        if not self.count:
            return False
        source_history = self._source.history
        if source_history is not self._history or self._number < source_history.end_number:
            return True
        if self._due_groups or self._cohorts or self._roomy or self._reports or self._looks_at_asked:
            return True
        if self._revision < self._source.revision or not source_history.is_on:
            return True
        return self._oldest < source_history.first_number  # Some watcher may have to be cancelled.

    def step(self, units: int = STEP_UNITS) -> None:
        """Follow the history and send due messages, for about `units` units."""
        if not self.count:
            return
        units = min(units, self._bounds.step_units_max)
        self._look()
        self._take_up_roomy()
        while units > 0 and self.count:
            used = self._follow(units // 2 + 1)
            used += self._serve(units // 2 + 1)
            used += self._catch_up(max(units - used, units // 4 + 1))
            if not used:
                break
            units -= used
        self._looks_at_asked = False
        self._tell_progress()
        for _ in range(min(self._bounds.serve_watchers, len(self._reports))):
            watcher = self._reports.popleft()
            if self._wants_report(watcher) and self._output.has_room(watcher.connection_id):
                self._report(watcher)

    def _begin(self) -> None:
        """Begin at the present end of the history, because there were no watches before."""
        self._history = self._source.history
        self._batches.forget()
        self._number = self._whole_number = self._oldest = self._history.end_number
        self._revision = self._source.revision

    def _follow(self, units: int) -> int:
        """Match new events with the groups. Returns the used units."""
        history, used = self._history, 0
        while True:
            self._note_whole()
            if self._number == self._whole_number:
                self._join_ahead()
            end = history.end_number
            if self._ahead and self._ahead[0][0] <= self._source.revision:
                end = history.number_from(self._ahead[0][0])
            if self._number == end or used >= units:
                return used
            stop = min(end, self._number + self._bounds.follow_events)
            if stop < end:  # Stop at the end of a revision if possible.
                whole = history.number_from(history.revision_of(stop - 1) + 1)
                stop = whole if whole <= min(end, stop + self._bounds.catch_up_events) else stop
            used += self._match(stop)
            self._number = stop

    def _note_whole(self) -> None:
        """Compute the greatest revision up to which all events are matched."""
        history = self._history
        if self._number == history.end_number:
            self._whole_number, self._revision = self._number, self._source.revision
            return
        revision = history.revision_of(self._number)
        self._whole_number, self._revision = history.number_from(revision), revision - 1

    def _match(self, stop: int) -> int:
        """Match the events from number `_number` to before number `stop`. Returns the used units."""
        number, find, units = self._number, self._index.find, 0
        while number < stop:
            keys, place, end = self._history.keys_from(number)
            for at in range(place, min(end, place + stop - number)):
                units += 1
                for group in find(keys[at]):
                    units += 1
                    if group.idle or group.due or group.holders:
                        group.numbers.append(number)
                        self._kept += 1
                        if group.idle:
                            self._make_due(group)
                        if self._is_too_many(group):
                            self._overflow(group)
                number += 1
        return units

    def _is_too_many(self, group: Group) -> bool:
        """True if the group keeps more numbers than a group may, or if all groups together keep too many."""
        bounds = self._bounds
        return len(group.numbers) > bounds.group_events_max or self._kept > bounds.hub_events_max

    def _make_due(self, group: Group) -> None:
        for watcher in group.idle:
            watcher.state = WatcherState.DUE
        group.due.extend(group.idle)
        group.idle.clear()
        self._queue(group)

    def _queue(self, group: Group) -> None:
        if not group.is_queued:
            group.is_queued = True
            self._due_groups.append(group)

    def _overflow(self, group: Group) -> None:
        """Drop the numbers of a group. The due watchers of the group will read the history instead."""
        for watcher in group.due:
            if watcher.state is WatcherState.DUE:
                number = group.next_number(watcher)
                assert number is not None, watcher.watch_id
                self._cohorts.add(watcher, number)
        group.due.clear()
        self._kept -= group.clear()

    # Sending.

    def _serve(self, units: int) -> int:
        """Send messages to due watchers, group by group. Returns the used units."""
        used = 0
        for _ in range(len(self._due_groups)):
            if used >= units:
                break
            group = self._due_groups.popleft()
            group.is_queued = False
            stop = bisect_left(group.numbers, self._whole_number)
            for _ in range(min(self._bounds.serve_watchers, len(group.due))):
                watcher = group.due.popleft()
                if watcher.state is WatcherState.DUE:
                    used += self._serve_due(group, watcher, stop)
            if group.due:
                self._queue(group)
            else:
                self._trim(group)
        return used

    def _serve_due(self, group: Group, watcher: Watcher, stop: int) -> int:
        """Send one message to a due watcher. Returns the used units."""
        used = self._send(watcher, group.numbers, stop)
        if used == 0:  # The watcher has no room or no window.
            number = group.next_number(watcher)
            assert number is not None
            self._stall(watcher, number, holds_group=True)
        elif watcher.state is not WatcherState.DUE:  # The connection of the watcher was closed.
            pass
        elif watcher.number > group.numbers[-1] or group.next_number(watcher) is None:
            watcher.state = WatcherState.IDLE
            group.idle[watcher] = None
        else:
            group.due.append(watcher)
        return used or 1

    def _send(self, watcher: Watcher, numbers: list[int], stop: int) -> int:
        """Send the next message from the events `numbers[:stop]`, if there is one. Returns the used units; 0 if the
        connection has no room, or the watch no window, for the message."""
        place = bisect_left(numbers, watcher.number, 0, stop)
        if place == stop:
            return 1
        if not (watcher.window_bytes > 0 or watcher.is_within) or not self._output.has_room(watcher.connection_id):
            return 0
        made = self._batches.made
        batch = self._batches.shared(watcher.group, self._history, numbers, place, stop, watcher.filter)
        if batch.cost > watcher.window_bytes and not (batch.is_one or watcher.is_within):
            batch = self._batches.make(self._history, numbers, place, stop, watcher.filter, watcher.window_bytes)
        watcher.number = batch.next_number
        if batch.event_count:
            watcher.window_bytes -= batch.cost
            watcher.is_within = not batch.is_whole
            watcher.next_revision = batch.revision + batch.is_whole
            self._output.send(watcher.connection_id, events_frame(watcher.watch_id, batch.tail))
        return 2 + (batch.cost >> 11) + (self._batches.made - made) * (2 + 2 * batch.event_count)

    # Watchers that catch up.

    def _catch_up(self, units: int) -> int:
        """Let cohorts read the history, first the cohort that is furthest behind. Returns the used units."""
        used, cohorts = 0, self._cohorts
        while cohorts and used < units:
            cohort = cohorts.first()
            if not cohort.by_group:
                cohorts.pop()
            elif cohort.queue:
                used += self._serve_cohort(cohort)
            elif cohort.serves_to > cohort.number:
                self._move(cohort)
            elif cohort.number == self._number == self._whole_number and not cohort.matched:
                used += self._join(cohorts.pop())
            elif cohort.reached < self._whole_number:
                used += self._read_on(cohort)
            else:
                break  # The hub itself must first match the rest of a revision.
        return used

    def _read_on(self, cohort: Cohort) -> int:
        """Match further events for the first cohort, and queue its watchers to get the events of whole revisions."""
        history, first = self._history, cohort.reached
        stop = min(self._whole_number, first + self._bounds.catch_up_events)
        next_number = self._cohorts.next_number()
        if next_number is not None and first < next_number < stop:
            stop = next_number
        self._cohorts.begin(cohort)
        number, used = first, 0
        while number < stop:
            keys, place, end = history.keys_from(number)
            for at in range(place, min(end, place + stop - number)):
                used += 1
                for group in self._index.find(keys[at]):
                    used += 1
                    if group in cohort.by_group:
                        cohort.matched.setdefault(group, []).append(number)
                number += 1
        cohort.reached = stop
        is_end = stop == history.end_number
        whole = stop if is_end else history.number_from(history.revision_of(stop))
        if whole > cohort.number:
            cohort.serves_to = whole
            for group, numbers in cohort.matched.items():
                if numbers[0] < whole:
                    cohort.queue.extend(cohort.by_group[group])
        return used

    def _serve_cohort(self, cohort: Cohort) -> int:
        """Send messages to at most `serve_watchers` watchers of a cohort. Returns the used units."""
        used = 0
        for _ in range(min(self._bounds.serve_watchers, len(cohort.queue))):
            watcher = cohort.queue.popleft()
            if watcher.state is not WatcherState.BEHIND:
                continue
            numbers = cohort.matched[watcher.group]
            stop = bisect_left(numbers, cohort.serves_to)
            sent = self._send(watcher, numbers, stop)
            if sent == 0:
                cohort.drop(watcher)
                self._stall(watcher, numbers[bisect_left(numbers, watcher.number, 0, stop)], holds_group=False)
            elif bisect_left(numbers, watcher.number, 0, stop) < stop:
                cohort.queue.append(watcher)
            used += max(sent, 1)
        return used

    def _move(self, cohort: Cohort) -> None:
        """Set the `number` of the first cohort to the event up to which its watchers were served."""
        popped = self._cohorts.pop()
        assert popped is cohort
        cohort.number = cohort.serves_to
        for group, numbers in list(cohort.matched.items()):
            del numbers[: bisect_left(numbers, cohort.number)]
            if not numbers:
                del cohort.matched[group]
        if cohort.by_group:
            self._cohorts.put_back(cohort)

    def _join(self, cohort: Cohort) -> int:
        """Move the watchers of a cohort to their groups: they are in step."""
        used = 1
        for watcher in cohort.watchers():
            if watcher.state is WatcherState.BEHIND:
                self._be_idle(watcher)
                used += 1
        return used

    def _be_idle(self, watcher: Watcher) -> None:
        """Add a watcher to the idle watchers of its group, because all events that the hub has matched were sent to
        it."""
        assert self._number == self._whole_number
        watcher.number = self._number
        watcher.state = WatcherState.IDLE
        watcher.group.idle[watcher] = None

    def _join_ahead(self) -> None:
        """Move watchers that wait for the next revision to their groups: they are in step."""
        while self._ahead and self._ahead[0][0] <= self._revision + 1:
            watcher = heapq.heappop(self._ahead)[2]
            if watcher.state is WatcherState.AHEAD:
                self._be_idle(watcher)

    # Watchers without room.

    def _stall(self, watcher: Watcher, number: int, *, holds_group: bool) -> None:
        """Let a watcher wait until its connection has room and its watch has window. `number` is the next event of the
        watcher. `holds_group`: the group keeps the numbers of events for this watcher."""
        watcher.state, watcher.number = WatcherState.STALLED, number
        watcher.holds_group = holds_group
        watcher.group.holders += holds_group
        self._oldest = min(self._oldest, number)
        if watcher.has_window:
            self._wait_for_room(watcher)

    def _wait_for_room(self, watcher: Watcher) -> None:
        watching = self._connections[watcher.connection_id]
        watching.waits_for_room.append(watcher)

    def _take_up_roomy(self) -> None:
        """Resume the watchers of connections that have room again."""
        for _ in range(len(self._roomy)):
            watching = self._roomy.popleft()
            watching.is_queued = False
            for _ in range(min(self._bounds.serve_watchers, len(watching.waits_for_room))):
                watcher = watching.waits_for_room[0]
                if watcher.state is WatcherState.STALLED and not self._output.has_room(watcher.connection_id):
                    break
                watching.waits_for_room.popleft()
                if watcher.state is WatcherState.STALLED:
                    self._resume(watcher)
            else:
                if watching.waits_for_room:
                    watching.is_queued = True
                    self._roomy.append(watching)

    def _resume(self, watcher: Watcher) -> None:
        """Let a stalled watcher continue in its group if the group has every number that the watcher needs, and
        otherwise in a cohort."""
        if not self._output.has_room(watcher.connection_id):
            self._wait_for_room(watcher)
            return
        group = watcher.group
        self._release_group(watcher)
        if group.numbers and group.numbers[0] <= watcher.number:
            watcher.state = WatcherState.DUE
            group.due.append(watcher)
            self._queue(group)
        else:
            self._cohorts.add(watcher, watcher.number)
            self._trim(group)

    def _release_group(self, watcher: Watcher) -> None:
        watcher.group.holders -= watcher.holds_group
        watcher.holds_group = False

    def _trim(self, group: Group) -> None:
        """Drop the numbers of a group if no watcher needs them."""
        if not group.holders and not group.due:
            self._kept -= group.clear()

    # Changes of the history.

    def _look(self) -> None:
        """React if the history was replaced by the history of a snapshot, switched off, or compacted."""
        if self._source.history is not self._history:
            self._adopt(self._source.history)
        history = self._history
        if not history.is_on:
            for watcher in list(self._watchers()):
                self._cancel(watcher, CancelReason.HISTORY_OFF)
        elif self._oldest < history.first_number or self._number < history.first_number:
            self._drop_lost(history.first_number)

    def _drop_lost(self, first_number: int) -> None:
        """Cancel the watchers that need an event that the history has dropped."""
        is_lost = self._number < first_number
        if is_lost:
            self._number = self._whole_number = first_number
            self._revision = self._history.first_revision - 1
        oldest = self._number
        for watcher, number in list(self._cursors()):
            # The cursor may be inside a revision whose matching events were all sent.
            has_dropped = watcher.next_revision < self._history.first_revision
            if number is None:
                lost = is_lost and has_dropped
            else:
                lost = number < first_number and has_dropped
                oldest = oldest if lost else min(oldest, max(number, first_number))
            if lost:
                self._cancel(watcher, CancelReason.COMPACTED)
        self._oldest = oldest
        if any(cohort.number < first_number for cohort in self._cohorts):  # The watchers need only later events.
            places = {watcher: number for watcher, number in self._cursors() if watcher.state is WatcherState.BEHIND}
            self._cohorts.clear()
            for watcher, number in places.items():
                assert number is not None
                self._cohorts.add(watcher, max(number, first_number))
        if is_lost:
            self._clear_lost_groups()

    def _clear_lost_groups(self) -> None:
        """Drop the numbers of all groups, because the watchers that needed them are cancelled."""
        for group in {watcher.group: None for watcher in self._watchers()}:
            self._kept -= group.clear()

    def _cursors(self) -> Iterator[tuple[Watcher, int | None]]:
        """Yield every watcher with the number of the first event that the watcher still needs; None if the hub has not
        matched this event yet."""
        behind = {watcher: cohort.number for cohort in self._cohorts for watcher in cohort.watchers()}
        for watcher in self._watchers():
            if watcher.state is WatcherState.DUE:
                yield watcher, watcher.group.next_number(watcher)
            elif watcher.state is WatcherState.BEHIND:
                yield watcher, max(behind[watcher], watcher.number)
            elif watcher.state is WatcherState.STALLED:
                yield watcher, watcher.number
            else:
                yield watcher, None

    def _adopt(self, history: History) -> None:
        """Continue with the history of a snapshot. The events of this history have new numbers, so the next event of
        each watcher is found by its revision."""
        old, places = self._history, list[tuple[Watcher, int, int]]()
        for watcher, number in list(self._cursors()):
            if number is None:
                revision = watcher.next_revision if watcher.state is WatcherState.AHEAD else self._revision + 1
                places.append((watcher, revision, 0))
            elif number >= self._whole_number:
                places.append((watcher, self._revision + 1, 0))
            elif number < old.first_number and watcher.next_revision < old.first_revision:
                self._cancel(watcher, CancelReason.COMPACTED)
            elif watcher.is_within:
                revision = old.revision_of(number)
                places.append((watcher, revision, number - old.number_from(revision)))
            else:  # The cursor may be inside a revision that was sent completely.
                first = max(number, old.first_number)
                revision = old.revision_of(first) if first < old.end_number else 0
                places.append((watcher, max(revision, watcher.next_revision), 0))
        places = [place for place in places if not place[0].is_gone]
        self._due_groups.clear()
        self._cohorts.clear()
        self._ahead.clear()
        for watcher, _, _ in places:
            group = watcher.group
            self._release_group(watcher)
            group.idle.clear()
            group.due.clear()
            group.is_queued = False
            self._kept -= group.clear()
            self._connections[watcher.connection_id].waits_for_room.clear()
        if not self.count:
            return
        self._history = history
        self._batches.forget()
        self._number = self._whole_number = self._oldest = history.end_number
        self._revision = self._source.revision
        if history.is_on:
            for watcher, revision, skipped in places:
                if not watcher.is_gone:
                    self._place(watcher, revision, skipped)

    def _place(self, watcher: Watcher, revision: int, skipped: int) -> None:
        """Set the cursor of a watcher to the event after the first `skipped` events of `revision`."""
        history = self._history
        if revision < history.first_revision:
            self._cancel(watcher, CancelReason.COMPACTED)
        elif revision > self._revision + 1:
            watcher.state = WatcherState.AHEAD
            self._serial += 1
            heapq.heappush(self._ahead, (revision, self._serial, watcher))
        elif revision == self._revision + 1 and self._number == self._whole_number:
            self._be_idle(watcher)
        else:
            number = history.number_from(revision) + skipped
            self._oldest = min(self._oldest, number)
            self._cohorts.add(watcher, number)

    # Messages without events.

    def _is_told(self, watcher: Watcher) -> bool:
        """True if the progress message for which the watcher waits can be sent now."""
        assert watcher.asked_revision is not None
        return (
            watcher.state is WatcherState.IDLE
            and self._revision >= watcher.asked_revision
            and self._revision + 1 >= watcher.next_revision
            and self._output.has_room(watcher.connection_id)
        )

    def _tell_progress(self) -> None:
        """Send the requested progress messages to the watchers to which all earlier events were sent."""
        for watcher in [watcher for watcher in self._asked if self._is_told(watcher)]:
            if self._asked.pop(watcher, watcher) is None:
                watcher.asked_revision = None
                self._report(watcher)

    def _report(self, watcher: Watcher) -> None:
        watcher.next_revision = self._revision + 1
        self._tell(watcher, MessageKind.PROGRESS, self._revision)

    def _tell(self, watcher: Watcher, kind: MessageKind, revision: int, *fields: object) -> None:
        data = message_frame(watcher.watch_id, revision, self._node_id, kind, *fields)
        self._output.send(watcher.connection_id, data)

    def _cancel(self, watcher: Watcher, reason: CancelReason) -> None:
        """End a watch, and send the client the reason. Do nothing if the connection was closed meanwhile."""
        if watcher.is_gone:
            return
        oldest = self._source.history.first_revision if self._source.history.is_on else 0
        self._tell(watcher, MessageKind.CANCELLED, self._source.revision, reason.value, oldest)
        if self._find(watcher.connection_id, watcher.watch_id) is not watcher:
            return
        watching = self._connections[watcher.connection_id]
        del watching.watchers[watcher.watch_id]
        if not watching.watchers:
            del self._connections[watcher.connection_id]
        self._remove(watcher)

    # The set of watches.

    def _admit(self, connection_id: int, key_range: KeyRange) -> Group | None:
        """Check the bounds for one more watch of `key_range`. Returns the group of this range, if there is one. Raises
        Busy."""
        limits = self._limits
        if self.count >= limits.watches_max:
            raise Busy("watches_max", limits.watches_max)
        if self.count_of(connection_id) >= limits.watches_per_connection_max:
            raise Busy("watches_per_connection_max", limits.watches_per_connection_max)
        group = self._index.get(key_range)
        if group is None and len(self._index) >= limits.watch_ranges_max:
            raise Busy("watch_ranges_max", limits.watch_ranges_max)
        return group

    def _find(self, connection_id: int, watch_id: int) -> Watcher | None:
        watching = self._connections.get(connection_id)
        return None if watching is None else watching.watchers.get(watch_id)

    def _watchers(self) -> Iterator[Watcher]:
        for watching in self._connections.values():
            yield from watching.watchers.values()

    def _remove(self, watcher: Watcher) -> None:
        """Remove a watcher. Queues that still contain the watcher will skip it."""
        group = watcher.group
        group.idle.pop(watcher, None)
        self._release_group(watcher)
        self._asked.pop(watcher, None)
        watcher.state = WatcherState.GONE
        group.watchers -= 1
        self.count -= 1
        if not group.watchers:
            self._kept -= group.clear()
            self._index.remove(group.range)
        else:
            self._trim(group)
        if not self.count:
            self._clear()

    def _clear(self) -> None:
        """Clear all queues, because no watch is left."""
        self._due_groups.clear()
        self._cohorts.clear()
        self._ahead.clear()
        self._roomy.clear()
        self._reports.clear()
        self._batches.forget()
        self._history = History()

    def check(self) -> None:
        """Verify every invariant. Raises AssertionError if an invariant is broken. Cost: O(watches). For tests and
        simulations."""
        watchers = list(self._watchers())
        assert self.count == len(watchers)
        groups = list({watcher.group: None for watcher in watchers})
        assert len(groups) == len(self._index)
        assert self._kept == sum(len(group.numbers) for group in groups), self._kept
        assert not self.count or self._whole_number <= self._number
        for group in groups:
            assert self._index.get(group.range) is group
            assert group.numbers == sorted(group.numbers)
            assert group.due or group.holders or not group.numbers, "numbers that nobody needs may become incomplete"
            members = [watcher for watcher in watchers if watcher.group is group]
            assert group.watchers == len(members)
            assert group.holders == sum(watcher.holds_group for watcher in members)
            for watcher in members:
                assert (watcher in group.idle) == (watcher.state is WatcherState.IDLE)
                assert watcher.state is not WatcherState.GONE
                assert watcher.state is not WatcherState.DUE or group.next_number(watcher) is not None
        self._index.check()
