"""Shrinks a failing plan: removes faults, members and unusual settings while the run still fails in the same way.

First, delta debugging removes faults from the list (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
Input", 2002). Then the search removes members, shortens times, reduces the load, and resets all other values to the
usual values, section by section and field by field. These steps are repeated until no step changes the plan. A change
to one part of the plan does not change the random draws for other parts, because each purpose has a separate random
stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.errors import BadInput
from harness.sim.engine.errors import Violation
from harness.sim.plan.plan import MILLISECOND_NS, SECOND_NS, Fault, Plan
from harness.sim.plan.plan_file import Tree, differing, plan_of, to_tree, usual_tree
from harness.sim.simulation import SeedResult, Simulation

RUNS_MAX = 400
"""The most plans that one search tries."""

SECONDS_MAX = 300.0
"""The time after which the search starts no further run. A run that is under way then is still completed."""

ESCAPED = "no exception leaves a node"
"""The rule in the violations that `errors.escaped` returns."""

KEPT = ("seed", "members", "until_ns", "faults")
"""Fields that are never set to their usual values: the seed stays as it is, and the other three shrink in ways of their
own.
"""

UNTIL_NS_MIN = 100 * MILLISECOND_NS

Play = Callable[[Plan], SeedResult]
Tell = Callable[[str], None]


def play(plan: Plan) -> SeedResult:
    """Run one plan."""
    return Simulation(plan).run()


def failure_class(violation: Violation) -> tuple[str, str]:
    """Return the identity of a failure: the rule, and for an exception also its type and the line that raised it."""
    if violation.rule != ESCAPED:
        return violation.rule, ""
    words, _, path = violation.detail.rpartition(" at ")
    return violation.rule, f"{words.partition(':')[0]} at {path.partition(' < ')[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The smallest failing plan that was found, the result of its run, and the number of `runs` in the search.

    `is_done`: True if no limit has stopped the search.
    """

    plan: Plan
    result: SeedResult
    before: Plan
    result_before: SeedResult
    runs: int
    seconds: float
    is_done: bool

    def words(self) -> str:
        """The result in a few lines."""
        assert self.result.violation is not None
        limit = "" if self.is_done else ", stopped by its limit"
        return (
            f"{self.result.violation}\n"
            f"seed {self.plan.seed}: {size_words(self.before, self.result_before)}"
            f" -> {size_words(self.plan, self.result)} ({self.runs} runs, {self.seconds:.0f} s{limit})"
        )


def size_words(plan: Plan, result: SeedResult) -> str:
    """Return the size of a failing run, in words."""
    seconds = result.simulated_ns / SECOND_NS
    return f"{len(plan.faults)} faults, {len(plan.members)} members, {result.events:,} events in {seconds:.2f} s"


class OutOfRuns(Exception):
    """Raised inside the search when it reaches a limit."""


class Shrinker:
    """The search for the smallest plan. Each step replaces the current plan by a smaller plan that fails in the same
    way as the first plan.
    """

    def __init__(
        self, plan: Plan, *, play: Play = play, tell: Tell, runs_max: int = RUNS_MAX, seconds_max: float = SECONDS_MAX
    ) -> None:
        self._play, self._tell, self._runs_max = play, tell, runs_max
        self._began = time.monotonic()
        self._ends = self._began + seconds_max
        self._runs = 0
        self._tried: set[str] = set()
        self.before = self.plan = plan
        self.result_before = self.result = play(plan)
        self._told = self._began

    def run(self) -> Shrunk | None:
        """Shrink the plan. Returns None if the first run of the plan does not fail."""
        if self.result.violation is None:
            return None
        is_done = True
        try:
            self._shrink()
        except OutOfRuns:
            is_done = False
        return Shrunk(
            plan=self.plan,
            result=self.result,
            before=self.before,
            result_before=self.result_before,
            runs=self._runs,
            seconds=time.monotonic() - self._began,
            is_done=is_done,
        )

    def _shrink(self) -> None:
        self._end_early()
        while True:
            before = self.plan
            self._fewer_faults()
            for candidates in (self._fewer_members, self._shorter, self._usual_sections, self._usual_fields):
                self._take_while_any(candidates)
            if self.plan == before:
                return

    def _take_while_any(self, candidates: Callable[[], Iterator[Plan]]) -> None:
        """Replace the plan by the first candidate that fails in the same way, and repeat this until no candidate does.

        Each call of `candidates` returns the candidates for the current plan.
        """
        while any(self._take(candidate) for candidate in candidates()):
            pass

    def _take(self, candidate: Plan) -> bool:
        """Run `candidate`, unless it was tried before. If it fails in the same way, make it the current plan and return
        True.
        """
        key = repr(candidate)
        if candidate == self.plan or key in self._tried:
            return False
        if self._runs >= self._runs_max or time.monotonic() >= self._ends:
            raise OutOfRuns
        self._tried.add(key)
        self._runs += 1
        result = self._play(candidate)
        same = self._is_same(result.violation)
        if same:
            self.plan, self.result = candidate, result
        if same or time.monotonic() > self._told + 5:
            self._told = time.monotonic()
            self._tell(f"run {self._runs} of {self._runs_max}: {size_words(self.plan, self.result)}")
        return same

    def _is_same(self, violation: Violation | None) -> bool:
        assert self.result_before.violation is not None
        return violation is not None and failure_class(violation) == failure_class(self.result_before.violation)

    # -- what is tried

    def _end_early(self) -> None:
        """Drop the faults and the time after the failure, because they cannot have caused the failure."""
        failed_ns = self.result.simulated_ns
        faults = tuple(fault for fault in self.plan.faults if fault.at_ns <= failed_ns)
        self._take(replace(self.plan, faults=faults))
        if failed_ns < self.plan.until_ns:
            self._take(replace(self.plan, until_ns=failed_ns + MILLISECOND_NS))

    def _fewer_faults(self) -> None:
        """Remove faults with the algorithm ddmin: try to remove each half of the list, and then smaller parts."""
        parts = 2
        while self.plan.faults:
            faults = self.plan.faults
            parts = min(parts, len(faults))
            size = -(-len(faults) // parts)
            smaller = (faults[:place] + faults[place + size :] for place in range(0, len(faults), size))
            if any(self._take(replace(self.plan, faults=some)) for some in smaller):
                parts = max(parts - 1, 2)
            elif parts == len(faults):
                return
            else:
                parts *= 2

    def _fewer_members(self) -> Iterator[Plan]:
        plan = self.plan
        for count in range(1, len(plan.members)):
            members = plan.members[:count]
            yield replace(plan, members=members, disks={member: plan.disks[member] for member in members})

    def _shorter(self) -> Iterator[Plan]:
        """Try a shorter run, a smaller load, and shorter faults."""
        plan = self.plan
        for share in (0.25, 0.5, 0.75, 0.9):
            until_ns = max(UNTIL_NS_MIN, int(plan.until_ns * share))
            if until_ns < plan.until_ns:
                yield replace(plan, until_ns=until_ns, faults=tuple(f for f in plan.faults if f.at_ns < until_ns))
        load = plan.load
        for name in ("clients", "workers", "keys"):
            for smaller in sorted({1, getattr(load, name) // 2} - {0, getattr(load, name)}):
                yield replace(plan, load=replace(load, **{name: smaller}))
        for place, fault in enumerate(plan.faults):
            for duration_ns in (0, rounded(fault.duration_ns // 2)):
                if duration_ns < fault.duration_ns:
                    yield with_fault(plan, place, replace(fault, duration_ns=duration_ns))

    def _usual_sections(self) -> Iterator[Plan]:
        """Try the plan with all values of one section set to the usual values."""
        yield from self._usual(sections=True)

    def _usual_fields(self) -> Iterator[Plan]:
        """Try the plan with one field set to its usual value."""
        yield from self._usual(sections=False)

    def _usual(self, *, sections: bool) -> Iterator[Plan]:
        tree, usual = to_tree(self.plan), usual_tree(self.plan.members)
        for path, is_section in paths(differing(tree, usual)):
            if path[0] in KEPT or is_section != sections:
                continue
            try:
                yield plan_of(as_usual(tree, usual, path))
            except BadInput:
                continue  # A bound may be valid only in combination with other bounds.


def rounded(duration_ns: int) -> int:
    """Round down to whole milliseconds, which are easier to read."""
    return duration_ns // MILLISECOND_NS * MILLISECOND_NS


def with_fault(plan: Plan, place: int, fault: Fault) -> Plan:
    """Return a copy of the plan in which `fault` replaces the fault at the index `place`."""
    return replace(plan, faults=(*plan.faults[:place], fault, *plan.faults[place + 1 :]))


def paths(tree: Tree, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the path of each value in a tree, and whether the value is a table. A table comes before its contents."""
    for name, value in tree.items():
        is_table = isinstance(value, dict)
        yield (*before, name), is_table
        if is_table:
            yield from paths(value, (*before, name))


def as_usual(tree: Tree, usual: Tree, path: Sequence[str]) -> Tree:
    """Return a copy of `tree` with the value of `usual` at `path`, or without a value there if `usual` has no value."""
    name, changed = path[0], dict(tree)
    if len(path) > 1:
        changed[name] = as_usual(tree[name], usual.get(name, {}), path[1:])
    elif name in usual:
        changed[name] = usual[name]
    else:
        del changed[name]
    return changed
