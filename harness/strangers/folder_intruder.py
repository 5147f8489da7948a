"""An intruder that removes a member's lock file, as if the file were stale, and opens the member's folder again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import trio

from harness.cluster.cluster import Cluster
from harness.recording.history import RunWriter
from storage import FolderLocked, open_data_folder

_PAUSE_SECONDS = 10.0
_SETTLED_SECONDS = 3.0


@dataclass(slots=True)
class FolderIntruder:
    """Counts the attempts as `refused` (the required result), `let in`, or `met a dead member`."""

    counts: Counter[str] = field(default_factory=Counter)

    async def intrude(self, cluster: Cluster, writer: RunWriter) -> None:
        """Try the members in turn until cancelled, then record an event `folder_intruder`."""
        try:
            while True:
                for node_id in list(cluster.members):
                    await trio.sleep(_PAUSE_SECONDS)
                    await self._try(cluster, node_id)
        finally:
            writer.event("folder_intruder", counts=dict(self.counts))

    async def _try(self, cluster: Cluster, node_id: str) -> None:
        """Remove the lock file of a member's folder, and open the folder with the function that `hwm serve` uses.

        The attempt runs in the process of the harness, so the harness cannot start the member at the same time. A
        separate process could still have the folder open when the harness starts the member again.
        """
        member = cluster.members.get(node_id)
        if member is None or not member.running:
            return
        pid = member.pid
        await trio.sleep(_SETTLED_SECONDS)
        if not member.running or member.pid != pid:
            return  # The member has ended or was started again, so it may not have locked its folder yet.
        folder = Path(member.arguments[1])
        (folder / "LOCK").unlink(missing_ok=True)
        try:
            open_data_folder(folder).close()
        except FolderLocked:
            self.counts["refused"] += 1
        else:
            self.counts["let in" if member.died() is None else "met a dead member"] += 1
