"""Which faults come when: a plan drawn from the seed alone, so that two runs of one seed plan the same.

What the plan leaves open is *who*: "the leader" is whoever leads at that moment. `pick` seeds that choice, and
the events of the run say what was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Literal

from harness.errors import BadInput

Kind = Literal["kill", "pause", "partition"]
Target = Literal["leader", "minority", "random", "all"]
Direction = Literal["both", "in", "out", "slow"]
"""Which frames are lost, as the victims see it; `slow` loses none, and holds all back."""

KINDS: tuple[Kind, ...] = ("kill", "pause", "partition")
FAULT_NAMES = ("none", *KINDS, "all")

FIRST_FAULT_SECONDS = 1.5  # Some load first: a fault on an empty store teaches little.
_CALM_SECONDS = 1.0  # After a fault: about what a killed process needs to be back, so that faults seldom add up.
_DURATION_SECONDS: dict[Kind, tuple[float, float]] = {
    "kill": (0.2, 1.5),  # Down time: both shorter and longer than an election.
    "pause": (0.6, 2.5),  # Longer than an election time-out, so a paused leader wakes up deposed.
    "partition": (0.8, 3.0),
}
_CHOICES: dict[Kind, tuple[tuple[Target, Direction | None], ...]] = {
    "kill": (("leader", None), ("leader", None), ("random", None), ("minority", None), ("all", None)),
    "pause": (("leader", None), ("leader", None), ("random", None), ("minority", None)),
    "partition": (
        ("leader", "both"),
        ("leader", "in"),
        ("leader", "out"),
        ("minority", "both"),
        ("random", "in"),
        ("random", "out"),
        ("leader", "slow"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault: it begins `start_seconds` after the load and ends `duration_seconds` later (kill: is restarted)."""

    number: int
    start_seconds: float
    duration_seconds: float
    kind: Kind
    target: Target
    direction: Direction | None  # Partitions only.
    pick: int

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def words(self) -> str:
        way = {"in": ", frames to it lost", "out": ", frames from it lost", "slow": ", frames late"}
        return f"{self.kind} {self.target}{way.get(self.direction or 'both', '')}"


def parse_faults(text: str) -> tuple[Kind, ...]:
    """Read `--faults`: a comma list of kinds, `none` or `all`. Raises BadInput with the nearest name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in FAULT_NAMES:
            raise BadInput(f"there is no fault {name!r}", _nearest(name))
    if not names or ("none" in names and len(names) > 1):
        raise BadInput(f"--faults {text!r} says nothing clear", f"a comma list of {', '.join(KINDS)}, or none, or all")
    if names == ["none"]:
        return ()
    return KINDS if "all" in names else tuple(kind for kind in KINDS if kind in names)


def plan_faults(
    *, seed: int, seconds: float, kinds: Sequence[Kind], interval_seconds: float
) -> tuple[PlannedFault, ...]:
    """Draw the faults of a run of `seconds`.

    Each fault begins when the one before it is over, about `interval_seconds` after it began; every kind of choice
    (leader, minority, random; both ways or one) comes up once before any comes twice. All end within the run.
    """
    assert interval_seconds > 0
    if not kinds:
        return ()
    random = Random(f"faults {seed}")
    decks = {kind: _endless_deck(kind, random) for kind in kinds}
    faults: list[PlannedFault] = []
    at = FIRST_FAULT_SECONDS
    while True:
        kind = kinds[len(faults) % len(kinds)]
        duration = random.uniform(*_DURATION_SECONDS[kind])
        target, direction = next(decks[kind])
        if at + duration > seconds:
            return tuple(faults)
        faults.append(
            PlannedFault(
                number=len(faults) + 1,
                start_seconds=round(at, 3),
                duration_seconds=round(duration, 3),
                kind=kind,
                target=target,
                direction=direction,
                pick=random.getrandbits(32),
            )
        )
        at += max(duration + _CALM_SECONDS, interval_seconds * random.uniform(0.7, 1.3))


def _endless_deck(kind: Kind, random: Random) -> Iterator[tuple[Target, Direction | None]]:
    while True:
        deck = list(_CHOICES[kind])
        random.shuffle(deck)
        yield from deck


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, FAULT_NAMES, n=1)
    return f"did you mean {near[0]}?" if near else f"the faults are {', '.join(FAULT_NAMES)}"
