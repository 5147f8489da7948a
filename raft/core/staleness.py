"""The staleness of a member's state: a proven upper bound of its age, if there is one.

A proof is (local time, index): no write acknowledged before that time is above that index. The proof comes from a read
index that was *requested* at that time or later. The time of the response proves nothing, because nobody knows how
long the response was in flight.
"""

from __future__ import annotations

from collections import deque

PROOFS_MAX = 64
"""How many proofs may wait for their index to be applied. Further proofs are dropped: a state that lags so far is old
anyway."""


class StalenessTracker:
    """The proofs of one member, over all terms of one life: a proof stays valid under later leaders."""

    def __init__(self) -> None:
        self._as_of: int | None = None  # Monotonic ns.
        self._proofs: deque[tuple[int, int]] = deque()  # (moment, index), both rising.

    def record_proof(self, moment: int, index: int) -> None:
        """A state with `index` applied holds every write acknowledged before `moment` (monotonic ns)."""
        proofs = self._proofs
        if proofs and proofs[-1][1] >= index:
            proofs[-1] = (max(moment, proofs[-1][0]), proofs[-1][1])
        elif len(proofs) < PROOFS_MAX:
            proofs.append((moment, index))

    def fresh_as_of(self, last_applied: int) -> int | None:
        """The latest time (monotonic ns) for which the applied state is proven to be complete; None without a proof."""
        proofs = self._proofs
        while proofs and proofs[0][1] <= last_applied:
            moment = proofs.popleft()[0]
            self._as_of = moment if self._as_of is None else max(self._as_of, moment)
        return self._as_of
