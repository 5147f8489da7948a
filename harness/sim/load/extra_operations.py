"""Operations that are rare in the usual load: transactions that fail half-way, and listings of the whole store.

In the usual load (`harness.workload`), transactions fail only at a quota. Most of its reads are reads of single keys,
for which the service has a separate path. The extra operations use a separate random stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.sim.engine.rng import stream
from harness.sim.plan.plan import ExtraPlan
from harness.workload.operation_generator import Planned
from kvstore import Compare, Comparison, Delete, Operation, Put, Range, Target, Txn

COMPACTED, AHEAD = 1, 2**40
"""Revisions that a read cannot use if it follows a write in its transaction. The store never reaches AHEAD. After a
write the store can no longer show COMPACTED, unless it has kept its history from the first revision on.
"""


class ExtraOperations:
    """The extra operations of one worker."""

    def __init__(self, seed: int, worker: int, keys: Sequence[bytes], plan: ExtraPlan) -> None:
        self._random = stream(seed, f"extras/{worker}")
        self._worker, self._keys, self._plan = worker, keys, plan
        self._written = 0

    def next(self) -> Planned | None:
        """Return the next operation if it is an extra operation, or None for a usual operation."""
        draw = self._random.random()
        if draw < self._plan.failing_share:
            return Planned(self._failing())
        if draw < self._plan.failing_share + self._plan.listing_share:
            return Planned(Range(limit=self._random.choice((0, 1, 3)), reverse=self._random.random() < 0.5))
        return None

    def _failing(self) -> Txn:
        """Return a transaction whose last operation fails, because it reads an impossible revision. None of the
        transaction's writes may then have an effect.

        See docs/reference/specification.md#84-transactions.
        """
        random = self._random
        first, *others = random.sample(self._keys, min(2, len(self._keys)))
        writes = [self._put(first), *(Delete(key) if random.random() < 0.3 else self._put(key) for key in others)]
        branch: tuple[Operation, ...] = (*writes, Range(revision=random.choice((COMPACTED, AHEAD)), limit=1))
        if random.random() < 0.5:
            return Txn((), branch, ())
        never = Compare(self._keys[0], Target.VERSION, Comparison.LESS, 0)
        return Txn((never,), (), branch)

    def _put(self, key: bytes) -> Put:
        self._written += 1
        return Put(key, b"x%d-%d" % (self._worker, self._written))
