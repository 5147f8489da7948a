"""The last step of an upgrade: raise the feature level to a level that every member's build knows
(docs/reference/versions.md).
"""

from __future__ import annotations

from kvstore.client.client import Client
from kvstore.errors import LevelRefused
from kvstore.protocol.commands import RaiseFeatureLevel
from kvstore.protocol.status import MemberStatus


async def raise_feature_level(
    client: Client, level: int | None = None, *, deadline_seconds: float | None = None
) -> int:
    """Raise the feature level to `level`. If `level` is None, raise it to the highest level that every member knows.

    Returns the level that is in force afterwards. No later call can lower it.

    Raises LevelRefused, with nothing changed, if some member does not know the level, if some member does not answer,
    or if a higher level is in force already.
    """
    statuses = await client.cluster_status(deadline_seconds=deadline_seconds)
    known = {node_id: found for node_id, found in statuses.items() if isinstance(found, MemberStatus)}
    if level is None:
        silent = [node_id for node_id in statuses if node_id not in known]
        if silent:
            text = (
                f"{', '.join(silent)} did not answer, so what every member knows is not known; start it, or remove it"
            )
            raise LevelRefused("silent_member", text)
        level = min(found.feature_level_max for found in known.values())
    in_force = max((found.feature_level for found in known.values()), default=1)
    if level < in_force:
        raise LevelRefused("final", f"level {in_force} is in force, and a level never falls")
    if level > in_force:
        await client.execute(RaiseFeatureLevel(level), deadline_seconds=deadline_seconds)
    return level
