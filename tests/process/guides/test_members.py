"""Real processes while clients write: with the recipes of the guide, a cluster grows, and replaces and removes
members."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
import trio

from harness.cluster.ports import free_ports
from kvstore import Client
from kvstore.cli.common import ExitCode
from tests.process.servers import Server, hwm
from tests.process.test_server_kills import Ledger

pytestmark = [pytest.mark.process, pytest.mark.timeout(100)]

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operations" / "guide.md").read_text(encoding="utf-8")
GUIDE = PAGE.partition("## Members")[2].partition("## Writers")[0]
MACHINES = 6


class Machines:
    """Carries out lines of the guide. Commands that start servers leave them running. Every other command must
    succeed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ports = free_ports(2 * MACHINES)
        self._ports = {f":{7001 + place}": f":{port}" for place, port in enumerate(ports[:MACHINES])}
        self._ports |= {f":{7101 + place}": f":{port}" for place, port in enumerate(ports[MACHINES:])}
        self.servers: dict[str, Server] = {}

    def address(self, node_id: str) -> str:
        """The address at which clients reach a member."""
        return f"127.0.0.1{self._ports[f':710{node_id[1:]}']}"

    def carry_out(self, lines: str) -> str:
        """Carry out all these lines in order. Return the output of the last command."""
        printed = ""
        for line in lines.splitlines():
            words = shlex.split(re.sub(r":7[01]0\d", lambda found: self._ports[found[0]], line))
            assert words[0] == "hwm", line
            if words[1] == "serve":
                node_id = words[2].removeprefix("data-")
                server = self.servers[node_id] = Server(self._folder / words[2], node_id, words[3:])
                server.start()
                assert server.wait_ready(), server.log.read_text()
            else:
                alive = ",".join(map(self.address, self.servers))
                done = subprocess.run(
                    hwm(*words[1:], "--endpoints", alive), capture_output=True, text=True, timeout=75, check=False
                )  # The command has a shorter limit, so it ends before this time-out and reports the reason.
                assert done.returncode == 0, (line, done.stderr)
                printed = done.stdout
        return printed

    def kill(self, node_id: str) -> None:
        self.servers.pop(node_id).kill()


async def test_the_recipes_for_members_run_as_they_are_written_under_writes(tmp_path: Path) -> None:
    """The cluster grows to three members and then to five. A killed leader is replaced, and another leader is removed.
    Each write takes effect exactly once."""
    one, three, five, replace, remove, transfer = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    machines, ledger = Machines(tmp_path), Ledger()
    try:
        with trio.fail_after(90):
            machines.carry_out(one)
            async with Client([machines.address("s1")], deadline_seconds=20.0) as client:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ledger.write_forever, client, 1)
                    await ledger.wait_for(20)
                    listed = await trio.to_thread.run_sync(machines.carry_out, three)
                    assert [line.split("\t")[:2] for line in listed.splitlines()] == [
                        ["s1", "voter"], ["s2", "voter"], ["s3", "voter"]
                    ]  # fmt: skip
                    await trio.to_thread.run_sync(machines.carry_out, five)
                    await trio.to_thread.run_sync(machines.carry_out, transfer)
                    assert (await client.members()).leader_id == "s2"
                    machines.kill("s2")
                    await ledger.wait_for(20)
                    await trio.to_thread.run_sync(machines.carry_out, replace)
                    if (await client.members()).leader_id != "s1":
                        await client.transfer_leadership("s1")
                    first = machines.servers["s1"]
                    await trio.to_thread.run_sync(machines.carry_out, remove)
                    assert await trio.to_thread.run_sync(first.wait) == ExitCode.REMOVED
                    await ledger.wait_for(20)
                    nursery.cancel_scope.cancel()
                now = await client.membership(of_leader=True)
                await ledger.check(client)

        assert [each.node_id for each in now.members] == ["s3", "s4", "s5", "s6"]
        assert now.removed == ("s2", "s1")
        assert "s1 was permanently removed from its cluster" in first.log.read_text()
        machines.servers.pop("s1")
        for server in machines.servers.values():
            server.send_signal(signal.SIGTERM)
        assert [server.wait() for server in machines.servers.values()] == [0] * 4
    finally:
        for server in machines.servers.values():
            server.kill()
