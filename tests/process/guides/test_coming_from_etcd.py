"""The recipes of docs/guides/coming-from-etcd.md, exactly as they are written there, with a real etcd."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster.ports import free_ports
from kvstore.etcd.snapshot.importing import EtcdSnapshot
from kvstore.etcd.snapshot.rows import EtcdLease, KeyVersion
from tests.kvstore.etcd.snapshot import real_etcd
from tests.process.servers import Server, hwm

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(150),
    pytest.mark.skipif(bool(real_etcd.missing()), reason=real_etcd.missing()),
]

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "coming-from-etcd.md").read_text(encoding="utf-8")
RECIPES = [re.sub(r"^ +", "", each, flags=re.MULTILINE) for each in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)]
TRY_ONE, SAVE_ONE, IMPORT_ONE, SERVE_ONE, COMPARE_ONE = RECIPES[:5]
TRY_THREE, SAVE_THREE, IMPORT_THREE, SERVE_THREE, COMPARE_THREE = RECIPES[5:10]
SAVE_BACK, SAVE_SAME, RESTORE_BACK, SERVE_BACK, COMPARE_BACK, USERS = RECIPES[10:]

PROGRAMS = ("etcd", "etcdctl", "etcdutl")
START_SECONDS_MAX = 30.0


class Machines:
    """Carries out recipes in a folder. A line that starts a server leaves it running; every other line must succeed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ports = sorted({*re.findall(r"127\.0\.0\.1:(\d+)", PAGE)})
        self._ports = dict(zip(ports, free_ports(len(ports)), strict=True))
        self._members: dict[str, Server] = {}
        self._etcds: list[subprocess.Popen[bytes]] = []

    def address(self, port: int = 2379) -> str:
        return f"127.0.0.1:{self._ports[str(port)]}"

    def carry_out(self, recipe: str) -> str:
        """Carry out all lines in order. Return what they print."""
        printed = ""
        waiting: list[str] = []  # The addresses of started etcds, which answer once a majority runs.
        for line in recipe.splitlines():
            here = re.sub(r"(127\.0\.0\.1):(\d+)", lambda found: f"{found[1]}:{self._ports[found[2]]}", line)
            words = shlex.split(here)
            if words[0] == "etcd":
                self._start_etcd(words)
                waiting.append(words[words.index("--advertise-client-urls") + 1])
                continue
            self._wait(waiting)
            if words[:2] == ["hwm", "serve"]:
                node_id = words[2].removeprefix("data-") if "-" in words[2] else "s1"
                self._members[node_id] = Server(self._folder / words[2], node_id, words[3:])
                self._members[node_id].start()
            else:
                printed += self._run(here)
        for server in self._members.values():
            assert server.wait_ready(), server.log.read_text()
        self._wait(waiting)
        return printed

    def stop(self) -> None:
        """Stop all servers, as an operator does."""
        for server in self._members.values():
            server.send_signal(signal.SIGTERM)
        assert [server.wait() for server in self._members.values()] == [0] * len(self._members)
        self._members.clear()
        for etcd in self._etcds:
            etcd.terminate()
            etcd.wait(START_SECONDS_MAX)
        self._etcds.clear()

    def kill(self) -> None:
        for server in self._members.values():
            server.kill()
        for etcd in self._etcds:
            etcd.kill()
            etcd.wait()

    def _start_etcd(self, words: list[str]) -> None:
        path = real_etcd.program("etcd")
        assert path is not None
        with (self._folder / "etcd.log").open("ab") as log:
            self._etcds.append(
                subprocess.Popen([path, *words[1:], "--log-level=error"], cwd=self._folder, stdout=log, stderr=log)
            )

    def _wait(self, addresses: list[str]) -> None:
        """Wait until these etcds answer."""
        end = time.monotonic() + START_SECONDS_MAX
        while addresses:
            health = f"etcdctl --endpoints {','.join(addresses)} --dial-timeout 1s endpoint health"
            if self._start(health).returncode == 0:
                addresses.clear()
            log = (self._folder / "etcd.log").read_text()
            assert all(etcd.poll() is None for etcd in self._etcds), log
            assert time.monotonic() < end, log

    def _run(self, line: str) -> str:
        done = self._start(line)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def _start(self, line: str) -> subprocess.CompletedProcess[str]:
        functions = [f'hwm() {{ {shlex.join(hwm())} "$@"; }}']
        functions += [f'{name}() {{ {shlex.quote(str(real_etcd.program(name)))} "$@"; }}' for name in PROGRAMS]
        return subprocess.run(
            ["bash", "-e", "-c", "\n".join([*functions, line])],
            cwd=self._folder, env=os.environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.kill()


def test_one_etcd_is_moved_and_its_users_get_new_passwords(machines: Machines, tmp_path: Path) -> None:
    (tmp_path / "root.password").write_text("new secret\n")
    machines.carry_out(TRY_ONE)
    machines.carry_out(SAVE_ONE)
    told = machines.carry_out(IMPORT_ONE)
    assert "(etcd had 2), 1 keys, 0 leases, 1 users, 0 roles" in told
    assert "the users have no passwords here" in told
    machines.stop()

    machines.carry_out(SERVE_ONE)
    machines.carry_out(COMPARE_ONE)
    assert (tmp_path / "after.txt").read_text() == "greeting\nhello\n"
    assert "greeting\nagain\n" in machines.carry_out(USERS)
    etcd = real_etcd.RealEtcd(machines.address())
    with pytest.raises(AssertionError, match="user name is empty"):
        etcd.control("get", "greeting")
    with pytest.raises(AssertionError, match="authentication failed"):
        etcd.control("--user", "root:secret", "get", "greeting")


def rows_of(path: Path) -> tuple[int, list[KeyVersion], list[EtcdLease]]:
    with EtcdSnapshot(path) as snapshot:
        return snapshot.revision, list(snapshot.records()), list(snapshot.leases())


def test_three_members_are_moved_and_go_back(machines: Machines, tmp_path: Path) -> None:
    machines.carry_out(TRY_THREE)
    etcd = real_etcd.RealEtcd(machines.address())
    lease = int(etcd.answer("lease", "grant", "600")["ID"])
    for number in range(20):
        etcd.control("put", f"key{number % 15:02}", f"value{number}")
    etcd.control("put", "leased", "value", f"--lease={lease:x}")
    etcd.control("del", "key07")
    before = etcd.records_at(0)
    revision = etcd.answer("get", "key00")["header"]["revision"]

    machines.carry_out(SAVE_THREE)
    told = machines.carry_out(IMPORT_THREE)
    assert len({*re.findall("new cluster ([0-9a-f]{32})", told)}) == 1
    assert told.count(f"(etcd had {revision}), {len(before)} keys, 1 leases") == 3
    machines.stop()

    machines.carry_out(SERVE_THREE)
    status = machines.carry_out(COMPARE_THREE)
    assert all(machines.address(port) in status for port in (2379, 22379, 32379))
    assert etcd.records_at(0) == before
    shown = etcd.answer("lease", "timetolive", f"{lease:x}", "--keys")
    assert (shown["granted-ttl"], 550 < shown["ttl"] <= 600, len(shown["keys"])) == (600, True, 1)
    with pytest.raises(AssertionError, match="required revision has been compacted"):
        etcd.records_at(revision)
    etcd.control("put", "key00", "here")
    there = etcd.records_at(0)
    assert there != before

    told = machines.carry_out(SAVE_BACK)
    assert f"{len(there)} keys" in told
    machines.carry_out(SAVE_SAME)
    assert rows_of(tmp_path / "same.db") == rows_of(tmp_path / "back.db")
    machines.carry_out(RESTORE_BACK)
    machines.stop()

    machines.carry_out(SERVE_BACK)
    machines.carry_out(COMPARE_BACK)
    assert etcd.records_at(0) == there
    assert etcd.answer("get", "key00")["header"]["revision"] == revision + (1 << 32) + 1
    etcd.control("lease", "revoke", f"{lease:x}")
    assert "leased" not in etcd.control("get", "", "--prefix", "--keys-only")
