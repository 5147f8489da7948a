"""Strangers use up the connections of real members. The members continue to serve, and operators can still connect."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from harness.cluster.ports import free_ports
from kvstore.cli.common import ExitCode
from kvstore.protocol.messages import encode_client_hello
from kvstore.resources.descriptor_budget import DESCRIPTORS_MIN
from raft import frame
from tests.process import servers
from tests.process.servers import hwm, running_cluster

resource = pytest.importorskip("resource")
pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]

SECONDS_MAX = 50
STRANGERS = 1_044
"""This number exceeds the usual limit of 1,024 open files."""


@pytest.fixture(autouse=True)
def _descriptors_for_strangers() -> Iterator[None]:
    """Raise this process's soft limit on open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * STRANGERS:
        pytest.skip("this process may not open enough files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * STRANGERS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def with_descriptors(count: int, command: list[str]) -> list[str]:
    """The command line that runs `command` in a process that may open `count` files."""
    return ["sh", "-c", f'ulimit -n {count}; exec "$@"', "sh", *command]


def crowd(port: int, count: int, held: ExitStack) -> None:
    """Open `count` connections that send their hello and nothing else."""
    hello = frame(encode_client_hello())
    for _ in range(count):
        stranger = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        stranger.sendall(hello)


def status_of_members(endpoints: list[str]) -> list[dict[str, object]]:
    done = subprocess.run(
        [*hwm("status"), "--json", "--endpoints", ",".join(endpoints)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def open_files(server: servers.Server) -> int:
    assert server._process is not None
    return len(os.listdir(f"/proc/{server._process.pid}/fd"))  # noqa: PTH208


async def test_more_idle_connections_than_descriptors_keep_nobody_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member opens new log files at the same time. It closes no connection that has an open request."""
    monkeypatch.setattr(servers, "hwm", lambda *arguments: with_descriptors(1_024, hwm(*arguments)))
    with trio.fail_after(SECONDS_MAX), ExitStack() as held:
        cluster = held.enter_context(running_cluster(tmp_path, 1, "--segment-bytes", "65536"))
        port = int(cluster.endpoints[0].rpartition(":")[2])
        async with cluster.client() as client:
            await client.put(b"first", b"v")
            await trio.to_thread.run_sync(crowd, port, STRANGERS, held)
            for number in range(60):  # Each put needs a new log file.
                await client.put(b"k%d" % number, bytes(70_000))
            assert (await client.get(b"k59")).record is not None
        (found,) = status_of_members(cluster.endpoints)
        assert found["reachable"] is True
        assert 500 < int(str(found["client_connections_max"])) < 900
        if sys.platform == "linux":
            assert open_files(cluster.servers["s1"]) < 1_024 - 64


async def test_operators_get_in_when_strangers_hold_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member has so few descriptors that a few strangers use up all connections. Clients can still connect."""
    monkeypatch.setattr(servers, "hwm", lambda *arguments: with_descriptors(DESCRIPTORS_MIN, hwm(*arguments)))
    with trio.fail_after(SECONDS_MAX), ExitStack() as held:
        cluster = held.enter_context(running_cluster(tmp_path, 1))
        for endpoint in cluster.endpoints:
            await trio.to_thread.run_sync(crowd, int(endpoint.rpartition(":")[2]), 2 * DESCRIPTORS_MIN, held)
        assert [found["reachable"] for found in status_of_members(cluster.endpoints)] == [True]
        async with cluster.client() as client:
            for number in range(5):
                await client.put(b"k%d" % number, bytes(100_000))


def test_a_member_that_may_open_too_few_files_says_so_and_does_not_start(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    serve = hwm("serve", tmp_path / "data", "--bootstrap", "--listen-client", f"127.0.0.1:{port}")
    done = subprocess.run(
        with_descriptors(DESCRIPTORS_MIN - 1, serve), capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == ExitCode.FAILED
    error, hint = done.stderr.splitlines()
    assert f"may open {DESCRIPTORS_MIN - 1} files; a member needs at least {DESCRIPTORS_MIN}" in error
    assert "ulimit -n" in hint
    assert not (tmp_path / "data").exists()
