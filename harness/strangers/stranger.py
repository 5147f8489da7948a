"""One stranger, which visits a member repeatedly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from harness.strangers.structures import Structures
from harness.strangers.wire import TargetMember


@dataclass(slots=True)
class Stranger:
    """One stranger: its target, its random draws, and the counters that it shares with all others."""

    target: TargetMember
    targets: Sequence[TargetMember]
    random: Random
    structures: Structures
    counts: Counter[str]
    memory: dict[str, object] = field(default_factory=dict)  # Data that the stranger keeps between visits.
