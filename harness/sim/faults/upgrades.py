"""Upgrades: members get newer builds one by one, an operator raises the feature level, some members get an older build.

A build is represented by the range of feature levels that it knows, `LevelRange(1, highest)`. In the simulator, levels
differ only in their numbers. These numbers are enough to check two rules. No member may apply an entry of a level that
its build does not know. A leader may raise the level only if every member has had a build that knows the new level.

See docs/reference/specification.md#713-feature-levels.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.sim.checks.coverage import PIN_GAVE_WAY
from harness.sim.engine.errors import require
from harness.sim.engine.rng import stream
from harness.sim.faults.membership import PAUSE_NS, TRIES_MAX, Operator
from harness.sim.faults.processes import ProcessFaults
from harness.sim.faults.targets import choose_target
from harness.sim.plan.plan import Fault, UpgradeStep
from harness.sim.world.context import MachineView, World
from kvstore import RaiseFeatureLevel, UnsupportedFeatureLevel, encode_command
from raft import (
    AppliedBatch,
    Effects,
    Identity,
    LevelRange,
    LevelRefusal,
    LevelRefused,
    Node,
    NodeStopped,
    NotLeader,
    Role,
    StateMachine,
)

LEVEL_MAX = 3
"""The highest level that the newest build of a run knows."""

OUR_TICKETS = -1_000_000
"""The tickets of the operator's commands count down from this number. No client and no membership change uses such
tickets.
"""

HASTY_SHARE = 0.5
"""After this share of the proposals to raise the level, a member is at once given a build that lacks the new level."""


LEFT_OUT_SHARE = 0.6
"""Share of the machines outside the first configuration that roll-outs leave out."""


class Upgrades:
    """Carries out the steps of the plan, and records the present and earlier builds of every member."""

    def __init__(self, world: World, processes: ProcessFaults) -> None:
        self._world, self._processes = world, processes
        members = world.plan.members
        random = stream(world.plan.seed, "upgrades")
        newest = len(world.plan.voters)  # Machines that join later start with a random build.
        first = world.plan.first_build
        self._next = {
            name: first if place < newest else max(first, random.randint(1, LEVEL_MAX))
            for place, name in enumerate(members)
        }
        self.levels = {name: LevelRange(1, highest) for name, highest in self._next.items()}
        self.best = dict(self._next)  # For each member, the highest level that any of its builds has known.
        forgets = stream(world.plan.seed, "upgrades/forgotten")
        self._forgotten = {name for name in members[newest:] if forgets.random() < LEFT_OUT_SHARE}
        self._haste = stream(world.plan.seed, "upgrades/haste")
        self._rolled = first
        # The feature levels that each connected peer of each member stated.
        self._said: dict[str, dict[str, LevelRange]] = {name: {} for name in members}
        self._asked: list[tuple[int, frozenset[str]]] = []  # For each proposal: (level, members at that time).
        self._last_ticket = OUR_TICKETS
        self._operator = Operator(world)

    def start(self) -> None:
        """Put the steps into the queue."""
        for step in self._world.plan.upgrades:
            self._world.queue.at(step.at_ns, self._carry_out, step)

    def stop(self) -> None:
        """Stop the operator, and give every member the newest build, because older builds may lack the level."""
        self._operator.is_stopped = True
        if self._world.plan.upgrades:
            for member in self._world.members.values():
                # `_next` is the build of the member's next process. The present process, if there is one, may have a
                # newer build.
                if self._next[member.node_id] < LEVEL_MAX:
                    self._give(member, LEVEL_MAX, 0)

    def starts(self, member: MachineView) -> LevelRange:
        """Return the build of the process that starts on `member` now."""
        name = member.node_id
        levels = self.levels[name] = LevelRange(1, self._next[name])
        self._said[name].clear()
        self.best[name] = max(self.best[name], levels.highest)
        return levels

    def _carry_out(self, step: UpgradeStep) -> None:
        world = self._world
        if self._operator.is_stopped:
            return
        world.cover(f"upgrade: {step.what}")
        members = list(world.members.values())
        match step.what:
            case "roll":
                self._rolled = min(self._rolled + 1, LEVEL_MAX)
                pause = int(step.shape * world.plan.election_timeout_max_ns)
                known = [member for member in members if member.node_id not in self._forgotten]
                for place, member in enumerate(known):
                    world.queue.after(place * pause, self._reach, member, self._rolled, pause)
            case "raise":
                self._raise(1 + int(step.shape * LEVEL_MAX))
            case "back":
                member = members[int(step.shape * len(members))]
                self._give(member, max(1, self._next[member.node_id] - 1), PAUSE_NS)
            case _:
                raise AssertionError(step.what)

    def _reach(self, member: MachineView, highest: int, pause_ns: int) -> None:
        """Carry out a roll-out on this member. Once the operator has stopped, all members have the newest build."""
        if not self._operator.is_stopped:
            self._give(member, highest, pause_ns)

    def _give(self, member: MachineView, highest: int, pause_ns: int) -> None:
        """End the process of a member, and start another build in its place."""
        self._next[member.node_id] = highest
        self._world.note_world(f"{member.node_id} gets a build that knows levels up to {highest}")
        now = self._world.queue.now
        fault = Fault(at_ns=now, kind="kill", duration_ns=pause_ns, target=None, shape=0.0)
        self._processes.take_down([member], fault)

    def _raise(self, level: int, tries_max: int = TRIES_MAX) -> None:
        def attempt(node: Node) -> None:
            machine = self._world.members[node.identity.node_id].machine
            assert machine is not None
            if level > machine.feature_level:
                try:
                    node.check_raise(level)
                except LevelRefused as error:
                    self.check_refusal(level, node, error)
                    raise
                self._check_asked(level, node)
            self._last_ticket -= 1
            node.propose(encode_command(RaiseFeatureLevel(level)), self._last_ticket)
            self._world.cover("a level was proposed")
            if level > machine.feature_level and self._haste.random() < HASTY_SHARE:
                self._world.queue.after(0, self._take_back, level)

        self._operator.ask("a level", f"raise the level to {level}", attempt, tries_max)

    def check_refusal(self, level: int, node: Node, error: LevelRefused) -> None:
        """If a leader refuses a level because of a member's build, check that a member has reported a build without
        this level to the leader.
        """
        ids = {member.node_id for member in node.core.configuration.members}
        told = self._said[node.identity.node_id]
        lacking = sorted(name for name, levels in told.items() if name in ids and level not in levels)
        require(
            error.reason is not LevelRefusal.OLD_MEMBER or bool(lacking),
            "a level is refused for a build only if a member has one that lacks it",
            f"{node.identity.node_id} refuses {level}: {error}; on connections that stand it was told {told}",
        )

    def nothing_prevents_a_level(self) -> bool:
        """True if the leader would now raise the level to LEVEL_MAX. Then every member must have the newest build."""
        leader = self._world.members[choose_target(self._world, None)].node
        if leader is None or leader.core.role is not Role.LEADER:
            return False
        try:
            leader.check_raise(LEVEL_MAX)
        except (LevelRefused, NotLeader, NodeStopped):
            return False
        return True

    def _take_back(self, level: int) -> None:
        """Give a build that lacks `level` to a member that does not lead, before that member has heard of the level."""
        leader_id = choose_target(self._world, None)
        others = [member for member in self._world.members.values() if member.node_id != leader_id]
        if others and level > 1 and not self._operator.is_stopped:
            self._world.cover("a member was taken back while a level was raised")
            self._give(self._haste.choice(others), level - 1, PAUSE_NS)

    def _check_asked(self, level: int, node: Node) -> None:
        """Check that every member has had a build with this level, and has reported the level to the leader."""
        ids = frozenset(member.node_id for member in node.core.configuration.members)
        behind = sorted(name for name in ids if self.best[name] < level)
        require(
            not behind,
            "a level is raised only when every member knows it",
            f"{node.identity.node_id} raises it to {level}, which {behind} never knew",
        )
        said = self._said[node.identity.node_id]
        unsaid = sorted(name for name in ids - {node.identity.node_id} if name not in said or level not in said[name])
        require(
            not unsaid,
            "a level is raised only when every member says that it knows it",
            f"{node.identity.node_id} raises it to {level}; on connections that stand it was told {said}",
        )
        self._asked.append((level, ids))

    # The methods below handle the reports of members.

    def connection_lost(self, member: MachineView, peer_id: str) -> None:
        """Forget the levels that the peer stated on a closed connection, because these levels may change."""
        self._said[member.node_id].pop(peer_id, None)

    def applied(self, member: MachineView) -> None:
        """Check the feature level of a member that has applied an entry."""
        assert member.machine is not None
        level, levels = member.machine.feature_level, self.levels[member.node_id]
        require(
            level in levels,
            "no member applies an entry of a level that its build lacks",
            f"{member.node_id}: {level}, {levels}",
        )
        if level == member.checker.level:
            return
        require(
            level > member.checker.level, "a level never falls", f"{member.node_id}: {member.checker.level}, {level}"
        )
        member.checker.level = level
        self._world.cover(f"level {level} is in force")

    def greet(self, node: Node, machine: StateMachine | None, sender: Identity) -> None:
        """Pass the hello of `sender` to `node`, which then accepts the sender's messages. Raises PeerRefused."""
        assert machine is not None
        levels, level = self.levels[sender.node_id], machine.feature_level
        pinned = node.pinned_incarnation(sender.node_id)
        node.peer_hello(sender.node_id, sender.incarnation_id, levels)
        self._said[node.identity.node_id][sender.node_id] = levels
        if pinned not in (b"", sender.incarnation_id):
            self._world.cover(PIN_GAVE_WAY)
        require(
            levels.highest >= level,
            "a member hears no build that lacks the level in force",
            f"{node.identity.node_id} is at {level}, {sender.node_id} knows {levels}",
        )

    def has_stopped(self, member: MachineView, error: UnsupportedFeatureLevel) -> None:
        """Check a member that has stopped because its build does not know an entry that it has to apply.

        The member must have been taken back to this build, or must have joined after the level was proposed. The
        operator then gives the member the newest build.
        """
        if member.node is not None:  # The node has run, and no other check inspects its last step.
            member.checker.stopped(member.node.core)
        name, levels = member.node_id, self.levels[member.node_id]
        require(
            error.level not in levels, "a build continues at every level that it knows", f"{name}, {levels}: {error}"
        )
        could = self.best[name] >= error.level
        came_later = any(level >= error.level and name not in ids for level, ids in self._asked)
        require(could or came_later, "no member is led to a level that its build never knew", f"{name}: {error}")
        self._world.cover("a member stopped at a level that its build does not know")
        self._give(member, LEVEL_MAX, PAUSE_NS)

    def take_own(self, effects: Effects) -> None:
        """Remove the completions of the operator's own commands, because no client waits for them."""
        kept: list[object] = []
        for told in effects.completions:
            if isinstance(told, AppliedBatch):
                places = [place for place, ticket in enumerate(told.tickets) if ticket > OUR_TICKETS]
                if len(places) < len(told.tickets):
                    told = AppliedBatch(_at(told.tickets, places), told.index, _at(told.results, places))
                if places:
                    kept.append(told)
            elif getattr(told, "ticket", 0) > OUR_TICKETS:
                kept.append(told)
        effects.completions = kept  # type: ignore[assignment]


def _at(items: Sequence[int], places: list[int]) -> list[int]:
    return [items[place] for place in places]
