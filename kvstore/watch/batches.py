"""Messages with events. Each event is encoded once. Each message is built once for all watchers that need the
message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from kvstore.protocol.watches import EVENT_OVERHEAD_BYTES, MESSAGE_BYTES_MAX, WatchFlag, encode_event, events_tail
from kvstore.store.history import Event, History

KEPT_BYTES_MAX = 4 << 20
"""The greatest size of the cache of encoded events, and of the cache of whole messages. Watchers that need the same
events share these encodings."""

_BATCH_OVERHEAD_BYTES = 256  # The memory of a cached value, in addition to its content.

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class EventFilter(NamedTuple):
    """The kinds of events that a watcher wants, and whether each event must contain the previous record of its key."""

    with_previous: bool
    no_puts: bool
    no_deletions: bool

    @classmethod
    def of(cls, flags: WatchFlag) -> EventFilter:
        """Return the filter that the flags of a watch describe."""
        return cls(
            bool(flags & WatchFlag.PREVIOUS), bool(flags & WatchFlag.NO_PUTS), bool(flags & WatchFlag.NO_DELETIONS)
        )

    def admits(self, event: Event) -> bool:
        """Return False if the watcher does not want the event."""
        return not (self.no_deletions if event.after is None else self.no_puts)


class Batch(NamedTuple):
    """One message with events. If `event_count` is 0, the filter removed all events, and nothing is sent.

    `tail`: the encoded message without the request id. `next_number`: the cursor of a watcher after this message.
    `is_whole`: the message ends with the last event of `revision`. `is_one`: all events of the message have the same
    revision.
    """

    event_count: int
    tail: bytes
    cost: int
    next_number: int
    revision: int
    is_whole: bool
    is_one: bool


class _RecentBytes(Generic[KeyT, ValueT]):
    """A cache of recent values with at most about KEPT_BYTES_MAX bytes, in two halves. When the young half is full, it
    replaces the old half, and the values of the replaced half are dropped."""

    def __init__(self) -> None:
        self._young: dict[KeyT, ValueT] = {}
        self._old: dict[KeyT, ValueT] = {}
        self._young_bytes = 0

    def get(self, key: KeyT) -> ValueT | None:
        """Return the value of a key; None if the cache does not contain the key."""
        found = self._young.get(key)
        return self._old.get(key) if found is None else found

    def add(self, key: KeyT, value: ValueT, byte_count: int) -> None:
        """Add a value."""
        self._young[key] = value
        self._young_bytes += byte_count
        if self._young_bytes > KEPT_BYTES_MAX // 2:
            self._old, self._young, self._young_bytes = self._young, {}, 0

    def clear(self) -> None:
        """Drop all values."""
        self._old, self._young, self._young_bytes = {}, {}, 0


class BatchMaker:
    """Builds the messages of one member. `encoded`: the number of events encoded so far. `made`: the number of messages
    built so far."""

    def __init__(self, node_id: bytes) -> None:
        self._node_id = node_id  # As an encoded CBOR item.
        self._events: _RecentBytes[tuple[int, bool], bytes] = _RecentBytes()
        self._batches: _RecentBytes[tuple[object, int, int, EventFilter], Batch] = _RecentBytes()
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self.encoded = self.made = 0

    def forget(self) -> None:
        """Drop all cached events and messages, because the numbers of events have changed."""
        self._events.clear()
        self._batches.clear()

    def shared(
        self, group: object, history: History, numbers: Sequence[int], place: int, stop: int, wanted: EventFilter
    ) -> Batch:
        """Return the message that `make` returns for these arguments. Watchers of one group with the same filter share
        the message."""
        key = (group, numbers[place], numbers[stop - 1], wanted)
        batch = self._batches.get(key)
        if batch is None:
            batch = self.make(history, numbers, place, stop, wanted)
            self._batches.add(key, batch, len(batch.tail) + _BATCH_OVERHEAD_BYTES)
        return batch

    def make(
        self,
        history: History,
        numbers: Sequence[int],
        place: int,
        stop: int,
        wanted: EventFilter,
        cost_max: int | None = None,
    ) -> Batch:
        """Build a message of the next events in `numbers[place:stop]`. `stop` must be the end of a revision.

        The message ends with the last event of a revision, has at most `message_bytes_max` bytes of events, and costs
        at most `cost_max`. There are two exceptions. If the first revision alone has more than `message_bytes_max`
        bytes, the message contains only a part of this revision. If the first revision alone costs more than
        `cost_max`, the message may cost more than `cost_max`.
        """
        self.made += 1
        events: list[bytes] = []
        size = revision = revisions = 0  # `revision` is the revision of the last event in `events`.
        # As of the last whole revision: the event count, the size, the next number, the revision, the revision count.
        whole = (0, 0, 0, 0, 0)
        for at in range(place, stop):
            event = history.event(numbers[at])
            if not wanted.admits(event):
                continue
            if events and event.revision != revision:
                whole = (len(events), size, numbers[at], revision, revisions)
            data = self._encode(numbers[at], event, with_previous=wanted.with_previous)
            is_full = size + len(data) > self.message_bytes_max
            is_too_dear = cost_max is not None and _cost(size + len(data), len(events) + 1) > cost_max
            if whole[0] and (is_full or is_too_dear):
                count, size, next_number, revision, revisions = whole
                return self._batch(events[:count], size, next_number, revision, is_whole=True, is_one=revisions == 1)
            if events and not whole[0] and is_full:
                return self._batch(events, size, numbers[at], revision, is_whole=False, is_one=True)
            revisions += event.revision != revision
            events.append(data)
            size, revision = size + len(data), event.revision
        return self._batch(events, size, numbers[stop - 1] + 1, revision, is_whole=True, is_one=revisions == 1)

    def _batch(
        self, events: list[bytes], size: int, next_number: int, revision: int, *, is_whole: bool, is_one: bool
    ) -> Batch:
        if not events:
            return Batch(0, b"", 0, next_number, revision, is_whole=True, is_one=True)
        cost = _cost(size, len(events))
        tail = events_tail(revision, self._node_id, cost, events, is_whole=is_whole)
        return Batch(len(events), tail, cost, next_number, revision, is_whole, is_one)

    def _encode(self, number: int, event: Event, *, with_previous: bool) -> bytes:
        key = (number, with_previous)
        data = self._events.get(key)
        if data is None:
            data = encode_event(event.revision, event.key, event.after, event.before, with_previous=with_previous)
            self.encoded += 1
            self._events.add(key, data, len(data) + _BATCH_OVERHEAD_BYTES)
        return data


def _cost(size_bytes: int, event_count: int) -> int:
    """Return the cost of a message: the number of bytes by which it reduces the window of its watch."""
    return size_bytes + EVENT_OVERHEAD_BYTES * event_count
