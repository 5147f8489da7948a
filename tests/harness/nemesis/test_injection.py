"""A fault hits the members of the plan, drops the right frames, and is always undone at the end."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from harness.cluster.process import MemberProcess
from harness.cluster.proxy import Direction
from harness.cluster.proxy_network import SLOW_SECONDS
from harness.nemesis.active_fault import ActiveFault, FaultRecord
from harness.nemesis.membership import added, removed
from harness.recording.history import read_events
from tests.harness.support.nemesis import NAMES, a_nemesis, a_network, a_partition, blocked


@pytest.mark.parametrize(
    ("direction", "lost"),
    [
        ("in", {("n2", "n1"), ("n3", "n1")}),
        ("out", {("n1", "n2"), ("n1", "n3")}),
        ("both", {("n2", "n1"), ("n3", "n1"), ("n1", "n2"), ("n1", "n3")}),
    ],
)
def test_a_partition_concerns_the_flows_between_the_groups_and_no_others(
    direction: Direction, lost: set[tuple[str, str]]
) -> None:
    """The test has symmetric partitions and one-way partitions."""
    network = a_network("n1", "n2", "n3")
    assert {(flow.source, flow.target) for flow in network.between(["n1"], direction)} == lost


async def test_a_minority_is_chosen_by_the_plan_and_is_one(tmp_path: Path) -> None:
    """The same plan always chooses the same members. In a cluster of five, a plan chooses two members and never
    three."""
    chosen = []
    for attempt in ("a", "b"):
        nemesis = a_nemesis(tmp_path / attempt, a_partition("minority", pick=99))
        with trio.fail_after(5):
            await nemesis.run()
        nemesis.writer.close()
        chosen.append(nemesis.records[0].victims)
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 2


async def test_a_fault_is_in_force_between_its_two_events_and_undone_after(tmp_path: Path) -> None:
    nemesis = a_nemesis(tmp_path, a_partition("random", "in", seconds=0.2))
    network = nemesis.cluster.network
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nemesis.run)
            while nemesis.current is None:
                await trio.lowlevel.checkpoint()
            (victim,) = nemesis.current.victims
            assert blocked(network) == {(other, victim) for other in NAMES if other != victim}
    assert blocked(network) == set()
    nemesis.writer.close()
    started, stopped = read_events(tmp_path / "run")
    assert (started["kind"], stopped["kind"]) == ("fault_started", "fault_stopped")
    assert started["victims"] == stopped["victims"] == [victim]


async def test_a_cancelled_fault_is_undone_too(tmp_path: Path) -> None:
    """Ctrl-C may come in the middle of a partition."""
    nemesis = a_nemesis(tmp_path, a_partition("random", "slow", seconds=60))
    network = nemesis.cluster.network
    assert network is not None
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nemesis.run)
            while nemesis.current is None:
                await trio.lowlevel.checkpoint()
            assert {flow.delay_seconds for flow in network.flows.values()} == {0.0, SLOW_SECONDS}
            nursery.cancel_scope.cancel()
    assert {flow.delay_seconds for flow in network.flows.values()} == {0.0}
    assert nemesis.records[0].stopped_ns is not None
    nemesis.writer.close()


async def test_a_member_that_comes_is_partitioned_like_the_others_and_one_that_goes_is_not() -> None:
    network = a_network("n1", "n2", "n3")
    network.add("n4")
    network.forget("n2")
    lost = {(flow.source, flow.target) for flow in network.between(["n1"], "both")}
    assert lost == {("n1", "n3"), ("n3", "n1"), ("n1", "n4"), ("n4", "n1")}


async def test_a_member_that_is_hit_already_is_not_hit_by_another_fault(tmp_path: Path) -> None:
    """Faults run in two lanes. The lane that paused a member must not resume it while the other lane replaces it."""
    nemesis = a_nemesis(tmp_path, a_partition("random", seconds=60), a_partition("all", seconds=60))
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for planned in nemesis.plan:
                nursery.start_soon(nemesis._carry_out, planned)
            while len(nemesis.under_way) < 2:
                await trio.lowlevel.checkpoint()
            one, all_others = (set(record.victims) for record in nemesis.under_way)
            assert not one & all_others
            assert one | all_others == set(NAMES)
            nursery.cancel_scope.cancel()
    nemesis.writer.close()


async def test_members_come_only_while_there_is_room_for_who_replaces_one(tmp_path: Path) -> None:
    """A cluster has at most nine members, and a replacement joins before the member that it replaces leaves."""
    nemesis = a_nemesis(tmp_path)
    cluster = nemesis.cluster
    cluster.members |= {name: MemberProcess(name, [], tmp_path / f"{name}.log") for name in ("n6", "n7")}
    nobody = FaultRecord(
        number=1, kind="add", target="random", direction=None, victims=[], leader_id=None, started_ns=0
    )

    for change in (added, removed):
        active = ActiveFault(cluster, nobody, 1.0, Random(1))
        async with change(active):
            pass
        assert len(cluster.members) == 7
        words = {added: "a replacement needs room", removed: "every member is already hit by another fault"}[change]
        assert words in str(active.record.outcome["skipped"])
    nemesis.writer.close()


async def test_a_minority_counts_whoever_is_hit_by_something_else(tmp_path: Path) -> None:
    """At most two of five members are hit at a time, and a member that is being replaced counts as hit."""
    nemesis = a_nemesis(tmp_path, a_partition("random", seconds=60), a_partition("minority", seconds=60))
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for planned in nemesis.plan:
                nursery.start_soon(nemesis._carry_out, planned)
                await trio.testing.wait_all_tasks_blocked()
            assert [len(record.victims) for record in nemesis.under_way] == [1, 1]
            nursery.cancel_scope.cancel()
    nemesis.writer.close()


async def test_a_fault_that_would_begin_when_the_load_is_over_is_left_out(tmp_path: Path) -> None:
    """Earlier faults may take longer than planned, so that a later fault would begin after the load. After the load, no
    client could notice the effect of a fault."""
    nemesis = a_nemesis(tmp_path, a_partition("random"))
    with trio.fail_after(5):
        await nemesis.run(seconds=0)
    assert nemesis.records == []
    nemesis.writer.close()
