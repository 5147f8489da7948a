"""Responses that wait until the client opens its windows: the part of `HttpConnection` that is the same in each
implementation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from kvstore.etcd.http2.connection import Headers, HttpBounds, HttpEvent, WindowOpened
from kvstore.etcd.http2.floods import FloodCount

FRAME_BYTES_MAX = 16_384
"""The size of the frames of all peers that have not asked for another one."""

STEP_BYTES_MAX = 1 << 20
"""The bytes of waiting responses that are written in one step. Other tasks of the member run between two steps."""

_TINY_FRAME_BYTES = 512


class _Outgoing:
    """The rest of a response that waits for the window of the client."""

    __slots__ = ("data", "has_moved", "size", "still_since", "trailers")

    def __init__(self) -> None:
        self.data: deque[memoryview] = deque()  # Views, because a rest that is copied for each frame costs O(size²).
        self.size = 0
        self.trailers: Headers | None = None
        self.has_moved = True  # True if something was sent since the last check.
        self.still_since = 0  # The time of the last check before which something was sent.


class OutputQueues(ABC):
    """The responses of one connection, in streams. An implementation says what the windows allow, and writes frames."""

    def __init__(self, bounds: HttpBounds) -> None:
        self._bounds, self._floods = bounds, FloodCount(bounds)
        self._waiting: dict[int, _Outgoing] = {}
        self._waiting_bytes = 0
        self._has_opened = False  # True if the client has opened a window since the last flush.
        self._step_bytes = 0  # The bytes of waiting responses that were written since the last output was taken.
        self._is_cut = False  # True if a step has ended before the windows were used up.
        self._ready: dict[int, None] = {}  # The streams that such a step has left, in the order of their turns.
        self._is_over = False
        self._pause = 0.0  # The seconds for which the host should read nothing more.

    @abstractmethod
    def _has_stream(self, stream_id: int) -> bool:
        """True if a response may be sent on a stream."""

    @abstractmethod
    def _room(self, stream_id: int) -> int:
        """The number of bytes that the windows of the client allow."""

    @abstractmethod
    def _write_headers(self, stream_id: int, headers: Headers, *, is_last: bool) -> None:
        """Write a frame with headers. A stream with `is_last` has ended."""

    @abstractmethod
    def _write_data(self, stream_id: int, data: bytes) -> None:
        """Write one frame of data, for which there is room."""

    def send_headers(self, stream_id: int, headers: Headers, *, is_last: bool = False) -> None:
        """Send the headers of a response, or its trailers after all data. `is_last`: the response ends with them."""
        if self._is_over or not self._has_stream(stream_id):
            return
        waiting = self._waiting.get(stream_id)
        if waiting is not None:
            waiting.trailers = headers
            return
        self._floods.messages += is_last
        self._write_headers(stream_id, headers, is_last=is_last)

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send a part of the body of a response. It waits for the window of the client."""
        if self._is_over or not self._has_stream(stream_id):
            return
        self._floods.messages += 1
        waiting = self._waiting.get(stream_id)
        if waiting is None:
            if len(data) <= min(FRAME_BYTES_MAX, self._room(stream_id)):
                self._write_data(stream_id, data)
                return
            waiting = self._waiting[stream_id] = _Outgoing()
        waiting.data.append(memoryview(data))
        waiting.size += len(data)
        self._waiting_bytes += len(data)
        while self._send_frame(stream_id, []):  # All other streams that wait still have no room.
            if self._step_bytes >= STEP_BYTES_MAX:
                self._is_cut = True
                self._ready[stream_id] = None
                break

    def send_response(self, stream_id: int, headers: Headers, data: bytes, trailers: Headers) -> None:
        """Send a whole response."""
        self.send_headers(stream_id, headers)
        self.send_data(stream_id, data)
        self.send_headers(stream_id, trailers, is_last=True)

    def send_more(self) -> list[HttpEvent]:
        """Write the next step of the responses that wait, as far as the windows allow."""
        found: list[HttpEvent] = []
        if self._waiting:
            self._flush(found)
        return found

    @property
    def has_more(self) -> bool:
        """True if `send_more` may write something although the client has sent nothing."""
        return self._is_cut

    def still_streams(self, now: int, ns: int) -> list[int]:
        """The streams with a response of which nothing was sent for `ns`. Has to be called regularly."""
        found: list[int] = []
        for stream_id, waiting in self._waiting.items():
            if waiting.has_moved:
                waiting.has_moved, waiting.still_since = False, now
            elif now - waiting.still_since > ns:
                found.append(stream_id)
        return found

    @property
    def has_room(self) -> bool:
        """False while too many bytes of all streams wait for the windows of the client."""
        return self._waiting_bytes < self._bounds.unsent_bytes_max

    @property
    def waiting_bytes(self) -> int:
        """The bytes of all streams that wait for the windows of the client."""
        return self._waiting_bytes

    def take_pause(self) -> float:
        """The seconds for which the host should read nothing more, because of what the client has just sent."""
        pause, self._pause = self._pause, 0.0
        return pause

    def unsent_bytes(self, stream_id: int) -> int:
        """The bytes of a stream that wait for the window of the client."""
        waiting = self._waiting.get(stream_id)
        return 0 if waiting is None else waiting.size

    def _discard(self, stream_id: int) -> None:
        """Forget the rest of a response."""
        waiting = self._waiting.pop(stream_id, None)
        if waiting is not None:
            self._waiting_bytes -= waiting.size

    def _end_output(self) -> None:
        """The connection is over: forget what waits, which may be much."""
        self._is_over = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._is_cut = False

    def _flush(self, found: list[HttpEvent]) -> None:
        """Send what the windows and this step allow, one frame of each stream in turn. Cost: O(waiting streams +
        frames)."""
        ready = list(self._ready if self._is_cut and not self._has_opened else self._waiting)
        self._has_opened = self._is_cut = False
        self._ready = {}
        while ready and not self._is_over:
            following: list[int] = []
            for place, stream_id in enumerate(ready):
                if self._step_bytes >= STEP_BYTES_MAX:
                    self._is_cut = True
                    self._ready = dict.fromkeys((*ready[place:], *following))
                    return
                if self._send_frame(stream_id, found):
                    following.append(stream_id)
            ready = following

    def _send_frame(self, stream_id: int, found: list[HttpEvent]) -> bool:
        """Send one frame of a stream. Returns False if the window is closed."""
        waiting = self._waiting.get(stream_id)
        if waiting is None:  # The stream was lost while another one was served.
            return False
        if waiting.data:
            room = min(FRAME_BYTES_MAX, self._room(stream_id))
            if room <= 0:
                return False
            data = waiting.data.popleft()
            if len(data) > room:
                waiting.data.appendleft(data[room:])
                data = data[:room]
            if waiting.data and len(data) < _TINY_FRAME_BYTES:
                self._floods.controls += 1
            else:
                self._floods.messages += 1
            waiting.size -= len(data)
            waiting.has_moved = True
            self._waiting_bytes -= len(data)
            self._step_bytes += len(data)
            self._waiting[stream_id] = self._waiting.pop(stream_id)  # The next step begins with another stream.
            self._write_data(stream_id, bytes(data))
        if not waiting.data and self._waiting.pop(stream_id, None) is not None:
            if waiting.trailers is not None:
                self.send_headers(stream_id, waiting.trailers, is_last=True)
            else:
                found.append(WindowOpened(stream_id))
        return True
