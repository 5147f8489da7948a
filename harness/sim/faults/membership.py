"""Membership changes: an operator adds, promotes, removes and replaces members during other faults (thesis §4)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from harness.sim.checks.coverage import NAMED
from harness.sim.engine.errors import require
from harness.sim.engine.rng import stream
from harness.sim.faults.context import FaultyWorld
from harness.sim.faults.targets import choose_target
from harness.sim.plan.plan import MILLISECOND_NS, ChangeStep, Fault, names_new_voters
from harness.sim.world.context import MachineView, World
from raft import (
    MEMBERS_MAX,
    Applied,
    Busy,
    ChangeRefusal,
    ChangeRefused,
    Configuration,
    Effects,
    LevelRefused,
    Member,
    MembershipChange,
    Node,
    NodeStopped,
    NotLeader,
    Refused,
    Role,
    Unknown,
    naming_new_voters,
)

TRIES_MAX, PAUSE_NS = 12, 40 * MILLISECOND_NS
"""How many times a request is tried, and the pause between two tries. A refused request may soon be accepted: once a
leader is elected, another change has ended, or the last member is upgraded."""


class Operator:
    """Sends a request to the current leader, and repeats it until a leader accepts it.

    The repetition ends after the last try, or when `is_stopped` is set.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_stopped = False

    def ask(self, what: str, label: str, attempt: Callable[[Node], None], tries_left: int = TRIES_MAX) -> None:
        """Call `attempt` with the leader's node. If `attempt` raises the node's refusal, try again later.

        `what` names the request in the coverage point for a refusal. `label` names the request in the trace.
        """
        world = self._world
        member = world.members[choose_target(world, None)]
        if self.is_stopped or not tries_left:
            return
        again = (PAUSE_NS, self.ask, what, label, attempt, tries_left - 1)
        if member.node is None or member.is_paused or member.node.core.role is not Role.LEADER:
            world.queue.after(*again)
            return

        def tried(node: Node) -> None:
            try:
                attempt(node)
            except (ChangeRefused, LevelRefused, NotLeader, Busy, NodeStopped) as error:
                world.cover(f"{what} was refused: {_word(error)}")
                world.queue.after(*again)

        member.call(label, tried)


def _word(error: Exception) -> str:
    return error.reason.value if isinstance(error, ChangeRefused | LevelRefused) else type(error).__name__


SILENCE_TIMEOUTS = 12
"""How long a silenced member is cut off, in multiples of the longest election time-out.

This time is longer than the time for which a leader still replicates to a removed member (`DEPARTURE_TIMEOUTS_MAX`).
"""


class MembershipChanges:
    """Carries out the membership changes of the plan, and checks how each change ends."""

    def __init__(self, world: FaultyWorld) -> None:
        self._world = world
        self._random = stream(world.plan.seed, "changes")
        self._last_ticket = 0
        self._names = names_new_voters(world.plan.seed)
        self._silenced = stream(world.plan.seed, "changes/silenced")
        self._operator = Operator(world)

    def start(self) -> None:
        """Put the steps of all changes into the queue."""
        for step in self._world.plan.changes:
            self._world.queue.at(step.at_ns, self._try, step)

    def stop(self) -> None:
        """Begin no further changes. Changes that have already begun are completed."""
        self._operator.is_stopped = True

    def promote_the_living(self) -> None:
        """Request the promotion of all living learners repeatedly, until no living learner is left."""
        learners = self.living_learners()
        if not learners:
            return
        self._world.queue.after(PAUSE_NS, self.promote_the_living)
        member = self._world.members[choose_target(self._world, None)]

        def attempt(node: Node) -> None:
            with contextlib.suppress(ChangeRefused, NotLeader, Busy, NodeStopped):
                self.propose(node, MembershipChange(promote=learners))

        if member.node is not None and member.node.core.role is Role.LEADER:
            member.call("change: promote the learners", attempt)

    def living_learners(self) -> tuple[str, ...]:
        """Return the living learners of the committed configuration."""
        learners = self._world.safety.members.committed.learner_ids
        return tuple(member.node_id for member in self._world.living() if member.node_id in learners)

    def propose(self, node: Node, change: MembershipChange) -> None:
        """Let a leader begin this change.

        In some seeds the change contains the data folders of new voters, as requests of the store's service do.
        """
        if self._names:
            named = naming_new_voters(change, node.core.configuration, node.pinned_incarnation)
            if named != change:
                self._world.cover(NAMED)
            change = named
        self._last_ticket -= 1
        try:
            node.propose_change(change, self._last_ticket)
        except ChangeRefused as error:
            self.check_refusal(node.identity.node_id, change, error)
            raise

    def check_refusal(self, node_id: str, change: MembershipChange, error: ChangeRefused) -> None:
        """If a leader refused an id because it was used before, check that a configuration has named this id."""
        named = {member.node_id for member in (*change.add, *change.update)}
        require(
            error.reason is not ChangeRefusal.USED_ID or not named.isdisjoint(self._world.safety.members.ever),
            "an id is refused as used only if a member had it",
            f"{node_id} refuses {change}: {error}",
        )

    def _try(self, step: ChangeStep) -> None:
        world = self._world

        def attempt(node: Node) -> None:
            change = self._change(step, node.core.configuration)
            if change is None:
                return
            self.propose(node, change)
            world.cover(f"a change was begun: {step.what}")
            if step.cut_off_ns:
                world.queue.after(0, self._cut_off, step, node.identity.node_id)
            if node.identity.node_id in change.remove:
                world.cover("a leader began to remove itself")
            elif change.remove and self._silenced.random() < world.plan.silenced_rate:
                silence_ns = SILENCE_TIMEOUTS * world.plan.election_timeout_max_ns
                world.queue.after(0, self._cut_off, replace(step, cut_off_ns=silence_ns), change.remove[0])

        self._operator.ask("a change", f"change: {step.what}", attempt)

    def _cut_off(self, step: ChangeStep, node_id: str) -> None:
        machines = self._world.plan.members
        target = (machines.index(node_id) + 0.5) / len(machines)
        now, kind = self._world.queue.now, "cut off"
        self._world.inject(Fault(at_ns=now, kind=kind, duration_ns=step.cut_off_ns, target=target, shape=step.shape))

    def _change(self, step: ChangeStep, now: Configuration) -> MembershipChange | None:
        """Return the change that the operator requests; None if no change of this kind is possible."""
        ids = [member.node_id for member in now.members]
        spares = [name for name in self._world.plan.members if name not in ids and name not in now.removed]
        learners, voters = now.learner_ids, now.voter_ids

        def one(names: tuple[str, ...] | list[str]) -> tuple[str, ...]:
            return (names[int(step.shape * len(names))],) if names else ()

        match step.what:
            case "add":
                wanted = tuple(spares) if step.shape < 0.3 else one(spares)
                if step.shape > 0.8 and now.removed:
                    wanted = now.removed[-1:]  # An id that was used before. The leader must refuse this id.
                new = tuple(Member(name, client_address=f"{name}:1") for name in wanted[: MEMBERS_MAX - len(ids)])
                return MembershipChange(add=new) if new else None
            case "promote":
                who = learners if step.shape < 0.5 else one(learners)
                return MembershipChange(promote=who) if who else None
            case "replace":
                return MembershipChange(promote=one(learners), remove=one(voters)) if learners else None
            case "remove":
                few = voters[: int(step.shape * 10) % len(voters)] if step.shape < 0.3 else one(ids)
                return MembershipChange(remove=few or one(ids)) if len(voters) > 1 or learners else None
        raise AssertionError(step.what)

    def on_flush(self, machine: MachineView, effects: Effects) -> None:
        """Check how changes have ended, and remove their completions, because no client waits for these completions."""
        ours = [
            each for each in effects.completions if isinstance(each, Applied | Refused | Unknown) and each.ticket < 0
        ]
        if not ours:
            return
        effects.completions = [each for each in effects.completions if each not in ours]
        for end in ours:
            self._world.cover(f"a change ended: {type(end).__name__}")
            if isinstance(end, Applied):
                members = self._world.safety.members.in_force(machine.logs.memory, end.index)
                require(
                    end.result == members and not members.is_joint and end.index <= self._world.safety.commit_index,
                    "a change that is reported as done is done",
                    f"{machine.node_id} tells {end}; at {end.index} there is {members}",
                )
