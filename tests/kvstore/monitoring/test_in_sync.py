"""The reports about the members in sync: status, messages, metrics and events."""

from __future__ import annotations

from pathlib import Path

from kvstore.cli.cluster.status import of_its_peers
from kvstore.monitoring.metrics_counts import EVENTS, REASONS
from kvstore.protocol.commands import Put
from raft.runtime.driver import INFO_EVENTS
from tests.kvstore.monitoring.test_metrics import collected, value
from tests.kvstore.support.in_memory_cluster import Cluster


def test_a_silent_voter_is_shown_as_out_of_sync(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    leader = cluster.leader()
    silent, quick = sorted(set(cluster.hosts) - {leader})
    cluster.client().do(Put(b"key", b"value"))
    assert of_its_peers(cluster.hosts[leader].service.cluster.status()) == []

    cluster.cut.add(silent)
    cluster.wait(2)

    status = cluster.hosts[leader].service.cluster.status()
    assert {peer.node_id: peer.is_in_sync for peer in status.peers} == {silent: False, quick: True}
    (word,) = of_its_peers(status)
    assert word.startswith(f"not in sync with it, because they lag: {silent} (by 2.")
    metrics = collected(cluster.hosts[leader])
    assert [value(metrics, "peer_in_sync", peer=peer) for peer in (silent, quick)] == [0, 1]
    assert value(metrics, "peer_lag_seconds", peer=silent) > 1.5
    assert value(metrics, "peer_lag_seconds", peer=quick) < 0.2
    follower = cluster.hosts[quick].service.cluster.status()
    assert of_its_peers(follower) == []


def test_joining_and_leaving_are_logged_and_counted() -> None:
    assert {"in_sync_left", "in_sync_joined"} <= INFO_EVENTS
    assert EVENTS["in_sync_left"] == "in_sync_departures"
    assert "not_enough_in_sync" in REASONS
