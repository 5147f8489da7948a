"""The load of etcd's clients as a whole: the ports of the members, the programs, and the rules that judge them.

The load begins when feature level 2 is in force. A replay of the log carries out the commands of all clients, and the
stores of all members are compared with the replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.history import HistoryChecker
from harness.sim.checks.store.etcd import EtcdChecker
from harness.sim.checks.store.leases import LeaseChecker
from harness.sim.checks.store.members import StoreChecker
from harness.sim.checks.store.replay import HISTORY_LEVEL, StoreReplay
from harness.sim.checks.store.watches import WatchChecker
from harness.sim.engine.rng import stream
from harness.sim.load.etcd.caller import EtcdCaller
from harness.sim.load.etcd.client import ETCD_PORT, EtcdClient
from harness.sim.load.etcd.keeper import TTL_SECONDS, LeaseKeeper
from harness.sim.load.etcd.locker import EtcdLocker
from harness.sim.load.etcd.port import PortHost
from harness.sim.load.etcd.program import EtcdParts, EtcdProgram
from harness.sim.load.etcd.watcher import EtcdWatcher
from harness.sim.load.load_end import have_received_all, late_words, see_leases_end
from harness.sim.plan.plan import GOOD_CLOCKS, MILLISECOND_NS, SECOND_NS
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import MachineView
from raft import Entry

LOOK_NS = 50 * MILLISECOND_NS
"""The interval at which the load looks whether feature level 2 is in force."""


class EtcdLoad:
    """All parts of this load."""

    def __init__(
        self, world: CheckedWorld, connections: ClientConnections, history: HistoryChecker, keys: Sequence[bytes]
    ) -> None:
        self._world, plan, seed = world, world.plan.etcd, world.plan.seed
        clocks = world.plan.clocks
        spread = max(clocks.spread, clocks.client_spread)
        trusts_clocks = world.plan.trusts_clocks and spread <= GOOD_CLOCKS.spread
        leases = LeaseChecker(world.cover, trusts_clocks=trusts_clocks)
        self.replay = leases.replay = StoreReplay(leases.ended)
        self._stores = StoreChecker(self.replay, stream(seed, "etcd/old reads"), world.cover)
        self.parts = EtcdParts(
            world=world,
            plan=plan,
            history=history,
            replay=self.replay,
            checker=EtcdChecker(self.replay, leases, world.cover, trusts_clocks=trusts_clocks),
            leases=leases,
            watches=WatchChecker(self.replay, world.cover),
            members=self._members,
        )
        self._ports = {node_id: PortHost(world, connections, member) for node_id, member in world.members.items()}
        connections.ports = {f"{node_id}:{ETCD_PORT}": port for node_id, port in self._ports.items()}
        self._clients: list[EtcdClient] = []
        self._programs: list[EtcdProgram] = []
        for number in range(plan.clients):
            client = self._client(connections, f"e{number}")
            for slot in range(plan.workers):
                place = number * plan.workers + slot
                random = stream(seed, f"etcd/caller/{place}")
                self._programs.append(EtcdCaller(self.parts, client, place, random, keys))
        for number in range(plan.keepers):
            client = self._client(connections, f"e-lease{number}")
            random = stream(seed, f"etcd/keeper/{number}")
            self._programs.append(LeaseKeeper(self.parts, client, self.parts.first_keeper + number, random))
        for number in range(plan.lockers):
            client = self._client(connections, f"e-lock{number}")
            random = stream(seed, f"etcd/locker/{number}")
            self._programs.append(
                EtcdLocker(self.parts, client, self.parts.first_keeper + plan.keepers + number, random)
            )
        self._watchers = [
            EtcdWatcher(self.parts, connections, f"e-watch{number}", stream(seed, f"etcd/watcher/{number}"), keys)
            for number in range(plan.watchers)
        ]

    def _client(self, connections: ClientConnections, name: str) -> EtcdClient:
        random = stream(self._world.plan.seed, f"etcd/client/{name}")
        client = EtcdClient(self._world, connections, name, random, self._members, _nothing)
        self._clients.append(client)
        return client

    def _members(self) -> list[str]:
        """The members that a client may dial: all, and at the end of a run those that are expected to work."""
        if self.parts.is_stopped:
            return [member.node_id for member in self._world.living()]
        return list(self._world.members)

    def start(self) -> None:
        """Wait for feature level 2, and then begin."""
        self._world.queue.after(LOOK_NS, self._begin)

    def _begin(self) -> None:
        if self.parts.is_stopped:
            return
        if self.replay.level < HISTORY_LEVEL:
            self.start()
            return
        self._world.cover("the etcd clients began")
        for client in self._clients:
            client.dial()
        for program in self._programs:
            program.rest()
        for watcher in self._watchers:
            watcher.begin()

    def stop(self) -> None:
        """Let no program begin another call. Watches continue until they have received all events."""
        self.parts.is_stopped = True

    def client_names(self) -> list[str]:
        """Return the names of all clients and ports, for the faults that cut clients off."""
        names = [client.name for client in self._clients] + [watcher.name for watcher in self._watchers]
        return names + [port.name for port in self._ports.values()]

    # -- reports of the world

    def on_first_applied(self, entry: Entry, results: Sequence[Any]) -> None:
        """Carry out a committed entry in the replay. Call this method once for each entry, in order."""
        self.replay.carry_out(entry, results)

    def on_flush(self, member: MachineView) -> None:
        """Compare the store of a member with the replay."""
        self._stores.flushed(member)

    def on_down(self, member: MachineView) -> None:
        """End the port of a member whose process has ended."""
        self._ports[member.node_id].end()

    # -- the end

    @property
    def is_finished(self) -> bool:
        """True when every watch has received all events up to the newest revision."""
        return have_received_all(self.replay, self._watchers)

    def words(self) -> str:
        """The watches that have not received all events, as text."""
        return late_words(self.replay, self._watchers)

    def see_leases_end(self) -> None:
        """End all clients and ports without closing their sessions. Check that an idle cluster ends their leases.

        See docs/concepts/leases.md#what-a-lease-promises.
        """
        self.parts.is_over = True
        for client in self._clients:
            client.close()
        for watcher in self._watchers:
            watcher.close()
        for port in self._ports.values():
            port.end()
        see_leases_end(self._world, self.replay, TTL_SECONDS * SECOND_NS)


def _nothing() -> None:
    """Do nothing when the connection of a client has changed. Its programs look at it before each call."""
