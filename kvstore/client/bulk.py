"""Many operations under one await: the state of the open operations, and the results of all operations, in order.

Each operation is a call of its own, with its own request number, retries and outcome. The operations share only the
wait for their ends.

See docs/reference/specification.md#95-outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from kvstore.client.calls import CallEnded
from kvstore.errors import ClientClosed, OperationFailed, OutcomeUnknown, UnderReplicated
from kvstore.protocol.messages import Request, Response
from kvstore.protocol.results import read_answer

OPEN_MAX = 1024
"""The greatest number of open operations of one bulk call. A connection and a session have room for this number."""

ResultT = TypeVar("ResultT")
CallError = OperationFailed | OutcomeUnknown | UnderReplicated


Item = tuple[bytes | None, Request | OperationFailed]
"""(the key that the request writes, or None; the request, or the error that prevents it)"""


class BulkCall(Generic[ResultT]):
    """One bulk call. An item is taken from `items` only when one more operation may be open. At the end `results` has
    one result for each item, in order.

    Two operations that write the same key are never open together: the second operation waits until the first has
    ended. Meanwhile all later items also wait. Writes of one key therefore take effect in order, even with retries,
    unless the outcome of an earlier write is unknown.
    """

    def __init__(self, items: Iterable[Item], read: Callable[[Response], ResultT], patience_ns: int) -> None:
        self.patience_ns = patience_ns  # The timeout of each operation, counted from its submission.
        self.open: dict[int, tuple[int, bytes | None]] = {}  # Ticket → (position in `results`, key).
        self.results: list[ResultT | CallError] = []
        self.wants_more = True
        self._items: Iterator[Item] = iter(items)
        self._read = read
        self._held_back: Item | None = None
        self._keys: set[bytes] = set()  # The keys of open operations.
        self._key: bytes | None = None  # The key of the last request from `next_request`.
        self._ends: list[tuple[int, bool, CallEnded]] = []  # Unread ends: (position, is a write, how it ended).
        self.wake: Callable[[], object] | None = None  # Called at the next end; set only while the caller sleeps.

    def look_at_each(self, look: Callable[[Request], None]) -> None:
        """Call `look` with each request before it is submitted. An error of `look` ends the call."""

        def looked(item: Item) -> Item:
            if isinstance(item[1], Request):
                look(item[1])
            return item

        self._items = map(looked, self._items)

    def next_request(self) -> Request | None:
        """The next request to submit. None if an open request must end first, or if no requests are left. In the second
        case, `wants_more` is false."""
        while len(self.open) < OPEN_MAX:
            item = self._held_back or next(self._items, None)
            if item is None:
                self.wants_more = False
                return None
            self._key, request = item
            if self._key in self._keys:
                self._held_back = item
                return None
            self._held_back = None
            if isinstance(request, Request):
                return request
            self.results.append(request)
        return None

    def begun(self, ticket: int) -> None:
        """Record that the request from `next_request` was submitted under `ticket`."""
        self.open[ticket] = (len(self.results), self._key)
        if self._key is not None:
            self._keys.add(self._key)
        self.results.append(_NOT_YET)

    def ended(self, end: CallEnded) -> None:
        """Record that one of the open calls has ended."""
        place, key = self.open.pop(end.ticket)
        if key is not None:
            self._keys.discard(key)
        self._ends.append((place, key is not None, end))
        if self.wake is not None:
            self.wake()

    def read_ends(self) -> None:
        """Read the results of all calls that have ended since the last call of this method."""
        ends, self._ends = self._ends, []
        for place, has_effect, (_, response, error, _) in ends:
            if response is not None:
                self.results[place] = self._result_of(response, has_effect)
            else:
                assert error is not None, ends
                self.results[place] = error

    def _result_of(self, response: Response, has_effect: bool) -> ResultT | CallError:
        try:
            return read_answer(response, self._read, has_effect=has_effect)
        except (OperationFailed, OutcomeUnknown, UnderReplicated) as error:
            return error


_NOT_YET = ClientClosed()  # A placeholder. No caller sees it, because a bulk call waits for all its operations.
