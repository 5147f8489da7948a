"""Majorities of the voters, for votes, commit, reads and the check that a leader still hears its quorum."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Tally(enum.Enum):
    """The state of a vote. `LOST` means that the answers still missing cannot make a majority."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


def majority_index(positions: Sequence[int]) -> int:
    """Return the highest position that a majority of voters has reached (Raft §5.3, Figure 2).

    `positions` has one entry per voter, leader included, in any order; length n ≥ 1. The result is reached by at least
    n // 2 + 1 voters. Cost: O(n log n), n ≤ 9. For the last indexes 8, 9, 10, 10, 10 the result is 10; for 9, 9, 0, 0
    the result is 0. The caller of a commit must still check that the entry is of the *current* term (Raft §5.4.2).

    Raises ValueError if there are no voters.
    """
    if not positions:
        raise ValueError("majority_index needs at least one voter")
    return sorted(positions, reverse=True)[len(positions) // 2]


@dataclass(frozen=True, slots=True)
class Quorum:
    """The voters whose majority decides; with `outgoing`, a majority of each half must agree (Raft §6)."""

    voters: tuple[str, ...]
    outgoing: tuple[str, ...] = ()

    @property
    def halves(self) -> tuple[tuple[str, ...], ...]:
        """The groups of voters that decide: one, or two if the configuration is joint."""
        return (self.voters, self.outgoing) if self.outgoing else (self.voters,)

    def agreed(self, position_of: Mapping[str, int]) -> int:
        """The highest position that a majority has reached; `position_of` names every voter (and may name others)."""
        return min(majority_index([position_of[voter] for voter in half]) for half in self.halves)

    def tally(self, votes: Mapping[str, bool]) -> Tally:
        """Count one vote per voter; votes of others do not count, and a voter who is not named has not answered."""
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
