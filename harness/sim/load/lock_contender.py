"""A program that contends for a lock with the protocol of the client's locks, and makes writes that compare its fence.

Each contender puts a key under its own lease, and the create revision of this key is its fence. These keys form a line,
in the order of their fences. The contender whose key is first in the line owns the lock. A guarded write compares the
fence in the same transaction. After a pause, a program that believes that it holds the lock writes without reading its
clock.

See docs/concepts/locks.md#how-a-lock-works.
"""

from __future__ import annotations

from random import Random

from harness.sim.checks.store.leases import Holding, Term
from harness.sim.load.client import SimClient
from harness.sim.load.coordination_program import PREFIX, Coordination
from harness.sim.load.lease_owner import LeaseHolder
from kvstore import (
    Compare,
    Comparison,
    Delete,
    Get,
    GetResult,
    LeaseNotFound,
    LeaseRevoke,
    Put,
    Range,
    RangeResult,
    Result,
    StoreError,
    Target,
    Txn,
    TxnResult,
)

LOCK_NAMES = [PREFIX + b"lock/a", PREFIX + b"lock/b"]

_WEIGHTS = {"write": 8, "release": 2, "revoke": 2, "leave": 1, "pause": 3}


class LockContender(LeaseHolder):
    """A lease holder that contends for the lock with one of the LOCK_NAMES."""

    def __init__(self, parts: Coordination, client: SimClient, number: int, random: Random) -> None:
        super().__init__(parts, client, number, random)
        self._name = random.choice(LOCK_NAMES)
        self._fence = 0  # The program's fence; 0 if the program has not joined the line.
        self._holding: Holding | None = None
        self._is_hasty = False  # True after a pause, when the program writes without reading its clock.

    def restart(self) -> None:
        """Forget the lock and the lease. The lease then expires, which ends the lock."""
        super().restart()
        self._forget()

    def lost(self) -> None:
        """Handle the end of the lease, which is also the end of the lock."""
        super().lost()
        self._forget()

    def _forget(self) -> None:
        if self._holding is not None:
            self.parts.leases.released(self._holding)
        self._fence, self._holding = 0, None

    def act(self) -> None:
        """Begin the next operation."""
        term, is_hasty = self.term, self._is_hasty
        self._is_hasty = False
        if is_hasty and self._holding is not None:
            self._write(self._holding)
        elif term is None:
            self.grant()
        elif self.is_renewal_due(term):
            self.renew(term)
        elif not self._fence:
            self._join(term)
        elif self._holding is None:
            self._look(term)
        else:
            self._hold(term, self._holding, self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0])

    def _key(self, term: Term) -> bytes:
        return self._name + b"/%016x" % term.lease_id

    def _line(self) -> Range:
        return Range(self._name + b"/", self._name + b"0", keys_only=True)

    def _guard(self, term: Term, fence: int) -> Compare:
        return Compare(self._key(term), Target.CREATE_REVISION, Comparison.EQUAL, fence)

    def _join(self, term: Term) -> None:
        key = self._key(term)
        join = Txn(
            (self._guard(term, 0),), (Put(key, self.value(), term.lease_id), self._line()), (Get(key), self._line())
        )

        def joined(result: Result | None, error: StoreError | None) -> None:
            if isinstance(error, LeaseNotFound):
                self.parts.cover("a contender joined too late")
                self.lost()
            if not isinstance(result, TxnResult) or self.term is not term:
                return
            first, line = result.results
            record = first.record if isinstance(first, GetResult) else None
            self._fence = record.create_revision if record is not None else result.revision
            self._stand(term, line, result.revision)

        self.ask(join, joined)

    def _look(self, term: Term) -> None:
        """Read whether this program's key is still in the line, and which keys are before it."""

        def looked(result: Result | None, _: StoreError | None) -> None:
            if not isinstance(result, TxnResult) or self.term is not term:
                return
            if result.succeeded:
                self._stand(term, result.results[0], result.revision)
            else:
                self.parts.cover("a contender lost its lease in the line")
                self.lost()

        self.ask(Txn((self._guard(term, self._fence),), (self._line(),)), looked)

    def _stand(self, term: Term, line: object, revision: int) -> None:
        assert isinstance(line, RangeResult)
        if all(item.create_revision >= self._fence for item in line.items):
            self._holding = Holding(self._name, self._key(term), self._fence, term)
            self.parts.leases.obtained(self._holding, revision)
            self.parts.cover("a lock was obtained")

    def _hold(self, term: Term, holding: Holding, what: str) -> None:
        match what:
            case "write":
                self._write(holding)
            case "release":
                self._forget()
                self.ask(Txn((self._guard(term, holding.fence),), (Delete(holding.key),)), _nothing)
            case "revoke":
                self.lost()
                self.ask(LeaseRevoke(term.lease_id), _nothing)
            case "leave":
                self.leave(term)
                self.rest()
            case _:
                self._is_hasty = True
                self.stand_still(term)

    def _write(self, holding: Holding) -> None:
        inner = Txn((), (Put(holding.name + b"-data", self.value()),))

        def written(result: Result | None, _: StoreError | None) -> None:
            if isinstance(result, TxnResult):
                self.parts.leases.guarded(holding, result.revision, succeeded=result.succeeded)
                if not result.succeeded and self._holding is holding:
                    self.lost()

        self.ask(Txn((self._guard(holding.term, holding.fence),), (inner,)), written)


def _nothing(_: Result | None, __: StoreError | None) -> None:
    """Do nothing with the outcome."""
