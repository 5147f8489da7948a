"""How old the state of a member may be, at most: proven, or not known.

A proof is a moment of the own clock and an index: all that anybody had been told before that moment is at or below the
index. It comes from a read index that was *asked for* at that moment, or later; what counts is never when the answer
came, for nobody knows how long that was on its way.
"""

from __future__ import annotations

from collections import deque

PROOFS_MAX = 64
"""Proofs that wait for their index to be applied. Behind these, newer ones are not kept: state that lags is old."""


class Freshness:
    """Of one member, over all terms of one life: it holds whoever leads later."""

    def __init__(self) -> None:
        self._as_of: int | None = None  # Monotonic ns.
        self._proofs: deque[tuple[int, int]] = deque()  # (moment, index), both rising.

    def proved(self, moment: int, index: int) -> None:
        """Whoever has applied `index` has all that was told before `moment` (monotonic ns)."""
        proofs = self._proofs
        if proofs and proofs[-1][1] >= index:
            proofs[-1] = (max(moment, proofs[-1][0]), proofs[-1][1])
        elif len(proofs) < PROOFS_MAX:
            proofs.append((moment, index))

    def as_of(self, last_applied: int) -> int | None:
        """The state with all up to `last_applied` in it is that of this moment (monotonic ns), or newer."""
        proofs = self._proofs
        while proofs and proofs[0][1] <= last_applied:
            moment = proofs.popleft()[0]
            self._as_of = moment if self._as_of is None else max(self._as_of, moment)
        return self._as_of
