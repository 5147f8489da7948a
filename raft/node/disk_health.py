"""The health of a node's own disk: a leader whose disk stalls or stays full transfers the leadership.

Followers that sync commit entries without the leader's disk, but the leader answers a client only when the entry is
durable on its own disk too, and its heartbeats keep the others from replacing it. A stalled disk reports nothing, so
the only evidence is the age of the sync under way.

A leader with a full disk refuses all writes, though other members may have room. It does not know the state of their
disks: a member with a full disk refuses to take over (`is_unfit_to_lead`). So the leader asks all of them in turn, and
ever more rarely.
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
"""Election time-outs that one sync may take. A stall shorter than a change of the leader is waited out."""

FULL_DOUBLINGS_MAX = 8
"""How often the pause between two transfers for want of room doubles: up to five minutes with the usual time-outs.
Disks that are full together may be one disk."""


class DiskHealth:
    """Checks the disk of one node's log at each tick in which a sync is under way or something is wrong."""

    def __init__(self, config: RaftConfig, core: RaftCore, commit: GroupCommit, log: LogStore) -> None:
        self._core, self._commit, self._log = core, commit, log
        self._patience_ns = HANG_TIMEOUTS * config.election_timeout_max_ns
        self.is_watching = False  # It is to be checked at each tick: something was wrong at the last one.
        self._stalled_since: int | None = None  # Monotonic ns: when the sync that took, or takes, too long began.
        self._ask_again_at = 0  # Monotonic ns: until then a stall causes no further transfer.
        self._full_since: int | None = None  # Monotonic ns: since when this node leads without room.
        self._full_doublings = 0
        self._asked_for_room_at = -self._pause_ns(FULL_DOUBLINGS_MAX + 1)  # Monotonic ns.
        self._asked_for_room = ""  # The peer that was asked last.

    @property
    def is_stalled(self) -> bool:
        """True while a sync has been under way for longer than HANG_TIMEOUTS election time-outs."""
        return self._stalled_since is not None

    @property
    def is_unfit_to_lead(self) -> bool:
        """True if this member should not take over: the disk of the current leader may be the better one."""
        return self.is_stalled or self._log.is_disk_full

    def check(self, now: int, events: list[TraceEvent]) -> None:
        """Check the disk at `now` (monotonic ns). Changes go into `events`; the core may begin a transfer."""
        self._check_for_stall(now, events)
        self._check_for_space(now)
        self.is_watching = self._stalled_since is not None or self._full_since is not None

    def _check_for_stall(self, now: int, events: list[TraceEvent]) -> None:
        """A write that waits for room on a full disk is no stall: `_check_for_space` handles it.

        Only a peer that has the whole log durably takes over (`LeadershipTransfer` sees to it), so disks that stall
        together do not pass the leadership around. A failed transfer is tried again after as long a time.
        """
        began, commit = self._stalled_since, self._commit
        if began is not None and not (commit.under_way and commit.began_at == began):
            self._stalled_since = None
            events.append(TraceEvent("disk_answers", {"after_ms": (now - began) // MILLISECOND_NS}))
        if not commit.under_way or self._log.is_disk_full or now - commit.began_at < self._patience_ns:
            return
        if self._stalled_since is None:
            self._stalled_since = commit.began_at
            events.append(TraceEvent("disk_hangs", {"for_ms": (now - commit.began_at) // MILLISECOND_NS}))
        if self._core.leading_term is not None and now >= self._ask_again_at:
            self._ask_again_at = now + self._patience_ns
            with suppress(TransferRefused):  # No peer can take over, or a transfer is under way.
                self._core.transfer_leadership()

    def _check_for_space(self, now: int) -> None:
        """A leader that has had no room for as long as a stall may last asks one of the others, then the next.

        After each attempt the pause is twice as long, whether that peer took over and handed back or did not take over.
        The count of attempts is forgotten after a time without attempts that is longer than the longest pause.
        """
        if self._core.leading_term is None or not self._log.is_disk_full:
            self._full_since = None
            return
        if self._full_since is None:
            self._full_since = now
            if now - self._asked_for_room_at >= self._pause_ns(FULL_DOUBLINGS_MAX + 1):
                self._full_doublings = 0
        since_asked = now - self._asked_for_room_at
        if now - self._full_since < self._patience_ns or since_asked < self._pause_ns(self._full_doublings):
            return
        able = self._caught_up_voters()
        if able:
            later = [peer_id for peer_id in able if peer_id > self._asked_for_room]
            with suppress(TransferRefused):  # A transfer is under way.
                self._core.transfer_leadership((later or able)[0])
                self._asked_for_room, self._asked_for_room_at = (later or able)[0], now
                self._full_doublings = min(self._full_doublings + 1, FULL_DOUBLINGS_MAX)

    def _caught_up_voters(self) -> list[str]:
        """The voters that hold the whole log durably: a follower that lacks some of it may lack the room for it."""
        core, voters = self._core, self._core.configuration.voter_ids
        peers = [peer for peer in core.peers_status() if peer.peer_id in voters and peer.recent_active]
        return [peer.peer_id for peer in peers if peer.match_index == core.last_index]

    def _pause_ns(self, doublings: int) -> int:
        return self._patience_ns << doublings


class DiskSpaceProbe:
    """Notices that the disk is full, or that no file can be opened, and probes from time to time for room.

    `next_at`: the time of the next probe (monotonic ns); None while there is room.
    """

    def __init__(self, log: LogStore, interval_ns: int) -> None:
        self._log, self._interval_ns = log, interval_ns
        self.next_at: int | None = None
        self._lacked_descriptors = ""  # At the last poll.

    def poll(self, now: int) -> bool | None:
        """True if writes are refused since the last poll, False if they are taken again, None if nothing changed."""
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
        """The error with which a command is refused now."""
        words = self._log.lacks_descriptors
        return NoDescriptors(node_id, words) if words else DiskFull(node_id)

    def event(self) -> TraceEvent:
        """The event for the change that `poll` has just found."""
        is_full, words = self.next_at is not None, self._lacked_descriptors
        if words:
            return TraceEvent("descriptors_lack", {"words": words}) if is_full else TraceEvent("descriptors_found", {})
        return TraceEvent("disk_full" if is_full else "disk_has_room", {})
