"""Which voters are in sync, in the view of one leader.

A voter is in sync if its durable log lately had everything that the leader's log had: within `in_sync_lag_ns_max`. The
members in sync decide when a write that asked for it is answered. They decide nothing about commits, elections or
reads, which need a majority.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raft.config import RaftConfig
from raft.core.progress import Progress

REJOIN_LAG_PARTS = 2
"""A voter joins the set again only if it lags by at most this part of the bound (a half). A voter that lags by about
the bound would otherwise leave and join all the time."""

REJOIN_HEARTBEATS = 2
"""A voter joins the set again only if it had so small a lag at this many heartbeats in a row."""

PAUSE_HEARTBEATS = 2
"""If the leader itself made no heartbeat for this many intervals, it was paused. This time counts as lag of nobody."""


@dataclass(slots=True)
class _Peer:
    caught_up_at: int  # Monotonic ns: the peer's durable log had everything that the leader's log had then.
    is_in_sync: bool
    good_heartbeats: int = 0  # How many heartbeats in a row found a small lag, while the peer is not in sync.


@dataclass(frozen=True, slots=True)
class Copies:
    """The durable logs of the voters, as their leader knows them. While the configuration is joint, the voters are
    those of both halves."""

    positions: tuple[tuple[str, int], ...]  # (node id, last durable index), in the order of ids.
    in_sync_ids: tuple[str, ...]  # The voters in sync, in the order of ids. A leader that votes is always one of them.

    @property
    def in_sync_index(self) -> int:
        """The last index that is durable on every member in sync. 0 if there is none."""
        return min([index for node_id, index in self.positions if node_id in self.in_sync_ids], default=0)

    def holders(self, index: int) -> tuple[str, ...]:
        """The voters that hold the entry at `index` durably, in the order of ids. The entry must be committed."""
        return tuple(node_id for node_id, last_index in self.positions if last_index >= index)


@dataclass(frozen=True, slots=True)
class InSyncChange:
    """A peer has joined the members in sync, or has left them. `lag_ns`: its lag at this moment."""

    peer_id: str
    has_joined: bool
    lag_ns: int


class InSyncPeers:
    """The lag of each peer of a leader, and whether the peer counts as in sync. Learners are measured, too, so that a
    learner that becomes a voter is in sync at once if it has caught up.

    A new leader counts every peer as in sync, since it knows nothing of them yet. So a write waits for all voters until
    each has caught up, or has been silent for the greatest lag. A peer that is added later must first catch up.
    """

    def __init__(self, peer_ids: Iterable[str], config: RaftConfig, now: int, *, last_index: int) -> None:
        self._lag_ns_max = config.in_sync_lag_ns_max
        self._interval_ns = config.heartbeat_interval_ns
        self._peers = dict.fromkeys(peer_ids, _Peer(now, is_in_sync=True))
        # (Monotonic ns, end of the leader's log at that time) of each recent heartbeat. For each lag up to the bound
        # there is a note, so a peer that always lags a little is seen to catch up with some of them.
        self._ends: deque[tuple[int, int]] = deque()
        self.begin(now, last_index=last_index)

    def begin(self, now: int, *, last_index: int) -> None:
        """Count every known peer as in sync at this time, at which the leader's log ends at `last_index`."""
        self._peers = {peer_id: _Peer(now, is_in_sync=True) for peer_id in self._peers}
        self._ends.clear()
        self._ends.append((now, last_index))

    def heartbeat(self, now: int, last_index: int, peers: Mapping[str, Progress]) -> list[InSyncChange]:
        """Measure all peers, and note the end of the log. Called at each heartbeat. Returns the changes of the set.

        Cost: O(peers x lag / interval) at worst, and usually O(peers).
        """
        pause_ns = now - self._ends[-1][0]
        if pause_ns > PAUSE_HEARTBEATS * self._interval_ns:
            for each in self._peers.values():
                each.caught_up_at += pause_ns - self._interval_ns
        for gone in [peer_id for peer_id in self._peers if peer_id not in peers]:
            del self._peers[gone]
        changes = []
        for peer_id, progress in peers.items():
            peer = self._peers.get(peer_id)
            if peer is None:
                peer = self._peers[peer_id] = _Peer(now - self._lag_ns_max, is_in_sync=False)
            peer.caught_up_at = max(peer.caught_up_at, self._caught_up_at(progress))
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
        """How long ago (ns) the peer last had everything that the leader's log had then, as of the last heartbeat."""
        peer = self._peers.get(peer_id)
        return self._lag_ns_max if peer is None else now - peer.caught_up_at

    def _caught_up_at(self, progress: Progress) -> int:
        """The latest noted time whose end of the log the peer has reached. It is no later than the last message of the
        peer: a dead peer of an idle leader lacks no entry, but must not count as in sync for ever."""
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
