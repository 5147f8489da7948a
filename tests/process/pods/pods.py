"""Pods of the StatefulSet in examples/operations/kubernetes.yaml, played by real processes on addresses of loopback.

Each pod has the command line and the environment of the manifest, an address of its own, and a volume that can be lost.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import yaml

from kvstore import Client
from kvstore.errors import StoreError
from kvstore.protocol.membership import VOTER
from raft import name_of
from tests.process.pods import host_names

ROOT = Path(__file__).resolve().parents[3]
MANIFEST = ROOT / "examples" / "operations" / "kubernetes.yaml"
END_SECONDS_MAX = 20.0
PODS_MAX = 9
"""The greatest number of ordinals, so that no two pods have one address."""


def manifest(kind: str) -> dict[str, Any]:
    """Return the only object of this kind in the manifest."""
    found = [each for each in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")) if each["kind"] == kind]
    (only,) = found
    assert isinstance(only, dict)
    return only


def environment_of(name: str, address: str, **changed: str) -> dict[str, str]:
    """Return the environment of the pod `name` with the address `address`, expanded as Kubernetes does.

    `changed`: variables that differ from the manifest; HWM_CLUSTER_ID is set only here.
    """
    (container,) = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
    known = {"metadata.name": name, "status.podIP": address}
    values = dict[str, str]()
    for variable in container["env"]:
        source = variable.get("valueFrom")
        if source is None:
            value = variable["value"]
            for earlier, its_value in values.items():
                value = value.replace(f"$({earlier})", its_value)
            values[variable["name"]] = value
        elif "fieldRef" in source:
            values[variable["name"]] = known[source["fieldRef"]["fieldPath"]]
        else:
            assert source["configMapKeyRef"]["optional"] is True, variable
    return values | changed


class Pods:
    """The pods of one StatefulSet."""

    def __init__(self, folder: Path, **changed: str) -> None:
        self.folder, self.changed = folder, changed
        random = Random(str(folder))
        self._network = f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
        self._hosts = folder / "hosts"
        self._hosts.write_text("", encoding="utf-8")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._former: list[subprocess.Popen[bytes]] = []
        self._successions = Counter[int]()
        host_names.install(self._hosts)

    @property
    def endpoints(self) -> list[str]:
        """The client addresses of the pods that run."""
        return [f"hwm-{ordinal}.hwm:7101" for ordinal in sorted(self._processes)]

    def client(self, *ordinals: int) -> Client:
        """A client that knows the running pods, or some of them."""
        return Client([f"hwm-{each}.hwm:7101" for each in ordinals] or self.endpoints, deadline_seconds=30.0)

    def volume(self, ordinal: int) -> Path:
        """The folder in the volume of a pod."""
        return self.folder / f"volume-{ordinal}.{self._successions[ordinal]}" / "member"

    def log(self, ordinal: int) -> str:
        """What the pod has written to stderr, in all its runs."""
        return (self.folder / f"hwm-{ordinal}.log").read_text(encoding="utf-8")

    def publish(self, *ordinals: int) -> None:
        """Give these pods an address, whether they run or not, and all other pods none."""
        lines = [f"hwm-{ordinal}.hwm {self._address(ordinal)}\n" for ordinal in ordinals]
        aside = self._hosts.with_suffix(".new")
        aside.write_text("".join(lines), encoding="utf-8")
        aside.replace(self._hosts)

    def start(self, *ordinals: int) -> None:
        """Start pods: each gets its address, then its process."""
        for ordinal in ordinals:
            assert ordinal not in self._processes, ordinal
            self.volume(ordinal).parent.mkdir(exist_ok=True)
        self.publish(*sorted({*self._processes, *ordinals}))
        for ordinal in ordinals:
            name = f"hwm-{ordinal}"
            given = environment_of(name, self._address(ordinal), HWM_DIR=str(self.volume(ordinal)), **self.changed)
            clean = {key: value for key, value in os.environ.items() if not key.startswith("HWM_")}
            with (self.folder / f"{name}.log").open("ab") as log:
                self._processes[ordinal] = subprocess.Popen(
                    [sys.executable, "-m", "tests.process.pods.host_names", "serve"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
                    env={**clean, **given, host_names.HOSTS_FILE: str(self._hosts)},
                )  # fmt: skip

    def leave_running(self, ordinal: int) -> subprocess.Popen[bytes]:
        """Let the process of this pod run on with its volume and its address, as a node does that is cut off from the
        control plane. The next pod of this name gets an empty volume and another address. Return the process."""
        process = self._processes.pop(ordinal)
        self._former.append(process)
        self._successions[ordinal] += 1
        return process

    def end(self, ordinal: int, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop a pod with a signal; return the exit code."""
        process = self._processes.pop(ordinal)
        process.send_signal(number)
        return process.wait(END_SECONDS_MAX)

    def exit_code(self, ordinal: int) -> int:
        """Wait until a pod has ended by itself."""
        return self._processes.pop(ordinal).wait(END_SECONDS_MAX)

    def lose(self, ordinal: int) -> None:
        """Kill a pod, and lose its volume."""
        self.end(ordinal, signal.SIGKILL)
        shutil.rmtree(self.volume(ordinal).parent)

    def is_ready(self, ordinal: int, page: str = "readyz") -> bool:
        """What a probe of this pod says."""
        address = f"http://{self._address(ordinal)}:9100/{page}"
        with suppress(OSError), urllib.request.urlopen(address, timeout=3) as answer:
            return bool(answer.status == 200)
        return False

    async def ready(self, *ordinals: int) -> None:
        """Wait until all these pods are ready."""
        for ordinal in ordinals:
            while not await trio.to_thread.run_sync(self.is_ready, ordinal):
                process = self._processes[ordinal]
                assert process.poll() is None, (process.returncode, self.log(ordinal))
                await trio.sleep(0.05)

    async def voters(self, *ordinals: int) -> dict[int, str]:
        """Wait until exactly these pods have a vote, and no other member is left. Return their ids."""
        async with self.client() as client:
            while True:
                with suppress(StoreError):
                    now = await client.membership(of_leader=True)
                    names = sorted(name_of(each.node_id) for each in now.members if each.part == VOTER)
                    is_complete = names == [f"hwm-{each}" for each in sorted(ordinals)]
                    if is_complete and len(now.members) == len(names) and not now.is_changing:
                        return {int(name_of(each.node_id)[-1]): each.node_id for each in now.members}
                await trio.sleep(0.05)

    async def waits_for(self, ordinal: int, words: str) -> None:
        """Wait until the log of this pod has these words."""
        while words not in self.log(ordinal):
            assert self._processes[ordinal].poll() is None, self.log(ordinal)
            await trio.sleep(0.05)

    def kill_all(self) -> None:
        """Kill the processes of all pods."""
        processes = [*self._processes.values(), *self._former]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(END_SECONDS_MAX)
        self._processes.clear()
        self._former.clear()

    def _address(self, ordinal: int) -> str:
        return f"{self._network}.{PODS_MAX * self._successions[ordinal] + ordinal + 1}"


@contextmanager
def stateful_set(folder: Path, **changed: str) -> Iterator[Pods]:
    """The pods of a new StatefulSet, none of which runs. All are killed at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", socket.getaddrinfo)  # Restored at the end.
        pods = Pods(folder, **changed)
        try:
            yield pods
        finally:
            pods.kill_all()
