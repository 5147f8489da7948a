"""One watch of a client, without I/O: the changes that were received and not yet read, and the revision from which the
watch continues.

A stream knows the revision up to which it has received all changes. At another member, the stream continues after this
revision. It therefore neither repeats nor misses a change.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from kvstore.errors import OperationFailed
from kvstore.protocol.watches import Change, Events, WatchSpec, window_body
from raft import ProtocolError


class WatchCarrier(Protocol):
    """A connection to a member that serves watches. `watches`: the streams by request id. A stream that continues at
    another member stays in `watches` until this member confirms. `heard_at`: the time at which the last bytes came
    (monotonic, in ns). `needs_pings`: the client waits for something that may come much later."""

    watches: dict[int, WatchStream]
    heard_at: int

    @property
    def needs_pings(self) -> bool: ...

    @property
    def is_ready(self) -> bool:
        """True once requests can be sent."""

    def send_body(self, body: bytes) -> None:
        """Send a request."""


class WatchBatch(NamedTuple):
    """All changes of one or more revisions, up to `revision`. Without changes, the batch only reports progress."""

    changes: tuple[Change, ...]
    revision: int
    cost: int


class StreamState(enum.Enum):
    """The phases of a stream."""

    WAITING = "waiting"  # The stream waits for a connection, or for the end of a pause.
    ASKED = "asked"  # The request is sent.
    OPEN = "open"
    ENDED = "ended"


class WatchStream:
    """One watch. `next_revision`: the first revision of which the stream does not have all changes. It is 0 until the
    watch has begun, if the watch begins with the next change.

    `error`: the reason why the watch has ended. `take` raises this error after the last received batch.
    """

    def __init__(self, spec: WatchSpec) -> None:
        self.spec = spec
        self.state = StreamState.WAITING
        self.next_revision = spec.from_revision
        # The first revision whose changes this watch returns. Set when the first member accepts the watch; 0 until
        # then.
        self.begins_at = 0
        self.error: OperationFailed | None = None
        self.last_refusal: OperationFailed | None = None  # Why the last member has refused or ended the watch.
        self.connection: WatchCarrier | None = None
        self.watch_id = 0
        self.not_before = 0  # The end of a pause (monotonic ns).
        self.failures = 0
        # Called after `take` has returned window to the member. The host must then send the client's output.
        self.note_return: Callable[[], None] | None = None
        self._batches: deque[WatchBatch] = deque()
        self._held_bytes = 0  # Bytes that were received and not yet taken.
        self._unreturned = 0  # Bytes that were taken and not yet returned to the member's window.
        self._part: list[Change] = []  # The changes so far of a revision whose end was not yet received.
        self._part_cost = 0

    @property
    def has_begun(self) -> bool:
        """True once some member has accepted the watch."""
        return self.begins_at > 0

    @property
    def has_news(self) -> bool:
        """True if `take` returns something, or raises."""
        return bool(self._batches) or self.error is not None

    def take(self) -> WatchBatch | None:
        """The next batch; None if there is none yet. Raises the error with which the watch has ended."""
        if not self._batches:
            if self.error is not None:
                raise self.error
            return None
        batch = self._batches.popleft()
        self._held_bytes -= batch.cost
        self._unreturned += batch.cost
        if self._unreturned >= max(1, self.spec.window_bytes // 2):
            if self.connection is not None and self.state is StreamState.OPEN:
                self.connection.send_body(window_body(self.watch_id, self._unreturned))
                if self.note_return is not None:
                    self.note_return()
            self._unreturned = 0
        return batch

    def request_spec(self) -> WatchSpec:
        """The watch to request from the next member. Bytes that were received and not yet taken reduce its window."""
        window_bytes = max(1, self.spec.window_bytes - self._held_bytes)
        return replace(self.spec, from_revision=self.next_revision, window_bytes=window_bytes)

    def receive(self, message: Events, revision: int) -> bool:
        """Add received changes. Returns False if they do not complete a revision. Raises ProtocolError."""
        first = message.changes[0].revision
        if self.state is not StreamState.OPEN or first < self.next_revision:
            raise ProtocolError(f"a watch from revision {self.next_revision} was sent one of revision {first}")
        if not message.is_whole:
            self._part += message.changes
            self._part_cost += message.cost
            return False
        self._add(WatchBatch((*self._part, *message.changes), revision, self._part_cost + message.cost))
        self._forget_part()
        return True

    def receive_progress(self, revision: int) -> None:
        """Note that everything up to `revision` was received. Raises ProtocolError."""
        if self.state is not StreamState.OPEN or self._part or revision + 1 < self.next_revision:
            raise ProtocolError(f"a watch from revision {self.next_revision} was told the progress {revision}")
        if self._batches and not self._batches[-1].changes:
            self._batches.pop()
        self._add(WatchBatch((), revision, 0))

    def leave(self) -> None:
        """Leave the present member, and wait for another one."""
        self.state, self.connection, self.watch_id = StreamState.WAITING, None, 0
        self._unreturned = 0
        self._forget_part()

    def _add(self, batch: WatchBatch) -> None:
        self._batches.append(batch)
        self._held_bytes += batch.cost
        self.next_revision = batch.revision + 1

    def _forget_part(self) -> None:
        self._part, self._part_cost = [], 0
