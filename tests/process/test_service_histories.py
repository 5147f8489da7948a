"""Real servers carry out watches, leases, locks, ranges and commits of consumers while a leader is killed; the audit
passes their history."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import trio

from harness.recording.clock import RunClock
from harness.recording.history import RunWriter, read_rows
from harness.workload.service_shares import ServiceShares
from harness.workload.workers import Workload
from spark_audit import check_rows
from tests.process.servers import ServerCluster, running_cluster
from tests.process.test_server_kills import leader_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SECONDS = 8.0
KILLS = 2


async def kill_leaders(cluster: ServerCluster) -> None:
    """Kill the leader and start it again, while the load continues."""
    for _ in range(KILLS):
        async with cluster.client() as client:
            leader = cluster.servers[await leader_of(client)]
        leader.kill()
        leader.start()
        await trio.to_thread.run_sync(leader.wait_ready)


@pytest.mark.parametrize("ops_format", ["jsonl", "parquet"])
async def test_what_watches_leases_and_locks_told_is_proven(tmp_path: Path, ops_format: str) -> None:
    writer = RunWriter(tmp_path / "run", run_id="r", clock=RunClock(), ops_format=ops_format, about={})
    with running_cluster(tmp_path, 3) as cluster, trio.fail_after(100):
        load = Workload(
            writer=writer,
            endpoints=cluster.endpoints,
            seed=1,
            clients=3,
            keys=8,
            operations_per_second=60,
            services=ServiceShares(watches=10, leases=2, locks=2, ranges=1, consumers=2),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_leaders, cluster)
            nursery.start_soon(load.run, SECONDS)
        writer.finish()

    rows = list(read_rows(tmp_path / "run"))
    verdict = check_rows(rows)
    assert verdict.status == "linearizable", verdict.to_json()
    for name in ("watch_once", "watch_gap", "watch_source", "watch_resume", "watch_previous", "leases", "locks"):
        assert verdict.properties[name].checked, name
    assert verdict.properties["historic"].checked
    assert verdict.properties["appends"].checked
    assert verdict.properties["consumers"].checked
    done = Counter(row["op"] for row in rows if row["status"] == "ok")
    assert all(done[op] for op in ("watch", "lease_grant", "lease_renew", "lock", "unlock", "delete_range")), done
    assert all(json.loads(str(row["request"]))["end"] for row in rows if row["op"] == "watch")
