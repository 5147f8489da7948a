"""The access load as a whole: its operator, its programs, its watchers, and the rules that judge them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.sim.checks.access.rules import STORED, AccessChecker
from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.history import read_marked_commands
from harness.sim.engine.errors import require
from harness.sim.engine.rng import stream
from harness.sim.load.access.operator import AccessOperator
from harness.sim.load.access.program import AccessProgram
from harness.sim.load.access.users import KEYS, OF_ROOT, PasswordBook
from harness.sim.load.access.watcher import AccessWatcher
from harness.sim.load.client import SimClient
from harness.sim.plan.draw_access import LEVEL
from harness.sim.plan.plan import MILLISECOND_NS
from harness.sim.world.client_connections import ClientConnections
from harness.sim.world.context import MachineView
from kvstore import ClientLimits, Credentials, Range, command_body, read_result
from raft import Entry, EntryKind

LOOK_NS = 50 * MILLISECOND_NS
"""The interval at which the load checks whether feature level 3 is in force."""


class AccessLoad:
    """The operator, the programs, the watchers and the checker of the access load."""

    def __init__(self, world: CheckedWorld, connections: ClientConnections) -> None:
        self._world, self._connections = world, connections
        seed, plan = world.plan.seed, world.plan.access
        self.checker = AccessChecker(lambda key: key in KEYS, world.cover)
        self._applied_index = 0  # The index of the newest entry with commands that any member has applied.
        users = [f"u{number}" for number in range(plan.users)]
        passwords = PasswordBook()
        endpoints = [f"{machine}:1" for machine in world.plan.members]
        client = SimClient(world, connections, "root", endpoints, ClientLimits(), 0, OF_ROOT)
        random = stream(seed, "access/operator")
        self._operator = AccessOperator(world, client, users, passwords, self.checker, random)
        limits, ttl_ns = world.plan.load.client_limits, world.plan.load.session_ttl_ns
        self._programs = []
        self._clients = [client]
        for user in users:
            own = SimClient(world, connections, user, endpoints, limits, ttl_ns, Credentials(user, passwords.of(user)))
            self._clients.append(own)
            random = stream(seed, f"access/{user}")
            self._programs.append(AccessProgram(world, own, self.checker, passwords, user, random))
        self._watchers = [
            AccessWatcher(
                f"v{number}", world, connections, self.checker, users, passwords, stream(seed, f"access/watch/{number}")
            )
            for number in range(plan.watchers)
        ]

    def start(self) -> None:
        """Wait for feature level 3, and then begin."""
        self._world.queue.after(LOOK_NS, self._begin)

    def _begin(self) -> None:
        if self._operator.is_stopped:
            return
        machines = [member.machine for member in self._world.members.values()]
        if not any(machine is not None and machine.feature_level >= LEVEL for machine in machines):
            self.start()
            return
        self._world.cover("the access load began")
        self._operator.begin()
        for program in self._programs:
            program.rest()
        for watcher in self._watchers:
            watcher.begin()

    def stop(self) -> None:
        """Let no program begin another operation, and let the operator change nothing more."""
        self._operator.is_stopped = True
        for program in self._programs:
            program.is_stopped = True
        for watcher in self._watchers:
            watcher.is_stopped = True

    def client_names(self) -> list[str]:
        """Return the names of all clients of this load, for the faults that cut clients off."""
        return [client.name for client in self._clients] + [watcher.name for watcher in self._watchers]

    def clients(self) -> list[SimClient]:
        """Return the clients whose clocks faults may change."""
        return self._clients

    # -- reports of the world

    def on_first_applied(self, entry: Entry, results: Sequence[Any]) -> None:
        """Check the commands of a committed entry. Call this method once for each entry, in order."""
        if entry.kind is EntryKind.COMMANDS:
            _, commands = read_marked_commands(entry.index, entry.payload)
            self._applied_index = entry.index
            self.checker.applied(entry.index, commands, results)

    def on_flush(self, member: MachineView) -> None:
        """Check that a member has ended the watches of all users whom its state does not allow to watch."""
        if member.service is None or member.machine is None or not member.service.watches.count:
            return
        auth_revision = member.machine.access.revision
        for connection in self._connections.at(member):
            client = connection.client
            if isinstance(client, AccessWatcher) and member.service.watches.count_of(connection.server_id):
                self.checker.watched(auth_revision, client.visits[connection.connection_id])

    # -- the end

    def vanish(self) -> None:
        """End all clients without closing their sessions."""
        for client in self._clients:
            client.vanish()

    def check(self) -> None:
        """Compare the stores of the living members that have applied all entries with the commands that were carried
        out."""
        for member in self._world.living():
            if member.machine is None or member.node is None or member.node.core.last_applied < self._applied_index:
                continue
            result: Any = read_result(member.machine.read(command_body(Range(KEYS[0], KEYS[-1] + b"\0"))))
            found = {item.key: item.value for item in result.items}
            require(found == self.checker.values, STORED, member.node_id, found, self.checker.values)
