"""`Client.watch`: the changes of keys as an async iterator."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from types import TracebackType
from typing import Protocol, Self

from kvstore.client.watches.watch_stream import WatchBatch, WatchStream
from kvstore.errors import ClientClosed, RevisionCompacted, Unavailable, WrongContext
from kvstore.event_loop import EventLoop
from kvstore.protocol.commands import Range
from kvstore.protocol.prefixes import strip_from_change
from kvstore.protocol.results import RangeResult, Record
from kvstore.protocol.watches import Change, WatchSpec
from kvstore.wrong_forms import EnteredAsync

INITIAL_PAGE_KEYS = 1_000
"""The number of records of the initial listing that are read at once."""

INITIAL_ATTEMPTS_MAX = 5
"""The number of attempts to read the initial listing. An attempt fails if the history at the revision of the listing is
compacted before the watch has begun."""


TWO_READERS = "another task waits for the changes of this watch: let one task read them and pass them on"


class WatchHost(Protocol):
    """The part of a client that a `Watch` uses."""

    @property
    def loop(self) -> EventLoop:
        """The event loop in which a watch waits."""
        ...

    @property
    def trouble(self) -> str:
        """The last reason for which a watch could not be sent to a member."""
        ...

    def open_watch(self, stream: WatchStream) -> None:
        """Begin a watch. Raises ClientClosed, WrongContext."""

    def close_watch(self, stream: WatchStream) -> None:
        """End a watch."""

    def take_batch(self, stream: WatchStream) -> WatchBatch | None:
        """The next batch of a watch; None if there is none yet. Raises the error with which the watch has ended."""

    async def wait_for_news(self, stream: WatchStream) -> None:
        """Wait until a watch has begun, has something to take, or has ended."""


class Watch(EnteredAsync):
    """A watch during the block `async with client.watch(...) as watch`. The watch is an async iterator of changes, and
    only one task at a time may use it.

    `revision`: the caller has received all changes up to this revision, so another watch may begin at `revision + 1`.
    It is 0 until the caller has received the whole initial listing.
    """

    _right_form = (
        "a watch begins and ends with `async with client.watch(...) as changes:`, and is read by `async for change in "
        "changes:`"
    )

    def __init__(
        self,
        host: WatchHost,
        spec: WatchSpec,
        seconds: float,
        read_page: Callable[[Range], Awaitable[RangeResult]] | None = None,
        prefix: bytes = b"",
    ) -> None:
        """`seconds`: the time within which the watch must begin. `read_page` reads a page of the initial listing; None
        if there is no such listing. `prefix`: the prefix that is removed from the keys of changes."""
        self._prefix = prefix
        self._host, self._spec, self._seconds, self._read_page = host, spec, seconds, read_page
        self._stream: WatchStream | None = None
        self._page: RangeResult | None = None  # A page of the initial listing that was not delivered yet.
        self._groups: deque[tuple[int, tuple[Change, ...]]] = deque()  # (revision, all its changes)
        self._current: deque[Change] = deque()  # Undelivered changes of `_current_revision`.
        self._current_revision = 0
        self._is_read = False  # True while some task waits for changes.
        self.revision = 0

    async def __aenter__(self) -> Self:
        """Begin the watch. Raises Unsupported, RevisionCompacted, Unavailable, Busy."""
        attempts = INITIAL_ATTEMPTS_MAX if self._read_page is not None else 1
        while True:
            attempts -= 1
            try:
                await self._begin()
            except RevisionCompacted:
                if not attempts:
                    raise
            else:
                return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._host.close_watch(self._stream)

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        """The next change. If changes were lost to compaction, the watch ends and RevisionCompacted is raised."""
        while not self._current:
            self._current_revision, changes = await self._next_group()
            self._current.extend(changes)
        change = self._current.popleft()
        if not self._current:
            self.revision = self._current_revision
        return change

    def batches(self) -> AsyncIterator[tuple[Change, ...]]:
        """Iterate over tuples: each tuple has all changes of one revision. The initial listing comes page by page."""
        return _Batches(self)

    async def next_batch(self) -> tuple[Change, ...]:
        """All changes of the next revision. If `__anext__` has returned only some changes of a revision, this method
        returns the other changes."""
        if self._current:
            revision, changes = self._current_revision, tuple(self._current)
            self._current.clear()
        else:
            revision, changes = await self._next_group()
        self.revision = revision
        return changes

    async def _begin(self) -> None:
        spec = self._spec
        if self._read_page is not None:
            self._page = await self._read_page(Range(spec.start, spec.end, INITIAL_PAGE_KEYS))
            spec = replace(spec, from_revision=self._page.revision + 1)
        stream = WatchStream(spec)
        self._host.open_watch(stream)
        try:
            with self._host.loop.move_on_after(self._seconds):
                while not stream.has_begun and stream.error is None:
                    await self._host.wait_for_news(stream)
            if stream.error is not None:
                raise stream.error
            if not stream.has_begun:
                reason = f"no member has accepted the watch within its deadline; {self._host.trouble}"
                raise stream.last_refusal or Unavailable(reason)
        except BaseException:
            self._host.close_watch(stream)
            raise
        self._stream = stream
        if self._page is None:
            self.revision = stream.begins_at - 1

    async def _next_group(self) -> tuple[int, tuple[Change, ...]]:
        """The changes of the next revision, or of the next page of the initial listing."""
        if self._stream is None:
            raise ClientClosed()
        if self._is_read:
            raise WrongContext(TWO_READERS)
        self._is_read = True
        try:
            while not self._groups:
                await self._host.loop.checkpoint()
                if self._page is not None:
                    await self._take_page(self._page)
                elif (batch := self._host.take_batch(self._stream)) is None:
                    await self._host.wait_for_news(self._stream)
                elif batch.changes:
                    groups = groupby(batch.changes, attrgetter("revision"))
                    self._groups.extend([(revision, tuple(group)) for revision, group in groups])
                else:
                    self.revision = batch.revision
            revision, changes = self._groups.popleft()
            if self._prefix:
                changes = tuple(strip_from_change(each, self._prefix) for each in changes)
            return revision, changes
        finally:
            self._is_read = False

    async def _take_page(self, page: RangeResult) -> None:
        """Queue `page` of the initial listing for the caller, and read the next page at the same revision."""
        assert self._read_page is not None
        assert self._stream is not None
        following: RangeResult | None = None
        listed = self._stream.begins_at - 1  # The revision of the listing. `page.revision` may be a later one.
        if page.more and page.items:
            start = page.items[-1].key + b"\0"
            following = await self._read_page(Range(start, self._spec.end, INITIAL_PAGE_KEYS, revision=listed))
        self._page = following
        changes = []
        for item in page.items:
            record = Record(item.value or b"", item.create_revision, item.mod_revision, item.version, item.lease_id)
            changes.append(Change("put", item.key, record, None, listed))
        whole_revision = listed if following is None else 0
        if changes:
            self._groups.append((whole_revision, tuple(changes)))
        else:
            self.revision = whole_revision


class _Batches:
    """The iterator that `Watch.batches` returns. Unlike an async generator, it need not be closed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __aiter__(self) -> AsyncIterator[tuple[Change, ...]]:
        return self

    async def __anext__(self) -> tuple[Change, ...]:
        return await self._watch.next_batch()
