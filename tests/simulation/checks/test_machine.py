"""Each rule about a process and its disk can fail: the process must stop only for a valid reason, and must find
damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from harness.sim.checks.durability import check_is_durable, recover_aside
from harness.sim.checks.machine import check_refusal, is_whole
from harness.sim.engine.errors import Violation
from harness.sim.world.damage import SNAPSHOT_FOLDER, ProvenBytes
from harness.sim.world.disk import check_rename
from harness.sim.world.member import TICKS_IN_PLACE_MAX, SimMember
from harness.sim.world.probes import LOG_FOLDER
from raft import Effects, Node, NodeStopped
from storage import CorruptSnapshot, OpenedStorage, Rename
from tests.simulation.support.stage import APPEND, Stage

STOPPED = NodeStopped("n1", "a sync failed")
SNAPSHOT = "groups/0/snapshots/1-1.snap"


def ends(member: SimMember, *, has_failed: bool, effects: Effects) -> None:
    """Flush the node after a sync that may have failed."""
    assert member.files is not None
    member.files.has_failed = member.files.has_erred = has_failed
    member._check_failure(effects)


def has_rotted(member: SimMember, path: str, *, is_lie_proven: bool = False) -> None:
    """Damage the member's file at `path`. Without a path, the disk has lied, and a later frame may prove this."""
    rotten = SimpleNamespace(rotten_path=path, is_lie_proven=is_lie_proven)
    member.is_damaged, member.proven = True, cast(ProvenBytes, rotten)


def opened(member: SimMember, *, warned: str = "") -> OpenedStorage:
    """The result of a recovery from the member's disk, with a warning about one more file."""
    found = recover_aside(member.world, member)
    assert isinstance(found, OpenedStorage)
    return replace(found, warnings=(CorruptSnapshot(warned, 0, "damaged"),) if warned else ())


def keeps_what_is_not_durable(member: SimMember) -> None:
    found = opened(member)
    check_is_durable(member.world, member, replace(found, hard_state=replace(found.hard_state, voted_for="n9")))


def finds_names_that_are_not_durable(member: SimMember) -> None:
    found = opened(member)
    del member.image.durable_names[f"{SNAPSHOT_FOLDER}/{found.snapshots.latest().name}"]
    check_is_durable(member.world, member, found)


def names_a_segment_behind_a_loose_name(member: SimMember) -> None:
    segment = next(path for path in member.image.names if path.endswith(".wal"))
    del member.image.durable_names[segment]
    check_rename(member.image, Rename(f"{segment}.tmp", f"{LOG_FOLDER}/9.wal"))


def uses_what_has_rotted(member: SimMember) -> None:
    has_rotted(member, f"groups/0/{opened(member).snapshots.latest().name}")
    is_whole(member.world, member, opened(member))


def warns_of_another(member: SimMember) -> None:
    has_rotted(member, SNAPSHOT)
    is_whole(member.world, member, opened(member, warned="groups/0/snapshots/2-1.snap"))


def misses_a_proven_loss(member: SimMember) -> None:
    has_rotted(member, "", is_lie_proven=True)
    member.logs.are_all_in = lambda *_: False  # type: ignore[method-assign]
    is_whole(member.world, member, opened(member))


def refuses_for_another(member: SimMember) -> None:
    has_rotted(member, "meta")
    check_refusal(member.world, member, CorruptSnapshot(SNAPSHOT, 0, "damaged"))


def is_called_without_end(member: SimMember) -> None:
    assert member.node is not None
    member._timer_at, member._ticks_in_place = None, TICKS_IN_PLACE_MAX
    member._progress = (member.world.queue.now, member.node.core.last_applied)
    member.node = cast(Node, SimpleNamespace(next_deadline=0, core=member.node.core))
    member._arm()


WRONG: dict[str, Callable[[SimMember], object]] = {
    "a node stops after a failed sync": lambda m: ends(m, has_failed=True, effects=Effects()),
    "a node does not stop by itself": lambda m: ends(m, has_failed=False, effects=Effects(failure=STOPPED)),
    "after a failure no promise leaves": lambda m: ends(
        m, has_failed=True, effects=Effects(failure=STOPPED, send=[("n2", APPEND)])
    ),
    "peers understand each other": lambda m: m.deliver("n2" if m.node_id != "n2" else "n1", b"nonsense"),
    "timers let time pass": is_called_without_end,
    "a data folder can be made": lambda m: m.initialize(),
    "a member can always restart": lambda m: m._opened(ValueError("it cannot")),
    "recovered entries are durable": keeps_what_is_not_durable,
    "the names that recovery found are durable": finds_names_that_are_not_durable,
    "segments get their names one after the other": names_a_segment_behind_a_loose_name,
    "no snapshot is damaged": lambda m: m._opened(opened(m, warned=SNAPSHOT)),
    "rotten data is never used": uses_what_has_rotted,
    "no snapshot is damaged but the one that rotted": warns_of_another,
    "a loss is noticed if later frames prove it": misses_a_proven_loss,
    "a refusal names the damage": refuses_for_another,
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_process_that_does_something_wrong_is_seen(rule: str) -> None:
    """docs/reference/specification.md#35-recovery."""
    stage = Stage()

    with pytest.raises(Violation) as caught:
        WRONG[rule](stage.follower)

    assert caught.value.rule == rule


def test_a_member_dies_amid_an_install_as_often_as_the_plan_says() -> None:
    """The member dies only during the time of faults, and then starts again."""
    stage = Stage()
    world, member = stage.world, stage.follower

    def is_up_later(milliseconds: int) -> bool:
        stage.run(milliseconds)
        return member.is_up

    world.injector.amid_an_install(member)
    assert is_up_later(1)

    world.plan = replace(world.plan, install_death_rate=1.0)
    world.injector.amid_an_install(member)
    assert not is_up_later(1)
    assert "died amid an install" in world.covered
    assert is_up_later(100)

    world.injector.heal()
    world.injector.amid_an_install(member)
    assert is_up_later(1)
