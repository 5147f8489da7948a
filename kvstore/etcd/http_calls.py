"""The calls of one HTTP connection: what is the same for gRPC and for the JSON gateway."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kvstore.etcd.call import EtcdCall
from kvstore.etcd.errors import DEADLINE, EtcdError

CallT = TypeVar("CallT", bound=EtcdCall[Any])


class HttpCalls(ABC, Generic[CallT]):
    """The calls of one connection, by number, without I/O. `begin` starts the handler of a new call. `has_room` is
    false while the client leaves too many bytes of the connection unread.

    `end_reason` is set once the connection is over; it is closed after its last output. `note_output` is called when
    there is output to take.
    """

    def __init__(self, begin: Callable[[CallT], None], has_room: Callable[[], bool]) -> None:
        self._begin, self.has_room = begin, has_room
        self.calls: dict[int, CallT] = {}
        self.end_reason = ""
        self.linger_seconds = 0.0  # The time for which the host keeps a connection that has ended.
        self.note_output: Callable[[], None] = _nothing

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

    @property
    def has_calls(self) -> bool:
        """True if some call is under way."""
        return bool(self.calls)

    def note_room(self) -> None:
        """Let handlers continue, because the client has read something."""
        for call in list(self.calls.values()):
            call.note_room()

    def check_deadlines(self, now: int) -> None:
        """End the calls whose deadline has passed. Cost: O(open calls)."""
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
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.cancel()


def _nothing() -> None:
    """Do nothing."""
