"""Prints which files one request enters, and how often: `python docs/internals/trace_request.py put|get|append|fault`.

Three members run, one of them in this process; a client in a process of its own makes one request after the other.
The trace contains every call of a Python function of the project on the loop of the member in this process. A *stay*
is a run of consecutive calls inside one file. `put` and `get` trace the leader. `append` traces a follower while the
client puts. `fault` traces a follower from the death of the leader until this follower leads and has answered one put.

Prints the number of files and of stays per request. If the leader is traced, these are the numbers of the median
request. Otherwise the numbers are averages, which include some stays for heartbeats and timers. On a slow machine there
are more such stays. With `--files`, prints each file with its calls per request (averages).
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import trio

import kvstore
from kvstore import Client, Member, open_node

ROOT = Path(kvstore.__file__).resolve().parent.parent
PACKAGES = ("raft", "storage", "kvstore")
WARM_UP = 50
FIRST_CALL = "ClientListener._has_turn_for"
"""The leader calls this function once for each request of a client that has arrived, so the calls divide a trace into
requests."""
CLIENT = """
import sys, trio
from kvstore import Client
async def main(kind, count, *endpoints):
    async with Client(endpoints) as client:
        for number in range(int(count)):
            await (client.put(b"key", b"v" * 128) if kind == "put" else client.get(b"key"))
trio.run(main, *sys.argv[1:])
"""


class Trace:
    """Counts the calls of the project's functions on this thread while it is installed by `sys.setprofile`."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.stays = 0
        self.requests: list[tuple[int, int]] = []  # (files, stays) of each request, if this is the leader.
        self._files: set[str] = set()  # The files entered since the present request arrived.
        self._stays_before = 0
        self._names: dict[str, str | None] = {}
        self._last = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if event != "call":
            return
        path = frame.f_code.co_filename
        if path not in self._names:
            self._names[path] = _name_of(path)
        name = self._names[path]
        if name is None:
            return
        if frame.f_code.co_qualname == FIRST_CALL:
            self.requests.append((len(self._files), self.stays - self._stays_before))
            self._files, self._stays_before = set(), self.stays
        self.calls[name] += 1
        self._files.add(name)
        if name != self._last:
            self.stays += 1
            self._last = name


def _name_of(path: str) -> str | None:
    try:
        name = Path(path).resolve().relative_to(ROOT)
    except ValueError:
        return None
    return str(name) if name.parts[0] in PACKAGES else None


def free_addresses(count: int) -> list[str]:
    """Return `count` addresses of this machine at which nobody listens now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


async def ask(kind: str, count: int, endpoints: Sequence[str]) -> None:
    """Send `count` requests, one after the other, from a client in a process of its own."""
    await trio.run_process([sys.executable, "-c", CLIENT, kind, str(count), *endpoints])


async def trace(what: str, count: int) -> Trace:
    """Trace `count` requests to three new members."""
    addresses = free_addresses(6)
    members = [Member(f"s{n + 1}", addresses[2 * n], addresses[2 * n + 1]) for n in range(3)]
    endpoints = [member.client_address for member in members]
    options = [word for m in members for word in ("--member", f"{m.node_id}={m.peer_address}/{m.client_address}")]
    async with trio.open_nursery() as nursery:
        with tempfile.TemporaryDirectory() as folder:
            others = {}
            for node_id in ("s2", "s3"):
                command = [sys.executable, "-m", "kvstore.cli.main", "serve", f"{folder}/{node_id}", "--bootstrap"]
                others[node_id] = await nursery.start(run_quietly, [*command, "--node-id", node_id, *options])
            async with (
                open_node(f"{folder}/s1", node_id="s1", members=members, bootstrap=True, listen_client=endpoints[0]),
                Client(endpoints) as client,
            ):
                await client.put(b"key", b"value")
                await client.transfer_leadership("s2" if what in ("append", "fault") else "s1")
                await ask("put", WARM_UP, endpoints)
                noted = Trace()
                if what == "fault":
                    others["s2"].kill()  # Of the two members that are left, s1 campaigns first.
                sys.setprofile(noted)
                try:
                    await ask("get" if what == "get" else "put", count, endpoints)
                finally:
                    sys.setprofile(None)
                if what == "fault" and (await client.status(endpoints[0])).role != "leader":
                    raise SystemExit("another member was elected; run it again")
            nursery.cancel_scope.cancel()
    return noted


async def run_quietly(
    command: Sequence[str], *, task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a command without output, until this task is cancelled or the process is killed."""
    quiet = subprocess.DEVNULL
    await trio.run_process(command, stdout=quiet, stderr=quiet, check=False, task_status=task_status)


def main() -> None:
    """Trace, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["put", "get", "append", "fault"])
    parser.add_argument("--count", type=int, default=500, help="requests  [500]")
    parser.add_argument("--files", action="store_true", help="each file with its calls per request")
    options = parser.parse_args()
    if options.what == "fault":
        options.count = 1
    noted = trio.run(trace, options.what, options.count)
    often = {name: calls for name, calls in noted.calls.items() if calls >= options.count / 2}
    files, stays = len(often), noted.stays / options.count
    if options.what in ("put", "get"):
        files, stays = (int(statistics.median(column)) for column in zip(*noted.requests, strict=True))
    print(f"{options.what}: {files} files, {stays:.0f} stays per request")
    if options.files:
        for name, calls in sorted(often.items(), key=lambda each: -each[1]):
            print(f"{calls / options.count:8.1f}  {name}")


if __name__ == "__main__":
    main()
