"""Three members of one cluster, each embedded in a service. Here all three services are tasks of one program.

Every service takes jobs. Exactly one service takes each job, because the claim is a compare-and-set on an absent key.
In production, each service is a process on its own machine, started with the same member list.

    python examples/replicated_service.py
"""

from __future__ import annotations

import socket
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from kvstore import EmbeddedStore, open_node
from raft import Member

JOBS = 12


async def take_jobs(store: EmbeddedStore, done: dict[str, list[int]]) -> None:
    """Claim jobs until none is left."""
    for job in range(JOBS):
        claim = await store.compare_and_set(f"claims/{job}", store.node_id, expected=None)
        if claim.succeeded:
            done[store.node_id].append(job)


def free_address() -> str:
    """Return an address of this machine with an unused port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def main(folder: Path) -> None:
    members = [Member(f"s{number}", free_address(), free_address()) for number in (1, 2, 3)]
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
