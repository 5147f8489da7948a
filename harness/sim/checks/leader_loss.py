"""The rules for a member whose connections with the leader end: it may only ask for pre-votes early (thesis §9.6).

The end of a connection is only a hint, so four rules hold:

- A member that hears a leader grants no pre-vote.
- A candidate needs the pre-votes of majorities.
- If leaders may read by lease, a member ignores every hint.
- A member acts on at most one hint per election time-out.

Together these rules mean that no hint raises a term while a majority hears a leader.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.sim.checks.membership import Halves, has_majorities
from harness.sim.engine.errors import broken
from harness.sim.world.context import World
from raft import (
    AppendEntries,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    RaftConfig,
    RaftCore,
    Role,
    TraceEvent,
)

BEGAN_AN_ELECTION = "a hint began an election"
WAS_WRONG = "a hint was wrong and did no harm"


class LeaderLossChecker:
    """Checks one process.

    Times are in ns of the process's own clock. The checker itself determines which leader the member hears.
    """

    def __init__(self, world: World, node_id: str, config: RaftConfig, halves: Callable[[], Halves]) -> None:
        self._world, self._node_id, self._config, self._halves = world, node_id, config, halves
        self._heard: tuple[str, int, int] | None = None  # The last message of a leader: (leader, term, time).
        # The leader that a hint reported as lost, until this leader is heard again: (leader, term).
        self._lost: tuple[str, int] | None = None
        self._heeded_at: int | None = None
        self._ended: str | None = None  # The peer whose connections have ended in this step.
        self._early_term: int | None = None  # The term for which a hint made the member ask for pre-votes.
        # The pre-vote requests that arrived while the member heard no leader, as (sender, next_term).
        self._asked: set[tuple[str, int]] = set()
        self._granted: dict[int, set[str]] = {}  # The peers that granted a pre-vote, by next_term.

    def connections_ended(self, peer_id: str) -> None:
        """Record that both connections with a peer have ended. The node is informed of this only afterwards."""
        self._ended = peer_id

    def received(self, core: RaftCore, sender: str, message: Message, now: int) -> None:
        """Record a message that the node has received."""
        match message:
            case AppendEntries(term=term) | InstallSnapshot(term=term):
                if (core.leader_id, core.term) == (sender, term):
                    self._leader_spoke(sender, term, now)
            case PreVoteRequest(next_term=next_term):
                if not self._hears_a_leader(core, now):
                    self._asked.add((sender, next_term))
            case PreVoteResponse(next_term=next_term, granted=True):
                self._granted.setdefault(next_term, set()).add(sender)
            case _:
                pass

    def sent(self, receiver: str, message: Message) -> None:
        """Check a message that leaves.

        A granted pre-vote is judged by the member's state when the request arrived, because the grant may have waited
        for the disk.
        """
        if not isinstance(message, PreVoteResponse) or not message.granted:
            return
        if (receiver, message.next_term) not in self._asked:
            broken(
                "a member that hears a leader grants no pre-vote",
                f"{self._node_id} grants {receiver} one for term {message.next_term}, and has heard {self._heard}",
            )

    def told(self, core: RaftCore, event: TraceEvent, now: int) -> None:
        """Check an event of the node."""
        match event.name:
            case "leader_connection_lost":
                self._hint_heeded(core, event.fields["leader_id"], now)
            case "became_pre_candidate":
                self._early_term = event.fields["next_term"] if event.fields["early"] else None
            case "became_candidate" if not event.fields["transfer"]:
                self._check_candidate(event.fields["term"])
            case _:
                pass

    def step_is_over(self) -> None:
        """Record that a step and its events are over."""
        self._ended = None

    def _leader_spoke(self, leader_id: str, term: int, now: int) -> None:
        self._heard = leader_id, term, now
        if self._lost == (leader_id, term):
            leader = self._world.members[leader_id].node
            if leader is not None and leader.core.role is Role.LEADER and leader.core.term == term:
                self._world.cover(WAS_WRONG)
        self._lost = None

    def _hears_a_leader(self, core: RaftCore, now: int) -> bool:
        """True if the member hears a leader (thesis §4.2.3).

        A member hears a leader if two conditions hold. It has received a message from the leader of its term within the
        shortest election time-out. Since this message it has received no hint that this leader is lost.
        """
        if core.role is Role.LEADER:
            return True
        if self._heard is None or self._lost is not None:
            return False
        leader_id, term, heard_at = self._heard
        is_recent = now < heard_at + self._config.election_timeout_min_ns
        return is_recent and (core.leader_id, core.term) == (leader_id, term)

    def _hint_heeded(self, core: RaftCore, leader_id: str, now: int) -> None:
        if leader_id != self._ended or self._heard is None or self._heard[0] != leader_id:
            broken(
                "only the end of the leader's connections is a hint",
                f"{self._node_id} has lost {leader_id}, heard {self._heard}, and those of {self._ended} have ended",
            )
        if core.configuration.lease_ns:
            broken(
                "where leaders read by lease no hint counts",
                f"{self._node_id} has promised {leader_id} its silence for {core.configuration.lease_ns} ns",
            )
        if self._heeded_at is not None and now < self._heeded_at + self._config.election_timeout_min_ns:
            broken(
                "at most one hint counts per election time-out",
                f"{self._node_id} heeds one at {now}, and did at {self._heeded_at}",
            )
        self._heeded_at, self._lost = now, (leader_id, core.term)

    def _check_candidate(self, term: int) -> None:
        granted = self._granted.get(term, set()) | {self._node_id}
        if not has_majorities(self._halves(), granted):
            broken(
                "a candidate has the pre-votes of a majority",
                f"{self._node_id} stands in term {term} with those of {sorted(granted)}, needs {self._halves()}",
            )
        if self._early_term == term:
            self._world.cover(BEGAN_AN_ELECTION)
        self._asked = {(who, next_term) for who, next_term in self._asked if next_term >= term}
        self._granted = {next_term: who for next_term, who in self._granted.items() if next_term > term}
