"""One thing that goes wrong in a run. Families of them: `process_faults`, `network_faults`, `disk_faults`."""

from __future__ import annotations

from dataclasses import dataclass

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One step. `target` is a share of the members in order, or the leader of that moment; `shape` draws the rest."""

    at_ns: int
    kind: str  # One of faults.KINDS.
    duration_ns: int
    target: float | None  # None: who leads then.
    shape: float


Kinds = dict[str, tuple[float, float]]
"""kind: (greatest rate per simulated second, longest duration in seconds). Rate 0: it is not drawn with the others."""
