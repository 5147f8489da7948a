"""What can be read off a core from outside: nothing here changes anything."""

from __future__ import annotations

from raft.core.elections import Elections
from raft.core.follower import Following
from raft.core.leader import Leadership
from raft.core.progress import PeerStatus
from raft.core.state import CoreState
from raft.errors import NotLeader
from raft.membership.configuration import Configuration, Member
from raft.types import Role


class CoreView:
    """The readable face of `RaftCore`."""

    _state: CoreState
    _elections: Elections
    _following: Following
    _leadership: Leadership | None

    leading_term: int | None
    """The current term while this member leads it, otherwise None. A plain attribute: asked after every event."""

    @property
    def node_id(self) -> str:
        """This member."""
        return self._state.node_id

    @property
    def role(self) -> Role:
        """Follower, pre-candidate, candidate or leader."""
        return self._state.role

    @property
    def term(self) -> int:
        """The current term; it may not be durable yet."""
        return self._state.term

    @property
    def voted_for(self) -> str | None:
        """Who got this member's vote in the current term."""
        return self._state.voted_for

    @property
    def leader_id(self) -> str | None:
        """The leader of the current term, if it is known."""
        return self._state.leader_id

    @property
    def configuration(self) -> Configuration:
        """The members, by the newest configuration in the log, which may not be committed."""
        return self._state.configuration

    @property
    def committed_configuration(self) -> Configuration:
        """The members for certain."""
        return self._state.committed_configuration

    def configuration_at(self, index: int) -> Configuration:
        """What the members are once the entry at `index`, not below the newest snapshot, is applied."""
        return self._state.configurations.at(index)

    @property
    def is_changing(self) -> bool:
        """True while a change of the members is under way."""
        return self._state.configuration.is_joint or self._state.configured_at > self._state.commit_index

    @property
    def is_removed(self) -> bool:
        """True once it is committed that this member is none any more: it can be switched off."""
        return self._state.is_removed

    @property
    def hears_a_leader(self) -> bool:
        """True if there is one, as far as this member knows. A leader hears itself: it steps down without a quorum."""
        return self._leadership is not None or self._elections.hears_a_leader

    def is_peer(self, peer_id: str) -> bool:
        """True if this is another member, or a removed one that is to be told so."""
        return peer_id in self._state.peer_ids or (
            self._leadership is not None and peer_id in self._leadership.changing.departing
        )

    def greets(self, peer_id: str) -> bool:
        """True if this peer may say hello: it is known, or it may lead by a configuration that has not come here yet.

        Somebody else is told to wait by whoever hears a leader. The leader itself has to be called, to be answered.
        """
        is_known = self._state.configuration.member(peer_id) is not None or self.is_peer(peer_id)
        return is_known or not self.hears_a_leader or peer_id == self.leader_id

    def peers(self) -> tuple[Member, ...]:
        """Everybody else to whom there should be a connection, in the order of ids: members for certain, members by the
        newest configuration, and removed ones that are to be told so."""
        known = {member.node_id: member for each in self._state.configurations.all for member in each.members}
        wanted = {*self._state.peer_ids, *(member.node_id for member in self.committed_configuration.members)}
        if self._leadership is not None:
            wanted |= self._leadership.changing.departing
        return tuple(known[peer_id] for peer_id in sorted(wanted - {self._state.node_id}) if peer_id in known)

    @property
    def commit_index(self) -> int:
        """The high-water mark, inclusive."""
        return self._state.commit_index

    @property
    def told_commit_index(self) -> int:
        """The highest mark that leaders have told this member of since it was started: all up to there is committed,
        though the log here may not reach it yet. 0 if there was none."""
        return self._following.told_commit_index

    @property
    def last_applied(self) -> int:
        """The end of what the state machine has applied."""
        return self._state.last_applied

    @property
    def low_watermark(self) -> int:
        """No *other* member needs an entry at or below this."""
        return self._state.low_watermark

    @property
    def snapshot_index(self) -> int:
        """The end of the newest durable snapshot."""
        return self._state.snapshot_index

    @property
    def first_index(self) -> int:
        """The oldest entry that was not compacted away."""
        return self._state.log.first_index

    @property
    def holds_what_its_snapshot_has(self) -> bool:
        """True if the log has entries that the newest durable snapshot makes superfluous."""
        return self._state.snapshot_index > self._state.log.base_index

    @property
    def last_index(self) -> int:
        """The end of the log, durable or not."""
        return self._state.log.last_index

    @property
    def durable_index(self) -> int:
        """The end of the log on disk."""
        return self._state.log.durable_index

    @property
    def appliable_index(self) -> int:
        """The end of what is both committed and durable here."""
        return self._state.appliable_index

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes of the entries above the high-water mark; those read from disk at start do not count."""
        return self._state.uncommitted_bytes

    @property
    def unapplied_bytes(self) -> int:
        """Bytes of the entries above `last_applied`; those read from disk at start do not count."""
        return self._state.log.bytes_after(self._state.last_applied)

    @property
    def log_cache_bytes(self) -> int:
        """What the recent entries that are held in memory take there; bounded by `log_cache_bytes_max`."""
        return self._state.log.cached_bytes

    @property
    def cached_from(self) -> int:
        """The first entry of the log that is in memory."""
        return self._state.log.cached_from

    @property
    def messages_waiting(self) -> int:
        """Messages that wait for the disk; bounded by one of a kind per peer and write under way."""
        return self._state.outbox.waiting_count

    @property
    def next_deadline(self) -> int:
        """`tick` must be called by then (monotonic ns)."""
        return self._elections.deadline if self._leadership is None else self._leadership.next_deadline

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`; None if the log does not hold it (any more)."""
        return self._state.log.term_at(index)

    def leader_time_now(self) -> int:
        """The `leader_time` (ns) for a proposal made now. Raises NotLeader.

        See docs/reference/specification.md#812-leader-time.
        """
        return self._leading().leader_time_now()

    @property
    def successor_id(self) -> str | None:
        """To whom this leader is handing over; None if it is not."""
        handover = None if self._leadership is None else self._leadership.handing_over.current
        return None if handover is None else handover.peer_id

    def peers_status(self) -> list[PeerStatus]:
        """Every peer as the leader sees it, in the order of ids; empty on other members."""
        if self._leadership is None:
            return []
        silent_before = self._state.now - self._state.config.election_timeout_max_ns
        return [
            PeerStatus(
                peer_id=peer_id,
                state=peer.state.value,
                match_index=peer.match_index,
                next_index=peer.next_index,
                last_applied=peer.last_applied or 0,
                recent_active=peer.heard_at > silent_before,
            )
            for peer_id, peer in self._leadership.changing.peers.items()
        ]

    def _leading(self) -> Leadership:
        if self._leadership is None:
            raise NotLeader(self._state.node_id, self._state.leader_id)
        return self._leadership

    def __repr__(self) -> str:
        state = self._state
        return (
            f"RaftCore({state.node_id} {state.role.value} term {state.term}: {state.log}, snapshot "
            f"{state.snapshot_index}, applied {state.last_applied}, commit {state.commit_index})"
        )
