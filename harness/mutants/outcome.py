"""The outcome of a seed on a copy, and of the search for a mutant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ESCAPED = "no exception leaves a node"
"""The rule name under which the simulator reports an exception of the production code."""

REPLAYED = "one seed is one run"
"""The rule that is broken if two processes that hash strings differently run the same seed differently."""

HANGS = "a run comes to an end"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOutcome:
    """One seed. `rule`: None if every rule held. `commits`: how many entries were committed before the run ended."""

    seed: int
    seconds: float
    events: int
    commits: int
    trace_hash: str
    rule: str | None
    detail: str

    @property
    def is_stillborn(self) -> bool:
        """True if the run crashed before it committed anything: a rule need not catch code that does not run.

        An assertion that fails is a rule like any other, however early.
        """
        crashed = self.rule == ESCAPED and not self.detail.startswith("AssertionError")
        return crashed and self.commits == 0

    @property
    def is_catch(self) -> bool:
        """True if a rule caught something in this run."""
        return self.rule is not None and not self.is_stillborn

    @property
    def caught_by(self) -> str:
        """The rule; for an exception its type and where it was raised."""
        if self.rule != ESCAPED:
            return self.rule or ""
        kind = self.detail.partition(":")[0]
        place = self.detail.rpartition(" at ")[2].partition(" <")[0]
        return f"{kind} at {place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HuntResult:
    """How the search for one mutant ended: `caught`, or `error`, or it survived `seeds_run` seeds."""

    name: str
    seeds_run: int
    seconds: float
    caught: SeedOutcome | None = None
    error: str | None = None

    @property
    def verdict(self) -> str:
        """The verdict in one word."""
        return "error" if self.error else "killed" if self.caught else "survived"

    def to_json(self) -> dict[str, Any]:
        """Return the result for programs.

        `seed` is the seed that killed the mutant. `seconds` is the processor time of all seeds that ran on the mutant.
        """
        caught = self.caught
        return {
            "name": self.name,
            "verdict": self.verdict,
            "seeds": self.seeds_run,
            "seconds": round(self.seconds, 3),
            "seed": caught.seed if caught else None,
            "caught_by": caught.caught_by if caught else None,
            "rule": caught.rule if caught else None,
            "detail": caught.detail if caught else None,
            "error": self.error,
        }
