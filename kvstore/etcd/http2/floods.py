"""Counts what a client of HTTP/2 sends that carries no call, so that a flood ends its connection."""

from __future__ import annotations

from kvstore.etcd.http2.connection import CONTROLS_PER_MESSAGE, HttpBounds

_RESET_SECONDS, _CONTROL_SECONDS = 0.005, 0.0005  # The pause for each abandoned call, and each frame without use.

_STREAMS_PER_CONTROL = 50  # To change the windows of so many streams takes about as long as any frame without use.


class FloodCount:
    """The counts of one connection since the beginning of the present interval. `controls`: frames without use.
    `resets`: streams that the client has abandoned early. `messages`: requests, messages sent to the client, and frames
    of messages."""

    __slots__ = ("_began", "_bounds", "_controls_before", "_resets_before", "controls", "messages", "now", "resets")

    def __init__(self, bounds: HttpBounds) -> None:
        self._bounds = bounds
        self._began = self.now = 0  # Monotonic ns.
        self.controls = self.resets = self.messages = 0
        self._controls_before = self._resets_before = 0

    def begin(self, now: int) -> None:
        """Begin to count received bytes. A new interval begins when the present one is over."""
        if now - self._began > self._bounds.control_window_ns:
            self._began, self.controls, self.resets, self.messages = now, 0, 0, 0
        self._controls_before, self._resets_before = self.controls, self.resets
        self.now = now

    def note_reset(self, began: int) -> None:
        """Count a stream that has begun at this time and was reset without a response. Many calls may meet their
        deadlines together, and their client abandons all of them."""
        self.resets += self.now - began < self._bounds.early_reset_ns

    def note_window(self, streams: int) -> None:
        """Count a frame of settings, counted already as one frame without use, that has changed the windows of so many
        open streams."""
        self.controls += max(0, streams // _STREAMS_PER_CONTROL - 1)

    @property
    def is_too_much(self) -> bool:
        """True if the connection has to end."""
        bounds = self._bounds
        controls_max = bounds.control_frames_max + CONTROLS_PER_MESSAGE * self.messages
        return self.resets > bounds.resets_max or self.controls > controls_max

    @property
    def reason(self) -> str:
        """Why the connection ends."""
        return f"the client has caused {self.resets} resets and {self.controls} control frames in a short time"

    @property
    def pause(self) -> float:
        """The seconds for which the host should read nothing more, because of what came since `begin`."""
        pause = _RESET_SECONDS * (self.resets - self._resets_before)
        excess = self.controls - CONTROLS_PER_MESSAGE * self.messages - self._bounds.control_frames_max // 10
        if excess > 0:
            pause += _CONTROL_SECONDS * min(excess, self.controls - self._controls_before)
        return pause
