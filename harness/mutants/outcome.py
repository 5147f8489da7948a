"""The outcome of a seed on a copy, and of the search for a mutant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ESCAPED = "no exception leaves a node"
"""The name of the rule under which the simulator reports an exception of the production code."""

REPLAYED = "one seed is one run"
"""The name of the rule that a seed must give the same trace in two processes with different hash seeds."""

HANGS = "a run comes to an end"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOutcome:
    """The run of one seed. `rule`: the broken rule, or None. `commits`: how many entries were committed."""

    seed: int
    seconds: float
    events: int
    commits: int
    trace_hash: str
    rule: str | None
    detail: str

    @property
    def is_stillborn(self) -> bool:
        """True if the run raised an exception before anything was committed.

        Such code does not work at all, so the run catches nothing.

        A failed assertion of the production code is always a catch, even at the beginning.
        """
        crashed = self.rule == ESCAPED and not self.detail.startswith("AssertionError")
        return crashed and self.commits == 0

    @property
    def is_catch(self) -> bool:
        """True if a rule was broken in this run, unless the run is stillborn (`is_stillborn`)."""
        return self.rule is not None and not self.is_stillborn

    @property
    def caught_by(self) -> str:
        """The broken rule; for an exception, its type and the line that raised it."""
        if self.rule != ESCAPED:
            return self.rule or ""
        kind = self.detail.partition(":")[0]
        place = self.detail.rpartition(" at ")[2].partition(" <")[0]
        return f"{kind} at {place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HuntResult:
    """How the search for one mutant ended. If `caught`, `failed_test` and `error` are all None, the mutant survived all
    `seeds_run` seeds, or all its tests."""

    name: str
    seeds_run: int
    seconds: float
    caught: SeedOutcome | None = None
    failed_test: str | None = None
    error: str | None = None

    @property
    def verdict(self) -> str:
        """The verdict in one word."""
        return "error" if self.error else "killed" if self.is_killed else "survived"

    @property
    def is_killed(self) -> bool:
        """True if a seed or a test has caught the mutant."""
        return self.caught is not None or self.failed_test is not None

    @property
    def caught_by(self) -> str:
        """The rule or the test that has caught the mutant; empty if nothing has."""
        return self.caught.caught_by if self.caught else (self.failed_test or "").rpartition("::")[2]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON data.

        `seed` is the seed that caught the mutant, and `test` the test that did. `seconds` is the processor time of all
        seeds that ran on the mutant, or the time of its tests.
        """
        caught = self.caught
        return {
            "name": self.name,
            "verdict": self.verdict,
            "seeds": self.seeds_run,
            "seconds": round(self.seconds, 3),
            "seed": caught.seed if caught else None,
            "caught_by": self.caught_by or None,
            "test": self.failed_test,
            "rule": caught.rule if caught else None,
            "detail": caught.detail if caught else None,
            "error": self.error,
        }
