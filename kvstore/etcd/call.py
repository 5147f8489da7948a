"""One call of a client, which came by gRPC or by the JSON gateway: its messages in both directions, and its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from kvstore.etcd.coroutines import Abort, Mailbox, Resume, RunningHandler, Wait
from kvstore.etcd.errors import EtcdError
from kvstore.etcd.schema import Message, Method

ItemT = TypeVar("ItemT")

REQUEST_BYTES_MAX = 2 * 1024 * 1024
"""The greatest size of one message of a client: etcd's 1.5 MiB, and 512 KiB for what surrounds it."""

STREAM_REQUESTS_MAX = 1_000
"""The greatest number of messages of one stream that wait for its handler. A client that sends more loses the
stream."""

UNSENT_BYTES_MAX = 4 << 20
"""The greatest number of bytes that a stream may keep for a client that does not read. At this bound, the handler waits
for room."""

TURN_SECONDS = 0.25
"""The interval at which deadlines are checked."""

TURNS_PER_TICK = 4
"""A tick is a second."""


class CallHead(NamedTuple):
    """What the headers of a call say."""

    method: Method
    token: str
    timeout_ns: int | None
    needs_leader: bool
    is_packed: bool  # True if messages may be compressed with gzip.


class LongResponse(NamedTuple):
    """A response that was made in parts, because the whole in one step would stop the member for too long. `message`:
    the response without the items of its field `field`. `parts`: these items, as `EtcdCall.encode_items` encodes them.
    """

    message: Message
    field: str
    parts: Sequence[bytes]


class EtcdCall(ABC, Generic[ItemT]):
    """One call. `inbox` gets the messages of the client, and None at their end. Handlers of streams add items of their
    own. `deadline`: monotonic ns; None for a call without a deadline."""

    def __init__(self, method: Method, token: str, deadline: int | None, *, needs_leader: bool = False) -> None:
        self.method, self.token, self.deadline, self.needs_leader = method, token, deadline, needs_leader
        self.inbox: Mailbox[Message | ItemT | None] = Mailbox()
        self.handler: RunningHandler | None = None
        self.is_ended = False
        self.is_long = False  # True if `has_room` asks that the client has read its earlier responses.
        self.wants_ticks = False  # True if `inbox` gets a `Tick` each second.
        self._room: Resume[None] | None = None

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message to the client."""

    @abstractmethod
    def finish(self, error: EtcdError | None) -> None:
        """End the call: with success, or with an error."""

    @property
    @abstractmethod
    def origin(self) -> object:
        """The connection of the call. Calls of one connection share its turns."""

    @abstractmethod
    def answer(self, response: Message | LongResponse) -> None:
        """Send the only message of a response, and end the call."""

    @abstractmethod
    def encode_items(self, message: Message, field: str) -> bytes:
        """Encode a message that has only items of `field`, as a part of a `LongResponse`."""

    @abstractmethod
    def has_room(self) -> bool:
        """False while the client leaves too many bytes of this call unread."""

    def room(self) -> Wait[None]:
        """Wait until `has_room` is true."""
        return Wait(self._begin)

    def note_room(self) -> None:
        """Let the handler continue, because the client has read something."""
        if self._room is not None and self.has_room():
            waiting, self._room = self._room, None
            waiting.value(None)

    def cancel(self) -> None:
        """End the handler, because the client has abandoned the call."""
        self.is_ended = True
        if self.handler is not None:
            self.handler.cancel()

    def _begin(self, resume: Resume[None]) -> Abort:
        if self.has_room():
            resume.value(None)
        else:
            self._room = resume
        return self._forget

    def _forget(self) -> None:
        self._room = None


def token_of(header: bytes) -> str:
    """Return the token of a call from its header: etcd's clients send the bare token, others `Bearer` before it."""
    return header.decode("latin-1").removeprefix("Bearer ")


_UNITS_NS = {b"H": 3_600_000_000_000, b"M": 60_000_000_000, b"S": 1_000_000_000, b"m": 1_000_000, b"u": 1_000, b"n": 1}


def timeout_of(timeout: bytes | None) -> int | None:
    """Return the time that a call may take, in ns, from its `grpc-timeout`; None for a call without one. Raises
    ValueError."""
    if timeout is None:
        return None
    if not 2 <= len(timeout) <= 9 or timeout[-1:] not in _UNITS_NS or not timeout[:-1].isdigit():
        raise ValueError(f"invalid grpc-timeout: {timeout.decode('latin-1')}")
    return int(timeout[:-1]) * _UNITS_NS[timeout[-1:]]
