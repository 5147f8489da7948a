"""Patroni keeps two servers of PostgreSQL available, and keeps its state in three members.

Patroni is no part of this project. `pip install 'patroni[etcd3,psycopg3]'` in any environment installs it, and
HWM_TEST_PATRONI names its program; otherwise the one beside this interpreter or on PATH counts. HWM_TEST_POSTGRESQL
names the folder with PostgreSQL's programs. PostgreSQL does not run as root: root needs `setpriv` and a user `postgres`
or `nobody`.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.ports import free_ports
from tests.process.etcd.members import USES_REAL_ETCD, leader_of, why_not
from tests.process.servers import running_cluster
from tests.spark_audit.record.postgresql_server import as_server_user, programs, server_user

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

WAIT_SECONDS = 80.0
STOP_SECONDS = 20.0
TTL_SECONDS = 20  # The least that Patroni allows.
SETTINGS = {"ttl": TTL_SECONDS, "loop_wait": 3, "retry_timeout": 5, "postgresql": {"parameters": {"fsync": "off"}}}


@pytest.fixture(scope="module")
def patroni() -> Path:
    """The program of Patroni."""
    beside = Path(sys.executable).with_name("patroni")
    found = os.environ.get("HWM_TEST_PATRONI") or (str(beside) if beside.exists() else shutil.which("patroni"))
    if found is None:
        pytest.skip("Patroni is not installed: pip install 'patroni[etcd3,psycopg3]', and set HWM_TEST_PATRONI")
    return Path(found)


@pytest.fixture(scope="module")
def postgresql() -> Path:
    """The folder with the programs of PostgreSQL."""
    return programs()


@pytest.fixture(scope="module")
def user() -> pwd.struct_passwd | None:
    """The user of PostgreSQL; None if it is the present user."""
    return server_user()


class Node:
    """A process of Patroni, and the server of PostgreSQL that it starts."""

    def __init__(self, patroni: Path, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.name, self.folder = name, folder
        self._command = [str(patroni), str(folder / f"{name}.json")]
        (folder / f"{name}.json").write_text(json.dumps(settings))  # JSON is YAML, too.
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self, user: pwd.struct_passwd | None) -> None:
        command = [*as_server_user(user), *self._command]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
            )

    def kill(self) -> None:
        """Kill Patroni, and then the server, which would go on without it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        if (postmaster := self._postmaster()) is not None:
            os.kill(postmaster, signal.SIGKILL)

    def stop(self) -> None:
        """End both processes. Patroni stops its server before it ends."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        if (postmaster := self._postmaster()) is not None:
            os.kill(postmaster, signal.SIGQUIT)

    def _postmaster(self) -> int | None:
        try:
            pid = int((self.folder / self.name / "postmaster.pid").read_text().splitlines()[0])
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            return None
        return pid if str(self.folder).encode() in command else None  # The id may belong to another process by now.


class Pair:
    """Two nodes."""

    def __init__(self, nodes: Sequence[Node], ports: Sequence[int]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self._ports = ports

    def view(self) -> dict[str, tuple[str, str, int]]:
        """The role, the state and the timeline of each node, as any of them knows them."""
        for port in self._ports:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("GET", "/cluster")
                members = json.loads(connection.getresponse().read())["members"]
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                continue
            finally:
                connection.close()
            return {each["name"]: (each["role"], each["state"], each.get("timeline", 0)) for each in members}
        return {}

    def wait(self, what: str, is_there: Callable[[dict[str, tuple[str, str, int]]], bool]) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not is_there(view := self.view()):
            logs = "".join(f"\n{node.name}: {node.log.read_text()[-2000:]}" for node in self.nodes.values())
            assert time.monotonic() < end, f"not within {WAIT_SECONDS} s: {what}. The nodes are {view}.{logs}"
            time.sleep(0.2)

    def wait_until_leads(self, name: str) -> None:
        self.wait(f"{name} leads", lambda view: view.get(name, ())[:2] == ("leader", "running"))

    def wait_until_follows(self, name: str) -> None:
        self.wait(f"{name} follows", lambda view: view.get(name, ())[:2] == ("replica", "streaming"))

    def leader(self) -> str | None:
        return next((name for name, (role, state, _) in self.view().items() if (role, state) == LEADS), None)


LEADS = ("leader", "running")


def environment() -> dict[str, str]:
    """Without the variables of PostgreSQL and Patroni, which would change what the nodes do."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "PATRONI"))}


@contextmanager
def running_pair(
    patroni: Path, postgresql: Path, user: pwd.struct_passwd | None, folder: Path, endpoints: Sequence[str]
) -> Iterator[Pair]:
    folder.mkdir()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    ports = free_ports(4)
    nodes = [
        Node(patroni, folder, name, node_settings(name, folder, postgresql, endpoints, api, server))
        for name, api, server in zip(("pg1", "pg2"), ports[:2], ports[2:], strict=True)
    ]
    pair = Pair(nodes, ports[:2])
    try:
        for node in nodes:
            node.start(user)
        pair.wait("a node leads", lambda _: pair.leader() is not None)
        pair.wait("the other follows", lambda view: any(each[1] == "streaming" for each in view.values()))
        yield pair
    finally:
        for node in nodes:
            node.stop()


def node_settings(
    name: str, folder: Path, postgresql: Path, endpoints: Sequence[str], api: int, server: int
) -> dict[str, Any]:
    users = ("superuser", "replication", "rewind")
    return {
        "scope": "pair",
        "name": name,
        "restapi": {"listen": f"127.0.0.1:{api}", "connect_address": f"127.0.0.1:{api}"},
        "etcd3": {"hosts": list(endpoints)},
        "bootstrap": {"dcs": SETTINGS, "initdb": [{"encoding": "UTF8"}, "no-sync", "data-checksums"]},
        "postgresql": {
            "listen": f"127.0.0.1:{server}",
            "connect_address": f"127.0.0.1:{server}",
            "data_dir": str(folder / name),
            "bin_dir": str(postgresql),
            "pgpass": str(folder / f"{name}.pgpass"),
            "use_pg_rewind": True,
            "authentication": {each: {"username": f"u_{each}", "password": "p"} for each in users},
            "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
            "parameters": {"unix_socket_directories": "", "shared_buffers": "16MB"},
        },
    }


@pytest.mark.skipif(USES_REAL_ETCD, reason="the members of real etcd are not killed here")
def test_patroni_elects_switches_and_fails_over(
    patroni: Path, postgresql: Path, user: pwd.struct_passwd | None, tmp_path: Path
) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with (
        running_cluster(tmp_path, 3, "--etcd") as cluster,
        running_pair(patroni, postgresql, user, tmp_path / "patroni", cluster.endpoints) as pair,
    ):
        first = pair.leader()
        assert first is not None
        (second,) = set(pair.nodes) - {first}

        switchover(patroni, pair.nodes[first].settings, first, second)
        pair.wait_until_leads(second)
        pair.wait_until_follows(first)

        pair.nodes[second].kill()
        pair.wait_until_leads(first)
        pair.nodes[second].start(user)
        pair.wait_until_follows(second)

        before = pair.view()[first]
        member = list(cluster.servers.values())[leader_of(cluster.endpoints)]
        member.kill()
        end = time.monotonic() + 1.5 * TTL_SECONDS  # Without renewals, the leader would lose its key in this time.
        while time.monotonic() < end:
            assert pair.view()[first] == before, "the leader goes on"
            time.sleep(0.5)
        member.start()
        assert member.wait_ready()
        pair.wait_until_follows(second)
        assert pair.view()[first] == before


def switchover(patroni: Path, settings: Path, leader: str, candidate: str) -> None:
    done = subprocess.run(
        [
            str(patroni.with_name("patronictl")), "-c", str(settings), "switchover", "pair",
            "--leader", leader, "--candidate", candidate, "--force",
        ],
        env=environment(), capture_output=True, text=True, timeout=WAIT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f'Successfully switched over to "{candidate}"' in done.stdout, done.stdout
