"""The client addresses of the members, and which of them is asked next. Pure: time and randomness come in."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from kvstore.errors import InvalidAddress

MEMBERS_LEARNED_MAX = 16
"""A cluster has at most nine members; a few more are believed, so that a list cannot grow the book without end."""


class AddressBook:
    """All known client addresses. An address that failed is not tried again before its pause is over."""

    def __init__(self, endpoints: Sequence[str], *, random: Random, pause_min_ns: int, pause_max_ns: int) -> None:
        if not endpoints:
            raise InvalidAddress("", "at least one member must be named")
        self._endpoints = list(dict.fromkeys(endpoints))
        self._learned: list[str] = []
        self._random = random
        self._pause_min_ns, self._pause_max_ns = pause_min_ns, pause_max_ns
        self._failures: dict[str, int] = {}  # In a row, since the address last answered.
        self._paused_until: dict[str, int] = {}
        self._silent_until: dict[str, int] = {}
        self._turn = random.randrange(len(self._endpoints))
        self._hint: str | None = None

    @property
    def addresses(self) -> list[str]:
        """Given endpoints first, then what members told, without repeats."""
        return list(dict.fromkeys([*self._endpoints, *self._learned]))

    def learn(self, addresses: Sequence[str]) -> None:
        """A member listed these client addresses; they replace what was learned before."""
        self._learned = [address for address in addresses if address][:MEMBERS_LEARNED_MAX]
        kept = set(self.addresses)
        for book in (self._failures, self._paused_until, self._silent_until):
            for address in set(book) - kept:
                del book[address]

    def suggest(self, address: str | None) -> None:
        """A member said who leads: that address is next, unless it was silent."""
        self._hint = address or None

    def silent(self, address: str, until: int) -> None:
        """It takes connections and answers nothing (paused, or cut off): leave it alone even if others name it."""
        self._silent_until[address] = until

    def failed(self, address: str, now: int) -> None:
        """No connection, or no answer: leave it alone for a while, longer each time, never in step with others."""
        failures = min(self._failures.get(address, 0) + 1, 20)
        self._failures[address] = failures
        pause = min(self._pause_max_ns, self._pause_min_ns << (failures - 1))
        self._paused_until[address] = now + pause // 2 + self._random.randrange(pause // 2 + 1)

    def may_follow(self, address: str, now: int) -> bool:
        """May it be asked because somebody names it? One that refused a moment ago may be back; a silent one costs."""
        return self._silent_until.get(address, 0) <= now

    def _may_try(self, address: str, now: int) -> bool:
        return max(self._paused_until.get(address, 0), self._silent_until.get(address, 0)) <= now

    def answered(self, address: str) -> None:
        """It works: forget its failures."""
        self._failures.pop(address, None)
        self._paused_until.pop(address, None)
        self._silent_until.pop(address, None)

    def next_candidate(self, now: int) -> str | None:
        """The leader somebody named, else the next in turn; None if all are paused (until `earliest()`)."""
        hint, self._hint = self._hint, None
        if hint is not None and self.may_follow(hint, now):
            return hint
        addresses = self.addresses
        for _ in addresses:
            self._turn = (self._turn + 1) % len(addresses)
            address = addresses[self._turn]
            if self._may_try(address, now):
                return address
        return None

    def earliest(self) -> int:
        """When the first paused address may be tried again."""
        paused, silent = self._paused_until, self._silent_until
        return min(max(paused.get(address, 0), silent.get(address, 0)) for address in self.addresses)
