"""A program that keeps keys under a lease, and renews, revokes, loses or abandons the lease, or pauses."""

from __future__ import annotations

from random import Random

from harness.sim.checks.store.leases import Term, safe_end
from harness.sim.load.client import SimClient
from harness.sim.load.coordination_program import PREFIX, SHARED_KEYS, Coordination, SequentialProgram
from kvstore import (
    Append,
    Command,
    Consistency,
    Delete,
    Get,
    LeaseGrant,
    LeaseGranted,
    LeaseNotFound,
    LeaseRenew,
    LeaseRevoke,
    LeasesRenewed,
    Put,
    Range,
    Result,
    StoreError,
)

RENEWALS_PER_TERM = 3
"""A lease is renewed this many times in its time to live."""

PAUSE_TERMS_MAX = 2.0
"""The longest pause of a program, in multiples of the time to live of its lease."""

_WEIGHTS = {"put": 8, "read": 4, "list": 2, "delete": 1, "append": 2, "detach": 2, "revoke": 1, "leave": 2, "pause": 2}


class LeaseHolder(SequentialProgram):
    """A program that keeps a lease alive.

    `term`: the lease as the program knows it; None if the program believes that it has no lease.
    """

    def __init__(self, parts: Coordination, client: SimClient, number: int, random: Random) -> None:
        super().__init__(parts, client, number, random)
        self.term: Term | None = None
        self._renew_at = 0  # The time of the next renewal, by the client's clock.

    def restart(self) -> None:
        """Forget the lease, which then expires."""
        self.term = None

    def grant(self) -> None:
        """Ask for a lease."""
        sent_at, ttl_ns = self.client.now(), self.parts.plan.lease_ttl_ns

        def granted(result: Result | None, _: StoreError | None) -> None:
            if isinstance(result, LeaseGranted):
                self.term = Term(result.lease_id, result.ttl_ns, safe_end(sent_at, result.ttl_ns), self.client.now)
                self._renew_at = sent_at + ttl_ns // RENEWALS_PER_TERM
                self.parts.leases.granted(self.term)

        self.ask(LeaseGrant(0, ttl_ns), granted)

    def is_renewal_due(self, term: Term) -> bool:
        """True if it is time to renew the lease."""
        return self.client.now() >= self._renew_at and term is self.term

    def renew(self, term: Term) -> None:
        """Renew the lease. If the answer says that the lease no longer exists, forget the lease."""
        sent_at, leases = self.client.now(), self.parts.leases
        had_ended = leases.has_ended(term.lease_id)

        def renewed(result: Result | None, _: StoreError | None) -> None:
            if not isinstance(result, LeasesRenewed):
                self._renew_at = self.client.now() + term.ttl_ns // 10
                return
            (ttl_ns,) = result.ttls_ns
            leases.renewal_answered(term, ttl_ns, sent_at, had_ended=had_ended)
            self._renew_at = sent_at + term.ttl_ns // RENEWALS_PER_TERM
            if not ttl_ns and self.term is term:
                self.lost()

        self.ask(LeaseRenew((term.lease_id,)), renewed)

    def lost(self) -> None:
        """Handle the end of the lease."""
        self.term = None

    def leave(self, term: Term) -> None:
        """Abandon the lease, which is then no longer renewed."""
        self.parts.lease_left(max(1, term.expires_at - self.client.now()))
        self.lost()

    def stand_still(self, term: Term) -> None:
        """Do nothing for a while, and do not renew the lease, which may expire during this time."""
        self.rest(int(term.ttl_ns * PAUSE_TERMS_MAX * self.random.random()))


class LeaseOwner(LeaseHolder):
    """A lease holder that writes keys that only it writes, and keys that other programs also write."""

    def act(self) -> None:
        """Begin the next operation."""
        term = self.term
        if term is None:
            self.grant()
        elif self.is_renewal_due(term):
            self.renew(term)
        else:
            self._use(term, self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0])

    def _use(self, term: Term, what: str) -> None:
        key = self._key()
        match what:
            case "put":
                previous, keeps = self.random.random() < 0.5, self.random.random() < 0.2
                self._write(Put(key, self.value(), 0 if keeps else term.lease_id, previous, keep_lease=keeps))
            case "append":
                self._write(Append(PREFIX + b"own/%d/log/" % self.number, self.value(), term.lease_id))
            case "detach":
                self._write(Put(key, self.value()))
            case "delete":
                self._write(Delete(key))
            case "read":
                ways = (Consistency.LINEARIZABLE, Consistency.LOCAL, Consistency.FOLLOWER)
                self.read(Get(key), self.random.choice(ways), _nothing)
            case "list":
                self.read(Range(PREFIX + b"own/", PREFIX + b"own0"), Consistency.LINEARIZABLE, _nothing)
            case "revoke":
                self.lost()
                self.ask(LeaseRevoke(term.lease_id), _nothing)
            case "leave":
                self.leave(term)
                self.rest()
            case _:
                self.stand_still(term)

    def _key(self) -> bytes:
        own = PREFIX + b"own/%d/%d" % (self.number, self.random.randrange(3))
        return self.random.choice(SHARED_KEYS) if self.random.random() < 0.3 else own

    def _write(self, command: Command) -> None:
        def written(_: Result | None, error: StoreError | None) -> None:
            if isinstance(error, LeaseNotFound):
                self.parts.cover("a put named a lease that has ended")
                self.lost()

        self.ask(command, written)


def _nothing(_: Result | None, __: StoreError | None) -> None:
    """Do nothing with the outcome."""
