"""The progress of one peer as its leader sees it, and the window of messages in flight (Raft Figure 2, leader's state).

`PROBE`: one append at a time, until one is accepted. `REPLICATE`: a window in messages, entries and bytes.
`SNAPSHOT`: the log does not reach back far enough; a transfer is under way, and only heartbeats are sent.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from raft.config import RaftConfig


class PeerState(enum.Enum):
    """The mode of replication to a peer."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One peer of a leader, during one term. Everything known about it comes from its own reports in this term."""

    def __init__(self, *, next_index: int, now: int) -> None:
        self.state = PeerState.PROBE
        self.match_index = 0  # The peer's durable log equals ours up to this index.
        self.next_index = next_index
        self.heard_at = now  # Monotonic ns. A new leader counts each peer as heard at its election.
        self.read_counter = 0  # The last ReadIndex round that it confirmed.
        self.last_applied: int | None = None  # None until it has reported in this term.
        self.priority = 0  # The election priority that it last reported.
        self.commit_sent = 0  # The highest mark that a sent append allows it to reach.
        self.paused = False  # True while a probe is under way; the next heartbeat allows another.
        self._window: deque[tuple[int, int]] = deque()  # (last_index, bytes) of each unanswered append.
        self._window_bytes = 0
        self._moved = False  # `match_index` has risen since the last heartbeat.

    @property
    def window_bytes(self) -> int:
        """Bytes of entries in flight."""
        return self._window_bytes

    @property
    def is_idle(self) -> bool:
        """True if no answer to an append is outstanding."""
        return not self._window and not self.paused

    def may_send(self, config: RaftConfig) -> bool:
        """True if one more append may leave."""
        if self.state is PeerState.SNAPSHOT or self.paused:
            return False
        if self.state is PeerState.REPLICATE and self.next_index - self.match_index > config.window_entries_max:
            return False
        return len(self._window) < config.window_messages_max and self._window_bytes < config.window_bytes_max

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Note that an append with entries up to `last_index` was sent. In `PROBE` the next append waits for the
        answer."""
        if self.state is PeerState.PROBE:
            self.paused = True
            return
        assert self.state is PeerState.REPLICATE, self
        assert last_index >= self.next_index, (last_index, self)
        self.next_index = last_index + 1
        self._window.append((last_index, size_bytes))
        self._window_bytes += size_bytes

    def accepted(self, match_index: int, *, first_index: int, last_index: int) -> bool:
        """The peer confirmed `match_index`. True if its position rose; late and repeated answers never lower it.

        `first_index` and `last_index` are those of the leader's log. A probe counts as answered once the entries that
        it carried have arrived: a peer that took none, because it is full, is probed again at the next heartbeat.
        """
        assert match_index <= last_index, (match_index, last_index)
        moved = match_index > self.match_index
        if moved:
            self.match_index, self._moved = match_index, True
        while self._window and self._window[0][0] <= self.match_index:
            self._window_bytes -= self._window.popleft()[1]
        if self.state is PeerState.PROBE and match_index >= min(self.next_index, last_index):
            self._enter(PeerState.REPLICATE)
        elif self.state is PeerState.SNAPSHOT and moved and self.match_index + 1 >= first_index:
            self._enter(PeerState.PROBE)
            self.next_index = self.match_index + 1
        if self.next_index <= self.match_index:
            self.next_index = self.match_index + 1
        return moved

    def rejected(self, rejected_index: int, next_index: int) -> bool:
        """The peer lacks the position `rejected_index`. False if the outcome of that append is known already."""
        if self.state is PeerState.SNAPSHOT or rejected_index <= self.match_index:
            return False
        if self.state is PeerState.PROBE and rejected_index != self.next_index - 1:
            return False
        self._enter(PeerState.PROBE)
        self.next_index = max(self.match_index + 1, min(rejected_index, next_index))
        return True

    def probe_again(self, *, paused: bool = False) -> None:
        """Messages in flight were lost, or a transfer was given up: find out again where the peer's log ends.

        A probe that was lost is repeated from the same `next_index`. Going back to `match_index` would be wrong: on a
        new leader it is still 0, and the log there may be compacted. Then the leader would send a snapshot to a peer
        that lacks nothing.
        """
        if self.state is not PeerState.PROBE:
            self.next_index = self.match_index + 1
        self._enter(PeerState.PROBE)
        self.paused = paused

    def want_snapshot(self) -> None:
        """The leader's log no longer has the next entry of this peer: a snapshot is needed."""
        self._enter(PeerState.SNAPSHOT)

    def heartbeat(self) -> bool:
        """Note a heartbeat, after which a lost probe may be repeated. Return True if appends are in flight and none was
        confirmed since the last heartbeat."""
        stalled = bool(self._window) and not self._moved
        self._moved = False
        self.paused = False
        return stalled

    def _enter(self, state: PeerState) -> None:
        self.state, self.paused = state, False
        self._window.clear()
        self._window_bytes = 0

    def __repr__(self) -> str:
        return f"Progress({self.state.value}, match {self.match_index}, next {self.next_index})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """This node's view of a peer. The marks are what the leader knows; on other members they are 0."""

    peer_id: str
    state: str  # probe, replicate, snapshot; empty where this node is not the leader.
    match_index: int
    next_index: int
    last_applied: int
    recent_active: bool
