"""The paths within a data folder."""

from __future__ import annotations

LOCK_NAME = "LOCK"
INITIALIZING_NAME = "INITIALIZING"
"""The name of a file that exists during a first start, from its beginning until `meta` is durable. If the folder has
this file but no `meta`, no member has ever run in the folder."""


def log_folder(group_id: int) -> str:
    """The folder that contains one group's segments."""
    return f"groups/{group_id}/log"


def snapshot_folder(group_id: int) -> str:
    """The folder that contains one group's snapshots."""
    return f"groups/{group_id}/snapshots"
