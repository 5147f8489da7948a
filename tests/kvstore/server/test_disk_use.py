"""A member's use of its disk is bounded, even while other members are away (docs/operations/guide.md gives the
bounds)."""

from __future__ import annotations

from pathlib import Path

from kvstore import Put
from raft import RaftConfig
from storage import StorageLimits
from tests.kvstore.support.in_memory_cluster import Cluster, Sizes

SEGMENT_BYTES, LOG_BYTES, RETAINED_BYTES, BALLAST_BYTES = 8_192, 20_000, 60_000, 4_096
SIZES = Sizes(
    raft=RaftConfig(
        snapshot_log_bytes=LOG_BYTES, retention_bytes_max=RETAINED_BYTES, snapshot_bytes_per_second=1 << 40
    ),
    storage=StorageLimits(segment_bytes_max=SEGMENT_BYTES, preallocate_bytes=0, ballast_bytes=BALLAST_BYTES),
)
VALUE_BYTES = 1_000


def bytes_of(folder: Path, suffix: str) -> list[int]:
    return [path.stat().st_size for path in folder.rglob(f"*{suffix}")]


def test_the_log_and_the_snapshots_of_a_member_stay_within_their_bounds(tmp_path: Path) -> None:
    """While one member is away, clients put 300 KB in total to a state of 40 KB. Then the member comes back and is sent
    a snapshot."""
    cluster = Cluster(tmp_path, 3, sizes=SIZES)
    client = cluster.client()
    leader = cluster.leader()
    away = next(node_id for node_id in cluster.hosts if node_id != leader)
    cluster.kill(away)
    most_log = most_snapshots = 0
    for number in range(300):
        client.do(Put(b"%d" % (number % 40), bytes(VALUE_BYTES)))
        for node_id in cluster.hosts:
            most_log = max(most_log, sum(bytes_of(tmp_path / node_id, ".wal")))
            most_snapshots = max(most_snapshots, len(bytes_of(tmp_path / node_id, ".snap")))
    largest = max(bytes_of(tmp_path, ".snap"))

    assert LOG_BYTES + SEGMENT_BYTES < most_log <= max(RETAINED_BYTES, LOG_BYTES) + 2 * SEGMENT_BYTES
    assert most_snapshots <= 2
    assert largest < 50 * VALUE_BYTES
    assert cluster.hosts[leader].node.core.low_watermark < cluster.hosts[leader].node.core.first_index - 1

    cluster.start(away)
    cluster.wait(10)
    assert cluster.hosts[away].machine.revision == cluster.hosts[leader].machine.revision == 301
    assert cluster.hosts[away].node.core.snapshot_index > 0
    for node_id in cluster.hosts:
        assert len(bytes_of(tmp_path / node_id, ".snap")) == 1
        everything = sum(bytes_of(tmp_path / node_id, ".*"))
        assert everything <= RETAINED_BYTES + 2 * SEGMENT_BYTES + 2 * largest + BALLAST_BYTES + 4_096
