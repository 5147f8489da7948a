"""Checks how one process ends the proposals with another acknowledgement level than MAJORITY.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.membership import Halves, halves_of, has_majorities
from harness.sim.engine.errors import broken, require
from harness.sim.world.context import MachineView
from raft import (
    Accepted,
    Acknowledge,
    Applied,
    AppliedInSync,
    Completion,
    Copies,
    Entry,
    Node,
    RaftConfig,
    Refused,
    TraceEvent,
)

WAIT_HEARTBEATS = 4
"""A write waits for slow members in sync at most as long as the greatest lag and this many heartbeat intervals. The lag
is measured at heartbeats, so a member may leave the set only at the next heartbeat after its lag has reached the bound.
"""

OWN_END = "a write ends as its level says"

LEFT = "a write was answered because a slow member had left the set"
WAITED = "a write waited for a member in sync"
JOINT = "a write was answered in sync while the members changed"
DEPOSED = "a leader stepped down while a write waited for members in sync"
LATE = "a former leader said that an accepted write was committed"


@dataclass(slots=True)
class _Write:
    """One open proposal.

    `applied_at`: the time (ns) of the step that applied the proposal; None before this step. `slack_ns` and `halves`:
    the pauses of the process until this step, and the voters in this step.
    """

    level: Acknowledge
    command: bytes
    term: int | None  # The term in which the node led when it accepted the proposal.
    applied_at: int | None = None
    slack_ns: int = 0
    halves: Halves = ()
    has_waited: bool = False


class LevelChecker:
    """Checks one process. All times are times of ticks of the node, in ns."""

    def __init__(self, world: CheckedWorld, member: MachineView, config: RaftConfig) -> None:
        self._world, self._member, self._config = world, member, config
        self._node_id = member.node_id
        self._open: dict[int, _Write] = {}  # The open proposals, and all proposals of level NONE, by ticket.
        self._in_sync: dict[int, _Write] = {}  # The open proposals of level IN_SYNC, by ticket.
        self._unapplied: dict[int, _Write] = {}  # Proposals of every level by ticket, in the order of the log.
        self._term: int | None = None  # The term in which the node leads.
        self._led_since = 0
        self._voters: frozenset[str] = frozenset()  # The voters when the node began to lead.
        self._known: frozenset[str] = frozenset()  # All voters since the node began to lead.
        self._ticked_at: int | None = None
        self._slack_ns = 0  # The total time for which the process did not run although an event was due.

    # -- proposals and applied entries

    def proposed(self, node: Node, ticket: int, command: bytes, level: Acknowledge) -> None:
        """Record a proposal that the node has accepted. For level IN_SYNC, check that enough members were in sync."""
        write = self._unapplied[ticket] = _Write(level, command, node.core.leading_term)
        if level is Acknowledge.MAJORITY:
            return
        self._open[ticket] = write
        if level is not Acknowledge.IN_SYNC:
            return
        self._in_sync[ticket] = write
        copies, machine = node.copies(), self._member.machine
        if self._member.service is not None and copies is not None and machine is not None:
            require(
                len(copies.in_sync_ids) >= machine.limits.min_in_sync,
                "a write is not appended while too few members are in sync",
                f"{self._node_id} takes it with {copies.in_sync_ids} in sync, and wants {machine.limits.min_in_sync}",
            )

    def ticked(self, now: int) -> None:
        """Record that the clock of the node has advanced to `now`."""
        if self._ticked_at is not None and now - self._ticked_at > self._config.heartbeat_interval_ns:
            self._slack_ns += now - self._ticked_at
        self._ticked_at = now

    def applied(self, entry: Entry, now: int) -> None:
        """Record an entry that the node has applied. The same command may be in several entries, or several times in
        one entry, because a client may repeat its request, and two clients may send equal requests. Of several
        proposals with the same command, the earliest proposals are applied first, whatever their level.
        """
        ended: Counter[bytes] = Counter()
        for ticket, write in list(self._unapplied.items()):
            if write.term is None or write.term < entry.term:  # No later entry can contain this write.
                del self._unapplied[ticket]
            elif write.term == entry.term and ended[write.command] < entry.payload.count(write.command):
                ended[write.command] += 1
                del self._unapplied[ticket]
                write.applied_at, write.slack_ns, write.halves = now, self._slack_ns, self._halves(entry.index)

    def _halves(self, last_index: int | None = None) -> Halves:
        return halves_of(self._world.safety.members.in_force(self._member.logs.memory, last_index))

    # -- completions

    def told(self, node: Node, completions: Iterable[Completion], events: Iterable[TraceEvent], now: int) -> None:
        """Check the proposals that ended, or should have ended, in a step of the node."""
        term = node.core.leading_term
        if term != self._term or self._in_sync:
            self._follow_leadership(term, now)
        completions = list(completions)
        for completion in completions:
            if isinstance(completion, Refused):  # A refused write is in no entry.
                self._unapplied.pop(completion.ticket, None)
        if not self._open:
            return
        # A node that has stopped or failed may answer from what it last knew, like a former leader.
        copies = node.copies() if self._in_sync and not node.is_stopped else None
        if copies is not None:
            self._check_copies(copies, now)
        for completion in completions:
            write = self._open.get(completion.ticket)
            if write is None:
                continue
            if write.level is Acknowledge.NONE:
                broken("a write of level NONE has no answer", f"{self._node_id}: {completion}")
            del self._open[completion.ticket]
            self._in_sync.pop(completion.ticket, None)
            # The answer to a proposal of an earlier leadership uses what the node last knew in that leadership.
            self._check_end(node, write, completion, copies if write.term == term else None)
            has_left = any(event.name == "in_sync_left" for event in events)
            if isinstance(completion, AppliedInSync) and write.has_waited and has_left:
                self._world.cover(LEFT)
        if self._in_sync:
            self._check_waiting(None if node.is_stopped else term, now)

    def _follow_leadership(self, term: int | None, now: int) -> None:
        halves = frozenset(voter for half in self._halves() for voter in half)
        if term != self._term:
            if term is None and any(write.has_waited for write in self._in_sync.values()):
                self._world.cover(DEPOSED)
            self._term, self._led_since, self._voters = term, now, halves
            self._known |= halves
        elif term is not None:
            self._known |= halves

    def _check_end(self, node: Node, write: _Write, completion: Completion, copies: Copies | None) -> None:
        match completion:
            case Accepted():
                require(write.level is Acknowledge.LEADER, OWN_END, self._node_id, write.level.name, completion)
                self._check_accepted(node, write, completion)
            case AppliedInSync():
                require(write.level is Acknowledge.IN_SYNC, OWN_END, self._node_id, write.level.name, completion)
                self._check_names(write, completion, copies)
            case Applied():
                broken(OWN_END, self._node_id, write.level.name, completion)
            case _:
                pass

    def _check_accepted(self, node: Node, write: _Write, told: Accepted) -> None:
        """Check that the write is at the position in the answer, on the disk of its leader, which still leads.

        A former leader may answer with the position only if the entry is committed.
        """
        safety, member, index, term = self._world.safety, self._member, told.index, told.term
        is_committed = safety.is_committed(index, term)
        require(
            safety.leader_of(term) == self._node_id and (node.core.leading_term == term or is_committed),
            "only the leader of its term accepts a write",
            f"{self._node_id} leads {node.core.leading_term} and accepts ({index}, {term})",
        )
        require(
            write.command in safety.payload_of(index, term),
            "an accepted write is at its position",
            f"{self._node_id} accepts {write.command!r} at ({index}, {term})",
        )
        require(
            member.is_damaged or self._holds(member, index, term, is_committed=is_committed),
            "an accepted write is durable on its leader",
            f"{self._node_id} accepts ({index}, {term}), durable to {member.logs.durable.last_index}",
        )
        if node.core.leading_term != term:
            self._world.cover(LATE)

    @staticmethod
    def _holds(member: MachineView, index: int, term: int, *, is_committed: bool) -> bool:
        logs = member.logs
        return logs.durable.term_at(index) == term or (is_committed and logs.holds_durably(index, term))

    def _check_names(self, write: _Write, told: AppliedInSync, copies: Copies | None) -> None:
        """Check the members that an answer of level IN_SYNC names."""
        safety, index, names = self._world.safety, told.index, told.acknowledged_by
        require(
            index <= safety.commit_index and write.applied_at is not None,
            "a write is acknowledged once it is applied",
            f"{self._node_id} acknowledges {index}, committed up to {safety.commit_index}",
        )
        term = safety.committed_term(index)
        others = [self._world.members[name] for name in names if name in self._world.members]
        lacking = [o.node_id for o in others if not (o.is_damaged or self._holds(o, index, term, is_committed=True))]
        require(
            not lacking and len(others) == len(names),
            "a member that an answer names holds the write durably",
            f"{self._node_id} names {names} for ({index}, {term}), and {lacking} do not hold it",
        )
        halves = self._halves()
        # A former leader may name any voter that it knew while it led.
        voters = self._known.union(*halves) if copies is None else frozenset().union(*halves)
        require(
            voters.issuperset(names),
            "a member that an answer names is a voter",
            f"{self._node_id} names {names}, and the voters are {sorted(voters)}",
        )
        if copies is None:
            return
        missing = set(copies.in_sync_ids) - set(names)
        require(
            not missing,
            "an answer of level IN_SYNC names every member in sync",
            f"{self._node_id} names {names} for {index}, and {sorted(missing)} are in sync, too",
        )
        require(
            has_majorities(write.halves, names) or has_majorities(halves, names),
            "an answer of level IN_SYNC names a majority",
            f"{self._node_id} names {names} for {index}, of {halves}",
        )
        if len(halves) > 1:
            self._world.cover(JOINT)

    def _check_copies(self, copies: Copies, now: int) -> None:
        """Check a leader's set of members in sync, and the index up to which it counts its own log as durable."""
        durable = self._member.logs.durable.last_index
        own = dict(copies.positions).get(self._node_id, 0)
        if own > durable:
            broken(
                "a leader counts only what its own disk has",
                f"{self._node_id} counts itself up to {own}, and has {durable} on its disk",
            )
        if now - self._led_since > self._config.in_sync_lag_ns_max:
            return
        lacking = self._voters.intersection(node_id for node_id, _ in copies.positions).difference(copies.in_sync_ids)
        if lacking:
            broken(
                "a new leader counts every voter as in sync",
                f"{self._node_id} leads since {self._led_since}, and at {now} lacks {sorted(lacking)}",
            )

    def _check_waiting(self, term: int | None, now: int) -> None:
        """Check the writes that are applied but not answered. `term`: None if this node no longer leads."""
        patience_ns = self._config.in_sync_lag_ns_max + WAIT_HEARTBEATS * self._config.heartbeat_interval_ns
        for ticket, write in self._in_sync.items():
            if write.applied_at is None:
                continue
            write.has_waited = True
            self._world.cover(WAITED)
            if term is None or term != write.term:
                broken(
                    "a write that waits is answered when its leader steps down",
                    f"{self._node_id} leads no more, and ticket {ticket} is open",
                )
            if now > write.applied_at + patience_ns + self._slack_ns - write.slack_ns:
                broken(
                    "a write waits for members in sync no longer than for their lag",
                    f"{self._node_id} applied ticket {ticket} at {write.applied_at}, and it is {now}",
                )
