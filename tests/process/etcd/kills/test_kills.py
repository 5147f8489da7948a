"""Members are killed again and again under the load of etcd's clients. What the clients saw is linearizable, and the
watch has every acknowledged write."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.nemesis.schedule import PlannedFault, plan_faults
from harness.recording.history import WRITES, Row, read_rows
from harness.runs.audit import GREEN, audit
from harness.workload.operation_generator import View
from tests.process.etcd.kills.foreign_stores import ForeignStore, GatewayStore, GrpcStore
from tests.process.etcd.kills.recorded_load import Recorder, Watcher, Worker, few_keys, read_all, source_of
from tests.process.etcd.members import USES_REAL_ETCD, leader_of
from tests.process.servers import Server, ServerCluster, running_cluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(USES_REAL_ETCD, reason="the members of real etcd are not started again here"),
]

GRPC_WORKERS, GATEWAY_WORKERS = 5, 1
OPERATIONS_BETWEEN_KILLS = 60
PATIENCE_SECONDS = 5.0  # Longer than an election.
LONG_PATIENCE_SECONDS = 14.0  # A member answers before this time, with or without a majority.
NO_MAJORITY_SECONDS = 9.0  # Longer than the 7 s for which a member waits for the cluster.
PROPERTIES = ("keys", "order", "store", "watch_once", "watch_gap", "watch_source", "watch_previous")


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=pytest.mark.timeout(150)),
        pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_what_clients_of_etcd_saw_while_members_were_killed_is_audited_green(tmp_path: Path, kills: int) -> None:
    def disturb(cluster: ServerCluster, recorder: Recorder) -> None:
        for fault in kill_plan(kills):
            recorder.wait_for(OPERATIONS_BETWEEN_KILLS)
            kill(victims_of(cluster, fault), fault.duration_seconds)

    rows = audited_green(tmp_path, disturb, PATIENCE_SECONDS)
    assert sum(row["op"] == "watch" and row["status"] == "ok" for row in rows) > 1, "the watch went on"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_timeout_without_a_majority_tells_whether_the_write_may_have_an_effect(tmp_path: Path) -> None:
    """Two of three members are away for longer than a member waits for the cluster. The member that is left alone
    answers `request timed out` for writes that certainly have no effect, and adds a reason if the outcome is unknown.
    The audit would find a write with an effect among the former."""

    def disturb(cluster: ServerCluster, recorder: Recorder) -> None:
        for is_leader_left in (True, False):
            recorder.wait_for(OPERATIONS_BETWEEN_KILLS)
            servers = list(cluster.servers.values())
            leader = servers.pop(leader_of(cluster.endpoints))
            kill(servers if is_leader_left else [leader, servers[0]], NO_MAJORITY_SECONDS)

    rows = audited_green(tmp_path, disturb, LONG_PATIENCE_SECONDS)
    told = {(row["status"], row.get("error")) for row in rows if row["op"] in WRITES}
    assert ("fail", "etcdserver: request timed out") in told
    assert ("unknown", "etcdserver: request timed out, possibly due to previous leader failure") in told


def audited_green(
    folder: Path, disturb: Callable[[ServerCluster, Recorder], None], patience_seconds: float
) -> Sequence[Row]:
    """Let the clients work while `disturb` disturbs the cluster, and check what they saw. Returns the rows."""
    recorder, keys = Recorder(folder / "run"), few_keys()
    with running_cluster(folder, 3, "--etcd") as cluster:
        watcher = Watcher(recorder, cluster.endpoints)
        with watched(watcher):
            with loaded(recorder, cluster.endpoints, keys, patience_seconds):
                disturb(cluster, recorder)
                recorder.wait_for(OPERATIONS_BETWEEN_KILLS)
            watcher.wait_until(read_all(recorder, keys, partial(GrpcStore, cluster.endpoints[0])))
    recorder.finish()

    verdict = audit([folder / "run"], as_json=True, engine="local")
    assert verdict.exit_code == GREEN, verdict.to_json()
    properties = json.loads(verdict.output)["properties"]
    assert all(properties[name]["checked"] for name in PROPERTIES), properties
    rows = list(read_rows(folder / "run"))
    written = [revision for row in rows if (revision := written_by(row)) is not None]
    assert watcher.revisions == sorted(set(watcher.revisions)), "each revision comes once, and in order"
    assert set(written) <= set(watcher.revisions), "each acknowledged write is in the watch"
    assert len(written) == len(set(written)), "each acknowledged write has a revision of its own"
    return rows


@contextmanager
def loaded(
    recorder: Recorder, endpoints: Sequence[str], keys: Sequence[bytes], patience_seconds: float
) -> Iterator[None]:
    """Let the workers work in threads, through all members."""
    stop, view = threading.Event(), View()
    stores: list[Callable[[str], ForeignStore]] = [GrpcStore] * GRPC_WORKERS + [GatewayStore] * GATEWAY_WORKERS
    with ThreadPoolExecutor(len(stores)) as threads:
        working = [
            threads.submit(
                Worker(recorder, number, [partial(store, endpoint) for endpoint in endpoints]).run,
                source_of(number, keys, view), view, stop, patience_seconds,
            )
            for number, store in enumerate(stores)
        ]  # fmt: skip
        try:
            yield
        finally:
            stop.set()
    for each in working:
        each.result()


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Let the watch run in a thread."""
    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(watcher.run)
        try:
            yield
        finally:
            watcher.stop()
    watching.result()


def kill_plan(kills: int) -> Sequence[PlannedFault]:
    """The first kills of a plan of the harness: of all members, of the leader, of a minority, and of any member. The
    plan begins with all, so that the watch is broken in a short run, too."""
    return plan_faults(seed=1, seconds=10.0 * (kills + 1), kinds=("kill",), interval_seconds=1.0)[:kills]


def kill(victims: Sequence[Server], seconds: float) -> None:
    """Kill the victims, and start them again after a time."""
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
    for victim in victims:
        victim.wait()
    time.sleep(seconds)
    for victim in victims:
        victim.start()
    assert all(victim.wait_ready() for victim in victims)


def victims_of(cluster: ServerCluster, fault: PlannedFault) -> list[Server]:
    servers = list(cluster.servers.values())
    match fault.target:
        case "all":
            return servers
        case "leader" | "minority":  # Of three members, one is the greatest minority.
            return [servers[leader_of(cluster.endpoints)]]
    return [Random(fault.pick).choice(servers)]


def written_by(row: Row) -> int | None:
    """The revision that an acknowledged write has made; None if the row made none."""
    if row["status"] != "ok" or row["op"] not in WRITES:
        return None
    output: Any = row["output"]
    parts = output["results"] if row["op"] == "txn" else [{**output, "op": row["op"]}]
    if any(each["op"] == "put" or (each["op"] == "delete" and each["found"]) for each in parts):
        return int(str(row["revision"]))
    return int(str(row["revision"])) if row["op"] == "cas" and output["succeeded"] else None
