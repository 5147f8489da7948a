"""Real-time precedence between operations.

Operation A precedes operation B if the return of A is before the call of B. Equal stamps give no precedence. If A and B
have different clocks, the return of A plus the error bounds of both clocks must be before the call of B. If one of
these clocks has no error bound, all operations of one clock are concurrent with all operations of the other.

See docs/reference/specification.md#107-clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spark_audit.history.operation import FOREVER, Operation


class Clocks:
    """The error bounds, in ns, of the clocks of one run. A clock without an entry has no bound."""

    def __init__(self, bounds: Mapping[str, int] | None = None) -> None:
        self._bounds = dict(bounds or {})

    @classmethod
    def from_run(cls, clocks: Iterable[Mapping[str, Any]]) -> Clocks:
        """Return the clocks that `run.json` lists: objects of `clock_id` and `error_bound_ns` (null: no bound)."""
        return cls({c["clock_id"]: c["error_bound_ns"] for c in clocks if c.get("error_bound_ns") is not None})

    def margin_ns(self, one: str, other: str) -> int | None:
        """Return the uncertainty (ns) between stamps of two clocks; None if it has no bound.

        Two stamps order their operations only if the stamps differ by more than this uncertainty.
        """
        if one == other:
            return 0
        if one in self._bounds and other in self._bounds:
            return self._bounds[one] + self._bounds[other]
        return None

    def precedes(self, first: Operation, second: Operation) -> bool:
        """Return whether `first` certainly returned before `second` was called."""
        margin = self.margin_ns(first.clock, second.clock)
        return margin is not None and first.return_ns + margin < second.call_ns

    def widened(self, operation: Operation) -> tuple[int, int]:
        """Return the call and the return on an axis that is common to all clocks.

        An operation that precedes another one on this axis does so in the history, too. The reverse does not hold: two
        operations of one clock may become concurrent.
        """
        bound = self._bounds.get(operation.clock)
        if bound is None:
            return -FOREVER, FOREVER
        return operation.call_ns - bound, min(FOREVER, operation.return_ns + bound)
