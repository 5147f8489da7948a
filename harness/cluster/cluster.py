"""A cluster of real `hwm serve` processes on loopback, which runs while an `async with` block lasts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from harness.cluster.member_options import BOOTSTRAP, MemberAddress, MemberOptions, join_arguments, serve_arguments
from harness.cluster.monitor import Monitor, Probe
from harness.cluster.ports import free_ports
from harness.cluster.process import MemberProcess
from harness.cluster.proxy_network import ProxyNetwork
from harness.cluster.status_probe import StatusProbe
from harness.cluster.volumes import Volume
from harness.errors import NodeDied, NotReady
from kvstore import MemberStatus, Tls
from raft import Member

NODES_MAX = 9  # The greatest size of a Raft group (`raft.MEMBERS_MAX`).
READY_SECONDS = 30.0
_START_ATTEMPTS_MAX = 3  # A start fails if another process takes a port before the member binds it.
_LOOK_SECONDS = 0.05
_PLAIN = MemberOptions()


class Cluster:
    """The members of a cluster, their addresses, the proxies between them (if any), and a monitor of their status.

    `endpoints` has the client addresses of the current members. `start_new_member` and `forget` change this list in
    place.
    """

    def __init__(
        self,
        folder: Path,
        addresses: dict[str, MemberAddress],
        network: ProxyNetwork | None,
        probe: Probe,
        member_options: MemberOptions = _PLAIN,
    ) -> None:
        self.folder, self.addresses, self.network, self.member_options = folder, addresses, network, member_options
        self.endpoints = [address.client for address in addresses.values()]
        self.monitor = Monitor(list(addresses), probe)
        self.members: dict[str, MemberProcess] = {}
        self.volumes: dict[str, Volume] = {}
        self._founders = dict(addresses)
        self._ids_given = len(addresses)  # The number of ids used so far, removed members included.

    @property
    def leader_id(self) -> str | None:
        return self.monitor.leader_id

    @property
    def tls(self) -> Tls | None:
        """The certificates with which clients connect; None: without TLS."""
        return self.member_options.tls

    @property
    def silent(self) -> set[str]:
        """The running members that did not answer the last status request."""
        return {node_id for node_id, member in self.members.items() if member.running} - set(self.monitor.views)

    async def make_founders(self) -> None:
        """Prepare a folder and a process for each founding member; `start_all` starts the processes.

        Raises VolumeFailed.
        """
        for node_id in self._founders:
            arguments = serve_arguments(
                node_id, await self._new_folder(node_id), self._founders, self.member_options.options_of(node_id)
            )
            self.members[node_id] = self.member_options.process(self.folder, node_id, [*arguments, BOOTSTRAP])

    def forbid_bootstrap(self) -> None:
        """Leave BOOTSTRAP out of later starts, so that a member that loses its folder reports the loss."""
        for member in self.members.values():
            member.arguments = tuple(each for each in member.arguments if each != BOOTSTRAP)

    async def start_new_member(self) -> Member:
        """Start a process with a new id and an empty folder. Returns the member.

        The caller must add the member to the configuration. Raises VolumeFailed.
        """
        self._ids_given += 1
        node_id = f"n{self._ids_given}"
        peer_port, client_port, *metrics_ports = free_ports(3 if self.member_options.has_metrics else 2)
        proxy_port = await self.network.connect(node_id, peer_port) if self.network is not None else 0
        address = MemberAddress(
            peer_port=peer_port,
            client_port=client_port,
            proxy_port=proxy_port,
            metrics_port=next(iter(metrics_ports), 0),
        )
        folder = await self._new_folder(node_id)
        options = await trio.to_thread.run_sync(self.member_options.options_of, node_id)
        arguments = join_arguments(node_id, folder, address, self.endpoints, options)
        self.addresses[node_id] = address
        self.members[node_id] = self.member_options.process(self.folder, node_id, arguments)
        self.members[node_id].start()
        self.monitor.add(node_id)
        self.endpoints.append(address.client)
        return Member(node_id, address.peer, address.client)

    async def forget(self, node_id: str) -> None:
        """Kill a removed member, and drop its address, proxy and volume.

        The data and the log of the member are kept.
        """
        self.members.pop(node_id).kill()
        self.monitor.forget(node_id)
        self.endpoints.remove(self.addresses.pop(node_id).client)
        if self.network is not None:
            self.network.forget(node_id)
        if node_id in self.volumes:
            await self._close_volume(node_id)

    async def close_volumes(self) -> None:
        """Copy the data from all volumes, and remove the volumes. No member may be running."""
        for node_id in list(self.volumes):
            await self._close_volume(node_id)

    async def _new_folder(self, node_id: str) -> Path:
        volume = self.member_options.volume(self.folder, node_id)
        if volume is None:
            return self.folder / node_id
        self.volumes[node_id] = volume
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(volume.open)
        return volume.data

    async def _close_volume(self, node_id: str) -> None:
        volume = self.volumes.pop(node_id)

        def close() -> None:
            with contextlib.suppress(OSError):  # The copy fails if the run was interrupted during a disk fault.
                volume.keep(self.folder / node_id)
            volume.close()

        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(close)

    def start_all(self) -> None:
        """Start every member that does not run, and resume every paused one."""
        for member in self.members.values():
            if member.running:
                member.resume()
            else:
                member.start()

    def check_alive(self) -> None:
        """Raise NodeDied if a member ended by itself although no fault allowed that."""
        for member in self.members.values():
            exit_code = member.wrong_end()
            if exit_code is not None:
                raise NodeDied(member.node_id, exit_code, member.log_path, member.tail())

    async def wait_ready(self, ready_seconds: float = READY_SECONDS) -> None:
        """Return once every member answers, all agree on leader and term, and all have applied nearly the same entries.

        "Nearly the same" means: up to the same index, or up to at most 100 entries below the highest commit index.
        Raises NotReady after `ready_seconds`, and NodeDied if a member ends by itself before then.
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
        """Request the state hash of every member.

        Returns, by node id, (last_applied, state hash in hex) of each answer.
        """
        views = await self.monitor.look(with_hash=True)
        return {node_id: (view.last_applied, view.state_hash.hex()) for node_id, view in views.items()}

    async def stop(self) -> dict[str, int]:
        """Stop all running members with SIGTERM. Returns their exit codes by node id."""
        exit_codes: dict[str, int] = {}

        async def stop(member: MemberProcess) -> None:
            exit_codes[member.node_id] = await member.stop()

        async with trio.open_nursery() as nursery:
            for member in self.members.values():
                if member.running:
                    nursery.start_soon(stop, member)
        return dict(sorted(exit_codes.items()))

    def kill_all(self) -> None:
        for member in self.members.values():
            member.kill()


@asynccontextmanager
async def running_cluster(
    folder: Path,
    *,
    nodes: int,
    proxied: bool,
    member_options: MemberOptions = _PLAIN,
    ready_seconds: float = READY_SECONDS,
) -> AsyncIterator[Cluster]:
    """Start `nodes` members with data folders and logs under `folder`, and yield once they are ready.

    At the end of the block all processes are killed, even if the block fails. `proxied`: every connection between
    members goes through a proxy of the harness (`Cluster.network`). Raises NotReady, NodeDied, VolumeFailed.
    """
    for attempt in range(1, _START_ATTEMPTS_MAX + 1):
        home = folder if attempt == 1 else folder / f"attempt-{attempt}"
        network = ProxyNetwork(member_options.certificates) if proxied else None
        was_up = False
        async with trio.open_nursery() as nursery:
            if network is not None:
                await nursery.start(network.run)
            addresses = await _addresses(nodes, network, has_metrics=member_options.has_metrics)
            async with StatusProbe.open(addresses, member_options.tls) as probe:
                cluster = Cluster(home, addresses, network, probe, member_options)
                try:
                    if await _started(cluster, ready_seconds, may_lose_race=attempt < _START_ATTEMPTS_MAX):
                        was_up = True
                        yield cluster
                finally:
                    cluster.kill_all()
                    await cluster.close_volumes()
            nursery.cancel_scope.cancel()
        if was_up:  # Otherwise another process has taken a port of the cluster: try other ports.
            return


async def _started(cluster: Cluster, ready_seconds: float, *, may_lose_race: bool) -> bool:
    """Start all members and wait until they are ready. Returns False if another process took the port of a member."""
    await trio.Path(cluster.folder).mkdir(parents=True, exist_ok=True)
    await cluster.make_founders()
    cluster.start_all()
    try:
        await cluster.wait_ready(ready_seconds)
    except NodeDied as error:
        if may_lose_race and "in use" in error.tail:
            return False
        raise
    cluster.forbid_bootstrap()
    return True


async def _addresses(nodes: int, network: ProxyNetwork | None, *, has_metrics: bool) -> dict[str, MemberAddress]:
    assert 1 <= nodes <= NODES_MAX, nodes
    ports = free_ports(3 * nodes if has_metrics else 2 * nodes)
    return {
        (node_id := f"n{number + 1}"): MemberAddress(
            peer_port=ports[2 * number],
            client_port=ports[2 * number + 1],
            proxy_port=await network.connect(node_id, ports[2 * number]) if network is not None else 0,
            metrics_port=ports[2 * nodes + number] if has_metrics else 0,
        )
        for number in range(nodes)
    }


def _agree(views: dict[str, MemberStatus]) -> bool:
    leaders = {(view.term, view.leader_id) for view in views.values()}
    if len(leaders) != 1 or next(iter(leaders))[1] is None:
        return False
    return len({view.last_applied for view in views.values()}) == 1 or _close(views)


def _close(views: dict[str, MemberStatus]) -> bool:
    """True if every member has applied the log up to at most 100 entries below the highest commit index.

    Under load, the members' `last_applied` are hardly ever all equal at the same time.
    """
    mark = max(view.commit_index for view in views.values())
    return all(mark - view.last_applied <= 100 for view in views.values())
