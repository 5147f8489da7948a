"""The watches of a client, without I/O: one member serves each watch, and if it fails, another member continues it.

If changes were lost to compaction, a watch ends with RevisionCompacted. It never skips a change.

See docs/concepts/watches.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Generic, TypeVar

from kvstore.client.client_limits import MILLISECOND_NS, ClientLimits
from kvstore.client.response_classifier import Failed, Retryable, classify
from kvstore.client.watches.watch_stream import StreamState, WatchCarrier, WatchStream
from kvstore.errors import (
    Busy,
    ClientClosed,
    OperationFailed,
    RevisionCompacted,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from kvstore.protocol.messages import Code, Response, encode_request
from kvstore.protocol.watches import (
    HISTORY_IS_OFF,
    Cancelled,
    CancelReason,
    Created,
    Events,
    decode_message,
    progress_body,
    unwatch_body,
    watch_request,
)
from raft import ProtocolError

PING_NS = 3_000 * MILLISECOND_NS
"""If a member that serves watches has sent nothing for this time, it is asked who leads. Other members continue its
watches in two cases: the member does not answer, or it knows no leader while the client knows a leader."""


CarrierT = TypeVar("CarrierT", bound=WatchCarrier)


def _is_of_an_old_build(error: OperationFailed) -> bool:
    """True if a member has refused a watch because its build does not know watches. A watch that has begun can then
    continue at another member, because the member at which it began knows watches. Returns False if the member has
    refused the watch because the history was switched off. After this refusal, every watch ends."""
    return isinstance(error, Unsupported) and HISTORY_IS_OFF not in str(error)


class WatchKeeper(Generic[CarrierT]):
    """All watches of a client. `news`: the streams with something new for their readers. The host empties this list."""

    def __init__(self, limits: ClientLimits, random: Random, next_request_id: Callable[[], int]) -> None:
        self._limits, self._random, self._next_request_id = limits, random, next_request_id
        self._streams: dict[WatchStream, None] = {}
        self._waiting: dict[WatchStream, None] = {}
        self._cut_off: dict[CarrierT, None] = {}  # Connections that have watches, but whose member knows no leader.
        self._pinged: dict[CarrierT, int] = {}  # The time at which the member was last asked who leads.
        self.can_authenticate = False  # True if the client has credentials. A watch that needs them is then retried.
        self.news: list[WatchStream] = []

    # Of the application.

    def open(self, stream: WatchStream) -> None:
        """Begin a watch."""
        self._streams[stream] = self._waiting[stream] = None

    def close(self, stream: WatchStream) -> None:
        """End a watch because the application has left it."""
        self._end(stream, ClientClosed())
        self.news = [each for each in self.news if each is not stream]

    def close_all(self) -> None:
        """End all watches, because the client is closed."""
        for stream in list(self._streams):
            self._end(stream, ClientClosed())

    def ask_progress(self, stream: WatchStream) -> None:
        """Ask the member for a progress message. The member sends it after all changes up to its present revision."""
        if stream.state is StreamState.OPEN:
            assert stream.connection is not None
            stream.connection.send_body(progress_body(stream.watch_id))

    # Of the client.

    @property
    def wants_connection(self) -> bool:
        """True if some watch waits for a member, or is served by a member that knows no leader."""
        return bool(self._waiting or self._cut_off)

    def next_moment(self, now: int, connections: Iterable[CarrierT]) -> int | None:
        """The next time at which `due_pings` or `assign` has something to do; None if only an event can give them
        something to do."""
        moments = [stream.not_before for stream in self._waiting if stream.not_before > now]
        moments += [self._ping_moment(connection) for connection in connections if connection.needs_pings]
        return min(moments, default=None)

    def due_pings(self, now: int, connections: Iterable[CarrierT]) -> list[CarrierT]:
        """The connections on which the caller must now ask who leads."""
        watching = [connection for connection in connections if connection.needs_pings]
        due = [connection for connection in watching if self._ping_moment(connection) <= now]
        for connection in due:
            self._pinged[connection] = now
        return due

    def assign(self, now: int, leader: CarrierT | None, ready: Sequence[CarrierT]) -> None:
        """Send the requests of waiting watches: to the leader, if it is connected, else to any member."""
        if leader is not None and leader.is_ready:
            for connection in [each for each in self._cut_off if each is not leader]:
                self._leave_all(connection)
                for watch_id in connection.watches:
                    connection.send_body(unwatch_body(watch_id))
        for stream in [each for each in self._waiting if each.not_before <= now]:
            if not ready:
                return
            is_led = leader is not None and leader in ready
            connection = leader if leader is not None and is_led else self._random.choice(ready)
            del self._waiting[stream]
            stream.state, stream.connection = StreamState.ASKED, connection
            stream.watch_id = self._next_request_id()
            connection.watches[stream.watch_id] = stream
            connection.send_body(encode_request(stream.watch_id, watch_request(stream.request_spec())))

    def receive(self, connection: CarrierT, response: Response, now: int) -> None:
        """Process a message about a watch of the connection. Raises ProtocolError."""
        stream = connection.watches[response.request_id]
        is_old = stream.watch_id != response.request_id or stream.connection is not connection
        if response.code != Code.OK:
            outcome = classify(response)
            del connection.watches[response.request_id]
            if is_old:
                return
            if isinstance(outcome, Failed) and isinstance(outcome.error, Unauthenticated) and self.can_authenticate:
                stream.last_refusal = outcome.error
            elif isinstance(outcome, Failed):
                if not (stream.has_begun and _is_of_an_old_build(outcome.error)):
                    self._end(stream, outcome.error)
                    return
                stream.last_refusal = outcome.error
            if isinstance(outcome, Retryable):
                stream.last_refusal = Busy(outcome.reason)
            self._pause(stream, now)
            return
        message = decode_message(response)
        if isinstance(message, Cancelled):
            del connection.watches[response.request_id]
            if not is_old:
                self._cancelled(stream, message, now)
        elif is_old:
            return
        elif isinstance(message, Created):
            self._created(stream, message)
        elif isinstance(message, Events):
            if stream.receive(message, response.revision):
                self.news.append(stream)
        else:
            stream.receive_progress(message.revision)
            self.news.append(stream)

    def refuse(self, error: OperationFailed) -> None:
        """End the watches that wait for a member, because no member accepts the user of this client."""
        for stream in list(self._waiting):
            self._end(stream, error)

    def heard_leader(self, connection: CarrierT, leader_id: str | None) -> None:
        """Note which member the member of `connection` reports as the leader."""
        if leader_id is None and connection.watches:
            self._cut_off[connection] = None
        else:
            self._cut_off.pop(connection, None)

    def lost(self, connection: CarrierT) -> None:
        """Let the watches of a connection that has ended wait for another member."""
        self._leave_all(connection)
        self._pinged.pop(connection, None)
        connection.watches.clear()

    def _created(self, stream: WatchStream, message: Created) -> None:
        if stream.state is not StreamState.ASKED or stream.next_revision not in (0, message.next_revision):
            raise ProtocolError(f"a watch from {stream.next_revision} was created from {message.next_revision}")
        stream.state = StreamState.OPEN
        stream.next_revision = message.next_revision
        stream.begins_at = stream.begins_at or message.next_revision
        stream.failures = 0
        self.news.append(stream)

    def _cancelled(self, stream: WatchStream, message: Cancelled, now: int) -> None:
        if message.reason == CancelReason.COMPACTED:
            self._end(stream, RevisionCompacted(stream.next_revision, message.oldest_revision))
        elif message.reason == CancelReason.HISTORY_OFF:
            self._end(stream, Unsupported(f"a watch, because {HISTORY_IS_OFF}"))
        else:  # The member has ended the watch for a reason of its own, so another member can serve it.
            stream.last_refusal = Unavailable(f"the member has ended the watch: {message.reason}")
            self._pause(stream, now)

    def _pause(self, stream: WatchStream, now: int) -> None:
        """Request the watch from a member again, after a pause."""
        stream.leave()
        stream.failures = min(stream.failures + 1, 20)
        pause = min(self._limits.pause_max_ns, self._limits.pause_min_ns << (stream.failures - 1))
        stream.not_before = now + pause // 2 + self._random.randrange(pause // 2 + 1)
        self._waiting[stream] = None

    def _leave_all(self, connection: CarrierT) -> None:
        """Remove the watches from a connection. They wait for another member."""
        self._cut_off.pop(connection, None)
        for watch_id, stream in connection.watches.items():
            if stream.watch_id == watch_id and stream.connection is connection:
                stream.leave()
                self._waiting[stream] = None

    def _end(self, stream: WatchStream, error: OperationFailed) -> None:
        if stream.state is StreamState.ENDED:
            return
        if stream.connection is not None and stream.watch_id in stream.connection.watches:
            stream.connection.send_body(unwatch_body(stream.watch_id))
        stream.leave()
        stream.state, stream.error = StreamState.ENDED, error
        self._streams.pop(stream, None)
        self._waiting.pop(stream, None)
        self.news.append(stream)

    def _ping_moment(self, connection: CarrierT) -> int:
        return max(connection.heard_at, self._pinged.get(connection, 0)) + PING_NS
