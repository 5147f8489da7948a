"""A log rots while its member runs. If the member reads rotten bytes, it reports the damage and ends. It sends these
bytes to no other member."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.checks.log_copies import ShadowLogs
from harness.sim.checks.machine import READ_BACK, check_damage_read
from harness.sim.engine.errors import Violation
from harness.sim.faults.log_rot import rot_what_is_read_next
from harness.sim.plan.draw import draw_plan
from harness.sim.simulation import Simulation
from raft import Effects, Entry, EntryKind, HardState, LogWrite, encode_batch
from storage import CorruptLog
from tests.simulation.support.stage import Stage

READ_BACK_SEEDS = (92, 147, 167)
"""In the run of each seed, a leader reads rotten entries for a follower that was away."""


@pytest.mark.parametrize("change", [{"payload": encode_batch(9, [])}, {"term": 2}])
def test_an_entry_that_is_read_back_is_compared_with_the_one_that_was_written(change: dict[str, object]) -> None:
    entry = Entry(1, 1, EntryKind.COMMANDS, encode_batch(1, []))
    logs = ShadowLogs("n1", SafetyChecker())
    logs.append(LogWrite(sequence=1, hard_state=HardState(term=1), entries=(entry,)))
    logs.was_read([entry])

    with pytest.raises(Violation) as broken:
        logs.was_read([replace(entry, **change)])  # type: ignore[arg-type]

    assert broken.value.rule == "an entry that is read back is the one that was written"


def test_who_has_read_what_has_rotted_ends() -> None:
    stage = Stage()
    stage.follower.has_read_damage = True

    with pytest.raises(Violation) as broken:
        stage.follower._check_failure(Effects())

    assert broken.value.rule == "a node stops after it has read rotten data"


def test_who_reads_what_has_rotted_names_the_file() -> None:
    stage = Stage()
    path, _ = stage.follower.proven.sizes()[-1]
    stage.follower.proven.flip(path, 100, 1)
    check_damage_read(stage.world, stage.follower, CorruptLog(path, 64, "rotten"))

    with pytest.raises(Violation) as broken:
        check_damage_read(stage.world, stage.follower, CorruptLog("another file", 64, "rotten"))

    assert broken.value.rule == "a refusal names the damage"


def test_what_is_in_memory_does_not_rot() -> None:
    """If an entry is in memory, a member does not read it from disk. So the rot would have no effect."""
    stage = Stage()

    assert not rot_what_is_read_next(stage.world, stage.leader, Random(1))
    assert not stage.leader.proven.rotten_path


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", READ_BACK_SEEDS)
def test_a_leader_whose_log_rots_before_it_feeds_a_follower_breaks_no_rule(seed: int) -> None:
    result = Simulation(draw_plan(seed)).run()

    assert result.violation is None, result.violation
    assert READ_BACK in result.covered
