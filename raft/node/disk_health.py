"""The health of a node's own disk: a leader whose disk stalls or stays full transfers the leadership.

An entry can commit without the leader's disk, if a majority that does not include the leader has the entry on disk. But
the leader answers a client only after the entry is durable on the leader's own disk, too. A leader with a stalled disk
still sends heartbeats, so no other leader is elected. A stalled disk reports no error. So the only evidence of a stall
is how long the current sync has been under way.

A leader with a full disk refuses all writes, though the disks of other members may have room. The leader does not know
whether the disks of other members are full. A member with a full disk refuses to become the leader
(`is_unfit_to_lead`). So the leader asks the other members one after the other to become the leader, with increasing
pauses.
"""

from __future__ import annotations

from contextlib import suppress

from raft.config import MILLISECOND_NS, RaftConfig
from raft.core.raft import RaftCore
from raft.errors import DiskFull, NoDescriptors, TransferRefused
from raft.interfaces import LogStore
from raft.node.group_commit import GroupCommit
from raft.types import TraceEvent

HANG_TIMEOUTS = 2
"""How long (in election time-outs) one sync may take. A shorter stall does not justify a change of leader."""

FULL_DOUBLINGS_MAX = 8
"""How often the pause between two transfers may double if the cause of the transfers is a full disk. With the usual
time-outs the longest pause is five minutes. The pauses grow because transfers do not help if the disks of all members
are full, for example if the members share one disk."""


class DiskHealth:
    """Checks the disk of one node's log. At a tick, the node calls `check` if a sync has taken longer than
    `patience_ns`, if the disk is full, or if the last check found a problem."""

    def __init__(self, config: RaftConfig, core: RaftCore, commit: GroupCommit, log: LogStore) -> None:
        self._core, self._commit, self._log = core, commit, log
        self.patience_ns = HANG_TIMEOUTS * config.election_timeout_max_ns
        self.is_watching = False  # True after a check that found a problem: each tick checks again.
        self._stalled_since: int | None = None  # The start (monotonic ns) of a sync that takes too long, or None.
        self._ask_again_at = 0  # The time (monotonic ns) before which a stall causes no further transfer.
        # The time (monotonic ns) at which this node began to lead with a full disk.
        self._full_since: int | None = None
        self._full_doublings = 0
        # The time (monotonic ns) at which a peer was last asked.
        self._asked_for_room_at = -self._pause_ns(FULL_DOUBLINGS_MAX + 1)
        self._asked_for_room = ""  # The peer that was last asked to take over because of a full disk.

    @property
    def is_stalled(self) -> bool:
        """True while a sync has been under way for longer than HANG_TIMEOUTS election time-outs."""
        return self._stalled_since is not None

    @property
    def is_unfit_to_lead(self) -> bool:
        """True if this member should refuse to become the leader, because its disk is stalled or full."""
        return self.is_stalled or self._log.is_disk_full

    def check(self, now: int, events: list[TraceEvent]) -> None:
        """Check the disk at `now` (monotonic ns). Add an event for each change, and begin a leadership transfer if one
        is needed."""
        self._check_for_stall(now, events)
        self._check_for_space(now)
        self.is_watching = self._stalled_since is not None or self._full_since is not None

    def _check_for_stall(self, now: int, events: list[TraceEvent]) -> None:
        """Begin a leadership transfer if a sync takes too long. A write that waits for room on a full disk is not a
        stall; `_check_for_space` handles that case.

        Only a peer whose durable log is complete takes over (`LeadershipTransfer` ensures this). So members whose disks
        stall at the same time do not pass the leadership around. Between two transfers there are at least HANG_TIMEOUTS
        election time-outs.
        """
        began, commit = self._stalled_since, self._commit
        if began is not None and not (commit.under_way and commit.began_at == began):
            self._stalled_since = None
            events.append(TraceEvent("disk_answers", {"after_ms": (now - began) // MILLISECOND_NS}))
        if not commit.under_way or self._log.is_disk_full or now - commit.began_at < self.patience_ns:
            return
        if self._stalled_since is None:
            self._stalled_since = commit.began_at
            events.append(TraceEvent("disk_hangs", {"for_ms": (now - commit.began_at) // MILLISECOND_NS}))
        if self._core.leading_term is not None and now >= self._ask_again_at:
            self._ask_again_at = now + self.patience_ns
            with suppress(TransferRefused):  # No peer can take over, or a transfer is under way.
                self._core.transfer_leadership()

    def _check_for_space(self, now: int) -> None:
        """Transfer the leadership once the disk has been full for HANG_TIMEOUTS election time-outs.

        The leader asks its peers one after the other. Each attempt doubles the pause, even if the peer took over and
        later transferred the leadership back. The pause is short again if this node begins to lead with a full disk
        long after its last attempt, that is, after at least twice the longest pause.
        """
        if self._core.leading_term is None or not self._log.is_disk_full:
            self._full_since = None
            return
        if self._full_since is None:
            self._full_since = now
            if now - self._asked_for_room_at >= self._pause_ns(FULL_DOUBLINGS_MAX + 1):
                self._full_doublings = 0
        since_asked = now - self._asked_for_room_at
        if now - self._full_since < self.patience_ns or since_asked < self._pause_ns(self._full_doublings):
            return
        able = self._caught_up_voters()
        if able:
            later = [peer_id for peer_id in able if peer_id > self._asked_for_room]
            with suppress(TransferRefused):  # A transfer is under way.
                self._core.transfer_leadership((later or able)[0])
                self._asked_for_room, self._asked_for_room_at = (later or able)[0], now
                self._full_doublings = min(self._full_doublings + 1, FULL_DOUBLINGS_MAX)

    def _caught_up_voters(self) -> list[str]:
        """The other voters whose durable log is complete. Voters that lack entries are left out, because their disks
        may also be full."""
        core, voters = self._core, self._core.configuration.voter_ids
        peers = [peer for peer in core.peers_status() if peer.peer_id in voters and peer.recent_active]
        return [peer.peer_id for peer in peers if peer.match_index == core.last_index]

    def _pause_ns(self, doublings: int) -> int:
        return self.patience_ns << doublings


class DiskSpaceProbe:
    """Detects that the disk is full or that no file can be opened, and probes the disk at intervals until writes are
    accepted again.

    `next_at`: the time of the next probe (monotonic ns); None while writes are accepted.
    """

    def __init__(self, log: LogStore, interval_ns: int) -> None:
        self._log, self._interval_ns = log, interval_ns
        self.next_at: int | None = None
        self._lacked_descriptors = ""  # The store's `lacks_descriptors` when writes were last refused.

    def poll(self, now: int) -> bool | None:
        """Return True if writes are refused from now on, False if writes are accepted again, and None if this has not
        changed since the last poll."""
        is_full, was_full = self._log.is_disk_full, self.next_at is not None
        if not is_full:
            self.next_at = None
        elif self.next_at is None:
            self.next_at = now + self._interval_ns
        elif self.next_at <= now:
            self._log.look_for_room()
            self.next_at = now + self._interval_ns
        if is_full and not was_full:
            self._lacked_descriptors = self._log.lacks_descriptors
        return is_full if is_full != was_full else None

    def refusal(self, node_id: str) -> DiskFull:
        """The error for a command that is refused now."""
        words = self._log.lacks_descriptors
        return NoDescriptors(node_id, words) if words else DiskFull(node_id)

    def event(self) -> TraceEvent:
        """The event for the change that `poll` has just reported."""
        is_full, words = self.next_at is not None, self._lacked_descriptors
        if words:
            return TraceEvent("descriptors_lack", {"words": words}) if is_full else TraceEvent("descriptors_found", {})
        return TraceEvent("disk_full" if is_full else "disk_has_room", {})
