"""The coordination load: leases, locks, watches, old revisions and compactions, on keys that only this load uses.

The load begins when feature level 2 is in force. A replay of the log carries out the commands of all clients, and the
stores of all members are compared with the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.coverage import INSTALLED, RESTARTED
from harness.sim.checks.store.leases import LeaseChecker
from harness.sim.checks.store.members import StoreChecker
from harness.sim.checks.store.replay import HISTORY_LEVEL, EndedLease, StoreReplay, in_range
from harness.sim.checks.store.watches import WatchChecker
from harness.sim.engine.errors import Violation
from harness.sim.engine.rng import stream
from harness.sim.load.client import SimClient
from harness.sim.load.coordination_program import PREFIX, Coordination, SequentialProgram
from harness.sim.load.lease_owner import LeaseOwner
from harness.sim.load.load_end import have_received_all, late_words, see_leases_end
from harness.sim.load.lock_contender import LOCK_NAMES, LockContender
from harness.sim.load.store_writer import StoreWriter
from harness.sim.load.watch_client import WatchClient
from harness.sim.plan.plan import GOOD_CLOCKS, MILLISECOND_NS, SECOND_NS
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import MachineView
from harness.workload.operation_generator import Planned
from kvstore import ChangeLimits, Command, CommandKind, Range, Service, Txn, command_request
from raft import Entry

RESTED_NS = 50 * MILLISECOND_NS
"""The interval at which the load checks whether feature level 2 is in force."""

TOLD_SHARE = 0.3
"""Share of the ending programs that close their sessions."""

SESSION_TTL_NS = 60 * SECOND_NS
"""The time to live of this load's sessions, if the clients of the ordinary load have no sessions."""


class CoordinationLoad:
    """All programs of this load, and the checkers of their results.

    To inject faults, `expiry_is_near` is called around the time at which a lease that is no longer renewed may expire.
    """

    def __init__(self, world: CheckedWorld, connections: ClientConnections) -> None:
        self._world, self._plan = world, world.plan.coordination
        seed = world.plan.seed
        self.expiry_is_near: Callable[[], None] = _nothing
        clocks = world.plan.clocks
        spread = max(clocks.spread, clocks.client_spread)
        trusts_clocks = world.plan.trusts_clocks and spread <= GOOD_CLOCKS.spread
        self.leases = LeaseChecker(world.cover, trusts_clocks=trusts_clocks)
        self.replay = StoreReplay(self._lease_ended)
        self.leases.replay = self.replay
        self._stores = StoreChecker(self.replay, stream(seed, "coordination/old reads"), world.cover)
        self.parts = Coordination(
            world=world,
            plan=self._plan,
            connections=connections,
            replay=self.replay,
            leases=self.leases,
            watches=WatchChecker(self.replay, world.cover),
            lease_left=self._lease_left,
            living=lambda: [member.node_id for member in world.living()],
        )
        self._random = stream(seed, "coordination")
        self._served: dict[str, tuple[int, Any]] = {}  # For each member that serves watches: (life, history).
        endpoints = [f"{machine}:1" for machine in world.plan.members]
        limits = world.plan.load.client_limits
        self._session_ttl_ns = world.plan.load.session_ttl_ns or SESSION_TTL_NS
        self._bounded: set[tuple[str, int]] = set()  # The hubs that have got the bounds of the plan: (member, life).
        self._clients = [
            SimClient(world, connections, f"k{number}", endpoints, limits, self._session_ttl_ns)
            for number in range(self._plan.clients)
        ]
        kinds = [LeaseOwner] * self._plan.owners + [LockContender] * self._plan.contenders
        programs = [*kinds, *[StoreWriter] * self._plan.writers]
        self._programs: list[SequentialProgram] = [
            kind(self.parts, self._clients[number % len(self._clients)], number, stream(seed, f"coordination/{number}"))
            for number, kind in enumerate(programs)
        ]
        self._watchers = [
            WatchClient(self.parts, number, stream(seed, f"coordination/watch/{number}"))
            for number in range(self._plan.watchers)
        ]

    def start(self) -> None:
        """Wait for feature level 2."""
        self._world.queue.after(RESTED_NS, self._begin)

    def stop(self) -> None:
        """Let no program begin another operation. Watches continue until they have received all events."""
        self.parts.is_stopped = True

    def client_names(self) -> list[str]:
        """Return the names of all clients of this load, for the faults that cut clients off."""
        return [client.name for client in self._clients] + [watcher.name for watcher in self._watchers]

    def clients(self) -> list[SimClient]:
        """Return the clients whose clocks faults may change."""
        return self._clients

    def _begin(self) -> None:
        if self.parts.is_stopped:
            return
        if self.replay.level < HISTORY_LEVEL:
            self.start()
            return
        self._world.cover("the coordination load began")
        self._bound_store()
        for program in self._programs:
            program.rest()
        for watcher in self._watchers:
            watcher.begin()
        if self._plan.stay_ns:
            for client in self._clients:
                self._stay(client)

    def _bound_store(self) -> None:
        """Set the limits of the plan in the store with a command, because these limits are replicated."""
        wanted = self._plan.lease_grace_ns, self._plan.delete_keys_max
        in_force = self.replay.limits["lease_grace_ns"], self.replay.limits["delete_keys_max"]
        if self.parts.is_stopped or in_force == wanted:
            return
        limits = ChangeLimits(
            history_bytes_max=self._plan.history_bytes_max,
            history_events_max=self._plan.history_events_max,
            lease_grace_ns=self._plan.lease_grace_ns,
            delete_keys_max=self._plan.delete_keys_max if self._plan.bounds_keys else None,
        )
        deadline = self._world.queue.now + SECOND_NS
        if self._clients[0].is_full:
            self._bound_later()
            return
        self._clients[0].submit(command_request(limits), deadline, lambda _: self._bound_later())

    def _bound_later(self) -> None:
        self._world.queue.after(RESTED_NS, self._bound_store)

    def _stay(self, client: SimClient) -> None:
        self._world.queue.after(int(self._random.expovariate(1) * self._plan.stay_ns), self._end_process, client)

    def _end_process(self, client: SimClient) -> None:
        """End the process of a client, and start another process. The leases of the ended process expire."""
        if self.parts.is_stopped:
            return
        client.leave(is_told=self._random.random() < TOLD_SHARE, ttl_ns=self._session_ttl_ns)
        for program in self._programs:
            if program.client is client:
                program.restart()
        self._stay(client)

    # -- leases

    def _lease_ended(self, lease: EndedLease) -> None:
        self.leases.ended(lease)

    def _lease_left(self, left_ns: int) -> None:
        if self._random.random() < self._plan.death_share:
            early_ns = int(self._random.random() * 100 * MILLISECOND_NS)
            self._world.queue.after(max(0, left_ns + early_ns), self._near)

    def _near(self) -> None:
        if not self.parts.is_stopped:
            self.expiry_is_near()

    # -- reports of the world

    def on_first_applied(self, entry: Entry, results: Sequence[Any]) -> None:
        """Carry out a committed entry in the replay. Call this method once for each entry, in order."""
        self.replay.carry_out(entry, results)
        self.leases.follow(LOCK_NAMES)

    def on_flush(self, member: MachineView) -> None:
        """Compare the store of a member with the replay."""
        self._stores.flushed(member)
        service, machine = member.service, member.machine
        if service is None or machine is None:
            return
        if (member.node_id, member.life) not in self._bounded:  # A new process has no watches yet.
            self._bounded.add((member.node_id, member.life))
            service.watches.bounds = replace(service.watches.bounds, **self._plan.hub)
        check_hub(service)
        before = self._served.get(member.node_id)
        if service.watches.count:
            if before is not None and before[0] == member.life and before[1] is not machine.history:
                self._world.cover(INSTALLED)
            self._served[member.node_id] = member.life, machine.history
        elif before is not None:
            if before[0] != member.life:
                self._world.cover(RESTARTED)
            del self._served[member.node_id]

    # -- the end

    @property
    def is_finished(self) -> bool:
        """True when every watch has received all events up to the newest revision."""
        return have_received_all(self.replay, self._watchers)

    def words(self) -> str:
        """The watches that have not received all events, as text."""
        return late_words(self.replay, self._watchers)

    def see_leases_end(self) -> None:
        """End the programs, and check that an idle cluster ends their leases.

        See docs/concepts/leases.md#what-a-lease-promises.
        """
        self.parts.is_over = True
        for client in self._clients:
            client.vanish()
        see_leases_end(self._world, self.replay, self._plan.lease_ttl_ns)


def check_hub(service: Service) -> None:
    """Check the invariants of a member's watch hub."""
    try:
        service.watches.check()
    except AssertionError as error:
        raise Violation("a hub keeps its invariants", repr(error)) from error


def is_of_coordination(body: Sequence[Any]) -> bool:
    """True if a command in the log is from this load: it concerns leases, the history, or a key of this load."""
    kind = body[0]
    if kind == CommandKind.TXN:
        operations = [*body[2], *body[3]]
        return any(compare[2].startswith(PREFIX) for compare in body[1]) or any(map(is_of_coordination, operations))
    if kind < CommandKind.REGISTER_SESSION:
        return bool(body[1].startswith(PREFIX))
    return bool(kind > CommandKind.RAISE_FEATURE_LEVEL)


def without_own_keys(planned: Planned) -> Planned:
    """Return `planned`, an operation of the ordinary load, with ranges cut so that they leave out the keys of the
    coordination load."""
    command = _clipped(planned.command)
    return Planned(command, planned.local_of, planned.mode)


def _clipped(command: Any) -> Command:
    if isinstance(command, Range) and command.end is None and in_range(command.start, b"", PREFIX):
        fields = {name: getattr(command, name) for name in command.__dataclass_fields__}
        return Range(**(fields | {"end": PREFIX}))
    if isinstance(command, Txn):
        return Txn(command.compares, tuple(map(_clipped, command.success)), tuple(map(_clipped, command.failure)))  # type: ignore[arg-type]
    return command  # type: ignore[no-any-return]


def _nothing() -> None:
    """Do nothing."""
