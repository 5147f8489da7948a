"""Majorities of the voters: for votes, commits, reads, and the check that a leader still hears its quorum."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Tally(enum.Enum):
    """The state of a vote. `LOST` means that no majority is possible, whatever the missing answers say."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


def majority_index(positions: Sequence[int]) -> int:
    """Return the highest position that a majority of voters has reached (Raft §5.3, Figure 2).

    `positions` has one item per voter, the leader included, in any order; its length n is at least 1. At least
    n // 2 + 1 voters have reached the result. Cost: O(n log n), n ≤ 9. For the positions 8, 9, 10, 10, 10 the result is
    10; for 9, 9, 0, 0 it is 0. Before a commit, the caller must also check that the entry at the result is of the
    *current* term (Raft §5.4.2).

    Raises ValueError if there are no voters.
    """
    if not positions:
        raise ValueError("majority_index needs at least one voter")
    return sorted(positions, reverse=True)[len(positions) // 2]


@dataclass(frozen=True, slots=True)
class Quorum:
    """The voters. A majority of them decides; if `outgoing` is not empty, a majority of each half must agree (Raft
    §6)."""

    voters: tuple[str, ...]
    outgoing: tuple[str, ...] = ()

    @property
    def halves(self) -> tuple[tuple[str, ...], ...]:
        """The groups of voters: two if the configuration is joint, otherwise one."""
        return (self.voters, self.outgoing) if self.outgoing else (self.voters,)

    def agreed(self, position_of: Mapping[str, int]) -> int:
        """The highest position that a majority has reached. `position_of` must contain every voter, and may contain
        other members."""
        return min(majority_index([position_of[voter] for voter in half]) for half in self.halves)

    def tally(self, votes: Mapping[str, bool]) -> Tally:
        """Count the votes of the voters. A voter that `votes` does not contain has not answered; votes from other
        members do not count."""
        tallies = [_tally(half, votes) for half in self.halves]
        if Tally.LOST in tallies:
            return Tally.LOST
        return Tally.OPEN if Tally.OPEN in tallies else Tally.WON


def _tally(voters: Sequence[str], votes: Mapping[str, bool]) -> Tally:
    needed = len(voters) // 2 + 1
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    if granted >= needed:
        return Tally.WON
    return Tally.LOST if len(voters) - refused < needed else Tally.OPEN
