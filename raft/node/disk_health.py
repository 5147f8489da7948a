"""Whether the own disk hangs or stays full: such a leader hands over instead of holding everybody.

With followers that sync, entries are committed without the leader's disk, but it answers nobody before they are
durable here too, and its heartbeats keep the others from replacing it. A disk can hang for as long as it likes and
say nothing, so there is only one thing to go by: how long the sync that is under way has been so.

A leader without room refuses all writes, though the others may have room. How their disks are it is not told: those
that know theirs to be full are no successors (`is_unfit`), so all are asked in turn, and ever more rarely.
"""

from __future__ import annotations

from contextlib import suppress

from raft.config import MILLISECOND_NS, RaftConfig
from raft.core.raft import RaftCore
from raft.errors import TransferRefused
from raft.interfaces import LogStore
from raft.node.group_commit import GroupCommit
from raft.types import TraceEvent

HANG_TIMEOUTS = 2
"""Election time-outs that one sync may take. A stall that is shorter than a change of the leader is waited out."""

FULL_DOUBLINGS_MAX = 8
"""How often the pause between two attempts to hand over for want of room doubles: then it is five minutes with the
usual time-outs. Disks that are full together may be one."""


class DiskWatch:
    """Looks at the log's disk of one node, at each tick in which a sync is under way or something is wrong."""

    def __init__(self, config: RaftConfig, core: RaftCore, commit: GroupCommit, log: LogStore) -> None:
        self._core, self._commit, self._log = core, commit, log
        self._patience_ns = HANG_TIMEOUTS * config.election_timeout_max_ns
        self._hung_since: int | None = None  # Monotonic ns: when the sync that took, or takes, too long began.
        self._ask_again_at = 0  # Monotonic ns: until then it is no reason to hand over once more.
        self._full_since: int | None = None  # Monotonic ns: since when it leads without room.
        self._full_doublings = 0
        self._asked_for_room_at = -self._pause_ns(FULL_DOUBLINGS_MAX + 1)  # Monotonic ns.
        self._asked_for_room = ""  # Whom, last.

    @property
    def hangs(self) -> bool:
        """True while a sync has been under way for longer than HANG_TIMEOUTS election time-outs."""
        return self._hung_since is not None

    @property
    def is_unfit(self) -> bool:
        """True if this member is not to take over: the disk of whoever asks may be the better one."""
        return self.hangs or self._log.is_disk_full

    @property
    def is_wanted(self) -> bool:
        """True if `look` may have something to do at this tick."""
        if self._commit.under_way or self._hung_since is not None:
            return True
        return self._full_since is not None or self._log.is_disk_full

    def look(self, now: int, events: list[TraceEvent]) -> None:
        """It is `now` (monotonic ns). What is to be told goes into `events`; the core may be told to hand over."""
        self._look_for_a_hang(now, events)
        self._look_for_room(now)

    def _look_for_a_hang(self, now: int, events: list[TraceEvent]) -> None:
        """A write that waits for room on a full disk is no hang: whoever looks for the room knows of it.

        Only somebody who has the whole log durably is asked to take over (`hand_over` sees to it), so that disks which
        hang together pass nothing around. Where that does not work it is tried again after as long a time.
        """
        began, commit = self._hung_since, self._commit
        if began is not None and not (commit.under_way and commit.began_at == began):
            self._hung_since = None
            events.append(TraceEvent("disk_answers", {"after_ms": (now - began) // MILLISECOND_NS}))
        if not commit.under_way or self._log.is_disk_full or now - commit.began_at < self._patience_ns:
            return
        if self._hung_since is None:
            self._hung_since = commit.began_at
            events.append(TraceEvent("disk_hangs", {"for_ms": (now - commit.began_at) // MILLISECOND_NS}))
        if self._core.leading_term is not None and now >= self._ask_again_at:
            self._ask_again_at = now + self._patience_ns
            with suppress(TransferRefused):  # Nobody can, or it is being handed over already.
                self._core.transfer_leadership()

    def _look_for_room(self, now: int) -> None:
        """A leader that has had no room for as long as a hang may last asks one of the others, then the next.

        After each attempt the pause is twice as long, whether that one took over and handed back or did not take over.
        That is forgotten when nobody had to be asked for longer than the longest pause.
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
        able = self._who_has_all()
        if able:
            later = [peer_id for peer_id in able if peer_id > self._asked_for_room]
            with suppress(TransferRefused):  # It is being handed over already.
                self._core.transfer_leadership((later or able)[0])
                self._asked_for_room, self._asked_for_room_at = (later or able)[0], now
                self._full_doublings = min(self._full_doublings + 1, FULL_DOUBLINGS_MAX)

    def _who_has_all(self) -> list[str]:
        """The voters that hold the whole log durably: a follower that lacks some of it may lack the room for it."""
        core, voters = self._core, self._core.configuration.voter_ids
        peers = [peer for peer in core.peers_status() if peer.peer_id in voters and peer.recent_active]
        return [peer.peer_id for peer in peers if peer.match_index == core.last_index]

    def _pause_ns(self, doublings: int) -> int:
        return self._patience_ns << doublings
