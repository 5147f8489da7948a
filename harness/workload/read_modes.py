"""The modes in which the clients of a run request reads. Each mode gets a share of the gets and ranges.

All other reads are linearizable by a round of heartbeats. The history records the consistency with which a read was
*answered*. The recorded consistency may differ from the requested consistency. A leader without a lease answers a
`lease` read by a round, and any leader answers a `follower` or `bounded` read as a `linearizable` or `lease` read.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Self

from harness.errors import BadInput
from harness.workload.named_numbers import parse_named_numbers
from kvstore import Consistency, Get, Range

_WORDS = ("lease", "follower", "bounded", "local")
_USUAL_SHARE = 0.15  # The share of a mode that `--read-ways` names without a number.
# The maximum ages of `bounded` reads: the first is shorter than a heartbeat interval, the second is shorter than an
# election, and the third is longer than both.
_AGES_MS = (20, 150, 1_000)
# The share of the `follower` and `bounded` reads that are sent to a single member, even if this member is cut off.
_ON_ONE_MEMBER_SHARE = 0.6
_ONE_PICKED_OF = 2**16


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """The mode in which one read is requested.

    `member`: the only member that may get the request (an index, modulo the number of members); None: any member.
    """

    consistency: Consistency = Consistency.LINEARIZABLE
    member: int | None = None
    max_staleness_ms: int | None = None


BY_ROUND = PlannedRead()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadModes:
    """The share of the reads for each mode, from 0 to 1.

    The audit cannot check an old listing, so ranges are linearizable instead of `bounded` or `local`.

    >>> ReadModes.parse("lease=0.5,local=0.1")
    ReadModes(lease=0.5, follower=0.0, bounded=0.0, local=0.1)
    """

    lease: float = 0.0
    follower: float = 0.0
    bounded: float = 0.0
    local: float = 0.0

    def __post_init__(self) -> None:
        shares = [getattr(self, word) for word in _WORDS]
        if not all(0 <= share <= 1 for share in shares) or sum(shares) > 1 + 1e-9:
            raise BadInput("--read-ways: these are no shares", "each is from 0 to 1, and together they are at most 1")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `--read-ways`: for example `lease=0.2,local`, or `none`. Raises BadInput, which suggests the nearest
        name.
        """
        shares: dict[str, float] = {}
        for word, share in parse_named_numbers(text, _WORDS, "--read-ways").items():
            try:
                shares[word] = float(share) if share else _USUAL_SHARE
            except ValueError:
                raise BadInput(f"--read-ways: {share!r} is not a share", "write it as lease=0.2") from None
        return cls(**shares)

    def __str__(self) -> str:
        return ",".join(f"{word}={getattr(self, word):g}" for word in _WORDS if getattr(self, word)) or "none"

    def next(self, command: Get | Range, random: Random) -> PlannedRead:
        """Draw the mode of the next read."""
        drawn, age_ms, pick = random.random(), random.choice(_AGES_MS), random.randrange(_ONE_PICKED_OF)
        on_one = pick if random.random() < _ON_ONE_MEMBER_SHARE else None
        for word in _WORDS:
            share: float = getattr(self, word)
            if drawn < share:
                return _read_mode(word, command, on_one, pick, age_ms)
            drawn -= share
        return BY_ROUND


USUAL_READ_MODES = ReadModes(lease=0.15, follower=0.15, bounded=0.1, local=0.1)
"""Half of the reads are linearizable by a round of heartbeats, the most common case in production. The share of each
other mode is large enough for the mode to occur within seconds.
"""

LEADER_READS_ONLY = ReadModes()


def _read_mode(word: str, command: Get | Range, on_one: int | None, pick: int, age_ms: int) -> PlannedRead:
    if isinstance(command, Range) and word in ("bounded", "local"):
        return BY_ROUND
    match word:
        case "lease":
            return PlannedRead(Consistency.LEASE)
        case "follower":
            return PlannedRead(Consistency.FOLLOWER, on_one)
        case "bounded":
            return PlannedRead(Consistency.BOUNDED, on_one, age_ms)
        case _:
            return PlannedRead(Consistency.LOCAL, pick)
