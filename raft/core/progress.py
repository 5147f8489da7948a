"""A leader's knowledge of the progress of one peer, and the window of messages in flight (Raft Figure 2, leader's
state).

`PROBE`: the leader sends one append at a time, until one is accepted. `REPLICATE`: appends are pipelined, within a
window that is bounded in messages, entries and bytes. `SNAPSHOT`: the leader's log no longer has the peer's next entry,
so the peer needs a snapshot, and only heartbeats are sent.
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
    """The progress of one peer of a leader, during one term. All values come from the peer's reports in this term."""

    def __init__(self, config: RaftConfig, *, next_index: int, now: int) -> None:
        self._config = config
        self.state = PeerState.PROBE
        self.match_index = 0  # The peer's durable log equals ours up to this index.
        self.next_index = next_index
        # The time (monotonic ns) of the peer's last message. Initially, this is the time of the leader's election.
        self.heard_at = now
        self.read_counter = 0  # The last read round that the peer confirmed.
        self.last_applied: int | None = None  # None until the peer has reported in this term.
        self.priority = 0  # The election priority that the peer last reported.
        self.commit_sent = 0  # The highest commit index that the peer can reach by the appends sent so far.
        self.paused = False  # True while a probe is unanswered. The next heartbeat allows another probe.
        self._window: deque[tuple[int, int]] = deque()  # (last index, bytes) of each unanswered append.
        self._window_bytes = 0
        self._moved = False  # True if `match_index` has risen since the last heartbeat.
        # The next two values are attributes, not properties, because each put reads them several times.
        self.is_idle = True  # True if no answer to an append is outstanding.
        self.may_send = True  # True if one more append may be sent.

    @property
    def window_bytes(self) -> int:
        """The size (bytes) of the entries in flight."""
        return self._window_bytes

    def sent(self, last_index: int, size_bytes: int) -> None:
        """Note that an append with entries up to `last_index` was sent. In the state `PROBE` the next append waits for
        the answer."""
        if self.state is PeerState.PROBE:
            self.paused = True
            self._note_window()
            return
        assert self.state is PeerState.REPLICATE, self
        assert last_index >= self.next_index, (last_index, self)
        self.next_index = last_index + 1
        self._window.append((last_index, size_bytes))
        self._window_bytes += size_bytes
        self._note_window()

    def accepted(self, match_index: int, *, first_index: int, last_index: int) -> bool:
        """Note that the peer has confirmed its log up to `match_index`. Return True if the confirmed index has risen; a
        late or repeated answer never lowers it.

        `first_index` and `last_index`: the first and the last index of the leader's log. Probing ends only when the
        peer has accepted at least the first entry of a probe. If the peer accepts none, because it has no room, it is
        probed again at the next heartbeat.
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
        self._note_window()
        return moved

    def rejected(self, rejected_index: int, next_index: int) -> bool:
        """Handle a rejected append: the peer's log does not match at `rejected_index`.

        Returns False if the rejection is out of date and is ignored.
        """
        if self.state is PeerState.SNAPSHOT or rejected_index <= self.match_index:
            return False
        if self.state is PeerState.PROBE and rejected_index != self.next_index - 1:
            return False
        self._enter(PeerState.PROBE)
        self.next_index = max(self.match_index + 1, min(rejected_index, next_index))
        return True

    def probe_again(self, *, paused: bool = False) -> None:
        """Probe again at the end of the peer's log, because messages in flight were lost or a snapshot transfer was
        given up.

        A lost probe is repeated with the same `next_index`. Going back to `match_index` would be wrong, because
        `match_index` is 0 on a new leader, whose log may be compacted there. Such a leader would send a snapshot to a
        peer that lacks nothing.
        """
        if self.state is not PeerState.PROBE:
            self.next_index = self.match_index + 1
        self._enter(PeerState.PROBE)
        self.paused = paused
        self._note_window()

    def want_snapshot(self) -> None:
        """Note that the peer needs a snapshot, because the leader's log no longer has the peer's next entry."""
        self._enter(PeerState.SNAPSHOT)

    def heartbeat(self) -> bool:
        """Note a heartbeat. After a heartbeat, another probe may be sent, even if the last probe is unanswered.

        Returns True if appends are in flight, and no append was confirmed since the previous heartbeat.
        """
        stalled = bool(self._window) and not self._moved
        self._moved = False
        self.paused = False
        self._note_window()
        return stalled

    def _enter(self, state: PeerState) -> None:
        self.state, self.paused = state, False
        self._window.clear()
        self._window_bytes = 0
        self._note_window()

    def _note_window(self) -> None:
        """Compute `is_idle` and `may_send` again. Called after each change of the window or the state."""
        config, in_flight = self._config, len(self._window)
        self.is_idle = not in_flight and not self.paused
        self.may_send = (
            not self.paused
            and self.state is not PeerState.SNAPSHOT
            and in_flight < config.window_messages_max
            and self._window_bytes < config.window_bytes_max
            and (
                self.state is not PeerState.REPLICATE or self.next_index - self.match_index <= config.window_entries_max
            )
        )

    def __repr__(self) -> str:
        return f"Progress({self.state.value}, match {self.match_index}, next {self.next_index})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """A leader's view of one peer at one moment."""

    peer_id: str
    state: str  # probe, replicate or snapshot.
    match_index: int
    next_index: int
    last_applied: int
    recent_active: bool
    is_in_sync: bool = False  # For a learner: True if the learner would be in sync as a voter.
    lag_ns: int = 0  # The time since the peer's durable log last contained the whole log of the leader.
