"""Listings of many keys, page by page. The iterators need not be closed, unlike async generators."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from kvstore.protocol.commands import Range
from kvstore.protocol.results import KeyRecord, RangeResult


class Pages:
    """The pages of the range `whole`, which `read` reads one by one. `one_revision`: all pages show the store at the
    revision of the first page."""

    def __init__(
        self,
        read: Callable[[Range], Awaitable[RangeResult]],
        whole: Range,
        page_limit: int,
        revision: int,
        one_revision: bool,
    ) -> None:
        self._read, self._whole, self._page_limit = read, whole, page_limit
        self._start, self._end, self._left = whole.start, whole.end, whole.limit
        self._revision, self._one_revision = revision, one_revision
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RangeResult:
        if self._is_over:
            raise StopAsyncIteration
        whole, page_limit = self._whole, self._page_limit
        page = await self._read(
            Range(
                self._start,
                self._end,
                min(self._left, page_limit) if self._left else page_limit,
                whole.reverse,
                whole.keys_only,
                whole.count_only,
                self._revision,
                whole.bytes_max,
            )
        )
        self._left -= len(page.items) if self._left else 0
        if not page.more or not page.items or (whole.limit and not self._left):
            self._is_over = True
            return page
        self._revision = self._revision if self._revision or not self._one_revision else page.revision
        if whole.reverse:
            self._end = page.items[-1].key
        else:
            self._start = page.items[-1].key + b"\0"
        return page


class Items:
    """The records of pages, one by one."""

    def __init__(self, pages: AsyncIterator[RangeResult]) -> None:
        self._pages = pages
        self._items: deque[KeyRecord] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> KeyRecord:
        while not self._items:
            self._items.extend((await anext(self._pages)).items)
        return self._items.popleft()
