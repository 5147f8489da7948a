"""The limit `min_in_sync`: the check that a leader makes before it appends a write of level IN_SYNC."""

from __future__ import annotations

from raft import Acknowledge, Copies


def too_few_in_sync(copies: Copies | None, level: Acknowledge, min_in_sync: int) -> bool:
    """True if a leader must refuse a write of this level, because fewer voters than `min_in_sync` are in sync.

    `copies`: the durable logs as the leader knows them; None if the member does not lead (other code refuses the
    write).
    """
    return level is Acknowledge.IN_SYNC and copies is not None and len(copies.in_sync_ids) < min_in_sync
