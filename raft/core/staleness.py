"""The staleness of a member's state: an upper bound on its age, if the member can prove one.

A proof is a pair (local time, index): no write that was acknowledged before this time has a higher index. The proof
comes from a read index that was *requested* at this time or later. The time of the response proves nothing, because
nobody knows how long the response was in flight.
"""

from __future__ import annotations

from collections import deque

PROOFS_MAX = 64
"""How many proofs may wait until their index is applied. Further proofs are dropped, because a state that has not
reached the index of any of these proofs is old anyway."""


class StalenessTracker:
    """The proofs of one member, over all terms since its start. A proof stays valid when the leader changes."""

    def __init__(self) -> None:
        self._as_of: int | None = None  # Monotonic ns.
        self._proofs: deque[tuple[int, int]] = deque()  # (moment, index) of each proof. Both values rise.

    def record_proof(self, moment: int, index: int) -> None:
        """Add a proof: a state with `index` applied contains every write that was acknowledged before `moment`
        (monotonic ns)."""
        proofs = self._proofs
        if proofs and proofs[-1][1] >= index:
            proofs[-1] = (max(moment, proofs[-1][0]), proofs[-1][1])
        elif len(proofs) < PROOFS_MAX:
            proofs.append((moment, index))

    def fresh_as_of(self, last_applied: int) -> int | None:
        """The latest moment (monotonic ns) for which there is a proof: the applied state contains every write that was
        acknowledged before this moment. None if there is no proof."""
        proofs = self._proofs
        while proofs and proofs[0][1] <= last_applied:
            moment = proofs.popleft()[0]
            self._as_of = moment if self._as_of is None else max(self._as_of, moment)
        return self._as_of
