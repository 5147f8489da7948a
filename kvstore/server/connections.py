"""The client connections of a service, and the requests of these connections that wait for the node."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple, Protocol

from kvstore.access.permissions import Rights
from kvstore.store.records import RecordItem
from raft import FRAME_BYTES_MAX_CLIENT, Completion, FrameSplitter

OpenRow = tuple[int, int, int, int, Any]
"""(connection_id, request_id, session_id, maximum age in ms of a bounded read, body of a read or None)"""


OPERATOR_REQUESTS_MAX = 32
"""The greatest number of requests of one connection with a reserved place. `hwm status` makes two."""


class DirectSink(Protocol):
    """Takes the responses to direct requests."""

    def puts_done(self, request_ids: Sequence[int], revisions: Sequence[int]) -> None:
        """Take the revisions of puts."""
        ...

    def gets_done(self, request_ids: Sequence[int], revision: int, records: Sequence[RecordItem | None]) -> None:
        """Take the records of gets, or None for each absent key. `revision`: the revision of the store."""
        ...

    def answered(self, frame: bytes) -> None:
        """Take any other response: a frame, as other clients get it."""
        ...


class Connection:
    """The state of one client connection."""

    def __init__(self, connection_id: int, *, is_reserved: bool = False) -> None:
        self.connection_id = connection_id
        self.splitter = FrameSplitter(FRAME_BYTES_MAX_CLIENT)
        self.greeted = False
        self.is_reserved = is_reserved  # The connection may make only requests for operators.
        self.is_client = False  # The hello is done and the place is regular: all requests are served.
        self.reserved_requests = 0  # Requests made while `is_reserved`.
        self.wants_place = False  # A request was refused because the connection is reserved.
        self.closed = False  # The last response was made. Nothing more is read.
        self.user = ""  # The user who has authenticated by a password or a token,
        self.verifier = b""  # and the verifier of the password at this time.
        self.certificate_name = ""  # The name in the certificate of the client, which stands for the user of this name.
        self.rights: Rights | None = None  # The rights under `auth_revision`.
        self.auth_revision = 0
        self.in_flight = 0
        self.backlog: deque[bytes] = deque()  # Complete frames that wait for room or for their turn.
        self.head_is_costly = False  # The first waiting frame needs a long response, for which no time was left.
        # Responses that wait for room below `unsent_bytes_max`.
        self.deferred_responses: deque[tuple[OpenRow, Completion]] = deque()
        self.sink: DirectSink | None = None  # Takes the responses instead of `out`.
        self.out: list[bytes] = []  # The pieces of the next output of `Service.take_output`.
        self.unsent_bytes = 0

    @property
    def is_counted(self) -> bool:
        """True if the connection counts for `connections_max` here. The host counts those with other places."""
        return not (self.closed or self.is_reserved or self.sink is not None)

    @property
    def incomplete_bytes(self) -> int:
        """The bytes of incomplete requests, and of requests that wait for room. Cost: O(waiting frames)."""
        return len(self.splitter.rest) + sum(map(len, self.backlog))


class OpenBatch(NamedTuple):
    """Commands of one connection that were proposed together, under consecutive tickets."""

    connection_id: int
    request_ids: Sequence[int]
    session_ids: Sequence[int]


BATCH_MIN = 4
"""The least number of requests of a batch. Fewer requests are kept separately."""


class OpenRequests:
    """The requests that wait for the node. Each ticket is used once.

    A request is either in `by_ticket` or part of a batch. `batches` contains the batches by their first tickets. If a
    ticket that is missing in `by_ticket` is taken, the requests of all batches are moved to `by_ticket`.
    """

    def __init__(self) -> None:
        self.by_ticket: dict[int, OpenRow] = {}
        self.batches: dict[int, OpenBatch] = {}
        self._last_ticket = 0

    def __len__(self) -> int:
        return len(self.by_ticket) + sum([len(batch.request_ids) for batch in self.batches.values()])

    @property
    def next_ticket(self) -> int:
        """The first ticket of the next call of `tickets`."""
        return self._last_ticket + 1

    def by_connection(self) -> Counter[int]:
        """Return the number of open requests of each connection. Cost: O(open requests)."""
        counts = Counter(row[0] for row in self.by_ticket.values())
        for batch in self.batches.values():
            counts[batch.connection_id] += len(batch.request_ids)
        return counts

    def tickets(self, count: int) -> range:
        """Return `count` new tickets."""
        first = self._last_ticket + 1
        self._last_ticket += count
        return range(first, first + count)

    def unheard(self, ticket: int) -> None:
        """Add a command that the service itself has proposed. No client waits for the result of such a command."""
        self.by_ticket[ticket] = (0, 0, 0, 0, None)

    def commands(
        self, connection: Connection, tickets: range, request_ids: Sequence[int], session_ids: Sequence[int]
    ) -> None:
        """Add commands that were proposed to the node."""
        connection.in_flight += len(tickets)
        if len(tickets) == 1:
            self.by_ticket[tickets[0]] = (connection.connection_id, request_ids[0], session_ids[0], 0, None)
            return
        batch = OpenBatch(connection.connection_id, request_ids, session_ids)
        if len(tickets) >= BATCH_MIN:
            self.batches[tickets[0]] = batch
        else:
            self._expand(tickets, batch)

    def take(self, ticket: int) -> OpenRow | None:
        """Remove and return the request that waits for this ticket; None if there is none."""
        row = self.by_ticket.pop(ticket, None)
        if row is None and self.batches:  # Rare: commands of a batch usually end together.
            self.expand_all()
            row = self.by_ticket.pop(ticket, None)
        return row

    def expand_all(self) -> None:
        """Move the requests of all batches to `by_ticket`."""
        for first in list(self.batches):
            self.expand(first)

    def expand(self, first_ticket: int) -> None:
        """Move the requests of the batch that begins with this ticket to `by_ticket`."""
        batch = self.batches.pop(first_ticket)
        self._expand(range(first_ticket, first_ticket + len(batch.request_ids)), batch)

    def _expand(self, tickets: range, batch: OpenBatch) -> None:
        """Add the requests of a batch, without a Python loop: 0.2 µs each."""
        rows = zip(repeat(batch.connection_id), batch.request_ids, batch.session_ids, repeat(0), repeat(None))
        self.by_ticket.update(zip(tickets, rows))  # noqa: B905 - `repeat` has no end.

    def reads(
        self,
        connection: Connection,
        tickets: range,
        request_ids: Sequence[int],
        bodies: Sequence[Any],
        bound_ms: int = 0,
    ) -> None:
        """Add reads that were requested from the node."""
        connection.in_flight += len(tickets)
        if len(tickets) == 1:
            self.by_ticket[tickets[0]] = (connection.connection_id, request_ids[0], 0, bound_ms, bodies[0])
            return
        rows = zip(repeat(connection.connection_id), request_ids, repeat(0), repeat(bound_ms), bodies)
        self.by_ticket.update(zip(tickets, rows))  # noqa: B905
