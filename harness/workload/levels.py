"""The acknowledgement levels of a run's writes: each level except MAJORITY gets a share of the writes.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Self

from harness.errors import BadInput
from harness.workload.named_numbers import parse_named_numbers
from kvstore import Acknowledge

_WORDS = ("none", "leader", "in_sync")
_USUAL_SHARE = 0.1  # The share of a level for which `--levels` gives no number.


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelShares:
    """The share of the writes for each level, from 0 to 1. All other writes have the level MAJORITY.

    >>> LevelShares.parse("leader=0.2,in_sync")
    LevelShares(none=0.0, leader=0.2, in_sync=0.1)
    """

    none: float = 0.0
    leader: float = 0.0
    in_sync: float = 0.0

    def __post_init__(self) -> None:
        shares = [getattr(self, word) for word in _WORDS]
        if not all(0 <= share <= 1 for share in shares) or sum(shares) > 1 + 1e-9:
            raise BadInput("--levels: these are no shares", "each is from 0 to 1, and together they are at most 1")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `--levels`: for example `leader=0.2,in_sync`. The single word `none` means that every write waits for a
        majority. Raises BadInput.
        """
        shares: dict[str, float] = {}
        for word, share in parse_named_numbers(text, _WORDS, "--levels").items():
            try:
                shares[word] = float(share) if share else _USUAL_SHARE
            except ValueError:
                raise BadInput(f"--levels: {share!r} is not a share", "write it as leader=0.2") from None
        return cls(**shares)

    def __bool__(self) -> bool:
        return any(getattr(self, word) for word in _WORDS)

    def __str__(self) -> str:
        return ",".join(f"{word}={getattr(self, word):g}" for word in _WORDS if getattr(self, word)) or "none"

    def next(self, random: Random) -> Acknowledge:
        """Draw the level of the next write."""
        drawn = random.random()
        for word in _WORDS:
            share: float = getattr(self, word)
            if drawn < share:
                return Acknowledge[word.upper()]
            drawn -= share
        return Acknowledge.MAJORITY


NO_LEVELS = LevelShares()


def min_in_sync_of(nodes: int) -> int:
    """Return the limit `min_in_sync` for a run with writes of level IN_SYNC.

    The limit is one more than a majority, so that the leader refuses such writes if only a majority is in sync.
    """
    return min(nodes, nodes // 2 + 2)
