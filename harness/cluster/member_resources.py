"""Measures the resident memory and the open descriptors of members during a run, from Linux's /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import trio

from harness.cluster.cluster import Cluster
from harness.recording.history import RunWriter

_LOOK_SECONDS = 0.5


@dataclass(slots=True)
class ResourcePeaks:
    """The highest values that any process of each member has reached, by node id."""

    rss_bytes: dict[str, int] = field(default_factory=dict)
    descriptors: dict[str, int] = field(default_factory=dict)

    async def watch(self, cluster: Cluster, writer: RunWriter) -> None:
        """Measure twice a second until cancelled, then record an event `resource_peaks`."""
        try:
            while True:
                for node_id, member in cluster.members.items():
                    if member.running:
                        self._look(node_id, Path("/proc") / str(member.pid))
                await trio.sleep(_LOOK_SECONDS)
        finally:
            writer.event("resource_peaks", rss_bytes=dict(self.rss_bytes), descriptors=dict(self.descriptors))

    def _look(self, node_id: str, process: Path) -> None:
        try:
            rss_bytes = int((process / "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
            # Recent kernels report the number of descriptors as the size of this folder. To list 800 descriptors would
            # block the event loop, and so all clients, for 7 ms.
            descriptors = os.stat(process / "fd").st_size or len(os.listdir(process / "fd"))  # noqa: PTH116, PTH208
        except OSError:
            return  # The process has just ended, or this system has no /proc.
        self.rss_bytes[node_id] = max(rss_bytes, self.rss_bytes.get(node_id, 0))
        self.descriptors[node_id] = max(descriptors, self.descriptors.get(node_id, 0))
