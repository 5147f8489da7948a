"""The open proposals of a member: entries that the member appended as leader and has not applied yet.

If the log of this member was cut, a proposal may still be committed by other members. There is only one proof that a
proposal has no effect: an entry of another term is *committed* at the proposal's index. If a snapshot replaces the log
up to that index, the outcome of the proposal is unknown.

See docs/reference/specification.md#96-end-of-a-proposal.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.core.log import RaftLog
from raft.core.outbox import Outbox
from raft.core.ready import Certainty, ProposalEnded


@dataclass(slots=True)
class _Range:
    """The open proposals of one term. The proposals up to `checked` are known to be committed unchanged."""

    term: int
    first_index: int
    last_index: int
    checked: int


class OpenProposals:
    """The open proposals, usually one range per term of leadership. The bounds on uncommitted and unapplied entries
    also limit the number of open proposals."""

    def __init__(self, log: RaftLog, outbox: Outbox) -> None:
        self._log, self._outbox = log, outbox
        self._ranges: list[_Range] = []

    def proposed(self, index: int, term: int) -> None:
        """Add a proposal: this member, as leader of `term`, has appended an entry at `index`."""
        if self._ranges and self._ranges[-1].term == term:
            assert index == self._ranges[-1].last_index + 1, (index, self._ranges)
            self._ranges[-1].last_index = index
        else:
            self._ranges.append(_Range(term, index, index, index - 1))

    def committed(self, commit_index: int) -> None:
        """Check the open proposals after the high-water mark has risen. A proposal certainly has no effect if an entry
        of another term is now committed at its index."""
        if not self._ranges:
            return  # The usual case on a follower, which has proposed nothing.
        has_ended = False
        for proposals in tuple(self._ranges):
            if self._log.last_term == proposals.term:
                # The usual case on a leader. Only this member appended entries of that term. The last entry of our log
                # is of that term, so the log contains all entries of the term up to it.
                proposals.checked = max(proposals.checked, min(proposals.last_index, commit_index))
                continue
            while proposals.checked < proposals.last_index and proposals.checked < commit_index:
                index = proposals.checked + 1
                proposals.checked = index
                if self._log.term_at(index) == proposals.term:
                    continue
                has_ended = True
                self._end(index, proposals.term, Certainty.NOT_APPLIED)
                if proposals.first_index < index:  # The proposals before `index` are committed but not applied yet.
                    self._ranges.append(_Range(proposals.term, proposals.first_index, index - 1, index - 1))
                proposals.first_index = index + 1
        if has_ended:
            self._forget_empty()

    def applied(self, index: int) -> None:
        """Remove the proposals up to `index`, because the state machine has returned their results."""
        if not self._ranges:
            return
        for proposals in self._ranges:
            last_index = index if index < proposals.checked else proposals.checked
            if last_index >= proposals.first_index:
                proposals.first_index = last_index + 1
        if len(self._ranges) > 1 or self._ranges[0].first_index > self._ranges[0].last_index:
            self._forget_empty()

    def passed_by_snapshot(self, index: int) -> None:
        """End the proposals up to `index`, because a snapshot at `index` has replaced the state. The snapshot does not
        contain their results."""
        for proposals in self._ranges:
            last_index = min(proposals.last_index, index)
            for passed in range(proposals.first_index, last_index + 1):
                self._end(passed, proposals.term, Certainty.UNKNOWN)
            proposals.first_index = max(proposals.first_index, last_index + 1)
            proposals.checked = max(proposals.checked, last_index)
        self._forget_empty()

    def _end(self, index: int, term: int, certainty: Certainty) -> None:
        self._outbox.ready.ended.append(ProposalEnded(index, term, certainty))

    def _forget_empty(self) -> None:
        if len(self._ranges) == 1 and self._ranges[0].first_index > self._ranges[0].last_index:
            self._ranges.clear()  # The usual case.
            return
        self._ranges = [proposals for proposals in self._ranges if proposals.first_index <= proposals.last_index]
        if len(self._ranges) > 1:
            self._ranges.sort(key=lambda proposals: (proposals.term, proposals.first_index))
