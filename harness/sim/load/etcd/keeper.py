"""A program that keeps keys under a lease by etcd's API. It renews, revokes or abandons the lease, or pauses.

Its keys are its own, because a lease may delete them at any moment. The replay judges what the program reads.
"""

from __future__ import annotations

from random import Random

from harness.sim.checks.store.leases import Term, safe_end
from harness.sim.engine.clock import Clock
from harness.sim.load.coordination_program import PREFIX
from harness.sim.load.etcd.client import ClientCall, EtcdClient, Failure, Then
from harness.sim.load.etcd.program import COMPACT, DELETE, PUT, RANGE, EtcdParts, EtcdProgram, message_of
from harness.sim.plan.plan import MILLISECOND_NS, SECOND_NS
from kvstore import Put, Range
from kvstore.etcd.hosting import COMPACTED, Message, Status, make

LEASE_GRANT, LEASE_REVOKE = "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Lease/LeaseRevoke"
KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"

TTL_SECONDS = 2
"""The shortest time to live that a port grants."""

RENEWALS_PER_TERM = 4
"""A lease is renewed this many times in its time to live."""

RENEWAL_NS_MAX = 700 * MILLISECOND_NS
"""How long the program waits for the answer to a renewal, before it opens another stream."""

REVISIONS_BACK_MAX = 40
"""How far back the program reads and compacts at most, in revisions."""

OWN_PREFIX = PREFIX + b"etcd/"

_WEIGHTS = {"put": 10, "delete": 1, "list": 3, "old list": 3, "detach": 2, "revoke": 1, "leave": 1, "pause": 1}


class LeaseKeeper(EtcdProgram):
    """One program. `term`: the lease as the program knows it; None if the program believes that it has no lease."""

    def __init__(self, parts: EtcdParts, client: EtcdClient, number: int, random: Random) -> None:
        super().__init__(parts, client, number, random)
        world = parts.world
        self._clock = Clock(world.queue, world.plan.seed, client.name, world.plan.clocks.client_spread)
        self.term: Term | None = None
        self._renew_at = 0  # The time of the next renewal, by the program's clock.
        self._stream: ClientCall | None = None
        self._renewal = 0  # The number of the renewal that waits for its answer; 0 if none does.
        self._last_renewal = 0
        self._sent_at, self._had_ended = 0, False

    def act(self) -> None:
        """Begin the next call."""
        term = self.term
        if term is None:
            self._grant()
        elif self._clock.now() >= self._renew_at and not self._renewal:
            self._renew(term)
        else:
            self.use(term)

    def lost(self) -> None:
        """Forget the lease. It has ended, or the program has stopped renewing it."""
        self.term = None

    def _grant(self) -> None:
        sent_at = self._clock.now()

        def granted(response: Message | None, _: Failure | None) -> None:
            if response is not None:
                ttl_ns = response.TTL * SECOND_NS
                self.term = Term(response.ID, ttl_ns, safe_end(sent_at, ttl_ns), self._clock.now)
                self._renew_at = sent_at + ttl_ns // RENEWALS_PER_TERM
                self.parts.leases.granted(self.term)

        self.ask(LEASE_GRANT, make("LeaseGrantRequest", TTL=TTL_SECONDS), granted)

    # Renewals, on one stream.

    def _renew(self, term: Term) -> None:
        stream = self._stream
        if stream is None or stream.is_over:
            stream = self._stream = self.client.open(KEEP_ALIVE, self._renewed, self._stream_ended)
        self._last_renewal += 1
        self._renewal = self._last_renewal
        self._sent_at, self._had_ended = self._clock.now(), self.parts.leases.has_ended(term.lease_id)
        self._renew_at = self._sent_at + term.ttl_ns // RENEWALS_PER_TERM
        stream.send(make("LeaseKeepAliveRequest", ID=term.lease_id))
        self.parts.world.queue.after(RENEWAL_NS_MAX, self._give_up, self._renewal)
        self.rest()

    def _renewed(self, response: Message) -> None:
        term, self._renewal = self.term, 0
        if term is None or term.lease_id != response.ID:
            return
        self.parts.leases.renewal_answered(term, response.TTL * SECOND_NS, self._sent_at, had_ended=self._had_ended)
        self.parts.cover("an etcd client renewed a lease" if response.TTL else "an etcd client lost a lease")
        if not response.TTL:
            self.lost()

    def _stream_ended(self, _: Failure | None) -> None:
        self._stream, self._renewal = None, 0

    def _give_up(self, renewal: int) -> None:
        if self._renewal == renewal and self._stream is not None:
            self.client.abandon(self._stream)
            self._stream, self._renewal = None, 0
            if self.client.is_connected and self.random.random() < 0.5:
                self.client.leave()

    # Other calls.

    def use(self, term: Term) -> None:
        """Begin the next call with the lease."""
        what = self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        key = OWN_PREFIX + b"%d/%d" % (self.number, self.random.randrange(3))
        match what:
            case "put":
                self._put(Put(key, self.value(), term.lease_id, previous=self.random.random() < 0.5))
            case "detach":
                self._put(Put(key, self.value()))
            case "delete":
                self.ask(DELETE, make("DeleteRangeRequest", key=key), self._deleted(key))
            case "list":
                self._list(Range(OWN_PREFIX, OWN_PREFIX[:-1] + b"0"))
            case "old list":
                replay = self.parts.replay
                low = max(1, min(replay.compact_revision, replay.revision) - 2, replay.revision - REVISIONS_BACK_MAX)
                revision = self.random.randint(low, replay.revision)
                self._list(Range(OWN_PREFIX, OWN_PREFIX[:-1] + b"0", revision=revision))
                if self.random.random() < self.parts.plan.compact_share:
                    self._compact(revision)
            case "revoke":
                self.lost()
                self.ask(LEASE_REVOKE, make("LeaseRevokeRequest", ID=term.lease_id), _nothing)
            case "leave":
                self.lost()
                self.rest()
            case _:
                self.rest(int(term.ttl_ns * 2 * self.random.random()))

    def _put(self, put: Put) -> None:
        def written(response: Message | None, failure: Failure | None) -> None:
            if response is not None:
                self.parts.checker.put(put, response)
            elif failure is not None and failure.status == Status.NOT_FOUND:
                self.parts.checker.refused_lease(put.lease_id)
                self.parts.cover("a put of an etcd client named a lease that has ended")
                self.lost()

        self.ask(PUT, message_of(put), written)

    def _list(self, command: Range) -> None:
        request = message_of(command)
        request.serializable = self.random.random() < 0.5

        def listed(response: Message | None, failure: Failure | None) -> None:
            if response is not None:
                self.parts.checker.ranged(command, response)
            elif failure is not None and failure.status == Status.OUT_OF_RANGE:
                self.parts.checker.refused_revision(command.revision, is_ahead=failure.text != COMPACTED)

        self.ask(RANGE, request, listed)

    def _compact(self, revision: int) -> None:
        """Compact the history beside the read of this program, without waiting."""
        request = make("CompactionRequest", revision=revision)
        self.client.call(COMPACT, request, self.parts.plan.patience_ns, self._compacted)

    def _compacted(self, response: Message | None, _: Failure | None) -> None:
        if response is not None:
            self.parts.cover("an etcd client compacted the history")

    def _deleted(self, key: bytes) -> Then:
        def deleted(response: Message | None, _: Failure | None) -> None:
            if response is not None:
                self.parts.checker.deleted(key, response)

        return deleted


def _nothing(_: Message | None, __: Failure | None) -> None:
    """Do nothing with the outcome."""
