"""Where things are in a data folder."""

from __future__ import annotations

LOCK_NAME = "LOCK"
INITIALIZING_NAME = "INITIALIZING"
"""There from the first moment of a first start until `meta` is durable: without `meta`, nothing ever ran here."""


def log_folder(group_id: int) -> str:
    """The segments of one group."""
    return f"groups/{group_id}/log"


def snapshot_folder(group_id: int) -> str:
    """The snapshots of one group."""
    return f"groups/{group_id}/snapshots"
