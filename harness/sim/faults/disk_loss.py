"""Members that lose their disk with all files. Such a member never returns under its id; a new member replaces it.

When the process of the member is started again, it refuses to run without files. But with `--bootstrap` on its command
line, the process makes a new folder under the old id. This second incarnation has forgotten the votes of the first. All
members that knew the first incarnation refuse all connections with the second incarnation. The process of the second
incarnation ends when it reads the first of these refusals (`refusals.py`). Then an operator adds a spare machine. Once
the spare has caught up, the operator replaces the lost member by the spare in one step, as docs/operations/guide.md
describes. Other faults may happen during the replacement.

A member that has never connected to the first incarnation cannot distinguish the second incarnation from the first. So
the simulator makes a second incarnation only once all members, past and present, have connected to the first.

See docs/reference/specification.md#13-incarnations-and-pins.
"""

from __future__ import annotations

from dataclasses import replace

from harness.sim.checks.coverage import HASTY
from harness.sim.engine.errors import require
from harness.sim.engine.rng import identifier, stream
from harness.sim.faults.context import FaultyWorld
from harness.sim.faults.membership import PAUSE_NS, MembershipChanges, Operator
from harness.sim.faults.processes import ProcessFaults
from harness.sim.faults.upgrades import Upgrades
from harness.sim.plan.plan import Fault
from harness.sim.world.context import MachineView
from harness.sim.world.disk import Immediately, SimFiles
from raft import Member as Voter
from raft import MembershipChange, Node, PeerRefused
from storage import OpenedStorage, StorageError, open_storage

REBORN_SHARE = 0.5
"""Share of the members with a lost disk that are started with `--bootstrap`, if `_is_known_to_all` allows it."""

HASTY_SHARE = 0.25
"""Share of the losses in which the operator adds the spare as soon as a member has refused the second incarnation."""

REBORN_TIMEOUTS = 5
"""How long a second incarnation runs until the operator notices it, in multiples of the longest election time-out."""


class DiskLoss:
    """Injects losses of disks, and acts as the operator who replaces the members with lost disks."""

    def __init__(
        self, world: FaultyWorld, processes: ProcessFaults, upgrades: Upgrades, membership: MembershipChanges
    ) -> None:
        self._world, self._processes, self._upgrades, self._membership = world, processes, upgrades, membership
        self._operator = Operator(world)
        self._to_replace: list[str] = []
        self._spares: dict[str, str] = {}  # For each lost member, the spare machine that was chosen to replace it.
        self._reborn: MachineView | None = None  # The second incarnation of a member; there is at most one at a time.
        # True once the second incarnation has received the refusal of a member.
        self._is_refused = False
        self._is_hasty = False  # True if the operator acts as soon as a member refuses the second incarnation.

    def allows(self, member: MachineView) -> bool:
        """True if a quorum would keep its disks after this loss, in every configuration that may be in force."""
        history = self._world.safety.members
        if self._world.plan.changes or member.is_lost or not history.committed.is_voter(member.node_id):
            return False
        members = self._world.members
        lost = {m.node_id for m in members.values() if m.is_damaged or m.is_lost} | {member.node_id}
        return all(
            2 * len(lost & set(half)) < len(half)
            for configuration in history.that_may_be_in_force(self._world.safety.commit_index)
            for half in (configuration.voter_ids, configuration.outgoing_ids)
            if half
        )

    def lose(self, fault: Fault, member: MachineView) -> None:
        """Lose all files of a member, and the process with them.

        The process of the member is started again after the fault's duration.
        """
        if not self.allows(member):
            return
        world = self._world
        self._processes.take_down([member], replace(fault, kind="lose power"))
        member.lose_disk()
        world.cover("a disk was lost")
        world.queue.after(fault.duration_ns, self._start_as_ever, member, fault)

    def stop(self) -> None:
        """Begin no further replacement, and end the second incarnation, if there is one."""
        self._operator.is_stopped = True
        self._end_reborn()

    # The methods below start the processes of members without files.

    def _start_as_ever(self, member: MachineView, fault: Fault) -> None:
        if self._operator.is_stopped:
            return
        if fault.shape < REBORN_SHARE and self._is_known_to_all(member):
            self._is_hasty = fault.shape < HASTY_SHARE
            self._make_anew(member)
        else:
            self.check_refuses(member)
            self._replace(member)

    def check_refuses(self, member: MachineView) -> None:
        """Check that a member with an empty folder refuses to start, and writes nothing to the folder."""
        aside, random = Immediately(), stream(self._world.plan.seed, "aside")
        files = SimFiles(member.image, self._world.plan.disks[member.node_id], random, aside)
        outcome: list[OpenedStorage | BaseException] = []
        open_storage(
            files,
            identity=member.identity,
            limits=self._world.plan.storage,
            done=outcome.append,
            random_bytes=random.randbytes,
        )
        aside.run()
        require(
            isinstance(outcome[0], StorageError) and not member.image.names,
            "a member without its files does not start",
            f"{member.node_id}: {outcome[0]!r}, and there is {sorted(member.image.names)}",
        )
        self._world.cover("a member refused to start on an empty disk")

    def _is_known_to_all(self, member: MachineView) -> bool:
        """True if a second incarnation of this member may be made now.

        The member must be a founding voter. All other members, past and present, must have connected to the first
        incarnation, except lost members. No other replacement may be under way.
        """
        everybody = self._world.safety.members.ever
        others = [self._world.members[name] for name in sorted(everybody) if name != member.node_id]
        known = member.identity.incarnation_id
        pins = [other.image.durable_names.get("pins") for other in others if not other.is_lost]
        is_met = all(inode is not None and known in inode.durable for inode in pins)
        is_alone = self._reborn is None and not self._to_replace
        return is_met and is_alone and member.node_id in self._world.plan.voters

    def _make_anew(self, member: MachineView) -> None:
        world = self._world
        world.note_world(f"{member.node_id} is made again under its old id")
        world.cover("a member without its files was made again")
        reborn = world.make_machine(member.node_id)
        incarnation_id = identifier(world.plan.seed, f"incarnation/{member.node_id}/again")
        reborn.identity = reborn.says_it_is = replace(member.identity, incarnation_id=incarnation_id)
        reborn.initialize()
        member.stand_in, member.says_it_is = reborn, reborn.identity
        self._reborn, self._is_refused = reborn, False
        reborn.boot()
        world.queue.after(REBORN_TIMEOUTS * world.plan.election_timeout_max_ns, self._is_noticed, member)

    def _is_noticed(self, member: MachineView) -> None:
        self._end_reborn()
        # If the member is already in the list, a hasty operator has begun the replacement.
        if member.node_id not in self._to_replace:
            self._replace(member)

    def was_told(self, ghost: MachineView) -> None:
        """Handle the refusal of the second incarnation, `ghost`, by a member."""
        if self._reborn is not ghost:
            return
        self._is_refused = True
        if self._is_hasty and not self._operator.is_stopped:
            self._is_hasty = False
            self._world.cover(HASTY)
            self._replace(self._world.members[ghost.node_id])

    def ghost_ended(self, ghost: MachineView) -> None:
        """Handle the end of the second incarnation's process, if it ends before the operator has noticed this
        incarnation.
        """
        if self._reborn is ghost:
            self._end_reborn()

    def _end_reborn(self) -> None:
        if self._reborn is not None:
            reborn, self._reborn = self._reborn, None
            self._world.members[reborn.node_id].stand_in = None
            reborn.crash(power=False)

    # The methods below handle the messages of a second incarnation.

    def deliver(self, reborn: MachineView, sender: str, frame: bytes) -> None:
        """Deliver a frame to a second incarnation.

        First, the sender reads the hello of the second incarnation. If the sender refuses this hello, because it knows
        the first incarnation, the frame is not delivered.
        """
        other = self._world.members[sender]
        if other.node is None:
            return
        try:
            self._upgrades.greet(other.node, other.machine, reborn.identity)
        except PeerRefused as error:
            self._world.cover(f"a hello was refused: {error.code}")
            return
        self.greeted(other, reborn.node_id)
        reborn.deliver(sender, frame)

    def greeted(self, member: MachineView, peer_id: str) -> None:
        """Check a hello of `peer_id` that `member` has accepted: it must not be the hello of a second incarnation."""
        peer = self._world.members[peer_id]
        require(
            peer.says_it_is == peer.identity,
            "a new folder is ignored by every member that knew the lost one",
            f"{member.node_id} hears {peer_id}, which has forgotten what it said",
        )

    # The replacement.

    def _replace(self, member: MachineView) -> None:
        self._to_replace.append(member.node_id)
        if len(self._to_replace) == 1:
            self._go_on()

    def _go_on(self) -> None:
        """Try one step of a replacement. The next try follows a little later."""
        if self._operator.is_stopped or not self._to_replace:
            return
        lost = self._to_replace[0]
        committed, spare = self._world.safety.members.committed, self._spare_for(lost)
        is_replaced = committed.member(lost) is None and not committed.is_joint
        if is_replaced:
            self._world.cover("a member that lost its disk was replaced")
        if is_replaced or spare is None:
            del self._to_replace[0]
        elif self._reborn is None or self._is_refused:
            self._operator.ask(
                "a replacement", f"replace {lost} by {spare}", lambda node: self._step(node, lost, spare), 1
            )
        self._world.queue.after(PAUSE_NS, self._go_on)

    def _spare_for(self, lost: str) -> str | None:
        taken = {*self._world.safety.members.ever, *self._spares.values()}
        free = next((name for name in self._world.plan.members if name not in taken), None)
        if free is not None:
            self._spares.setdefault(lost, free)
        return self._spares.get(lost)

    def _step(self, node: Node, lost: str, spare: str) -> None:
        now = node.core.configuration
        if now.member(spare) is None:
            change = MembershipChange(add=(Voter(spare, client_address=f"{spare}:1"),))
        elif spare in now.learner_ids:
            change = MembershipChange(promote=(spare,), remove=(lost,))
        else:
            return  # The spare is already a voter, so the change is almost complete.
        self._membership.propose(node, change)
