"""The request numbers of one session: which are open, and up to which all are done with.

See docs/reference/specification.md#93-kept-results.
"""

from __future__ import annotations


class RequestNumbers:
    """Hands out 1, 2, 3, … and knows `acknowledged_up_to`: every number at or below it is closed for ever.

    A member forgets kept results at or below what it was told, and never executes such a number again. So a number
    is closed only when nothing will send it any more, however it ended.
    """

    def __init__(self, open_max: int) -> None:
        self._last = 0
        self._floor = 0
        self._closed: set[int] = set()  # Above the floor: an older number is still open.
        self._open_max = open_max

    @property
    def acknowledged_up_to(self) -> int:
        """The greatest number such that it, and all below it, are closed."""
        return self._floor

    @property
    def has_room(self) -> bool:
        """False if a member would have to keep more results above the floor than it agreed to."""
        return self._last - self._floor < self._open_max

    def open(self) -> int:
        """The next number. The caller has checked `has_room`."""
        assert self.has_room, (self._last, self._floor, self._open_max)
        self._last += 1
        return self._last

    def close(self, request_no: int) -> None:
        """Nothing will be sent under this number any more."""
        assert self._floor < request_no <= self._last, (self._floor, request_no, self._last)
        if request_no == self._floor + 1 and not self._closed:
            self._floor = request_no  # Answers mostly come in order.
            return
        assert request_no not in self._closed, request_no
        self._closed.add(request_no)
        while self._floor + 1 in self._closed:
            self._floor += 1
            self._closed.remove(self._floor)
