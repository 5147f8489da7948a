"""Read modes: the consistency of the protocol and the corresponding read of the engine.

A member may answer with a stronger consistency than requested, never with a weaker one, and the response names it: a
`lease` read without a lease is answered as `linearizable`, a `bounded` one whose age cannot be proven as `follower`, or
by a leader like its own reads.

See docs/reference/specification.md#811-consistency-of-reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstore.protocol.messages import Consistency
from raft import Node, ProtocolError, ReadMode

MILLISECOND_NS = 1_000_000

WAYS = {
    Consistency.LINEARIZABLE: ReadMode.READ_INDEX,
    Consistency.LEASE: ReadMode.LEASE,
    Consistency.FOLLOWER: ReadMode.FOLLOWER,
    Consistency.BOUNDED: ReadMode.BOUNDED_STALENESS,
}
LABELS = {way: int(consistency) for consistency, way in WAYS.items()}

STALENESS_MS_MAX = 1_000_000_000
"""Eleven days. A client that accepts any age reads `local`."""


def staleness_ms(items: Sequence[Any]) -> int:
    """The bound in a request `[consistency, body, max_staleness_ms]`. Raises ProtocolError."""
    if len(items) < 3 or type(items[2]) is not int or not 0 <= items[2] <= STALENESS_MS_MAX:
        raise ProtocolError(f"a bounded read says max_staleness_ms, 0 to {STALENESS_MS_MAX}")
    return items[2]


def age_ms(node: Node) -> int | None:
    """How old this member's state is at most, rounded up; None if nothing is known of it."""
    age_ns = node.core.state_age_ns
    return None if age_ns is None else -(-age_ns // MILLISECOND_NS)


def asked_for(consistency: Consistency | str, max_staleness_ms: int | None) -> Consistency:
    """The consistency that a caller of the client means: a bound makes the read a bounded one. Raises Unsupported,
    ValueError."""
    wanted = Consistency.of(consistency)
    if max_staleness_ms is None:
        if wanted is Consistency.BOUNDED:
            raise ValueError("a bounded read needs max_staleness_ms")
        return wanted
    if wanted not in (Consistency.LINEARIZABLE, Consistency.BOUNDED):
        raise ValueError(f"max_staleness_ms is for bounded reads, not for {wanted.word} ones")
    if not 0 <= max_staleness_ms <= STALENESS_MS_MAX:
        raise ValueError(f"max_staleness_ms is 0 to {STALENESS_MS_MAX}, not {max_staleness_ms}")
    return Consistency.BOUNDED
