"""The consistencies of the protocol, and the read modes of the engine that implement them.

A member may answer with a stronger consistency than requested, never with a weaker one. The response names the
consistency that was used. While no lease of the leader is in force, a `lease` read is answered as `linearizable`. If
the age of the state cannot be proven, a `bounded` read is answered as `follower`. A leader answers a `bounded` read as
`lease` or `linearizable`.

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
"""The greatest bound of a bounded read, in ms: eleven days. A client that accepts any age uses `local` reads."""


def staleness_ms(items: Sequence[Any]) -> int:
    """Return the bound in the items `[consistency, body, max_staleness_ms]` of a read. Raises ProtocolError."""
    if len(items) < 3 or type(items[2]) is not int or not 0 <= items[2] <= STALENESS_MS_MAX:
        raise ProtocolError(f"a bounded read says max_staleness_ms, 0 to {STALENESS_MS_MAX}")
    return items[2]


def age_ms(node: Node) -> int | None:
    """Return the greatest possible age of this member's state in ms, rounded up; None if the age is not known."""
    age_ns = node.core.state_age_ns
    return None if age_ns is None else -(-age_ns // MILLISECOND_NS)


def asked_for(consistency: Consistency | str, max_staleness_ms: int | None) -> Consistency:
    """Return the consistency that the arguments of a client call select. With `max_staleness_ms`, the consistency is
    BOUNDED.

    Raises Unsupported, ValueError.
    """
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
