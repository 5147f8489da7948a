"""The pace of one connection: how many requests of its Watch streams are taken up in a time.

To create or to cancel a watch costs a member many times what it costs the client that asks for it. Requests beyond the
pace wait, and do not fail.
"""

from __future__ import annotations

WATCH_REQUESTS_PER_SECOND = 1_000
"""The requests of Watch streams that are taken up per second from one connection: a client that lost its connection has
a thousand watches again after a second."""

WATCH_REQUESTS_AT_ONCE = 50
"""The requests that are taken up at once after a rest. They take about one slice of work."""


JSON_REQUESTS_PER_SECOND, JSON_REQUESTS_AT_ONCE = 200, 10
"""The same for the JSON gateway, where a request costs more, and where a stream usually has one."""


class RequestPace:
    """Counts the requests that a connection may make at present."""

    __slots__ = ("_allowed", "_at_once", "_counted_at", "_per_second")

    def __init__(self, per_second: int = WATCH_REQUESTS_PER_SECOND, at_once: int = WATCH_REQUESTS_AT_ONCE) -> None:
        self._per_second, self._at_once = per_second, float(at_once)
        self._allowed = self._at_once
        self._counted_at = 0  # Monotonic ns.

    def allows(self, now: int) -> bool:
        """True if a request may be taken up. `now`: monotonic ns."""
        if now > self._counted_at:
            gained = (now - self._counted_at) * self._per_second / 1e9
            self._allowed = min(self._at_once, self._allowed + gained)
            self._counted_at = now
        return self._allowed >= 1

    def count(self) -> None:
        """Count a request that is taken up."""
        self._allowed -= 1
