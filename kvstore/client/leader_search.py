"""The search for the leader. The client is connected to the leader, or, while no leader is known, to the member that it
asks for the leader."""

from __future__ import annotations

from random import Random

from kvstore.client.address_book import AddressBook
from kvstore.client.client_limits import ClientLimits
from kvstore.client.member_connection import MemberConnection


class LeaderSearch:
    """Asks at most one member at a time (`probe`) which member leads. `leader` is used until this member denies that it
    leads, or its connection is lost."""

    def __init__(self, book: AddressBook, random: Random, limits: ClientLimits) -> None:
        self.leader: MemberConnection | None = None
        self.probe: MemberConnection | None = None
        self.not_before = 0
        self._known_since: int | None = None  # When the members were last requested; None: the leader was just found.
        self._rounds = 0  # The number of consecutive pauses without a leader.
        self._followed: set[str] = set()  # Reported leader addresses that were tried since the last pause.
        self._book, self._random = book, random
        self._members_refresh_ns = limits.members_refresh_ns
        self._pause_min_ns, self._pause_max_ns = limits.pause_min_ns, limits.search_pause_max_ns

    def found(self, connection: MemberConnection) -> None:
        """Note that the member of `connection` reports itself as the leader."""
        self.leader, self._known_since = connection, None
        if self.probe is connection:
            self.probe = None

    def confirmed(self) -> None:
        """Note that the leader has carried out a request, which ends the search."""
        self._rounds = 0

    def on_not_leader(self, connection: MemberConnection, leader_address: str | None, now: int) -> None:
        """Note that the member of `connection` does not lead. This has an effect only if the connection is the `leader`
        or the `probe`."""
        if connection is not self.leader and connection is not self.probe:
            return
        self._forget(connection)
        if leader_address and leader_address not in self._followed and self._book.may_follow(leader_address, now):
            # If two members report each other as the leader, each is asked only once before a pause.
            self._followed.add(leader_address)
            self._book.suggest(leader_address)
            self.not_before = now
            return
        self._followed.clear()
        self._rounds = min(self._rounds + 1, 20)
        pause = min(self._pause_max_ns, self._pause_min_ns << self._rounds - 1)
        self.not_before = now + pause // 2 + self._random.randrange(pause // 2 + 1)

    def lost(self, connection: MemberConnection, now: int) -> None:
        """Note that `connection` has ended. Another member may be asked at once."""
        if connection is self.leader or connection is self.probe:
            self._forget(connection)
            self.not_before = now

    def membership_is_stale(self, now: int) -> bool:
        """True once per `members_refresh_ns`. The members may have changed, so the caller asks the leader for them."""
        if self._known_since is None:
            self._known_since = now
        if now - self._known_since < self._members_refresh_ns:
            return False
        self._known_since = now
        return True

    def next_address(self, now: int) -> str | None:
        """The address to ask now; None if no address may be asked before `next_moment`."""
        assert self.probe is None, self.probe
        return self._book.next_candidate(now) if now >= self.not_before else None

    def next_moment(self, now: int) -> int:
        """The earliest time at which `next_address` returns an address."""
        return max(self.not_before, self._book.earliest(), now)

    def _forget(self, connection: MemberConnection) -> None:
        if self.leader is connection:
            self.leader = None
        if self.probe is connection:
            self.probe = None
