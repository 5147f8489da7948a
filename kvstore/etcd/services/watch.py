"""The service Watch: many watches on one stream of messages.

The watches are those of the store's own client, so they continue at another member if this one loses its connection to
the cluster. One handler sends all messages of a stream, in order: a watch sends no event before its `created` message
and none after its `canceled` message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from kvstore.client.watches.watch_stream import WatchBatch, WatchStream
from kvstore.errors import ClientClosed, PermissionDenied, RevisionCompacted, StoreError
from kvstore.etcd.backend import Context
from kvstore.etcd.errors import COMPACTED, NO_LEADER, PERMISSION_OF_A_WATCH, STOPPED, error_of
from kvstore.etcd.schema import Message, make
from kvstore.etcd.services.kv import bounds_of, is_empty, key_value
from kvstore.protocol.watches import Change, WatchFlag, WatchSpec

WATCHES_PER_STREAM_MAX = 10_000
"""The greatest number of watches on one stream."""

WATCH_KEY_BYTES_MAX = 64 * 1024
"""The greatest length of a key of a watch at this port. The member has a bound of its own, usually 8 KiB."""

FRAGMENT_BYTES_MAX = 1 << 20
"""The greatest size of the events of one message. A revision with more is split only for clients that allow it."""

PROGRESS_SECONDS = 600
"""The interval of the progress messages for watches that ask for them, as in etcd with its defaults."""

FIRST_CHANGE = 2
"""The revision of the first change of a store. An empty store has revision 1."""

NO_ID = -1


class News(NamedTuple):
    """Something has happened to a watch: it has begun, has changes, or has ended."""

    watch: StreamWatch


class Tick(NamedTuple):
    """A second has passed."""


@dataclass(eq=False, slots=True)
class StreamWatch:
    """One watch of a stream. `revision`: the client has all changes up to it."""

    watch_id: int
    stream: WatchStream
    with_previous: bool
    with_progress: bool
    may_fragment: bool
    start_revision: int
    is_created: bool = False
    has_news: bool = False
    revision: int = 0
    quiet_ticks: int = 0


class _Stream:
    """The watches of one call."""

    def __init__(self, context: Context) -> None:
        self._context, self._call = context, context.call
        self._watches: dict[int, StreamWatch] = {}
        # In the order of the requests: watches that have not begun, and the reasons of refusals behind them.
        self._creating: deque[StreamWatch | str] = deque()
        self._last_id = 0
        self._progress_wanted = False
        self._progress_due: dict[StreamWatch, None] = {}  # Watches that have not told their progress yet.

    def handle(self, item: Message) -> None:
        """Take a message of the client."""
        kind = item.WhichOneof("request_union")
        if kind == "create_request":
            self._create(item.create_request)
        elif kind == "cancel_request":
            self._cancel(item.cancel_request.watch_id)
        elif kind == "progress_request":
            self._ask_progress()

    def _create(self, asked: Message) -> None:
        if asked.start_revision < 0:
            self._refuse(COMPACTED)
            return
        if is_empty(asked):
            self._refuse("mvcc: watcher range is empty")
            return
        if max(len(asked.key), len(asked.range_end)) > WATCH_KEY_BYTES_MAX:
            self._refuse("etcdserver: request is too large")
            return
        if len(self._watches) >= WATCHES_PER_STREAM_MAX:
            self._refuse(f"etcdserver: this stream has {WATCHES_PER_STREAM_MAX} watches already")
            return
        watch_id = asked.watch_id
        if watch_id < 0 or (watch_id and watch_id in self._watches):
            self._refuse("mvcc: duplicate watch ID provided on the WatchStream")
            return
        if watch_id == 0:
            watch_id = self._last_id
            while watch_id in self._watches:
                watch_id += 1
            self._last_id = watch_id + 1
        flags = WatchFlag(0)
        flags |= WatchFlag.PREVIOUS if asked.prev_kv else WatchFlag(0)
        flags |= WatchFlag.NO_PUTS if 0 in asked.filters else WatchFlag(0)
        flags |= WatchFlag.NO_DELETIONS if 1 in asked.filters else WatchFlag(0)
        start, end = bounds_of(asked)
        if not asked.key and not asked.range_end:
            start, end = b"\0", b"\0\0"
        # No change has revision 1, so it is never compacted. A client that read an empty store watches from there.
        from_revision = max(asked.start_revision, FIRST_CHANGE) if asked.start_revision else 0
        stream = WatchStream(WatchSpec(start, end, from_revision, flags))
        watch = StreamWatch(
            watch_id, stream, asked.prev_kv, asked.progress_notify, asked.fragment, asked.start_revision
        )
        self._watches[watch_id] = watch
        self._creating.append(watch)
        self._context.backend.open_watch(stream, lambda: self._note(watch))

    def _note(self, watch: StreamWatch) -> None:
        if not watch.has_news:
            watch.has_news = True
            self._call.inbox.put(News(watch))

    def _cancel(self, watch_id: int) -> None:
        watch = self._watches.get(watch_id)
        if watch is not None:
            if not watch.is_created:
                self._send(watch_id, created=True)
            self._remove(watch)
            self._send(watch_id, canceled=True)
            self._tell_created()

    def _ask_progress(self) -> None:
        if self._progress_wanted:  # One answer is for all that ask meanwhile: each question takes one for each watch.
            return
        self._progress_wanted = True
        for watch in self._watches.values():
            self._progress_due[watch] = None
            self._context.backend.ask_progress(watch.stream)
        self._tell_progress()

    def _tell_progress(self) -> None:
        """Answer a progress request once all watches of the stream have told their progress."""
        if not self._progress_wanted or self._progress_due or self._creating:
            return
        watches = self._watches.values()
        revision = min((watch.revision for watch in watches), default=self._context.facts.revision)
        present = self._context.facts.revision
        if any(watch.stream.has_news or watch.start_revision > present + 1 for watch in watches):
            return  # A watch from a future revision has no progress before this revision.
        self._progress_wanted = False
        self._call.send(make("WatchResponse", header=self._context.header(revision), watch_id=NO_ID))

    def _tell_created(self) -> None:
        """Answer the requests for watches, in their order, as far as their watches have begun or are refused."""
        while self._creating:
            first = self._creating[0]
            if isinstance(first, str):
                self._creating.popleft()
                self._send(NO_ID, created=True, canceled=True, cancel_reason=first)
            elif isinstance(first.stream.error, PermissionDenied):
                self._remove(first)
                self._send(NO_ID, created=True, canceled=True, cancel_reason=PERMISSION_OF_A_WATCH)
            elif first.stream.error is not None:
                self._send(first.watch_id, created=True)
                self._end(first)
            elif first.stream.has_begun:
                self._creating.popleft()
                first.is_created = True
                first.revision = first.stream.begins_at - 1
                # A client that asked for the next change may resume from this revision.
                header = self._context.header(None if first.start_revision else first.revision)
                self._call.send(make("WatchResponse", header=header, watch_id=first.watch_id, created=True))
                if first.stream.has_news:
                    self._note(first)
            else:
                return

    async def take_news(self, watch: StreamWatch) -> None:
        """Send what is new about a watch."""
        watch.has_news = False
        if self._watches.get(watch.watch_id) is not watch:
            return
        self._tell_created()
        if not watch.is_created:
            return
        while watch.stream.has_news:
            await self._call.room()
            if self._watches.get(watch.watch_id) is not watch:
                return
            try:
                batch = watch.stream.take()
            except StoreError:
                self._end(watch)
                return
            if batch is not None:
                self._send_batch(watch, batch)
        self._tell_progress()

    def _send_batch(self, watch: StreamWatch, batch: WatchBatch) -> None:
        watch.revision = max(watch.revision, batch.revision)
        if not batch.changes:
            self._progress_due.pop(watch, None)
            return
        watch.quiet_ticks = 0
        events: list[Message] = []
        size, revision = 0, batch.changes[0].revision
        for revision, changes in groupby(batch.changes, attrgetter("revision")):  # noqa: B007
            group = [_event_of(change, with_previous=watch.with_previous) for change in changes]
            group_bytes = sum(event.ByteSize() for event in group)
            if events and size + group_bytes > FRAGMENT_BYTES_MAX:
                self._send_events(watch, events)
                events, size = [], 0
            events += group
            size += group_bytes
            if watch.may_fragment and size > FRAGMENT_BYTES_MAX:
                self._send_fragments(watch, events)
                events, size = [], 0
        if events:
            self._send_events(watch, events)

    def _send_fragments(self, watch: StreamWatch, events: list[Message]) -> None:
        part: list[Message] = []
        size = 0
        for event in events:
            if part and size + event.ByteSize() > FRAGMENT_BYTES_MAX:
                self._send_events(watch, part, is_fragment=True)
                part, size = [], 0
            part.append(event)
            size += event.ByteSize()
        self._send_events(watch, part)

    def _send_events(self, watch: StreamWatch, events: list[Message], *, is_fragment: bool = False) -> None:
        header = self._context.header(events[-1].kv.mod_revision)
        response = make("WatchResponse", header=header, watch_id=watch.watch_id, events=events, fragment=is_fragment)
        self._call.send(response)

    def _end(self, watch: StreamWatch) -> None:
        """Tell the client that a watch has ended. Raises EtcdError if this member stops: the client then resumes at
        another member."""
        error = watch.stream.error
        assert error is not None
        self._remove(watch)
        if isinstance(error, ClientClosed):
            raise STOPPED
        if isinstance(error, RevisionCompacted):
            header = self._context.header(0)  # As in etcd, whose clients read the compact revision.
            response = make(
                "WatchResponse",
                header=header,
                watch_id=watch.watch_id,
                canceled=True,
                compact_revision=error.compact_revision,
            )
            self._call.send(response)
        elif isinstance(error, PermissionDenied):
            self._send(watch.watch_id, canceled=True, cancel_reason=PERMISSION_OF_A_WATCH)
        else:
            self._send(watch.watch_id, canceled=True, cancel_reason=error_of(error).text)

    def _refuse(self, reason: str) -> None:
        self._creating.append(reason)
        self._tell_created()

    def _send(self, watch_id: int, **fields: object) -> None:
        self._call.send(make("WatchResponse", header=self._context.header(), watch_id=watch_id, **fields))

    def _remove(self, watch: StreamWatch) -> None:
        del self._watches[watch.watch_id]
        self._progress_due.pop(watch, None)
        if watch in self._creating:
            self._creating.remove(watch)
        self._context.backend.close_watch(watch.stream)

    def tick(self) -> None:
        """Note that a second has passed."""
        for watch in self._progress_due:  # The member that was asked may have failed.
            self._context.backend.ask_progress(watch.stream)
        self._tell_progress()
        for watch in self._watches.values():
            watch.quiet_ticks += 1
            if watch.with_progress and watch.is_created and watch.quiet_ticks >= PROGRESS_SECONDS:
                watch.quiet_ticks = 0
                if not watch.stream.has_news:
                    header = self._context.header(watch.revision)
                    self._call.send(make("WatchResponse", header=header, watch_id=watch.watch_id))
                    self._context.backend.ask_progress(watch.stream)

    def close(self) -> None:
        """End all watches, because the call has ended."""
        for watch in self._watches.values():
            self._context.backend.close_watch(watch.stream)
        self._watches.clear()


async def handle_watch(context: Context) -> None:
    """Serve a Watch stream."""
    call = context.call
    if call.needs_leader and context.facts.leader_id is None:
        raise NO_LEADER
    stream = _Stream(context)
    call.wants_ticks = True
    leaderless_ticks = 0
    try:
        while True:
            await call.room()  # Otherwise answers to a client that does not read would gather without a bound.
            item = await call.inbox.get()
            if item is None:
                continue  # A client that sends no more requests still reads its changes.
            if isinstance(item, News):
                await stream.take_news(item.watch)
            elif isinstance(item, Tick):
                leaderless_ticks = 0 if context.facts.leader_id is not None else leaderless_ticks + 1
                if call.needs_leader and leaderless_ticks >= LEADERLESS_TICKS_MAX:
                    raise NO_LEADER
                stream.tick()
            else:
                stream.handle(item)
    finally:
        stream.close()


LEADERLESS_TICKS_MAX = 3
"""The number of seconds without a leader after which a stream that needs one ends."""


def _event_of(change: Change, *, with_previous: bool) -> Message:
    if change.record is None:
        deleted = make("mvccpb.KeyValue", key=change.key, mod_revision=change.revision)
        event = make("mvccpb.Event", type=1, kv=deleted)
    else:
        event = make("mvccpb.Event", kv=key_value(change.key, change.record))
    if with_previous and change.previous is not None:
        event.prev_kv.CopyFrom(key_value(change.key, change.previous))
    return event
