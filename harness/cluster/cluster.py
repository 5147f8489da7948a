"""A cluster of real `hwm serve` processes on loopback, for as long as an `async with` block lasts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from harness.cluster.commands import USUAL_STORAGE, MemberAddress, serve_arguments
from harness.cluster.monitor import Monitor, Probe
from harness.cluster.ports import free_ports
from harness.cluster.probe import StatusProbe
from harness.cluster.process import MemberProcess
from harness.errors import NodeDied, NotReady
from harness.nemesis.network import Network
from kvstore import MemberStatus

NODES_MAX = 9  # Raft groups have up to nine members; more only adds load to one machine.
READY_SECONDS = 30.0
_START_ATTEMPTS_MAX = 3  # A port can be taken between our look and the member's bind.
_LOOK_SECONDS = 0.05


class Cluster:
    """The members, their addresses, their network if partitions were asked for, and what `status` says of them."""

    def __init__(
        self, folder: Path, addresses: dict[str, MemberAddress], network: Network | None, probe: Probe
    ) -> None:
        self.folder, self.addresses, self.network = folder, addresses, network
        self.monitor = Monitor(list(addresses), probe)
        self.members: dict[str, MemberProcess] = {}

    @property
    def endpoints(self) -> list[str]:
        """The client addresses of all members."""
        return [address.client for address in self.addresses.values()]

    @property
    def leader_id(self) -> str | None:
        return self.monitor.leader_id

    def start_all(self) -> None:
        """Start every member that does not run, and let every paused one go on."""
        for member in self.members.values():
            if member.running:
                member.resume()
            else:
                member.start()

    def check_alive(self) -> None:
        """Raises NodeDied if a member ended by itself."""
        for member in self.members.values():
            exit_code = member.died()
            if exit_code is not None:
                raise NodeDied(member.node_id, exit_code, member.log_path, member.tail())

    async def wait_ready(self, ready_seconds: float = READY_SECONDS) -> None:
        """Return once every member answers, all name one leader of one term, and all have applied what it committed.

        Raises NotReady after `ready_seconds`, NodeDied if a member ends meanwhile.
        """
        views: dict[str, MemberStatus] = {}
        with trio.move_on_after(ready_seconds):
            while True:
                self.check_alive()
                views = dict(await self.monitor.look())
                if len(views) == len(self.members) and _agree(views):
                    return
                await trio.sleep(_LOOK_SECONDS)
        silent = sorted(set(self.members) - set(views))
        what = f"no answer from {', '.join(silent)}" if silent else "the members do not agree on a leader"
        raise NotReady(what, ready_seconds, self.folder)

    async def state_hashes(self) -> dict[str, tuple[int, str]]:
        """Of each member that answers: (last_applied, the hash of its state there), asked now."""
        views = await self.monitor.look(with_hash=True)
        return {node_id: (view.last_applied, view.state_hash.hex()) for node_id, view in views.items()}

    async def stop(self) -> None:
        """End all members in an orderly way (SIGTERM)."""
        async with trio.open_nursery() as nursery:
            for member in self.members.values():
                if member.running:
                    nursery.start_soon(member.stop)

    def kill_all(self) -> None:
        for member in self.members.values():
            member.kill()


@asynccontextmanager
async def running_cluster(
    folder: Path,
    *,
    nodes: int,
    proxied: bool,
    storage: Sequence[str] = USUAL_STORAGE,
    ready_seconds: float = READY_SECONDS,
) -> AsyncIterator[Cluster]:
    """Make data folders and logs under `folder`, start `nodes` members, and yield once they are ready.

    Whatever happens inside, no process is left at the end. `proxied`: every link between members goes through a
    proxy of ours (`Cluster.network`). `storage`: further options of `hwm serve`. Raises NotReady, NodeDied.
    """
    for attempt in range(1, _START_ATTEMPTS_MAX + 1):
        home = folder if attempt == 1 else folder / f"attempt-{attempt}"
        addresses = _addresses(nodes)
        network = Network({node_id: address.peer_port for node_id, address in addresses.items()}) if proxied else None
        was_up = False
        async with trio.open_nursery() as nursery:
            if network is not None:
                await nursery.start(network.run)
            async with StatusProbe.open(addresses) as probe:
                cluster = Cluster(home, addresses, network, probe)
                try:
                    if await _started(cluster, storage, ready_seconds, may_lose_race=attempt < _START_ATTEMPTS_MAX):
                        was_up = True
                        yield cluster
                finally:
                    cluster.kill_all()
            nursery.cancel_scope.cancel()
        if was_up:  # Not `return` from inside: the cancelled nursery would swallow it.
            return


async def _started(cluster: Cluster, storage: Sequence[str], ready_seconds: float, *, may_lose_race: bool) -> bool:
    """Start all members and wait for them. False if one could not listen because somebody took its port."""
    await trio.Path(cluster.folder).mkdir(parents=True, exist_ok=True)
    for node_id in cluster.addresses:
        data = cluster.folder / node_id
        dial = cluster.network.dial_overrides(node_id) if cluster.network is not None else {}
        arguments = serve_arguments(node_id, data, cluster.addresses, dial, storage)
        cluster.members[node_id] = MemberProcess(node_id, arguments, cluster.folder / f"{node_id}.log")
    cluster.start_all()
    try:
        await cluster.wait_ready(ready_seconds)
    except NodeDied as error:
        if may_lose_race and "in use" in error.tail:
            return False
        raise
    return True


def _addresses(nodes: int) -> dict[str, MemberAddress]:
    assert 1 <= nodes <= NODES_MAX, nodes
    ports = free_ports(2 * nodes)
    return {
        f"n{number + 1}": MemberAddress(peer_port=ports[2 * number], client_port=ports[2 * number + 1])
        for number in range(nodes)
    }


def _agree(views: dict[str, MemberStatus]) -> bool:
    leaders = {(view.term, view.leader_id) for view in views.values()}
    if len(leaders) != 1 or next(iter(leaders))[1] is None:
        return False
    return len({view.last_applied for view in views.values()}) == 1 or _close(views)


def _close(views: dict[str, MemberStatus]) -> bool:
    """Under load the members are never at one index; then it is enough that all are near the leader's mark."""
    mark = max(view.commit_index for view in views.values())
    return all(mark - view.last_applied <= 100 for view in views.values())
