"""The calls of one HTTP connection: what is the same for gRPC and for the JSON gateway."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kvstore.etcd.call import EtcdCall
from kvstore.etcd.errors import DEADLINE, EtcdError
from kvstore.etcd.pace import RequestPace

CallT = TypeVar("CallT", bound=EtcdCall[Any])


class HttpCalls(ABC, Generic[CallT]):
    """The calls of one connection, by number, without I/O. `begin` starts the handler of a new call. `has_room` is
    false while the client leaves too many bytes of the connection unread.

    `end_reason` is set once the connection is over; it is closed after its last output. `note_output` is called when
    there is output to take. `note_pause` is called when requests begin to wait for the pace of the connection: the host
    then calls `resume` every few tens of ms until `has_paused` is false.
    """

    def __init__(self, begin: Callable[[CallT], None], has_room: Callable[[], bool]) -> None:
        self._begin, self.has_room = begin, has_room
        self.calls: dict[int, CallT] = {}
        self.end_reason = ""
        self.linger_seconds = 0.0  # The time for which the host keeps a connection that has ended.
        self.note_output: Callable[[], None] = _nothing
        self.note_pause: Callable[[], None] = _nothing
        self._pace = RequestPace()
        self._is_resuming = False
        self._paused: dict[CallT, None] = {}  # Calls with requests beyond the pace, in the order of their turns.

    @abstractmethod
    def receive(self, data: bytes, now: int) -> None:
        """Take received bytes. `now`: monotonic ns."""

    @abstractmethod
    def take_output(self) -> bytes:
        """Take the bytes to send."""

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """True once the client has sent what every client begins with: its settings, or the head of a request."""

    @property
    @abstractmethod
    def has_more(self) -> bool:
        """True if there is more output than the step that `take_output` has taken."""

    def send_more(self) -> None:
        """Make more output of responses that wait. Called when all earlier output is with the socket."""

    @abstractmethod
    def take_pause(self) -> float:
        """The seconds for which the host should read nothing more, because of what the client has just sent."""

    @abstractmethod
    def forget(self, call: CallT) -> None:
        """Remove a call that has ended."""

    @abstractmethod
    def _go_away(self, error: EtcdError) -> None:
        """End the connection after its last output."""

    @property
    @abstractmethod
    def within_request_since(self) -> int | None:
        """The time at which the oldest unfinished message began to arrive (monotonic ns); None if there is none."""

    @property
    @abstractmethod
    def unread_bytes(self) -> int:
        """The bytes that wait for the client, besides those that wait for the socket."""

    @abstractmethod
    def _take_messages(self, call: CallT, now: int) -> None:
        """Take up the requests of a stream, as far as the pace of the connection allows."""

    @property
    def has_paused(self) -> bool:
        """True if requests wait for the pace of the connection."""
        return bool(self._paused)

    def resume(self, now: int) -> None:
        """Take up requests that have waited for the pace. `now`: monotonic ns."""
        self._is_resuming = True
        try:
            for call in list(self._paused):
                if not self._pace.allows(now):
                    return
                if call in self._paused:  # The requests of another call may have ended it.
                    del self._paused[call]
                    self._take_messages(call, now)
        finally:
            self._is_resuming = False

    def _is_beyond_the_pace(self, call: CallT, now: int) -> bool:
        """Count a request of a call. Returns True if it has to wait; the call is then resumed."""
        if not call.method.is_paced:
            return False
        # While some requests wait, all others wait behind them: few requests at a time cost more than many.
        if (self._is_resuming or not self._paused) and self._pace.allows(now):
            self._pace.count()
            return False
        if not self._paused:
            self.note_pause()
        self._paused[call] = None
        return True

    @property
    def has_calls(self) -> bool:
        """True if some call is under way."""
        return bool(self.calls)

    def note_room(self) -> None:
        """Let handlers continue, because the client has read something."""
        for call in list(self.calls.values()):
            call.note_room()

    def check_deadlines(self, now: int) -> None:
        """End the calls whose deadline has passed, and take up requests that have waited. Cost: O(open calls)."""
        self.resume(now)
        for call in list(self.calls.values()):
            if call.deadline is not None and call.deadline <= now:
                self.fail(call, DEADLINE)

    def fail(self, call: CallT, error: EtcdError) -> None:
        """End a call and its handler with an error."""
        if call.handler is not None:
            call.handler.cancel()
        call.finish(error)

    def finish_all(self, error: EtcdError) -> None:
        """End all calls with an error, and then the connection."""
        for call in list(self.calls.values()):
            self.fail(call, error)
        self._go_away(error)

    def cancel_all(self) -> None:
        """End all handlers, because the connection has ended."""
        self._paused.clear()
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.cancel()


def _nothing() -> None:
    """Do nothing."""
