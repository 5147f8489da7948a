"""Some seeds draw extras: other operations, programs that come and go, small bounds, or faults at the same time."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random

import pytest

from harness.sim.load.extra_operations import ExtraOperations
from harness.sim.plan.draw import draw_extras, draw_plan
from harness.sim.plan.draw_membership import LAST_VOTER_REMOVAL
from harness.sim.plan.plan import SECOND_NS, ExtraPlan, Plan
from harness.sim.plan.profiles import COINCIDENCES
from harness.sim.simulation import Simulation
from kvstore import KvMachine, Put, Range, Txn, encode_command
from kvstore.protocol.fast_puts import parse_uniform_batch
from raft import Entry, EntryKind, RaftConfig, encode_batch
from tests.simulation.support.plans import first_in, run_until

KEYS = [b"a", b"b", b"c"]
SEEDS = range(1, 400)


def first(fits: str, count: int = 1) -> list[Plan]:
    """The first `count` plans with a profile whose name ends with `fits`."""
    return list(islice((plan for plan in map(draw_plan, range(1, 2_000)) if plan.profile.endswith(fits)), count))


def test_transactions_that_fail_half_way_leave_nothing_behind() -> None:
    """If a transaction ends with an error, none of its operations took effect. These transactions write first, and fail
    in a later operation.

    See docs/reference/specification.md#84-transactions.
    """
    operations = ExtraOperations(7, 1, KEYS, ExtraPlan(failing_share=1.0))
    machine = KvMachine()
    for index in range(1, 60):
        planned = operations.next()
        assert planned is not None
        command = planned.command
        assert isinstance(command, Txn)
        assert any(isinstance(each, Put) for each in (*command.success, *command.failure))

        payload = encode_batch(index, (encode_command(command),))
        ((code, *_),) = machine.apply(Entry(index, 1, EntryKind.COMMANDS, payload))

        assert code != 0
        assert machine.revision == 1
    machine.check()


def test_extras_come_between_the_usual_operations_by_their_shares() -> None:
    """A listing reads the whole store, with or without a limit. A plan without extras has no listings."""
    operations = ExtraOperations(7, 1, KEYS, ExtraPlan(failing_share=0.2, listing_share=0.4))
    found = Counter(type(planned.command) if planned else None for planned in (operations.next() for _ in range(500)))

    assert 60 < found[Txn] < 140
    assert 150 < found[Range] < 250
    assert ExtraOperations(7, 1, KEYS, ExtraPlan()).next() is None
    drawn = [draw_extras(Random(seed)) for seed in SEEDS]
    assert 0.4 < sum(plan == ExtraPlan() for plan in drawn) / len(drawn) < 0.6


def test_bounds_that_count_entries_and_commands_are_drawn_down_to_one() -> None:
    """Each bound is drawn separately, and often keeps its usual value. With the settings of production, all bounds keep
    their usual values."""
    usual = RaftConfig()
    plans = [draw_plan(seed) for seed in SEEDS]
    for name in ("append_entries_max", "window_entries_max", "apply_commands_max"):
        drawn = Counter(getattr(plan.raft, name) for plan in plans)
        assert drawn[1] > 5
        assert len(drawn) > 5
        assert 0.4 < drawn[getattr(usual, name)] / len(plans) < 0.8
    assert first_in("production limits").raft == usual


@pytest.mark.timeout(60)
def test_programs_come_and_go_and_their_sessions_are_closed_or_expire() -> None:
    """The programs close their session or simply disappear. The next program has another session."""
    plan = next(plan for plan in map(draw_plan, SEEDS) if plan.load.stay_ns and plan.load.with_service)

    result = Simulation(plan).run()

    assert result.violation is None
    assert result.covered & {"a client closed its session", "a client left its session open"}


MEANT = {
    "hung disk during partition": {"cut off", "hanging disk", "truncated"},
    "disks full": {"full disk", "disk_full", "disk_has_room"},
    "divergent log rewrite": {"take over", "cut off", "truncated"},
    "client outlives session": {"cut a client off", "a session expired"},
}
"""The coverage marks for which each coincidence exists."""

SHORT = {"hung disk during partition": (368,), "divergent log rewrite": (201,)}
"""For some coincidences: seeds of short runs that reach their marks. Most runs with a coincidence are long. They have a
write in each millisecond, for several seconds."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", COINCIDENCES)
def test_coincidences_come_to_what_they_are_meant_for(name: str) -> None:
    """Three cases: a disk answers after its write has been cut, a full disk gets room again, or a write is replaced."""
    run_until(MEANT[name], [*map(draw_plan, SHORT.get(name, ())), *first(name, 4)], commits_min=4)


@pytest.mark.timeout(60)
def test_in_partings_leaders_of_two_remove_themselves_and_who_is_left_dies_and_leads_on() -> None:
    """The remaining member made a promise before it died. Without this promise, the member could become leader while
    the removed leader still leads."""
    for plan in first(LAST_VOTER_REMOVAL, 2):
        result = Simulation(plan).run()

        assert result.violation is None
        assert result.covered >= {"a leader began to remove itself", "kill", "a read was let through: lease"}
        assert plan.founders == 2
        assert plan.raft.lease_reads


@pytest.mark.timeout(60)
@pytest.mark.fast_path
def test_what_a_crowd_writes_at_once_is_applied_as_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load, a fast path applies commands of the same form together, as in production."""
    runs: list[bool] = []

    def noted(payload: bytes) -> object:
        found = parse_uniform_batch(payload)
        runs.append(found is not None)
        return found

    monkeypatch.setattr("kvstore.store.machine.parse_uniform_batch", noted)
    crowded = (plan for plan in map(draw_plan, range(1, 1_000)) if plan.load.burst >= 20 and plan.until_ns > SECOND_NS)
    for plan in islice(crowded, 3):
        assert Simulation(plan).run().violation is None
        if sum(runs) > 20:
            break

    assert sum(runs) > 20


@pytest.mark.timeout(100)
def test_an_observer_is_forgotten_by_whoever_rolls_builds_out_and_then_no_level_is_raised() -> None:
    """A learner applies the same log. So the level is not raised while the learner's build is old."""
    observed = [plan for plan in map(draw_plan, range(1, 300)) if plan.upgrades and len(plan.changes) == 1]
    assert len(observed) > 5

    observed.sort(key=lambda plan: plan.until_ns)  # The short runs come first.
    run_until({"a level was refused: old_member"}, observed[:8])
