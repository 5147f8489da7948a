"""A program that takes a lock by etcd's service Lock, under its own lease, and gives it back or loses it.

The program renews its lease while it waits for its turn. After a call whose outcome is unknown, it takes another lease,
because the member may still delete the key of a call that was abandoned.
"""

from __future__ import annotations

from random import Random

from harness.sim.checks.store.leases import Term
from harness.sim.load.coordination_program import PREFIX
from harness.sim.load.etcd.client import EtcdClient, Failure
from harness.sim.load.etcd.keeper import LeaseKeeper
from harness.sim.load.etcd.program import RANGE, EtcdParts, message_of
from kvstore import Range
from kvstore.etcd.hosting import Message, Status, make

LOCK, UNLOCK = "/v3lockpb.Lock/Lock", "/v3lockpb.Lock/Unlock"

LOCK_NAMES = (PREFIX + b"etcd-lock/a", PREFIX + b"etcd-lock/b")

TURN_PATIENCE = 4
"""How many times longer than for other calls the program waits for its turn."""

STILL_SHARE = 0.02
"""The probability that a program that waits stands still, each time that it would otherwise look at its lease."""

_WEIGHTS = {"look": 4, "unlock": 3, "leave": 1, "pause": 1}


class EtcdLocker(LeaseKeeper):
    """One program. `_holding`: the term under which it holds the lock; None if it does not."""

    def __init__(self, parts: EtcdParts, client: EtcdClient, number: int, random: Random) -> None:
        super().__init__(parts, client, number, random)
        self._name = random.choice(LOCK_NAMES)
        self._waits_under: Term | None = None
        self._holding: Term | None = None

    def lost(self) -> None:
        """Forget the lease, and with it the lock."""
        super().lost()
        self._release()
        self._waits_under = None

    def use(self, term: Term) -> None:
        """Begin the next call with the lease."""
        if self._waits_under is term:
            # Some programs stand still while they wait, and their lease ends before their turn.
            self.rest(int(1.5 * term.ttl_ns) if self.random.random() < STILL_SHARE else None)
        elif self._holding is not term:
            self._lock(term)
        else:
            self._hold(term, self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0])

    def _release(self) -> None:
        if self._holding is not None:
            self.parts.checker.released(self._name, self._holding)
            self._holding = None

    def _lock(self, term: Term) -> None:
        self._waits_under = term

        def ended(response: Message | None, failure: Failure | None) -> None:
            if response is not None:
                self.parts.checker.locked(self._name, term, response, still_wanted=self.term is term)
            elif failure is not None and failure.status == Status.UNKNOWN:
                self.parts.checker.refused_lease(term.lease_id)
                self.parts.cover("an etcd client lost its lease in the line for a lock")
            if self.term is not term:
                return
            if response is None:
                self.lost()
            else:
                self._waits_under, self._holding = None, term

        request = make("v3lockpb.LockRequest", name=self._name, lease=term.lease_id)
        self.client.call(LOCK, request, TURN_PATIENCE * self.parts.plan.patience_ns, ended)
        self.rest()

    def _hold(self, term: Term, what: str) -> None:
        match what:
            case "look":
                command = Range(self._name + b"/", self._name + b"0")

                def looked(response: Message | None, _: Failure | None) -> None:
                    if response is not None:
                        self.parts.checker.ranged(command, response)

                self.ask(RANGE, message_of(command), looked)
            case "unlock":
                key = self.parts.checker.lock_key(self._name, term.lease_id)
                self.lost()  # The key of a call that was lost may still be deleted, so the lease is not used again.
                self.ask(UNLOCK, make("v3lockpb.UnlockRequest", key=key), _nothing)
            case "leave":
                self.lost()
                self.rest()
            case _:
                self.rest(int(term.ttl_ns * 2 * self.random.random()))


def _nothing(_: Message | None, __: Failure | None) -> None:
    """Do nothing with the outcome."""
