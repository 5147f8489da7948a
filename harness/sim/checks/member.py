"""The rules about one member, checked after every event and when its probes report something.

See docs/reference/specification.md#3-order-of-durability.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from harness.sim.checks.acknowledgements.levels import LevelChecker
from harness.sim.checks.commitment import CommitmentChecker
from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.leader import LeaderChecker
from harness.sim.checks.leader_loss import LeaderLossChecker
from harness.sim.checks.lease_promises import LeasePromiseChecker
from harness.sim.checks.membership import Halves, check_standing, halves_of, has_majorities
from harness.sim.checks.messages import PINNED_BEFORE_USE, check_pin, check_promise, check_refuses_others
from harness.sim.checks.node_events import NodeEventChecker
from harness.sim.checks.proposal_ends import ProposalChecker
from harness.sim.checks.reads import ReadChecker
from harness.sim.checks.snapshots import check_built
from harness.sim.engine.errors import broken, require
from harness.sim.world.context import MachineView
from harness.sim.world.probes import NodeProbe
from raft import (
    Effects,
    Entry,
    Message,
    Node,
    PreVoteResponse,
    RaftCore,
    ReadIndexResponse,
    ReadMode,
    ReadReady,
    Refused,
    Role,
    TimeoutNow,
    TraceEvent,
    VoteRequest,
    flatten,
)
from storage import OpenedStorage

HASH_EVERY_ENTRIES = 8
"""The states of members are compared after each entry whose index is a multiple of this number, at each snapshot, and
at the end of a run.
"""


class MemberChecker:
    """Checks one process of one machine.

    The cost of each check per event is constant, except for hashes of the state.
    """

    looks_every = HASH_EVERY_ENTRIES

    def __init__(
        self, world: CheckedWorld, member: MachineView, storage: OpenedStorage, commitment: CommitmentChecker
    ) -> None:
        self._member, self._storage = member, storage
        self._world, self._logs, self._node_id = world, member.logs, member.node_id
        self._commitment = commitment
        header = storage.snapshots.latest().header
        self.term = storage.hard_state.term
        self._commit_index = self._last_applied = self._applied_index = header.index
        self._low_watermark = 0
        self.level = 1  # The feature level in force, as far as the checker has seen.
        peer_ids = [peer_id for peer_id in self._world.plan.members if peer_id != self._node_id]
        self.leader = LeaderChecker(
            self._node_id, peer_ids, self._world.plan.raft_of(self._node_id), self._world.safety, lambda: self._halves
        )
        config = self._world.plan.raft_of(self._node_id)
        self.leader_loss = LeaderLossChecker(self._world, self._node_id, config, lambda: self._halves)
        self._notices = NodeEventChecker(world, member)
        self._reads = ReadChecker(world, member, commitment.timeline)
        self._proposal_ends = ProposalChecker(self._node_id, config.outcome_wait_ns)
        self._levels = LevelChecker(world, member, config)
        self._lease_promises: LeasePromiseChecker
        # The configured members whose messages the node has used in this life.
        self._heard_members: set[str] = set()

    def begins(self, node: NodeProbe) -> None:
        """Begin to check the node of this life."""
        self._lease_promises = LeasePromiseChecker(node.core, self._member.now())
        node.used = partial(self.used, node)
        self._heard_members.clear()
        for known in node.core.configuration.members:
            if node.pinned_incarnation(known.node_id):  # A pin from before the restart is final.
                check_refuses_others(self._member, node, known.node_id)
        node.read_asked = self.read_asked
        node.proposed = self._proposal_ends.opened
        node.proposed_at_level = partial(self._levels.proposed, node)

    def used(self, node: Node, sender: str) -> None:
        """Check a message of `sender` that the core of `node` is about to use."""
        check_pin(self._world, self._member, sender, PINNED_BEFORE_USE)
        if sender not in self._heard_members and node.core.configuration.member(sender) is not None:
            self._heard_members.add(sender)
            check_refuses_others(self._member, node, sender)

    def read_asked(self, ticket: int) -> None:
        """Record a read that the node has accepted."""
        self._reads.asked(ticket)
        # Both checks follow every read, because a read may be answered in another mode than the requested mode.
        self.leader.read_asked(ticket)
        self.leader.lease_asked(ticket)

    @property
    def now(self) -> int:
        """The time at the node's last tick (ns, by its own clock)."""
        return self.leader.now

    def ticked(self, core: RaftCore, now: int) -> None:
        """Record that the clock of the node has advanced."""
        self.leader.ticked(core, now)
        self._levels.ticked(now)

    def sync_ended(self) -> None:
        """Record that the disk has reported the end of a sync of the log."""
        self.leader.sync_ended()

    def connections_ended(self, peer_id: str) -> None:
        """Record that both connections with a peer have ended. The node is informed of this only afterwards."""
        self.leader_loss.connections_ended(peer_id)

    def sends(self, node: Node, receiver: str, message: Message) -> None:
        """Check that everything that a message asserts is on the disk before the message leaves."""
        check_promise(self._world, self._member, node, receiver, message)

    def received(self, core: RaftCore, sender: str, message: Message) -> None:
        """Record a message that the node has received."""
        now = self._member.now()
        self._lease_promises.received(core, sender, message, now)
        self.leader_loss.received(core, sender, message, now)
        self._notices.received(message)
        # The member leads, or has led earlier in its term.
        if core.role is Role.LEADER or core.term == self.leader.term:
            self.leader.received(core, sender, message, now)

    def voted(self, core: RaftCore, message: object) -> None:
        """Check, after an event, that no promise forbade the vote of the member, if it has given a vote."""
        self._lease_promises.check(core, message, self._member.now(), self._world.safety.members.committed)

    @property
    def _halves(self) -> Halves:
        """The sets of voters whose majorities this member needs, according to its log."""
        history, log = self._world.safety.members, self._logs.memory
        return halves_of(history.in_force(log))

    def check(self, node: Node) -> None:
        """Check, after an event, that no index and no term has fallen, and that the indexes of the member are in order.

        `SafetyChecker` has the rules across members.
        """
        core, node_id = node.core, self._node_id
        if core.term != self.term:
            require(core.term > self.term, "terms never go back", node_id, self.term, core.term)
            self.term = core.term
        if core.role is Role.LEADER:
            self.leader.seen(core, self._member.now())
            if self._world.safety.leads(node_id, self._member.life, core.term):
                self._check_leader_completeness(core.term)
                self._check_votes(core.term)
        self._judge_step(core, is_last=node.failure is not None)
        commit, applied = core.commit_index, core.last_applied
        if applied != self._last_applied:
            require(applied > self._last_applied, "applied never falls", node_id, self._last_applied, applied)
            self._last_applied = applied
        if not core.first_index - 1 <= core.snapshot_index <= applied <= commit <= core.last_index:
            marks = (core.first_index, core.snapshot_index, applied, commit, core.last_index)
            broken("order of the marks", node_id, marks)
        if core.durable_index > max(self._logs.durable.last_index, core.snapshot_index):
            broken("durable means synced", node_id, core.durable_index, self._logs.durable.last_index)
        if applied != self._applied_index:
            broken("the applied entries are those that were committed", node_id, applied, self._applied_index)
        check_standing(self._world.safety.members, self._member, node)

    def stopped(self, core: RaftCore) -> None:
        """Check the last step of a node that ended in the middle of an event. The node ended because its build does not
        know an entry that it has to apply.
        """
        self._judge_step(core, is_last=True)

    def _judge_step(self, core: RaftCore, *, is_last: bool) -> None:
        """Check one step: the member's new commit index, the configurations that it wrote, and its low-water mark.

        A member that ends in this step sends no more messages. However, the writes of the member before its end may be
        on its disk. These writes are judged by the commit index of this life, because the next life starts with another
        commit index.
        """
        commit = core.commit_index
        if commit != self._commit_index:
            require(
                commit > self._commit_index, "the mark never falls in a life", self._node_id, self._commit_index, commit
            )
            self._commit_index = commit
            self._commitment.reached(self._member, commit)
        self._check_changes(commit)
        if not is_last and core.low_watermark != self._low_watermark:
            self._check_low_watermark(core)

    def _check_changes(self, commit_index: int) -> None:
        """Check the configurations that this member has appended since the last step."""
        safety = self._world.safety
        if safety.members.fresh:
            committed_term = safety.committed_term(commit_index)
            safety.members.check_fresh(self._node_id, self._logs.memory, commit_index, committed_term)

    def _check_low_watermark(self, core: RaftCore) -> None:
        """Check the low-water mark of a member.

        A leader computes the mark from the state of all current members. The other members take over a leader's mark.
        """
        mark, history = core.low_watermark, self._world.safety.members
        require(mark > self._low_watermark, "the low-water mark never falls", self._node_id, mark)
        self._low_watermark = mark
        if core.role is not Role.LEADER and mark <= history.low_watermark_max:
            return
        history.low_watermark_max = max(mark, history.low_watermark_max)
        for each in history.in_force(self._logs.memory).members:
            member = self._world.members[each.node_id]
            require(
                mark <= min(member.applied_max, member.logs.durable.last_index),
                "the low-water mark is applied and durable everywhere",
                f"{self._node_id} says {mark}, {member.node_id} has applied {member.applied_max}",
                f"and holds {member.logs.durable.last_index}",
            )

    def _check_votes(self, term: int) -> None:
        """Check that a leader has the votes of a majority in its term (Raft §5.2)."""
        votes = self._world.safety.votes_for(self._node_id, term, self._world.plan.members)
        require(
            has_majorities(self._halves, votes),
            "a leader has the votes of a majority",
            f"{self._node_id} leads term {term} with those of {votes}, and needs {self._halves}",
        )

    def _check_leader_completeness(self, term: int) -> None:
        safety, memory = self._world.safety, self._logs.memory
        index = safety.last_committed_before(term)
        require(
            index <= memory.base.index or memory.term_at(index) == safety.committed_term(index),
            "leader completeness",
            f"{self._node_id} leads term {term} without committed entry ({index}, {safety.committed_term(index)})",
        )

    def told(self, effects: Effects) -> None:
        """Check the effects of a step of the node: its events, the calls that have ended, and the messages sent."""
        for event in effects.events:
            self._world.cover(event.name)
            self._told_of_elections(event)
            self._notices.told(event)
            if event.name == "read_round":
                self._read_round(event.fields["term"], event.fields["read_index"])
                self.leader.round_began(event.fields["counter"])
            elif event.name == "lease_round":
                self.leader.round_began(event.fields["counter"])
            elif event.name == "transfer_began":
                self.leader.transfer_began()
            elif event.name == "transfer_given_up":
                self.leader.transfer_given_up()
            elif event.name == "snapshot_built":
                check_built(self._world.safety, self._member, self._storage)
        completions = list(flatten(effects.completions))
        if self._member.node is not None:
            self._levels.told(self._member.node, completions, effects.events, self.leader.now)
        for completion in completions:
            self._proposal_ends.ended(completion.ticket)
            match completion:
                case ReadReady(ticket=ticket, mode=mode):
                    node = self._member.node
                    assert node is not None
                    self._reads.ready(ticket, mode)
                    if mode is ReadMode.READ_INDEX:
                        self.leader.read_ready(ticket, node.core.last_applied)
                    elif mode is ReadMode.LEASE:
                        self.leader.lease_ready(ticket, node.core.committed_configuration.lease_ns)
                    self.leader.read_refused(ticket)
                case Refused(ticket=ticket):
                    self._reads.refused(ticket)
                    self.leader.read_refused(ticket)
                case _:
                    pass
        for peer_id, sent in effects.send:
            self._sent(peer_id, sent)
        self._step_is_over()

    def _step_is_over(self) -> None:
        node = self._member.node
        assert node is not None
        self.leader_loss.step_is_over()
        self._notices.step_is_over()
        self._proposal_ends.step_is_over(node.core.leading_term, self.leader.now)
        if node.core.leading_term is None:
            self.leader.sync_ended()
        elif not node.is_stopped:
            self.leader.step_is_over(node.core, syncs=node.is_syncing, is_disk_full=self._storage.log.is_disk_full)

    def _told_of_elections(self, event: TraceEvent) -> None:
        node = self._member.node
        if node is not None:
            self.leader_loss.told(node.core, event, self._member.now())

    def _sent(self, peer_id: str, sent: Message) -> None:
        node = self._member.node
        assert node is not None
        match sent:
            case TimeoutNow(last_index=last_index):
                self.leader.asked_to_campaign(peer_id, last_index)
            case ReadIndexResponse():
                self.leader.told_a_peer(peer_id, sent, node.core.committed_configuration.lease_ns)
            case PreVoteResponse():
                self.leader_loss.sent(peer_id, sent)
            case VoteRequest():
                self._lease_promises.check_request(node.core, sent)
            case _:
                pass

    def _read_round(self, term: int, read_index: int) -> None:
        """Check the index up to which a leader must apply the log before it answers reads (thesis §6.4).

        `read_index` must not be below the last index that earlier leaders committed.
        """
        committed = self._world.safety.last_committed_before(term)
        require(
            read_index >= committed,
            "a read sees every write that was acknowledged before it",
            f"{self._node_id} reads at {read_index} in term {term}; up to {committed} was committed before",
        )

    # The probes report to the methods below.

    def applying(self, entry: Entry) -> None:
        """Check that an entry, before it is applied, is committed, the next in order, and durable on this member.

        See docs/reference/specification.md#32-copies-count-when-durable.
        """
        require(
            entry.index == self._applied_index + 1,
            "entries are applied in order",
            f"{self._node_id} applies {entry.index} after {self._applied_index}",
        )
        node = self._member.node
        self._commitment.reached(self._member, entry.index if node is None else node.core.commit_index)
        require(
            self._logs.holds_durably(entry.index, entry.term),
            "applied only when durable here",
            f"{self._node_id} applies ({entry.index}, {entry.term}), durable to {self._logs.durable.last_index}",
        )

    def applied(self, entry: Entry, results: Sequence[Any]) -> None:
        """Check an entry after it was applied."""
        self._applied_index = entry.index
        self._member.applied_max = max(self._member.applied_max, entry.index)
        self._levels.applied(entry, self.leader.now)
        is_first = self._world.safety.applied(self._node_id, entry, results)
        self._world.on_applied(self._member, entry, results, is_first=is_first)
        if entry.index % HASH_EVERY_ENTRIES == 0:
            self._hash_state()

    def snapshot_taken(self) -> None:
        """Record the state of the node, of which the node takes a snapshot.

        A member that installs the snapshot must then be in this state.
        """
        self._hash_state()

    def restored(self) -> None:
        """Handle the replacement of the state by the newest snapshot."""
        node = self._member.node
        if node is not None and node.core.commit_index > self._applied_index:
            self._world.cover("a snapshot overtook entries that waited to be applied")
        self._applied_index = self._storage.snapshots.latest().header.index
        self._member.applied_max = max(self._member.applied_max, self._applied_index)
        if self._applied_index:
            self._hash_state()

    def restore_given_up(self) -> None:
        """Handle the end of a restore that did not replace the state, because the log went beyond the snapshot while
        the snapshot was being read.
        """
        self._world.cover("a snapshot that was being installed was overtaken by the log")

    def _hash_state(self) -> None:
        machine = self._member.machine
        assert machine is not None
        self._world.safety.hashed(self._node_id, self._applied_index, machine.state_hash())

    def dropping(self, index: int) -> None:
        """Check that all entries below `index`, which the log is about to forget, are in a durable snapshot.

        See docs/reference/specification.md#65-compaction.
        """
        info = self._storage.snapshots.latest()
        require(
            index - 1 <= info.header.index,
            "the log forgets only entries that a snapshot holds",
            f"{self._node_id} drops below {index}, its snapshot is {info.header.index}",
        )
        image, name = self._member.image, info.name.rpartition("/")[2]
        require(
            any(image.is_durable(path) for path in image.names if path.endswith(name)),
            "a snapshot is durable before the log is cut",
            self._node_id,
            info.name,
        )
