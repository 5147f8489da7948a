"""The voters that are in sync with their leader.

A voter is in sync if its durable log contains all entries that the leader's log had `in_sync_lag_ns_max` ago. A write
of the acknowledgement level IN_SYNC is answered once all voters in sync have it on disk. Commits, elections and reads
do not depend on which voters are in sync, because they need a majority of all voters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raft.config import RaftConfig
from raft.core.progress import Progress

REJOIN_LAG_PARTS = 2
"""A voter joins the set again only if its lag is at most the maximum lag divided by this number. Otherwise a voter
whose lag is close to the maximum would leave and join all the time."""

REJOIN_HEARTBEATS = 2
"""A voter joins the set again only if its lag was small enough at this many heartbeats in a row."""

PAUSE_HEARTBEATS = 2
"""If the leader itself made no heartbeat for more than this many intervals, it was paused. A pause of the leader is not
part of the lag of a peer. But after one such pause, the next pause counts as lag unless the peer has caught up in
between. So a dead peer leaves the set even on a host whose clock is so coarse that each interval looks like a pause."""


@dataclass(slots=True)
class _Peer:
    caught_up_at: int  # The time (monotonic ns) at which the peer's durable log last contained the leader's log.
    is_in_sync: bool
    good_heartbeats: int = 0  # Heartbeats in a row with a small lag, while the peer is not in sync.
    # True if a pause of the leader was left out of the lag and the peer has not caught up since.
    is_excused: bool = False


@dataclass(frozen=True, slots=True)
class Copies:
    """The last durable index of each voter, as known to the leader. While the configuration is joint, the voters of
    both halves are included."""

    positions: tuple[tuple[str, int], ...]  # (node id, last durable index), in the order of ids.
    # The voters in sync, in the order of ids. A leader that is a voter is always included.
    in_sync_ids: tuple[str, ...]

    @property
    def in_sync_index(self) -> int:
        """The last index that is durable on every member in sync; 0 if no member is in sync."""
        return min([index for node_id, index in self.positions if node_id in self.in_sync_ids], default=0)

    def is_held(self, index: int) -> bool:
        """True if the entry at `index` is durable on every member in sync. Also True if no member is in sync."""
        return not self.in_sync_ids or index <= self.in_sync_index

    def holders(self, index: int) -> tuple[str, ...]:
        """The voters that have the entry at `index` on disk, in the order of ids. The entry must be committed."""
        return tuple(node_id for node_id, last_index in self.positions if last_index >= index)


@dataclass(frozen=True, slots=True)
class InSyncChange:
    """The event that a peer has joined the members in sync, or has left them. `lag_ns`: the peer's lag at this
    moment."""

    peer_id: str
    has_joined: bool
    lag_ns: int


class InSyncPeers:
    """The lag of each peer of a leader, and whether the peer counts as in sync. Learners are measured, too, so that a
    learner that becomes a voter is in sync at once if it has caught up.

    A new leader counts every peer as in sync, because it knows nothing about the peers yet. So an IN_SYNC write of a
    new leader waits for each voter until the voter has caught up, or has been silent for the greatest allowed lag. A
    peer that is added later must first catch up.
    """

    def __init__(self, peer_ids: Iterable[str], config: RaftConfig, now: int, *, last_index: int) -> None:
        self._lag_ns_max = config.in_sync_lag_ns_max
        self._interval_ns = config.heartbeat_interval_ns
        self._peers = dict.fromkeys(peer_ids, _Peer(now, is_in_sync=True))
        # (monotonic ns, end of the leader's log at that time) of each recent heartbeat. The heartbeats reach back as
        # far as the maximum lag. So even a peer that always lags a little has all entries up to one of the noted ends.
        self._ends: deque[tuple[int, int]] = deque()
        self.begin(now, last_index=last_index)

    def begin(self, now: int, *, last_index: int) -> None:
        """Count every known peer as in sync at the time `now` (monotonic ns). `last_index` is the end of the leader's
        log at that time."""
        self._peers = {peer_id: _Peer(now, is_in_sync=True) for peer_id in self._peers}
        self._ends.clear()
        self._ends.append((now, last_index))

    def heartbeat(self, now: int, last_index: int, peers: Mapping[str, Progress]) -> list[InSyncChange]:
        """Measure the lag of all peers, and note the end of the leader's log. Called at each heartbeat. Returns the
        peers that have joined or left the set.

        Cost: O(peers x lag / interval) at worst, and usually O(peers).
        """
        pause_ns = now - self._ends[-1][0]
        if pause_ns > PAUSE_HEARTBEATS * self._interval_ns:
            for each in self._peers.values():
                if not each.is_excused:
                    each.caught_up_at += pause_ns - self._interval_ns
                    each.is_excused = True
        for gone in [peer_id for peer_id in self._peers if peer_id not in peers]:
            del self._peers[gone]
        changes = []
        for peer_id, progress in peers.items():
            peer = self._peers.get(peer_id)
            if peer is None:
                peer = self._peers[peer_id] = _Peer(now - self._lag_ns_max, is_in_sync=False)
            caught_up_at = self._caught_up_at(progress)
            if caught_up_at > peer.caught_up_at:
                peer.caught_up_at, peer.is_excused = caught_up_at, False
            change = self._judge(peer_id, peer, now - peer.caught_up_at)
            if change is not None:
                changes.append(change)
        self._ends.append((now, last_index))
        while len(self._ends) > 1 and self._ends[0][0] < now - self._lag_ns_max:
            self._ends.popleft()
        return changes

    def is_in_sync(self, peer_id: str) -> bool:
        """True if this peer is in sync. False for a peer that was added after the last heartbeat."""
        peer = self._peers.get(peer_id)
        return peer is not None and peer.is_in_sync

    def lag_ns(self, peer_id: str, now: int) -> int:
        """The peer's lag (ns) at the last heartbeat: the time since its durable log last contained the whole log of the
        leader."""
        peer = self._peers.get(peer_id)
        return self._lag_ns_max if peer is None else now - peer.caught_up_at

    def _caught_up_at(self, progress: Progress) -> int:
        """The latest noted time at which the leader's log contained only entries that the peer's durable log contains
        now. The result is never later than the peer's last message. Otherwise a dead peer of an idle leader would stay
        in sync, because it lacks no entry."""
        for noted_at, last_index in reversed(self._ends):
            if last_index <= progress.match_index:
                return min(noted_at, progress.heard_at)
        return 0

    def _judge(self, peer_id: str, peer: _Peer, lag_ns: int) -> InSyncChange | None:
        if peer.is_in_sync:
            if lag_ns <= self._lag_ns_max:
                return None
            peer.is_in_sync, peer.good_heartbeats = False, 0
            return InSyncChange(peer_id, False, lag_ns)
        peer.good_heartbeats = peer.good_heartbeats + 1 if lag_ns * REJOIN_LAG_PARTS <= self._lag_ns_max else 0
        if peer.good_heartbeats < REJOIN_HEARTBEATS:
            return None
        peer.is_in_sync = True
        return InSyncChange(peer_id, True, lag_ns)
