"""Somebody takes a member's lock file for a stale one, removes it, and starts the member once more on its folder."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import trio

from harness.cluster.cluster import Cluster
from harness.history import RunWriter

_PAUSE_SECONDS = 30.0
_END_SECONDS_MAX = 15.0
_SETTLED_SECONDS = 3.0


@dataclass(slots=True)
class FolderIntruder:
    """Counts `refused`, as it must be, and `let in`."""

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
        member = cluster.members.get(node_id)
        if member is None or not member.running:
            return
        pid = member.pid
        await trio.sleep(_SETTLED_SECONDS)
        if not member.running or member.pid != pid:
            return  # It was started again meanwhile, and may not hold its folder yet.
        folder = Path(member.arguments[1])
        (folder / "LOCK").unlink(missing_ok=True)
        # `-P`, and no word on a console: as a second `hwm serve DIR` in another shell.
        with trio.move_on_after(_END_SECONDS_MAX) as patience:
            ended = await trio.run_process(
                [sys.executable, "-P", "-m", "kvstore.cli", "serve", str(folder), "--listen-client=127.0.0.1:0"],
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if not member.running or member.pid != pid:
            return  # It was killed meanwhile: the folder was free.
        is_refused = not patience.cancelled_caught and ended.returncode == 3 and b"in use" in ended.stdout
        self.counts["refused" if is_refused else "let in"] += 1
