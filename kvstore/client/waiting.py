"""Where calls wait: for a connection of the right sort, or for a pause to be over."""

from __future__ import annotations

from collections import deque

from kvstore.client.calls import Call, Timeline


class Line:
    """Calls in order. Ended ones are dropped when they come to the front."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()

    def first(self) -> Call | None:
        """The first call that somebody still waits for."""
        while self._calls and self._calls[0].done:
            self._calls.popleft()
        return self._calls[0] if self._calls else None

    def pop(self) -> Call:
        """Take out what `first` showed."""
        return self._calls.popleft()

    def add(self, call: Call) -> None:
        """At the end."""
        self._calls.append(call)

    def put_back(self, call: Call) -> None:
        """In front: it has had its turn, and comes again before the others."""
        self._calls.appendleft(call)


class WaitingCalls:
    """The calls of a client that are on no connection."""

    def __init__(self) -> None:
        self.commands, self.reads, self.anywhere = Line(), Line(), Line()
        self._paused = Timeline()

    def line_of(self, call: Call) -> Line:
        """Where `call` waits: commands need the leader and a session, reads the leader, the others any member."""
        if call.request.is_command:
            return self.commands
        return self.anywhere if call.request.anywhere else self.reads

    def pause(self, call: Call, until: int) -> None:
        """Keep `call` aside until that moment."""
        self._paused.push(until, call)

    def end_pauses(self, now: int) -> None:
        """Calls whose pause is over come first again."""
        for call in self._paused.pop_due(now):
            self.line_of(call).put_back(call)

    def next_moment(self) -> int | None:
        """When the next pause is over."""
        return self._paused.first_moment()

    def needs_leader(self) -> bool:
        """True if a call waits that only the leader can answer."""
        return self.commands.first() is not None or self.reads.first() is not None
