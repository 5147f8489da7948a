"""Compares how long owners rely on their leases and locks with the real ends of the leases.

The replay determines the end of each lease. The owner counts the time to live by its own clock, from the moment at
which it *sent* the last answered renewal, and subtracts the possible drift of two clocks. The times are compared only
if the drift of all clocks is within its bound.

See docs/concepts/leases.md#what-a-lease-promises and docs/concepts/locks.md#what-a-lock-promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.sim.checks.store.replay import EndedLease, StoreReplay
from harness.sim.engine.errors import broken, require

NOT_TOO_EARLY = "a lease never ends while its owner may believe in it"
NOTHING_LEFT = "a key of a lease that has ended cannot be read"
NO_LATE_RENEWAL = "a lease that has ended is never renewed"
FIRST_OWNS = "the owner of a lock is the first of its line"
FENCES_RISE = "the fence of a name only rises"
ONE_OWNER = "at most one program believes that it holds a lock"
GUARDED = "a guarded write of a program that has lost its lock is refused"

DRIFT_SHARE_MAX = 0.02
"""The share of the time to live that an owner does not rely on, because two clocks may drift by 1 % each."""

LEASE_DIGITS = 16
"""The number of digits of the lease id in the key of a contender."""


@dataclass(slots=True)
class Term:
    """A lease as its owner knows it. Times are in ns of the owner's clock, which `now` reads."""

    lease_id: int
    ttl_ns: int
    expires_at: int
    now: Callable[[], int]

    @property
    def is_believed(self) -> bool:
        """True while the owner may believe that the lease has not ended."""
        return self.now() < self.expires_at

    def renewed(self, sent_at: int) -> None:
        """Record the answer to the renewal that was sent at `sent_at`."""
        self.expires_at = max(self.expires_at, safe_end(sent_at, self.ttl_ns))


def safe_end(sent_at: int, ttl_ns: int) -> int:
    """Return the time up to which a lease certainly exists after a grant or renewal that was requested at `sent_at`."""
    return sent_at + int(ttl_ns * (1 - DRIFT_SHARE_MAX))


@dataclass(slots=True)
class Holding:
    """A lock that a program has obtained. The program may believe that it holds the lock while `term.is_believed`."""

    name: bytes
    key: bytes
    fence: int
    term: Term


class LeaseChecker:
    """Checks the leases and locks of a run. `trusts_clocks`: True if the drift of all clocks is within its bound.

    `cover` is called with coverage points. `replay` reports the ends of leases to `ended`.
    """

    def __init__(self, cover: Callable[[str], None], *, trusts_clocks: bool) -> None:
        self._cover, self._trusts_clocks = cover, trusts_clocks
        self.replay: StoreReplay
        self._terms: dict[int, Term] = {}
        self._ended: dict[int, EndedLease] = {}
        self._holdings: dict[bytes, list[Holding]] = {}
        self._owned: dict[bytes, int] = {}  # The fence of the first owner of each lock, by name.
        self._fences: dict[bytes, int] = {}  # The greatest fence that was first in the line of each lock, by name.
        self._followed = 0  # The revision up to which the lines are checked.

    # Leases.

    def granted(self, term: Term) -> None:
        """Record a lease whose owner has learned that it was granted."""
        self._terms[term.lease_id] = term
        self._check_belief(term)

    def ended(self, lease: EndedLease) -> None:
        """Check the end of a lease, which the first member has just applied."""
        self._ended[lease.lease_id] = lease
        self._cover("a lease expired" if lease.is_expired else "a lease was revoked")
        term = self._terms.get(lease.lease_id)
        if term is not None:
            self._check_belief(term)

    def _check_belief(self, term: Term) -> None:
        """Check that the owner of an expired lease no longer relies on it, unless a clock exceeds its drift bound."""
        lease = self._ended.get(term.lease_id)
        if lease is None or not lease.is_expired or not self._trusts_clocks:
            return
        self._cover("a lease expired by clocks that keep to their bound")
        if term.is_believed:
            words = f"at {term.now()} of its owner's clock, who believes in it until {term.expires_at}"
            broken(NOT_TOO_EARLY, f"{lease} has ended {words}")

    def has_ended(self, lease_id: int) -> bool:
        """True if some member has applied the end of this lease."""
        return lease_id in self._ended

    def renewal_answered(self, term: Term, ttl_ns: int, sent_at: int, *, had_ended: bool) -> None:
        """Check the answer to a renewal that was sent at `sent_at` (ns of the owner's clock). `ttl_ns` is 0 if the
        answer says that there is no such lease. `had_ended`: True if the lease had ended when the renewal was sent."""
        lease_id = term.lease_id
        if ttl_ns:
            require(not had_ended, NO_LATE_RENEWAL, f"lease {lease_id}, which ended as {self._ended.get(lease_id)}")
            term.renewed(sent_at)
            self._check_belief(term)
        else:
            require(lease_id in self._ended, NO_LATE_RENEWAL, f"lease {lease_id} has not ended, and was not renewed")
            self._cover("a renewal came after the end of its lease")

    def read(self, revision: int, keys: Sequence[tuple[bytes, int]]) -> None:
        """Check that no record that was read at a revision belongs to a lease that had ended by this revision.

        `keys`: (key, lease id) of each record.
        """
        for key, lease_id in keys:
            end = self._ended.get(lease_id)
            if end is not None and end.revision <= revision:
                broken(NOTHING_LEFT, f"{key!r} was read at {revision}, lease {lease_id} ended as {end}")

    # Locks.

    def obtained(self, holding: Holding, revision: int) -> None:
        """Check that a program is the first in the line, as an answer at `revision` has stated."""
        line = self.line_at(holding.name, revision)
        first = min(line, key=lambda row: row[1][1], default=None)
        require(
            first is not None and (first[0], first[1][1]) == (holding.key, holding.fence),
            FIRST_OWNS,
            f"{holding} at {revision}; the line is {line}",
        )
        others = self._holdings.setdefault(holding.name, [])
        if self._trusts_clocks:
            for other in others:
                if other.term.is_believed:
                    broken(ONE_OWNER, f"{holding} has obtained the lock, and {other} still believes in its own")
        if self._owned.setdefault(holding.name, holding.fence) != holding.fence:
            self._cover("a lock passed on")
        others.append(holding)

    def released(self, holding: Holding) -> None:
        """Record that a program no longer believes that it holds a lock."""
        self._holdings[holding.name].remove(holding)

    def line_at(self, name: bytes, revision: int) -> list[tuple[bytes, Any]]:
        """Return the keys of the contenders for a name, with their records, at a revision."""
        start, size = name + b"/", len(name) + 1 + LEASE_DIGITS
        rows = self.replay.state_at(start, name + b"0", revision)
        return [(key, record) for key, record in rows if len(key) == size]

    def follow(self, names: Sequence[bytes]) -> None:
        """Check, up to the newest revision, that the first fence in the line of each of these names never falls."""
        for revision in range(self._followed + 1, self.replay.revision + 1):
            for name in names:
                if any(event.key.startswith(name + b"/") for event in self.replay.events(revision)):
                    fence = min((record[1] for _, record in self.line_at(name, revision)), default=0)
                    highest = self._fences.get(name, 0)
                    require(not 0 < fence < highest, FENCES_RISE, f"{name!r}: {fence} at {revision}, after {highest}")
                    self._fences[name] = max(fence, highest)
        self._followed = self.replay.revision

    def guarded(self, holding: Holding, revision: int, *, succeeded: bool) -> None:
        """Check the answer to a guarded write.

        The write must have been carried out if the contender's key existed at the revision of the answer, and otherwise
        refused.
        """
        record = self.replay.record_at(holding.key, revision)
        owns = record is not None and record[1] == holding.fence
        require(succeeded == owns, GUARDED, f"{holding} was answered {succeeded} at {revision}: {record}")
        if not succeeded:
            self._cover("a guarded write was refused")
            if holding.term.lease_id in self._ended and self._ended[holding.term.lease_id].is_expired:
                self._cover("a guarded write was refused after its lease had expired")
