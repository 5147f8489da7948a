"""Draws the fault plan of a run from its seed, so that two runs with the same seed and settings have the same plan.

The plan does not name the victims: "the leader" is the member that leads when the fault begins. `pick` seeds the random
choice of victims at the start of the fault, and the events of the run record the victims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from random import Random
from typing import Literal, TypeVar, get_args

from harness.cluster.proxy import Direction
from harness.errors import BadInput

_T = TypeVar("_T")

Kind = Literal[
    "kill",
    "pause",
    "partition",
    "restart",
    "transfer",
    "disk-full",
    "disk-error",
    "disk-hang",
    "disk-slow",
    "power-loss",
    "write-error",
    "boot-clock",
    "wall-clock",
    "clock-jump",
    "replace",
    "disk-lies",
    "add",
    "remove",
]
Target = Literal["leader", "minority", "random", "eldest", "all"]
"""`eldest` is the member that joined first. If each of several faults replaces the eldest member, all members are
replaced in the end.
"""

KINDS: tuple[Kind, ...] = get_args(Kind)
DISK_KINDS: tuple[Kind, ...] = ("disk-full", "disk-error", "disk-hang", "disk-slow", "power-loss", "disk-lies")
"""The kinds for which each member needs a volume of its own."""
TAMPERED_KINDS: tuple[Kind, ...] = ("write-error", "disk-lies", "clock-jump")
"""The kinds that act between a member and its operating system (`harness.cluster.os_faults`)."""
MEMBER_KINDS: tuple[Kind, ...] = ("replace", "disk-lies", "add", "remove")
"""The kinds that change the membership. A lane is a sequence of faults. These kinds have a lane of their own, so that
other faults can happen during a change.
"""
REPLACING_KINDS: tuple[Kind, ...] = ("replace", "disk-lies")
"""The kinds that replace a member: they add the new member before they remove the old one."""
VICTIMLESS_KINDS: tuple[Kind, ...] = ("transfer", "add")
"""The kinds that need no victim: they only ask the cluster for something."""
FAULT_NAMES = ("none", *KINDS, "all")

# By this time the load has filled the store a little; a fault on an empty store would test little.
FIRST_FAULT_SECONDS = 1.5
# The least pause after a fault. A killed process needs about this long to recover, so the effects of two faults seldom
# overlap.
_CALM_SECONDS = 1.0
_DURATION_SECONDS: dict[Kind, tuple[float, float]] = {
    "kill": (0.2, 1.5),  # Some of these times are shorter than an election, and some are longer.
    "pause": (0.6, 2.5),  # Longer than an election time-out, so that a paused leader has a successor when it resumes.
    "partition": (0.8, 3.0),
    "restart": (0.1, 0.8),
    "transfer": (0.1, 0.4),
    "disk-full": (1.0, 4.0),  # A member with a full disk looks for free space every two seconds.
    "disk-error": (0.5, 2.0),
    "disk-hang": (0.4, 2.5),
    "disk-slow": (1.5, 4.0),
    "power-loss": (0.2, 1.5),
    "write-error": (0.5, 2.0),  # The duration is the time until the member is started again.
    "boot-clock": (0.2, 1.0),
    "wall-clock": (0.5, 2.0),
    "clock-jump": (0.1, 0.3),  # The clock does not jump back at the end.
    "add": (0.3, 0.6),  # The least duration: the fault ends when the membership change is done.
    "remove": (0.3, 0.6),
    "replace": (0.3, 0.6),
    "disk-lies": (0.5, 1.5),  # The duration is the time until the power is lost.
}
_Choice = tuple[Target, Direction | None]
_LEADER_FIRST: tuple[_Choice, ...] = (("leader", None), ("leader", None), ("random", None), ("minority", None))
_CHOICES: dict[Kind, tuple[_Choice, ...]] = {
    "kill": (*_LEADER_FIRST, ("all", None)),
    "pause": _LEADER_FIRST,
    "partition": (
        ("leader", "both"),
        ("leader", "in"),
        ("leader", "out"),
        ("minority", "both"),
        ("random", "in"),
        ("random", "out"),
        ("leader", "slow"),
    ),
    "restart": (("leader", None), ("random", None)),
    "transfer": (("leader", None),),
    "disk-full": (*_LEADER_FIRST, ("all", None)),
    "disk-error": _LEADER_FIRST,
    "disk-hang": (*_LEADER_FIRST, ("all", None)),
    "disk-slow": (*_LEADER_FIRST, ("all", None)),
    "power-loss": (*_LEADER_FIRST, ("all", None)),
    "write-error": _LEADER_FIRST,
    "boot-clock": _LEADER_FIRST,
    "wall-clock": (*_LEADER_FIRST, ("all", None)),
    "clock-jump": (*_LEADER_FIRST, ("all", None)),
    "add": (("random", None),),  # The fault `add` has no victim.
    "remove": (("leader", None), ("random", None)),
    "replace": (("eldest", None),),
    "disk-lies": (("random", None), ("leader", None)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault, which begins `start_seconds` after the start of the load and ends `duration_seconds` later.

    At the end of a kill, the process is started again. A membership change may take longer than `duration_seconds`.
    """

    number: int
    start_seconds: float
    duration_seconds: float
    kind: Kind
    target: Target
    direction: Direction | None  # The direction of a partition; None for all other kinds.
    pick: int

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def words(self) -> str:
        way = {"in": ", frames to it lost", "out": ", frames from it lost", "slow": ", frames late"}
        return f"{self.kind} {self.target}{way.get(self.direction or 'both', '')}"


def parse_faults(text: str) -> tuple[Kind, ...]:
    """Parse `--faults`: a comma-separated list of kinds, `none` or `all`. Raises BadInput, which suggests the nearest
    name.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in FAULT_NAMES:
            raise BadInput(f"there is no fault {name!r}", _nearest(name))
    if not names or ("none" in names and len(names) > 1):
        raise BadInput(
            f"--faults {text!r} names no fault, or `none` beside faults",
            f"a comma list of {', '.join(KINDS)}, or none, or all",
        )
    if names == ["none"]:
        return ()
    return KINDS if "all" in names else tuple(kind for kind in KINDS if kind in names)


def plan_faults(
    *, seed: int, seconds: float, kinds: Sequence[Kind], interval_seconds: float
) -> tuple[PlannedFault, ...]:
    """Draw the faults of a run of `seconds`, in order of time.

    In each lane, a fault begins about `interval_seconds` after the start of the previous fault, or about twice as long
    in the lane of membership changes. It never begins before the end of the previous fault. Every kind is used once
    before any kind is used again. In the same way, every target and direction of a kind is used once before any is used
    again. Membership changes have a fixed order: a remove follows each add, so that the cluster gets its original size
    again. All faults are planned to end within the run, but membership changes may take longer.
    """
    assert interval_seconds > 0
    lanes = (
        _lane("faults", seed, seconds, [kind for kind in kinds if kind not in MEMBER_KINDS], interval_seconds),
        _lane("changes", seed, seconds, [kind for kind in kinds if kind in MEMBER_KINDS], 2 * interval_seconds),
    )
    ordered = sorted((fault for lane in lanes for fault in lane), key=lambda fault: fault.start_seconds)
    return tuple(replace(fault, number=number) for number, fault in enumerate(ordered, start=1))


def _lane(
    name: str, seed: int, seconds: float, kinds: Sequence[Kind], interval_seconds: float
) -> Iterator[PlannedFault]:
    random = Random(f"{name} {seed}")
    targets = {kind: _endless_deck(_CHOICES[kind], random) for kind in kinds}
    at = FIRST_FAULT_SECONDS
    for kind in cycle(kinds) if set(kinds) <= set(MEMBER_KINDS) else _endless_deck(kinds, random):
        duration = random.uniform(*_DURATION_SECONDS[kind])
        target, direction = next(targets[kind])
        if at + duration > seconds:
            return
        yield PlannedFault(
            number=0,
            start_seconds=round(at, 3),
            duration_seconds=round(duration, 3),
            kind=kind,
            target=target,
            direction=direction,
            pick=random.getrandbits(32),
        )
        at += max(duration + _CALM_SECONDS, interval_seconds * random.uniform(0.7, 1.3))


def _endless_deck(cards: Sequence[_T], random: Random) -> Iterator[_T]:
    while deck := list(cards):
        random.shuffle(deck)
        yield from deck


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, FAULT_NAMES, n=1)
    return f"did you mean {near[0]}?" if near else f"the faults are {', '.join(FAULT_NAMES)}"
