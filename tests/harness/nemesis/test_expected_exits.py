"""The run reports a member that ends by itself, or in another way than a fault demands. No fault hides such an end."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from harness.cluster.process import MemberProcess
from harness.errors import NodeDied
from harness.nemesis import disks, membership, processes
from harness.nemesis.active_fault import ActiveFault, FaultRecord
from harness.nemesis.schedule import Kind
from raft import Member
from tests.harness.support.nemesis import a_nemesis, a_partition

pytestmark = pytest.mark.timeout(60)


def one_that_ends_by_itself(folder: Path, node_id: str = "n1") -> MemberProcess:
    """A member that has already ended by itself, with exit code 2."""
    member = MemberProcess(node_id, [], folder / f"{node_id}.log")
    member._popen = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(2)"])
    member._popen.wait(timeout=50)
    return member


@pytest.mark.parametrize("kind", ["kill", "restart", "write-error", "pause"])
async def test_a_member_that_ended_by_itself_just_before_a_fault_ends_the_run(tmp_path: Path, kind: Kind) -> None:
    """The harness has not checked the member since the member ended by itself. A kill or a permission to end that comes
    later does not explain this end."""
    nemesis = a_nemesis(tmp_path, replace(a_partition("random"), kind=kind))
    nemesis.cluster.members = {"n1": one_that_ends_by_itself(tmp_path)}
    (planned,) = nemesis.plan
    with trio.fail_after(20), pytest.raises(NodeDied) as died:
        await nemesis._carry_out(planned)
    nemesis.writer.close()
    assert (died.value.node_id, died.value.exit_code) == ("n1", 2)
    assert nemesis.records == []


async def test_a_member_that_ended_by_itself_in_the_moment_in_which_it_is_killed_is_told(tmp_path: Path) -> None:
    nemesis = a_nemesis(tmp_path)
    member = one_that_ends_by_itself(tmp_path)
    nemesis.cluster.members = {"n1": member}
    member.kill()
    member.start()  # When a fault ends, it starts its victim again.
    try:
        with pytest.raises(NodeDied):
            nemesis.cluster.check_alive()
    finally:
        member.kill()
        nemesis.writer.close()


def test_a_member_that_may_end_or_is_killed_has_not_ended_wrongly(tmp_path: Path) -> None:
    ended = one_that_ends_by_itself(tmp_path)
    ended.may_end = True
    ended.kill()
    assert ended.wrong_end() is None

    running = MemberProcess("n2", [], tmp_path / "n2.log")
    running._popen = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    running.kill()
    assert running.wrong_end() is None


def test_a_member_serves_once_it_has_said_so_in_this_life(tmp_path: Path) -> None:
    """Before a member has reported that it serves, SIGTERM or a failing disk may end it with another exit code."""
    member = MemberProcess("n1", [], tmp_path / "n1.log")
    member.log_path.write_text("ready node=n1\n")
    assert not member.serves()
    member.start()
    try:
        assert not member.serves()
        with member.log_path.open("a") as log:
            log.write("ready node=n1\n")
        assert member.serves()
    finally:
        member.kill()
    assert not member.serves()


class Ending:
    """A member without a process. It ends in the way that a test chooses. If `exit_code` is None, the member does not
    end."""

    node_id, is_joining, may_end = "n1", False, False

    def __init__(self, exit_code: int | None, *, serves: bool = True, is_joining: bool = False) -> None:
        self.exit_code, self._serves, self.is_joining = exit_code, serves, is_joining
        self.controls = SimpleNamespace(failed=1, fail_next=list[str]().append)

    def serves(self) -> bool:
        return self._serves

    def died(self) -> int | None:
        return self.exit_code

    async def stop(self) -> int:
        await trio.lowlevel.checkpoint()
        return -9 if self.exit_code is None else self.exit_code

    def kill(self) -> None:
        """There is no process to kill."""

    def start(self) -> None:
        """There is no process to start."""


FAULTS = {
    "disk-error": disks.failing,
    "write-error": disks.failing_once,
    "restart": processes.restarted,
    "remove": membership.removed,
}


def a_strike(kind: Kind, member: Ending) -> ActiveFault:
    """A fault that is active against `n1`, one of four members."""

    async def forget(node_id: str) -> None:
        await trio.lowlevel.checkpoint()

    others = {name: Ending(None) for name in ("n2", "n3", "n4")}
    members = {"n1": member, **others}
    cluster: Any = SimpleNamespace(
        members=members, volumes={"n1": None}, endpoints=["127.0.0.1:1"], tls=None, forget=forget
    )
    record = FaultRecord(
        number=1, kind=kind, target="random", direction=None, victims=["n1"], leader_id=None, started_ns=0
    )
    return ActiveFault(cluster, record, 0.1, Random(1))


async def finding_of(kind: Kind, member: Ending) -> object:
    """The fault's finding about how its victim ended; None if the victim ended correctly."""
    active = a_strike(kind, member)
    with trio.fail_after(100):  # In virtual time.
        async with FAULTS[kind](active):
            pass
    return active.record.outcome.get("finding")


@pytest.fixture
def nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the steps that need a running cluster or a disk. Each of these steps ends immediately and does
    nothing."""

    async def at_once(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(membership, "_insist", at_once)
    monkeypatch.setattr(disks, "_have_all_write", at_once)
    monkeypatch.setattr(disks, "_each", at_once)


@pytest.mark.usefixtures("nobody_to_ask")
@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("disk-error", 6, [None, 0, 1, 3, -11]),
        ("write-error", 6, [None, 0, 1, 3, -11]),
        ("restart", 0, [None, 1, 6, -9, -15]),
        ("remove", 7, [None, 0, 1, 6]),
    ],
)
async def test_a_member_ends_under_a_fault_as_it_must_or_the_run_has_failed(
    kind: Kind, right: int, wrong: list[int | None], autojump_clock: MockClock
) -> None:
    """The exit codes are those of `hwm serve --help`. A member that crashes or does not end has failed the test."""
    assert await finding_of(kind, Ending(right)) is None
    for exit_code in wrong:
        finding = str(await finding_of(kind, Ending(exit_code)))
        assert str({"n1": -9 if (kind, exit_code) == ("restart", None) else exit_code}) in finding


@pytest.mark.usefixtures("nobody_to_ask")
async def test_a_member_that_does_not_serve_yet_may_end_as_such_a_one_does(autojump_clock: MockClock) -> None:
    """Such a member may refuse to start on a failing disk, die of SIGTERM before it handles signals, or find no member
    that lets it join."""
    assert await finding_of("disk-error", Ending(3, serves=False)) is None
    assert await finding_of("restart", Ending(-15, serves=False)) is None
    for exit_code in (3, 5, None):
        assert await finding_of("disk-error", Ending(exit_code, is_joining=True)) is None
    assert await finding_of("disk-error", Ending(1, serves=False, is_joining=True)) is not None
    assert await finding_of("restart", Ending(1, serves=False, is_joining=True)) is not None


@pytest.mark.parametrize(("exit_code", "is_well"), [(3, True), (5, True), (1, False), (6, False), (-11, False)])
async def test_a_member_that_joins_may_find_nobody_and_be_started_again_but_not_crash(
    exit_code: int, *, is_well: bool, autojump_clock: MockClock
) -> None:
    active = a_strike("add", Ending(exit_code))
    new = Member("n1", "127.0.0.1:1", "127.0.0.1:2")
    with trio.fail_after(100):
        async with membership._looked_after(active, new):
            await trio.sleep(1)
    assert ("finding" not in active.record.outcome) == is_well
