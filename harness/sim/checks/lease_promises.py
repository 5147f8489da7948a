"""The promise of a member to a leader that may read by lease: to vote for no other member (thesis §6.4.1).

The promise lasts for `lease_ns`, by the member's own clock, after the member has received a message from the leader.
The promise holds in every term. The only exception is a campaign that a leader has requested. A process that has just
started does not know which leader the member heard before, so it gives no vote during its first `lease_ns`.
"""

from __future__ import annotations

from harness.sim.engine.errors import broken
from raft import AppendEntries, Configuration, InstallSnapshot, Message, RaftCore, TimeoutNow, VoteRequest


class LeasePromiseChecker:
    """Checks one process. Times are in ns of the process's own clock."""

    def __init__(self, core: RaftCore, now: int) -> None:
        self._silent_until = now + core.configuration.lease_ns
        # The last message from a leader: (leader, time of the message, duration of the promise at that time).
        self._heard: tuple[str, int, int] | None = None
        self._vote = core.term, core.voted_for
        self._asked_to_campaign_in: int | None = None  # The term of the campaign that a leader requested.

    def received(self, core: RaftCore, sender: str, message: Message, now: int) -> None:
        """Record a message that the member has received. A message from the member's leader renews the promise.

        A late message from a leader does not renew the promise if the member knows that this leader is removed.
        """
        is_from_its_leader = core.leader_id == sender and core.term == message.term
        if sender in core.committed_configuration.removed:
            return
        if is_from_its_leader and isinstance(message, AppendEntries | InstallSnapshot):
            self._heard = sender, now, core.configuration.lease_ns

    def check(self, core: RaftCore, message: object, now: int, committed: Configuration) -> None:
        """Check, after an event, that no promise forbade the vote that the member has given.

        `message`: the message that arrived in this event, if any. `committed`: the newest configuration that any member
        has committed. If this configuration has only one voter, no other member can lead.
        """
        vote = core.term, core.voted_for
        if vote == self._vote:
            return
        self._vote, candidate = vote, core.voted_for
        is_to_campaign = isinstance(message, TimeoutNow)
        if is_to_campaign and candidate == core.node_id:
            self._asked_to_campaign_in = core.term
        is_alone = committed.voter_ids == (core.node_id,) and not committed.is_joint
        if candidate is None or is_alone:
            return
        is_asked_for = is_to_campaign or (isinstance(message, VoteRequest) and message.transfer)
        is_silent = now < self._silent_until and not is_to_campaign
        if is_silent or (self._is_bound(candidate, core.configuration.lease_ns, now) and not is_asked_for):
            broken(
                "a member that promised a lease votes for no other leader",
                f"{core.node_id} votes for {candidate} in term {core.term} at {now},",
                f"was to be silent until {self._silent_until}, and has heard {self._heard}",
            )

    def check_request(self, core: RaftCore, request: VoteRequest) -> None:
        """Check a request for votes: only a campaign that a leader requested may ask voters to break promises."""
        if request.transfer and request.term != self._asked_to_campaign_in:
            broken("a campaign that breaks promises is one that a leader asked for", core.node_id, request)

    def _is_bound(self, candidate: str, promise_ns: int, now: int) -> bool:
        if self._heard is None or self._heard[0] == candidate:
            return False
        _, heard_at, promised_ns = self._heard
        return now < heard_at + min(promised_ns, promise_ns)
