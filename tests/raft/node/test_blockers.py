"""The status names the members that hold a mark back (docs/reference/specification.md#6-marks)."""

from __future__ import annotations

from raft.node.node import Node
from tests.raft.node.test_cluster import SMALL_CHUNKS, fill
from tests.raft.support.node_cluster import World


def held(node: Node) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    status = node.status()
    return status.commit_held_by, status.low_watermark_held_by, status.log_held_by


def test_nothing_is_held_when_all_members_are_level() -> None:
    world = World()
    leader = world.elect()
    fill(world, leader, 3)
    world.run_for(200)

    assert held(leader.node) == ((), (), "own_snapshot")


def test_the_member_that_is_away_holds_the_low_water_mark_and_the_log() -> None:
    """Only the absent member holds back the low-water mark and the log. The high-water mark does not need the absent
    member."""
    world = World(**SMALL_CHUNKS | {"retention_bytes_max": 1_000_000})
    leader = world.elect()
    away, other = world.followers()
    fill(world, leader, 3)
    world.run_for(200)
    world.cut_off = {away.node_id}

    fill(world, leader, 40)
    world.run_for(200)

    assert held(leader.node) == ((), (away.node_id,), "low_watermark")
    assert held(other.node) == ((), (), "low_watermark")
    assert leader.node.core.first_index - 1 <= leader.node.core.low_watermark < leader.node.core.snapshot_index


def test_voters_without_what_was_proposed_hold_the_high_water_mark() -> None:
    world = World()
    leader = world.elect()
    fill(world, leader, 3)
    world.run_for(200)
    world.cut_off = {each.node_id for each in world.followers()}

    fill(world, leader, 1)

    assert held(leader.node)[0] == tuple(sorted(world.cut_off))
