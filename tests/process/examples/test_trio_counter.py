"""Runs examples/trio_counter.py: three processes, each with a member in it, of which one is killed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.cluster.ports import free_ports
from tests.process.examples.program import EXAMPLES, SECONDS_MAX, Program, running, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

STARTS_MAX = 5
"""A free port may be taken by somebody else before a member has it: then other ports are tried."""

NODE_IDS = ("s1", "s2", "s3")


class Instances:
    """The three processes, which can be killed and started again on the same folders."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        ports = iter(free_ports(2 * len(NODE_IDS)))
        self._members = [f"{each}=127.0.0.1:{next(ports)}/127.0.0.1:{next(ports)}" for each in NODE_IDS]
        self.programs: dict[str, Program] = {}
        self.addresses: dict[str, str] = {}

    def start(self, node_id: str) -> None:
        """Start an instance, without waiting for it."""
        example, data = EXAMPLES / "trio_counter.py", self._folder / node_id
        program = running(example, node_id, data, "127.0.0.1:0", *self._members, folder=self._folder)
        self.programs[node_id] = self._stack.enter_context(program)

    def wait_ready(self, node_id: str) -> None:
        """Wait until an instance serves."""
        self.addresses[node_id] = self.programs[node_id].wait_for(rf"{node_id} serves on (\S+)")[1]

    def ask(self, node_id: str, *lines: str) -> list[str]:
        """Send some lines over one connection, and return the answers."""
        host, _, port = self.addresses[node_id].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as connection:
            connection.sendall("".join(f"{line}\n" for line in lines).encode())
            with connection.makefile() as answers:
                return [answers.readline().rstrip("\n") for _ in lines]


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[Instances]:
    for attempt in range(STARTS_MAX):
        with ExitStack() as stack:
            started = Instances(tmp_path / f"attempt-{attempt}", stack)
            (tmp_path / f"attempt-{attempt}").mkdir()
            for node_id in NODE_IDS:
                started.start(node_id)
            try:
                for node_id in NODE_IDS:
                    started.wait_ready(node_id)
            except AssertionError:
                if not any("cannot listen" in program.output for program in started.programs.values()):
                    raise
                continue
            yield started
            return
    raise AssertionError(f"no free ports in {STARTS_MAX} attempts")


def test_each_add_counts_once_at_any_instance_and_when_one_is_killed(instances: Instances) -> None:
    assert instances.ask("s1", "add visits") == ["1"]
    assert instances.ask("s2", "add visits", "add visits", "get visits") == ["2", "3", "3"]
    assert instances.ask("s3", "count") == ["error: send `add NAME`, `get NAME`, `who` or `summary`"]
    until(lambda: len(instances.ask("s1", "who")[0].split()) == 3, "the three are registered")

    instances.programs["s1"].kill()

    assert instances.ask("s2", "add visits") == ["4"]
    alive = [f"{node_id}={instances.addresses[node_id]}" for node_id in ("s2", "s3")]
    until(lambda: instances.ask("s3", "who") == [" ".join(alive)], "the dead instance is no longer listed")

    instances.start("s1")
    instances.wait_ready("s1")
    assert instances.ask("s1", "get visits", "add visits") == ["4", "5"]


def test_one_instance_writes_the_summary_and_another_follows(instances: Instances) -> None:
    instances.ask("s1", "add a", "add a", "add b")
    until(lambda: len(leaders(instances)) == 1, "one leads")
    (first,) = leaders(instances)
    until(lambda: instances.ask("s2", "summary") == [f"3 by {first}"], "the summary has the sum")

    instances.programs[first].kill()

    until(lambda: len(leaders(instances)) == 2, "another leads")
    (second,) = leaders(instances) - {first}
    until(lambda: instances.ask(second, "summary") == [f"3 by {second}"], "the summary is the new leader's")
    assert instances.programs[second].stop() == 0
    instances.programs[second].wait_for(f"{second} has stopped")


def leaders(instances: Instances) -> set[str]:
    """The instances that have led so far."""
    return {node_id for node_id, program in instances.programs.items() if f"{node_id} leads" in program.output}


def test_a_line_that_is_too_long_ends_its_connection(instances: Instances) -> None:
    assert instances.ask("s1", "get visits") == ["0"]
    host, _, port = instances.addresses["s1"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as connection:
        connection.sendall(b"x" * 2000)
        with connection.makefile() as answers:
            assert answers.read() == "error: this line is too long\n"
