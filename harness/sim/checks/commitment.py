"""Checks that a committed entry is durable on a majority before any client learns of it (Raft §5.4).

The leaders of later terms must have the entry too.

See docs/reference/specification.md#32-copies-count-when-durable.
"""

from __future__ import annotations

from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.durability import recover_aside
from harness.sim.checks.membership import halves_of, has_majorities
from harness.sim.checks.reads import CommitTimeline
from harness.sim.engine.errors import require
from harness.sim.world.context import MachineView
from raft import Role
from storage import OpenedStorage

TRUE_CHECK_EVERY_COMMITS = 32
"""The commit index rises at least this many times between two checks that use real recoveries. Such a check recovers
the disks that hold a newly committed entry, and looks for the entry.

All other rises are checked with the shadow logs only.
"""

FILES_PER_COMMIT = 4
"""If a disk has n files, the commit index rises at least n / FILES_PER_COMMIT times between two recoveries.

A recovery reads every file. With a fixed interval, the total cost of all recoveries would grow with the square of the
log's length.
"""


class CommitmentChecker:
    """Follows the commit index of the cluster, which is the highest commit index of any member."""

    def __init__(self, world: CheckedWorld, timeline: CommitTimeline) -> None:
        self._world, self.timeline = world, timeline
        self._advances, self._next_check = 0, TRUE_CHECK_EVERY_COMMITS

    def reached(self, member: MachineView, index: int) -> None:
        """Record that `member` has committed up to `index`. Check that the newly committed entries are durable on a
        majority.
        """
        safety = self._world.safety
        if index > safety.commit_index:
            self.timeline.committed(index)
        while safety.commit_index < index:
            new = safety.commit_index + 1
            term = member.logs.memory.term_at(new)
            require(term is not None, "a member commits only entries that it has", f"{member.node_id} commits {new}")
            assert term is not None
            if safety.members.is_written(new, term):
                self._holders(member, new, term)
            if new == index:
                self._check_majority(member, new, term)
            safety.committed(member.node_id, new, term, member.current_term)

    def _check_majority(self, member: MachineView, index: int, term: int) -> None:
        node = member.node
        if node is not None and node.core.role is Role.LEADER:
            require(
                term == node.core.term,
                "a leader commits only behind an entry of its own term",
                f"{member.node_id} leads term {node.core.term} and commits ({index}, {term})",
            )
        holders = self._holders(member, index, term)
        for other in self._world.members.values():
            self._check_later_leader(other, member.current_term, index, term)
        self._advances += 1
        if self._advances == self._next_check:
            files = max(len(holder.image.names) for holder in holders)
            self._next_check += max(TRUE_CHECK_EVERY_COMMITS, files // FILES_PER_COMMIT)
            for holder in holders:
                if holder.is_damaged:
                    continue  # The copy on a damaged disk may be lost; the other members hold a quorum of good copies.
                self._recover_aside(holder, index, term)

    def _holders(self, committer: MachineView, index: int, term: int) -> list[MachineView]:
        """Return the machines that hold the entry durably, and check that they form a majority.

        The holders must form majorities of the newest configuration in the committer's log. If the entry itself is a
        configuration, the holders must form majorities of this configuration. So after the configuration that ends a
        joint configuration, new entries need only a majority of the new voters.
        """
        history, log = self._world.safety.members, committer.logs.memory
        configuration = history.in_force(log, index if history.is_written(index, term) else None)
        holders = [other for other in self._world.members.values() if other.logs.holds_durably(index, term)]
        holder_ids = [holder.node_id for holder in holders]
        require(
            has_majorities(halves_of(configuration), holder_ids),
            "committed means durable on a majority",
            f"{committer.node_id} commits ({index}, {term}), durable on {holder_ids} of {halves_of(configuration)}",
        )
        return holders

    def _check_later_leader(self, member: MachineView, leader_term: int, index: int, term: int) -> None:
        """Check leader completeness at the commit: if `member` leads a later term, it already has the entry."""
        node = member.node
        if node is None or node.core.role is not Role.LEADER or node.core.term <= leader_term:
            return
        memory = member.logs.memory
        require(
            index <= memory.base.index or memory.term_at(index) == term,
            "leader completeness",
            f"({index}, {term}) is committed in term {leader_term},",
            f"and {member.node_id} leads {node.core.term} without it",
        )

    def _recover_aside(self, member: MachineView, index: int, term: int) -> None:
        """Recover the data that is durable *now* on a member's disk, and check that it includes the committed entry."""
        opened = recover_aside(self._world, member)
        require(isinstance(opened, OpenedStorage), "durable entries can be recovered", member.node_id, repr(opened))
        assert isinstance(opened, OpenedStorage)
        require(
            opened.hard_state.term >= member.logs.durable.hard_state.term,
            "terms never go back",
            f"{member.node_id} recovers {opened.hard_state}, had {member.logs.durable.hard_state}",
        )
        if index <= opened.snapshots.latest().header.index:
            return
        found = opened.log.first_index <= index <= opened.log.last_index
        terms = [run.term for run in opened.log.term_runs() if run.index <= index]
        require(
            found and terms[-1] == term,
            "committed means durable on a majority",
            f"{member.node_id} recovers {opened.log.first_index}..{opened.log.last_index}, not ({index}, {term})",
        )
