"""The paths within a data folder."""

from __future__ import annotations

LOCK_NAME = "LOCK"
INITIALIZING_NAME = "INITIALIZING"
"""A file that exists from the beginning of a first start until `meta` is durable. Without `meta`, no member ever ran
here."""


def log_folder(group_id: int) -> str:
    """The folder of one group's segments."""
    return f"groups/{group_id}/log"


def snapshot_folder(group_id: int) -> str:
    """The folder of one group's snapshots."""
    return f"groups/{group_id}/snapshots"
