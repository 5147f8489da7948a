"""Real `hwm serve` processes on loopback, for tests that kill them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.cluster.ports import free_ports
from kvstore import Client

START_SECONDS_MAX = 30.0
STARTS_MAX = 5
"""Another program may take a free port before the server has it. In this case, other ports are tried."""


def hwm(*arguments: str | Path) -> list[str]:
    """The command line that runs `hwm` in this interpreter."""
    return [sys.executable, "-m", "kvstore.cli.main", *map(str, arguments)]


def in_build(build: Path | None) -> dict[str, Any]:
    """The arguments of Popen for a process that runs the packages in the folder `build`, or the packages of this
    interpreter if there is no such folder."""
    return {} if build is None else {"cwd": build, "env": {**os.environ, "PYTHONPATH": str(build)}}


class Server:
    """The process of one member. It can be killed, and started again on the same folder."""

    def __init__(self, folder: Path, node_id: str, arguments: Sequence[str]) -> None:
        self.folder, self.node_id = folder, node_id
        self.log = folder.with_name(f"{node_id}.log")
        self._ready = folder.with_name(f"{node_id}.ready")
        self.arguments = arguments
        # The folder with the packages that run at the next start. None means the packages of this checkout.
        self.build: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. `wait_ready` waits until the process serves."""
        assert self._process is None or self._process.poll() is not None, "it runs"
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                hwm(
                    "serve", self.folder, "--node-id", self.node_id, "--ready-file", self._ready,
                    "--log-level", "error", *self.arguments,
                ),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, **in_build(self.build),
            )  # fmt: skip

    def wait_ready(self) -> bool:
        """True once the server is ready; False if it has ended instead."""
        assert self._process is not None
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end:
            if self._ready.exists():
                return True
            if self._process.poll() is not None:
                return False
            time.sleep(0.01)
        raise AssertionError(f"{self.node_id} is not ready after {START_SECONDS_MAX} s: {self.log.read_text()}")

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        assert self._process is not None
        return self._process.wait(START_SECONDS_MAX)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class ServerCluster:
    """Servers that know each other, usually three."""

    def __init__(self, servers: Sequence[Server], endpoints: Sequence[str]) -> None:
        self.servers = {server.node_id: server for server in servers}
        self.endpoints = list(endpoints)

    def client(self, deadline_seconds: float = 20.0) -> Client:
        """A client that knows all servers of the cluster."""
        return Client(self.endpoints, deadline_seconds=deadline_seconds)

    def kill_all(self) -> None:
        """Kill all servers before any of them can react."""
        for server in self.servers.values():
            server.send_signal(signal.SIGKILL)
        for server in self.servers.values():
            server.wait()

    def start_all(self) -> bool:
        """Start all servers. Returns True when all of them are ready."""
        for server in self.servers.values():
            server.start()
        return all(server.wait_ready() for server in self.servers.values())


@contextmanager
def running_cluster(
    folder: Path,
    size: int,
    *arguments: str,
    builds: Mapping[str, Path] | None = None,
    options: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[ServerCluster]:
    """Start `size` servers on free ports. Kills all of them at the end. `builds` names the package folders of servers
    that run another build. `options` has the options of single servers."""
    for attempt in range(STARTS_MAX):
        ports = free_ports(2 * size)
        members = [f"--member=s{i + 1}=127.0.0.1:{ports[2 * i]}/127.0.0.1:{ports[2 * i + 1]}" for i in range(size)]
        place = folder / f"attempt{attempt}"
        place.mkdir()
        servers = [Server(place / f"s{i + 1}", f"s{i + 1}", [*members, "--bootstrap", *arguments]) for i in range(size)]
        for server in servers:
            server.build = builds.get(server.node_id) if builds else None
            server.arguments = [*server.arguments, *(options or {}).get(server.node_id, ())]
        cluster = ServerCluster(servers, [f"127.0.0.1:{port}" for port in ports[1::2]])
        try:
            if cluster.start_all():
                yield cluster
                return
        finally:
            for server in servers:
                server.kill()
    raise AssertionError(f"no cluster could be started: {servers[0].log.read_text()}")
