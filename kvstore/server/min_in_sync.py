"""The two checks of the replicated limit `min_in_sync`, for writes of level IN_SYNC.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from collections.abc import Sequence

from raft import Copies


def has_too_few_in_sync(copies: Copies, min_in_sync: int) -> bool:
    """True if a leader must refuse the write before appending it, because too few voters are in sync. `copies`: the
    durable logs as the leader knows them."""
    return len(copies.in_sync_ids) < min_in_sync


def is_under_replicated(holders: Sequence[str], min_in_sync: int) -> bool:
    """True if the answer to a committed write of level IN_SYNC must report that too few members hold the write.
    `holders`: the voters that are known to hold the write."""
    return len(holders) < min_in_sync
