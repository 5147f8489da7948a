"""A member that ends by itself, or in another way than it must, is a finding, and no fault hides it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from harness.cluster.process import MemberProcess
from harness.errors import NodeDied
from harness.nemesis.schedule import Kind
from tests.harness.test_nemesis import a_nemesis, a_partition

pytestmark = pytest.mark.timeout(60)


def one_that_ends_by_itself(folder: Path, node_id: str = "n1") -> MemberProcess:
    """And has ended, with exit code 2."""
    member = MemberProcess(node_id, [], folder / f"{node_id}.log")
    member._popen = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(2)"])
    member._popen.wait(timeout=50)
    return member


@pytest.mark.parametrize("kind", ["kill", "restart", "write-error", "pause"])
async def test_a_member_that_ended_by_itself_just_before_a_fault_ends_the_run(tmp_path: Path, kind: Kind) -> None:
    """Nobody has looked since: whoever is killed, and whoever may end from now on, has not ended by that."""
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
    member.start()  # As at the end of a fault.
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
    """Until then SIGTERM, or a disk that fails, may end it in another way."""
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
