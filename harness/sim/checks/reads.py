"""Checks the state that reads show, in every read mode, without data from the member that answers.

`CommitTimeline` knows the cluster's commit index at any time. A linearizable read shows everything that was committed
when the read was requested, whether it uses a round, a lease or a follower. A bounded read states an age. The read must
show everything that was committed at one moment: the time at which the read may be answered, minus this age.
"""

from __future__ import annotations

from bisect import bisect_right

from harness.sim.checks.context import CheckedWorld
from harness.sim.engine.errors import broken
from harness.sim.engine.event_queue import EventQueue
from harness.sim.world.context import MachineView
from raft import ReadMode


class CommitTimeline:
    """The commit index of the cluster over a whole run: each new value, with its time."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._times: list[int] = []  # The true times (ns) at which the commit index rose.
        self._marks: list[int] = []  # The new commit index at each of these times.

    def committed(self, index: int) -> None:
        """Record that the commit index of the cluster has risen."""
        self._times.append(self._queue.now)
        self._marks.append(index)

    def mark_at(self, time_ns: int) -> int:
        """Return the commit index of the cluster at a true time."""
        place = bisect_right(self._times, time_ns)
        return self._marks[place - 1] if place else 0


class ReadChecker:
    """Checks the reads of one process, and remembers the open reads."""

    def __init__(self, world: CheckedWorld, member: MachineView, timeline: CommitTimeline) -> None:
        self._world, self._member, self._timeline = world, member, timeline
        self._marks: dict[int, int] = {}  # The cluster's commit index when each read was requested, by ticket.

    def asked(self, ticket: int) -> None:
        """Record a read that the node has accepted."""
        self._marks[ticket] = self._world.safety.commit_index

    def ready(self, ticket: int, mode: ReadMode) -> None:
        """Check a read that may be answered now."""
        node, mark = self._member.node, self._marks.pop(ticket)
        assert node is not None
        self._world.cover(f"a read was let through: {mode.value}")
        if mode is ReadMode.BOUNDED_STALENESS:
            age_ns = node.core.state_age_ns
            assert age_ns is not None
            mark = self._timeline.mark_at(self._world.queue.now - age_ns - 1)
            if not self._world.plan.trusts_clocks:
                return
        if node.core.last_applied < mark:
            is_bounded = mode is ReadMode.BOUNDED_STALENESS
            rule = (
                "a bounded read is no older than it says"
                if is_bounded
                else "a read sees every write that was answered before it"
            )
            broken(
                rule,
                f"{self._member.node_id} has applied {node.core.last_applied} and reads ({mode.value}), {mark} was due",
            )

    def refused(self, ticket: int) -> None:
        """Record that the read or command with this ticket has ended."""
        self._marks.pop(ticket, None)
