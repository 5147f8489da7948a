"""A failing plan is reduced to a small one, which still fails in the same way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.sim.cli import EXIT_VIOLATION, simulate
from harness.sim.engine.errors import Violation
from harness.sim.plan.draw import draw_plan
from harness.sim.plan.plan import Plan
from harness.sim.plan.plan_file import plan_text, read_plan
from harness.sim.shrink import Shrinker, failure_class
from harness.sim.simulation import SeedResult, Simulation
from tests.simulation.support.deliberate_bugs import (
    frequent_elections,
    messages_do_not_wait_for_the_sync,
    votes_go_to_logs_that_are_behind,
)

EARLY = "a term is durable before a message states it"


def ended(plan: Plan, violation: Violation | None) -> SeedResult:
    """A result that looks like the result of a run, although no run took place."""
    return SeedResult(
        seed=plan.seed,
        events=10 * len(plan.faults),
        simulated_ns=plan.until_ns,
        seconds=0.0,
        trace_hash="",
        covered=frozenset(),
        violation=violation,
    )


def two_pauses_of(plan: Plan) -> SeedResult:
    """Reports one bug for a plan with two pauses, and another bug for any other two faults."""
    pauses = [fault for fault in plan.faults if fault.kind == "pause"]
    if len(pauses) >= 2 and len(plan.members) >= 2:
        return ended(plan, Violation("two pauses", f"{len(plan.faults)} faults"))
    return ended(plan, Violation("another rule", "") if len(plan.faults) >= 2 else None)


def test_delta_debugging_keeps_only_the_faults_that_are_needed_together() -> None:
    """ddmin keeps the two faults that are needed, and removes all other faults. A different failure does not count as
    the same failure."""
    plan = frequent_elections(draw_plan(1))

    shrunk = Shrinker(plan, play=two_pauses_of, tell=lambda _: None).run()

    assert shrunk is not None
    assert len(plan.faults) > 15
    assert [(fault.kind, fault.duration_ns) for fault in shrunk.plan.faults] == [("pause", 0), ("pause", 0)]
    assert len(shrunk.plan.members) == 2
    assert shrunk.plan.network == type(plan.network)()
    assert shrunk.is_done


def test_a_search_ends_after_as_many_runs_as_it_may_take() -> None:
    """The result is the best plan that was found before the limit."""
    runs = []

    def counted(plan: Plan) -> SeedResult:
        runs.append(plan)
        return two_pauses_of(plan)

    shrunk = Shrinker(frequent_elections(draw_plan(1)), play=counted, tell=lambda _: None, runs_max=5).run()

    assert shrunk is not None
    assert (shrunk.runs, len(runs), shrunk.is_done) == (5, 6, False)
    assert "stopped by its limit" in shrunk.words()


def test_what_does_not_fail_is_not_shrunk() -> None:
    plan = replace(draw_plan(1), faults=())

    assert Shrinker(plan, play=lambda plan: ended(plan, None), tell=lambda _: None).run() is None


def test_exceptions_are_the_same_failure_if_type_and_place_are() -> None:
    """The text of an exception often contains numbers. So the place where the exception was raised identifies the
    bug."""
    rule = "no exception leaves a node"
    first = Violation(rule, "KeyError: 5 at log.py:17 term_at < core.py:9 step")
    again = Violation(rule, "KeyError: 7 at 8 at log.py:17 term_at < node.py:1 tick")
    elsewhere = Violation(rule, "KeyError: 5 at log.py:18 term_at < core.py:9 step")
    other = Violation(rule, "ValueError: 5 at log.py:17 term_at < core.py:9 step")

    assert failure_class(first) == failure_class(again) == (rule, "KeyError at log.py:17 term_at")
    assert len({failure_class(each) for each in (first, elsewhere, other)}) == 3
    assert failure_class(Violation("log matching", "1")) == failure_class(Violation("log matching", "2"))


@pytest.mark.timeout(100)
def test_a_deliberate_bug_shrinks_to_the_one_fault_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """After forty runs, at most two of nineteen faults are left. Without the bug in the code, the small plan passes."""
    plan = frequent_elections(draw_plan(18))
    with monkeypatch.context() as patch:
        votes_go_to_logs_that_are_behind(patch)
        shrunk = Shrinker(plan, tell=lambda _: None, runs_max=40).run()

    assert shrunk is not None
    assert shrunk.result.violation is not None
    assert shrunk.result.violation.rule == "leader completeness"
    assert len(plan.faults) == 19
    assert len(shrunk.plan.faults) <= 2
    assert len(plan_text(shrunk.plan)) < len(plan_text(plan)) / 2
    assert Simulation(shrunk.plan).run().violation is None


@pytest.mark.timeout(60)
def test_the_command_writes_a_file_that_plays_the_same_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The test runs `--seed N --shrink`, and then `--plan FILE`."""
    messages_do_not_wait_for_the_sync(monkeypatch)
    path = tmp_path / "seed-4.toml"

    done = CliRunner().invoke(simulate, ["--seed", "4", "--shrink", "--out", str(tmp_path)])
    again = CliRunner().invoke(simulate, ["--plan", str(path)])

    assert done.exit_code == again.exit_code == EXIT_VIOLATION
    assert f"replay: hwm-harness simulate --plan {path} --trace" in done.stdout
    assert "run 1 of" in done.stderr
    assert path.read_text(encoding="utf-8").startswith(f"# {EARLY}")
    assert read_plan(path).faults == ()
    assert EARLY in again.stdout
