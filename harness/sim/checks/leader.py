"""The rules for one leader: a majority answers while it leads, and its reads are confirmed (thesis §6.2, §6.4)."""

from __future__ import annotations

from collections.abc import Callable

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.checks.membership import Halves
from harness.sim.engine.errors import broken, require
from raft import (
    AppendAccepted,
    AppendRejected,
    InstallSnapshotProgress,
    Message,
    RaftConfig,
    RaftCore,
    ReadIndexRequest,
    ReadIndexResponse,
    Role,
)

HANG_TIMEOUTS_MAX = 2
"""How long a sync of a leader's log may take before the leader asks a peer to take over, in multiples of the longest
election time-out.
"""


class LeaderChecker:
    """Checks one process whenever it leads.

    The checker counts the responses itself, and does not use the counts of the leader.
    """

    def __init__(
        self,
        node_id: str,
        peer_ids: list[str],
        config: RaftConfig,
        safety: SafetyChecker,
        halves: Callable[[], Halves] | None = None,
    ) -> None:
        """Check the process of `node_id`.

        `halves` returns the sets of voters whose majorities are needed now. Without `halves`, this member and its peers
        are always the voters.
        """
        self._node_id, self._peer_ids, self._safety = node_id, peer_ids, safety
        self._silence_ns_max = config.election_timeout_max_ns + config.heartbeat_interval_ns
        self._halves: Callable[[], Halves] = halves or (lambda: ((node_id, *peer_ids),))
        self._term = 0
        self._heard_at: dict[str, int] = {}
        self._silent_at = 0  # Before this time, no majority can have been silent for too long.
        self._answered: dict[str, int] = {}  # The highest read round that each peer has answered in this term.
        self._matched: dict[str, int] = {}  # The index that each peer has acknowledged in this term.
        self._round = 0
        # The highest round that majorities have answered, by the configuration in force when the answers were counted.
        self._confirmed = 0
        # Like `_confirmed`, but without the answers of members that may not know their lease promise.
        self._promised = 0
        # For each open read, by ticket: (commit index when the read was requested, earliest round that can confirm it).
        self._reads: dict[int, tuple[int, int]] = {}
        self._config, self._now = config, 0  # `_now`: the time at the node's last tick in ns, which all checks use.
        self._began: list[tuple[int, int]] = []  # Pairs (round, time at which the round was sent), both rising.
        self._by_lease: dict[int, int] = {}  # The time of the request of each open read, by ticket.
        # For each (peer, number of its read-index request): (commit index, earliest round, time of the request).
        self._questions: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._asked: dict[
            str, tuple[int, int]
        ] = {}  # For each peer that was asked to campaign: (last index of the log at that time, time of the request).
        self._transfer_began_at = -1
        # The time of the first step with the present sync of the log; None if no sync is under way.
        self._sync_since: int | None = None
        # During a sync: since when a peer can take over from the leader; None if no peer can take over now.
        self._successor_since: int | None = None

    @property
    def now(self) -> int:
        """The time at the node's last tick (ns, by its own clock)."""
        return self._now

    @property
    def term(self) -> int:
        """The last term in which the member led."""
        return self._term

    def seen(self, core: RaftCore, now: int) -> None:
        """Record the term of the leader after an event.

        At the start of a term, all peers count as heard, and no round has begun.
        """
        if core.term == self._term:
            return
        self._term, self._round, self._confirmed, self._promised = core.term, 0, 0, 0
        self._heard_at = dict.fromkeys(self._peer_ids, now)
        self._answered = dict.fromkeys(self._peer_ids, 0)
        self._matched = dict.fromkeys(self._peer_ids, 0)
        for of_the_last_term in (self._reads, self._began, self._by_lease, self._questions, self._asked):
            of_the_last_term.clear()
        self._silent_at = now + self._silence_ns_max
        self.sync_ended()

    def received(self, core: RaftCore, peer_id: str, message: Message, now: int) -> None:
        """Record a message that the node has received.

        The node must lead, or must have led earlier in its present term.
        """
        if isinstance(message, AppendAccepted):
            self._acknowledged(core, peer_id, message)
        if message.term != self._term or core.term != self._term:
            return
        match message:
            case AppendAccepted(read_counter=counter) | AppendRejected(read_counter=counter):
                self._answered[peer_id] = max(counter, self._answered[peer_id])
                self._heard_at[peer_id] = now
            case InstallSnapshotProgress():
                self._heard_at[peer_id] = now
            case ReadIndexRequest(number=number):
                first = self._safety.commit_index, self._round + 1, now
                # An answer to an earlier copy of the request is valid too, so the first copy is kept.
                self._questions.setdefault((peer_id, number), first)
            case _:
                pass
        if self._reads or self._by_lease or self._questions:
            self._count_answers()

    def _count_answers(self) -> None:
        """Count the answers to rounds.

        While a read waits, a confirmed round stays confirmed even if the members change.
        """
        self._confirmed = max(self._confirmed, self._of_majorities(self._answered))
        promised_at = self._safety.members.promised_at
        bound = {peer_id: round_ for peer_id, round_ in self._answered.items() if self._matched[peer_id] >= promised_at}
        self._promised = max(self._promised, self._of_majorities(dict.fromkeys(self._peer_ids, 0) | bound))

    def _of_majorities(self, answered: dict[str, int]) -> int:
        """Return the latest round that majorities of the current members have answered."""
        known = answered | {self._node_id: self._round}
        halves = [sorted((known[voter] for voter in half), reverse=True) for half in self._halves()]
        return min(half[len(half) // 2] for half in halves)

    def _acknowledged(self, core: RaftCore, peer_id: str, message: AppendAccepted) -> None:
        """Check that the leader counts only entries that a peer has acknowledged in this term (Raft §5.3).

        Entries that the peer acknowledged in an earlier leadership may have been cut since.
        """
        if message.term == core.term == self._term:
            self._matched[peer_id] = max(message.match_index, self._matched[peer_id])
        believed = next((peer.match_index for peer in core.peers_status() if peer.peer_id == peer_id), 0)
        if core.term == self._term and believed > self._matched[peer_id]:
            broken(
                "a copy counts when it is acknowledged in this term",
                f"{self._node_id} believes that {peer_id} has {believed}, and was told {self._matched[peer_id]}",
            )

    def ticked(self, core: RaftCore, now: int) -> None:
        """Check after a tick that the node has stopped leading if a majority was silent for too long.

        The bound is one election time-out (after which a leader checks its quorum) plus one heartbeat interval. This
        bound holds even after a long pause of the process, because the first event after a pause begins with a tick.
        """
        self._now = now
        if self._sync_since is not None:
            self._look_for_a_successor(core)
        if core.role is not Role.LEADER or core.term != self._term or now < self._silent_at:
            return
        known = self._heard_at | {self._node_id: now}
        halves = [sorted((known[voter] for voter in half), reverse=True) for half in self._halves()]
        heard_at = min(half[len(half) // 2] for half in halves)
        self._silent_at = heard_at + self._silence_ns_max
        if now >= self._silent_at:
            silent_ms = (now - heard_at) / 1e6
            broken("a leader whose quorum is silent steps down", f"{self._node_id} leads on after {silent_ms:.0f} ms")

    # Handing over

    def transfer_began(self) -> None:
        """Record that a leadership transfer begins (thesis §3.10)."""
        self._transfer_began_at = self._now

    def transfer_given_up(self) -> None:
        """Check that the leader gives up a transfer only after an election time-out without a takeover by the peer."""
        tried_ns = self._now - self._transfer_began_at
        if tried_ns < self._config.election_timeout_max_ns:
            broken("a handover is tried for an election time-out", f"{self._node_id} gives it up after {tried_ns} ns")

    def sync_ended(self) -> None:
        """Record that the disk has reported the end of a sync of the log.

        The time of the next sync is measured from its start.
        """
        self._sync_since = self._successor_since = None

    def step_is_over(self, core: RaftCore, *, syncs: bool, is_disk_full: bool) -> None:
        """Check a step at its end, while the member leads.

        The leader's transfers must end in time, and its disk must not hang for too long without a transfer.
        """
        if core.successor_id is not None and self._now >= self._transfer_began_at + self._silence_ns_max:
            broken(
                "a handover ends within an election time-out and a heartbeat",
                f"{self._node_id} hands over to {core.successor_id} since {self._transfer_began_at}, now {self._now}",
            )
        if not syncs or is_disk_full or core.term != self._term:
            self.sync_ended()
        elif self._sync_since is None:
            self._sync_since = self._successor_since = self._now
        else:
            self._check_hang()

    def _look_for_a_successor(self, core: RaftCore) -> None:
        """At each tick during a sync, record since when a peer could take over."""
        if core.successor_id is not None or core.term != self._term or not self._can_somebody_lead(core):
            self._successor_since = None
        elif self._successor_since is None:
            self._successor_since = self._now

    def _check_hang(self) -> None:
        """Check that the leader asks a peer to take over once a sync has lasted too long.

        The leader must ask within HANG_TIMEOUTS_MAX election time-outs after the start of the sync. If no peer could
        take over at first, the leader gets the same time again. This second period begins at the end of the first
        period, or later, when a peer can take over.
        """
        assert self._sync_since is not None
        if self._successor_since is None:
            return
        patience_ns = HANG_TIMEOUTS_MAX * self._config.election_timeout_max_ns
        asks_at = self._sync_since + patience_ns
        if self._successor_since > self._sync_since:
            asks_at = max(asks_at, self._successor_since) + patience_ns
        if self._now >= asks_at and self._transfer_began_at < self._sync_since:
            broken(
                "a leader whose disk hangs hands over",
                f"{self._node_id} syncs since {self._sync_since}, has asked nobody, and it is {self._now}",
            )

    def _can_somebody_lead(self, core: RaftCore) -> bool:
        """True if another voter was heard within an election time-out and has acknowledged the whole log."""
        silent_at = self._now - self._config.election_timeout_max_ns
        return any(
            self._matched.get(voter) == core.last_index and self._heard_at[voter] > silent_at
            for voter in core.configuration.voter_ids
            if voter != self._node_id
        )

    # Reads

    def read_asked(self, ticket: int) -> None:
        """Record a read that the node has accepted. Rounds that began earlier do not confirm the read."""
        self._reads[ticket] = (self._safety.commit_index, self._round + 1)

    def round_began(self, counter: int) -> None:
        """Record that a round of reads begins, and check that the counter of the round is new."""
        require(counter > self._round, "each round of reads has its own counter", self._node_id, counter, self._round)
        self._round = counter
        self._began.append((counter, self._now))
        # A leader without peers has its majority at once. The answers are counted now, because the leader may get peers
        # before the next count.
        self._count_answers()

    def read_ready(self, ticket: int, last_applied: int) -> None:
        """Check a read that may be answered after a round.

        Everything that was committed when the read was requested must be applied, and a round must confirm the read.
        """
        if ticket not in self._reads:
            return  # The read was requested in an earlier term.
        self._count_answers()
        mark, round_min = self._reads.pop(ticket)
        if last_applied < mark:
            broken(
                "a read waits until its index is applied",
                f"{self._node_id} has applied {last_applied}, and {mark} was committed when the read came",
            )
        if self._confirmed < round_min:
            broken(
                "a read is confirmed by answers to its own round",
                f"{self._node_id} is at round {self._round}, wants {round_min}, and was answered {self._answered}",
            )

    def read_refused(self, ticket: int) -> None:
        """Record that the read or command with this ticket has ended."""
        self._reads.pop(ticket, None)
        self._by_lease.pop(ticket, None)

    # Leases

    def lease_asked(self, ticket: int) -> None:
        """Record an accepted read that may be answered by lease."""
        self._by_lease[ticket] = self._now

    def asked_to_campaign(self, peer_id: str, last_index: int) -> None:
        """Record that the leader asks a peer to campaign. The request is void once the peer has acknowledged an entry
        after `last_index`.
        """
        self._asked[peer_id] = (last_index, self._now)

    def lease_ready(self, ticket: int, promise_ns: int) -> None:
        """Check a read that may be answered by lease (thesis §6.4.1).

        A lease must have been in force when the read was requested, or must have begun later.
        """
        asked_at = self._by_lease.pop(ticket, None)
        if asked_at is None:
            return
        self._count_answers()
        self._check_lease(asked_at, promise_ns)

    def told_a_peer(self, peer_id: str, message: ReadIndexResponse, promise_ns: int) -> None:
        """Check a read index that the leader sends to a peer.

        The peer must apply the log up to this index before it reads. Either a round that began after the peer's request
        or a lease must confirm the index.
        """
        question = self._questions.get((peer_id, message.number))
        if question is None or message.term != self._term:
            return
        mark, round_min, asked_at = question
        self._count_answers()
        if message.read_index < mark:
            broken(
                "a read waits until its index is applied",
                f"{self._node_id} tells {peer_id} {message.read_index}, and {mark} was committed when it asked",
            )
        if self._confirmed < round_min:
            self._check_lease(asked_at, promise_ns)

    def _check_lease(self, asked_at: int, promise_ns: int) -> None:
        sent_at = next((at for counter, at in reversed(self._began) if counter <= self._promised), None)
        drift_ppm = (
            self._config.clock_drift_ppm_max
            # The leader's clock may be slow by this much, and the clock of the member that made the promise may be fast
            # by this much.
        )
        lease_ns = promise_ns * (1_000_000 - drift_ppm) // (1_000_000 + drift_ppm)
        ends_at = -1 if sent_at is None else sent_at + lease_ns
        if asked_at >= ends_at:
            broken(
                "a lease begins when its round was sent",
                f"{self._node_id} was asked at {asked_at}; round {self._promised}, the last that a majority",
                f"has answered, was sent at {sent_at}, and the promise is {promise_ns} ns",
            )
        for peer_id, (last_index, left_at) in self._asked.items():
            if left_at < asked_at and self._matched[peer_id] <= last_index:
                broken(
                    "no leader reads by lease while a campaign that it asked for may win",
                    f"{self._node_id} asked {peer_id} at {left_at}, and the read came at {asked_at}",
                )
