"""Bounds on the work that ranges make for one member, so that other calls and the consensus of the members go first.

A range waits here before each of its pages. Ranges that wait are admitted in turns of their connections, so a client
with many ranges delays only its own. All handlers run in one thread, so nothing here needs a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvstore.etcd.coroutines import Abort, Resume, Wait

PAGES_AT_ONCE = 8
"""The greatest number of pages that are read at the same time. The store takes a client with more for a flood, and
serves it more slowly."""

LONG_RANGES_AT_ONCE = 1
"""The greatest number of ranges with several pages whose responses are made at the same time: each of them may hold
`RANGE_BYTES_MAX`, and several would not be done earlier than one after the other."""

PAGE_ITEMS_MAX = 1_000
"""The greatest number of items of one page. A page is made in one step: 1,000 small items take about 5 ms."""

COST_PER_SECOND = 64 << 20
"""The bytes of pages that are read per second while there is no allowance. 1 MiB of long values takes some 5 ms, so
this is a third of the member's time."""

ALLOWANCE = 64 << 20
"""The bytes of pages that may be read before `COST_PER_SECOND` applies: a long range now and then does not wait."""

ITEM_COST = 1_024
"""What an item costs besides its bytes."""


class _Waiting:
    """A handler that waits. `resume` is None once it is admitted, or has ended."""

    __slots__ = ("resume",)

    def __init__(self, resume: Resume[None]) -> None:
        self.resume: Resume[None] | None = resume


class TurnGate:
    """Admits handlers while `is_open(inside)` says so; `inside`: the number of handlers that are in."""

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        self._is_open = is_open
        self._waiting: dict[object, deque[_Waiting]] = {}  # By origin, in the order of their turns.
        self._inside = 0
        self._is_admitting = False

    @property
    def has_waiting(self) -> bool:
        """True if a handler waits."""
        return bool(self._waiting)

    def place(self, origin: object) -> TurnPlace:
        """A place for the block of an `async with`. `origin`: the connection whose turns the handler shares."""
        return TurnPlace(self, origin)

    def enter(self, origin: object) -> Wait[None]:
        """Wait for a place."""

        def begin(resume: Resume[None]) -> Abort:
            waiting = _Waiting(resume)
            self._waiting.setdefault(origin, deque()).append(waiting)
            self.admit()

            def abort() -> None:
                if waiting.resume is None:
                    self.leave()  # The handler was cancelled before it could take its place.
                else:
                    waiting.resume = None

            return abort

        return Wait(begin)

    def leave(self) -> None:
        """Give a place back."""
        self._inside -= 1
        self.admit()

    def admit(self) -> None:
        """Admit those that wait, as far as the gate is open."""
        if self._is_admitting:  # A handler that was admitted has left again: the loop below goes on.
            return
        self._is_admitting = True
        try:
            while self._waiting and self._is_open(self._inside):
                origin = next(iter(self._waiting))
                queue = self._waiting.pop(origin)
                waiting = queue.popleft()
                if queue:
                    self._waiting[origin] = queue
                if waiting.resume is not None:
                    self._inside += 1
                    resume, waiting.resume = waiting.resume, None
                    resume.value(None)
        finally:
            self._is_admitting = False


class TurnPlace:
    """A place in a gate, which the end of the block gives back."""

    __slots__ = ("_gate", "_origin")

    def __init__(self, gate: TurnGate, origin: object) -> None:
        self._gate, self._origin = gate, origin

    async def __aenter__(self) -> None:
        await self._gate.enter(self._origin)

    async def __aexit__(self, *_: object) -> None:
        self._gate.leave()


class RangeGate:
    """The gates of one port. `pages`: before each page of a range. `long_ranges`: before the second page, for the whole
    rest of a range. `now`: monotonic ns.

    The host calls `admit` when `opens_in` has passed; `note_wait` tells it that somebody waits for this.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._allowance = float(ALLOWANCE)
        self._paid_at = now()
        self._turns: deque[Resume[None]] = deque()
        self.note_wait: Callable[[], None] = _nothing
        self.pages = TurnGate(self._has_room_for_a_page)
        self.long_ranges = TurnGate(lambda inside: inside < LONG_RANGES_AT_ONCE)

    def charge(self, cost: int) -> None:
        """Note the cost of a page that was read."""
        self._allowance = self._present() - cost

    def turn(self) -> Wait[None]:
        """Wait until other tasks of the member have run."""

        def begin(resume: Resume[None]) -> Abort:
            self._turns.append(resume)
            self.note_wait()
            return _nothing  # A handler that has ended is not resumed.

        return Wait(begin)

    @property
    def opens_in(self) -> float | None:
        """The seconds until `admit` has something to do; None if nobody waits for this."""
        if self._turns:
            return 0.0
        allowance = self._present()
        return -allowance / COST_PER_SECOND if self.pages.has_waiting and allowance < 0 else None

    def admit(self) -> None:
        """Let a handler that waits for a turn go on, and admit those that wait for a page."""
        if self._turns:
            self._turns.popleft().value(None)
        self.pages.admit()

    def _present(self) -> float:
        now = self._now()
        self._allowance = min(float(ALLOWANCE), self._allowance + (now - self._paid_at) * COST_PER_SECOND / 1e9)
        self._paid_at = now
        return self._allowance

    def _has_room_for_a_page(self, inside: int) -> bool:
        allowance = self._present()
        if allowance < 0:
            if not inside:
                self.note_wait()
            return False
        # With little left, pages come one by one: the cost of a page is known only once it was read.
        return inside < (PAGES_AT_ONCE if allowance > ALLOWANCE / 2 else 1)


def _nothing() -> None:
    """Do nothing."""
