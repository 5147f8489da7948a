"""Three members of one cluster, each embedded in a service. In this example, all three services are tasks of one
program.

Every service tries to claim each job. Exactly one service gets the job, because the claim is a compare-and-set on an
absent key. In production, each service is a process on its own machine, started with the same member list.

    python examples/replicated_service.py
"""

from __future__ import annotations

import socket
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import randrange

import trio

from kvstore import EmbeddedStore, open_node
from raft import Member

JOBS = 12


async def take_jobs(store: EmbeddedStore, done: dict[str, list[int]]) -> None:
    """Try to claim every job."""
    for job in range(JOBS):
        claim = await store.compare_and_set(f"claims/{job}", store.node_id, expected=None)
        if claim.succeeded:
            done[store.node_id].append(job)


def free_addresses(count: int) -> list[str]:
    """Return addresses of this machine whose ports are not used.

    The ports are below 32768, because operating systems use higher ports for outgoing connections. An outgoing
    connection could otherwise get a port at which a member is about to listen.
    """
    found: dict[str, None] = {}
    while len(found) < count:
        port = randrange(10_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found[f"127.0.0.1:{port}"] = None
    return list(found)


async def main(folder: Path) -> None:
    addresses = free_addresses(6)
    members = [Member(f"s{number}", addresses.pop(), addresses.pop()) for number in (1, 2, 3)]
    done: dict[str, list[int]] = {member.node_id: [] for member in members}
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(
                open_node(folder / member.node_id, node_id=member.node_id, members=members, bootstrap=True)
            )
            for member in members
        ]
        async with trio.open_nursery() as nursery:
            for store in stores:
                nursery.start_soon(take_jobs, store, done)
    for node_id, jobs in done.items():
        print(f"{node_id} did {jobs}")
    assert sorted(job for jobs in done.values() for job in jobs) == list(range(JOBS))
    print("every job was done exactly once")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        trio.run(main, Path(place))
