"""The client addresses of the members, and the choice of the next member to ask. Callers pass in time and
randomness."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Any

from kvstore.errors import InvalidAddress

ADDRESSES_REPORTED_MAX = 5
REPORTED_CHARACTERS_MAX = 200
"""How many addresses an error shows, and how many characters of what each of them said. A member may send a long
text."""

MEMBERS_LEARNED_MAX = 16
"""The greatest number of learned addresses that are stored. A cluster has at most nine members. The bound limits the
harm of a wrong list."""


class AddressBook:
    """All known client addresses. An address that failed is not tried again before its pause is over, unless a member
    reports it as the leader's."""

    def __init__(self, endpoints: Sequence[str], *, random: Random, pause_min_ns: int, pause_max_ns: int) -> None:
        if not endpoints:
            raise InvalidAddress("", "at least one member must be named")
        self._endpoints = list(dict.fromkeys(endpoints))
        self._learned: list[str] = []
        self._random = random
        self._pause_min_ns, self._pause_max_ns = pause_min_ns, pause_max_ns
        self._failures: dict[str, int] = {}  # Consecutive failures since the last answer.
        self._paused_until: dict[str, int] = {}
        self._silent_until: dict[str, int] = {}
        self._said: dict[str, str] = {}  # By address: the last response, or the last error.
        self._turn = random.randrange(len(self._endpoints))
        self._hint: str | None = None

    @property
    def addresses(self) -> list[str]:
        """All addresses, without repeats: first the given endpoints, then those that members reported."""
        return list(dict.fromkeys([*self._endpoints, *self._learned]))

    def learn(self, addresses: Sequence[str]) -> None:
        """Store the client addresses that a member listed. They replace the addresses learned before."""
        self._learned = [address for address in addresses if address][:MEMBERS_LEARNED_MAX]
        kept = set(self.addresses)
        books: tuple[dict[str, Any], ...] = (self._failures, self._paused_until, self._silent_until, self._said)
        for book in books:
            for address in set(book) - kept:
                del book[address]

    def said(self, address: str, words: str) -> None:
        """Store what was last heard from `address`, or why nothing was heard."""
        if address in self.addresses:
            self._said[address] = words

    def report(self, dialed: Collection[str]) -> str:
        """Describe which addresses were tried, and what each of them said last; empty if only one address is known.

        `dialed`: the addresses with a connection, or with an attempt to make one.
        """
        addresses = self.addresses
        if len(addresses) == 1:
            return ""
        tried = [address for address in addresses if address in self._said or address in dialed]
        parts = [self._report_of(address) for address in tried[:ADDRESSES_REPORTED_MAX]]
        if len(tried) > len(parts):
            parts.append(f"and {len(tried) - len(parts)} more")
        untried = len(addresses) - len(tried)
        count = (
            f"{len(tried)} of {len(addresses)} addresses were tried"
            if untried
            else f"{len(tried)} addresses were tried"
        )
        return f"{count}: {'; '.join(parts)}" if tried else count

    def _report_of(self, address: str) -> str:
        words = self._said.get(address, "no answer yet")
        words = words if words.startswith(address) else f"{address}: {words}"
        return words if len(words) <= REPORTED_CHARACTERS_MAX else f"{words[:REPORTED_CHARACTERS_MAX]}…"

    def suggest(self, address: str | None) -> None:
        """Make `address`, which a member reported as the leader's, the next candidate. However, an address that was
        marked by `silent` is still not asked."""
        self._hint = address or None

    def silent(self, address: str, until: int) -> None:
        """Do not ask `address` before the time `until`, even if members report it as the address of the leader. A
        member at this address accepts connections but does not answer."""
        self._silent_until[address] = until

    def failed(self, address: str, now: int) -> None:
        """Do not ask `address` for a while, because it could not be reached, or its connection broke.

        The pause grows with each consecutive failure. It is partly random, so that clients do not retry at the same
        time.
        """
        failures = min(self._failures.get(address, 0) + 1, 20)
        self._failures[address] = failures
        pause = min(self._pause_max_ns, self._pause_min_ns << (failures - 1))
        self._paused_until[address] = now + pause // 2 + self._random.randrange(pause // 2 + 1)

    def may_follow(self, address: str, now: int) -> bool:
        """True if `address` may be asked when a member reports it as the address of the leader.

        An address whose connection failed may be asked, because the member may be back. A silent address may not be
        asked, because an attempt would cost a time-out.
        """
        return self._silent_until.get(address, 0) <= now

    def _may_try(self, address: str, now: int) -> bool:
        return max(self._paused_until.get(address, 0), self._silent_until.get(address, 0)) <= now

    def answered(self, address: str) -> None:
        """Forget the failures of `address`, because it has answered."""
        self._failures.pop(address, None)
        self._paused_until.pop(address, None)
        self._silent_until.pop(address, None)

    def next_candidate(self, now: int) -> str | None:
        """The address to ask next: the reported address of the leader, or else the next address in turn. None if all
        addresses are paused. In this case `earliest` returns the time at which the first pause is over."""
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
        """The earliest time at which some address may be tried."""
        paused, silent = self._paused_until, self._silent_until
        return min(max(paused.get(address, 0), silent.get(address, 0)) for address in self.addresses)
