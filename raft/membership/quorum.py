"""The voters of a configuration, and the count of their votes. `raft.core.leader` computes the log position that a
majority has reached."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Tally(enum.Enum):
    """The state of a vote. `LOST` means that there can be no majority, even if all missing votes are granted."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Quorum:
    """The voters of a configuration. A majority of `voters` decides; if `outgoing` is not empty, a majority of
    `outgoing` must agree, too (Raft §6)."""

    voters: tuple[str, ...]
    outgoing: tuple[str, ...] = ()

    @property
    def halves(self) -> tuple[tuple[str, ...], ...]:
        """The groups of voters: two if the configuration is joint, otherwise one."""
        return (self.voters, self.outgoing) if self.outgoing else (self.voters,)

    def has_voter(self, node_id: str) -> bool:
        """True if this member votes in one of the halves."""
        return node_id in self.voters or node_id in self.outgoing

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
