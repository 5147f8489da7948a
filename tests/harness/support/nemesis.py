"""A nemesis on members that were never started."""

from __future__ import annotations

from pathlib import Path

from harness.cluster.cluster import Cluster
from harness.cluster.member_options import MemberAddress
from harness.cluster.process import MemberProcess
from harness.cluster.proxy import Direction
from harness.cluster.proxy_network import ProxyNetwork
from harness.cluster.status_probe import StatusProbe
from harness.nemesis.injection import Nemesis
from harness.nemesis.schedule import PlannedFault, Target
from harness.recording.clock import RunClock
from harness.recording.history import RunWriter
from kvstore import Client

NAMES = ("n1", "n2", "n3", "n4", "n5")


def a_cluster(folder: Path) -> Cluster:
    """Five members that were never started. These are enough for partitions."""
    addresses = {name: MemberAddress(peer_port=1, client_port=2) for name in NAMES}
    probe = StatusProbe(Client(["127.0.0.1:2"]), addresses)
    cluster = Cluster(folder, addresses, a_network(*NAMES), probe)
    cluster.members = {name: MemberProcess(name, [], folder / f"{name}.log") for name in NAMES}
    return cluster


def a_network(*names: str) -> ProxyNetwork:
    network = ProxyNetwork()
    for name in names:
        network.add(name)
    return network


def a_partition(target: Target, direction: Direction = "both", pick: int = 1, seconds: float = 0.02) -> PlannedFault:
    return PlannedFault(
        number=1,
        start_seconds=0,
        duration_seconds=seconds,
        kind="partition",
        target=target,
        direction=direction,
        pick=pick,
    )


def a_nemesis(folder: Path, *plan: PlannedFault) -> Nemesis:
    writer = RunWriter(folder / "run", run_id="r", clock=RunClock(), ops_format="jsonl", about={})
    return Nemesis(a_cluster(folder), writer, plan)


def blocked(network: ProxyNetwork | None) -> set[tuple[str, str]]:
    assert network is not None
    return {pair for pair, flow in network.flows.items() if flow.blocked}
