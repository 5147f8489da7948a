"""A trio service that embeds a member: there is no other server to run. It counts, and any instance can be killed.

    MEMBERS="s1=127.0.0.1:7001/127.0.0.1:7101 s2=127.0.0.1:7002/127.0.0.1:7102 s3=127.0.0.1:7003/127.0.0.1:7103"
    python examples/trio_counter.py s1 data/s1 127.0.0.1:8001 $MEMBERS &
    python examples/trio_counter.py s2 data/s2 127.0.0.1:8002 $MEMBERS &
    python examples/trio_counter.py s3 data/s3 127.0.0.1:8003 $MEMBERS &

    printf 'add visits\\nget visits\\nwho\\n' | nc -N 127.0.0.1 8002

A request is one line: `add NAME`, `get NAME`, `who` (the instances that are alive) or `summary`. The answer is one line
as well. One instance, the leader of an election, writes a summary of all counters from time to time.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path

import trio

from kvstore import EmbeddedStore, OutcomeUnknown, StoreError, open_node
from kvstore.recipes import ServiceRegistry
from raft import Member

LINE_BYTES_MAX = 1024
TTL_SECONDS = 3.0
"""An instance that died is no longer listed after this time, and another one writes the summaries."""
SUMMARY_SECONDS = 1.0
PAUSE_SECONDS = 0.5


async def answer(store: EmbeddedStore, line: str) -> str:
    """Carry out one request. If the request fails, the answer says whether a counter may have been raised."""
    try:
        match line.split():
            case ["add", name]:
                return str((await store.add(f"counters/{name}")).number)
            case ["get", name]:
                return ((await store.get(f"counters/{name}")).value or b"0").decode()
            case ["who"]:
                instances = await ServiceRegistry(store, "instances").instances()
                return " ".join(f"{name.decode()}={address.decode()}" for name, address in sorted(instances.items()))
            case ["summary"]:
                return ((await store.get("summary")).value or b"none yet").decode()
            case _:
                return "error: send `add NAME`, `get NAME`, `who` or `summary`"
    except OutcomeUnknown as error:
        return f"unknown: it may have been done, or may be done later: {error}"
    except StoreError as error:
        return f"error: it was not done: {error}"


async def serve(store: EmbeddedStore, stream: trio.SocketStream) -> None:
    """Serve one connection until the caller closes it or sends a line that is too long."""
    received = b""
    try:
        async for data in stream:
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                await stream.send_all((await answer(store, line.decode(errors="replace"))).encode() + b"\n")
            if len(received) > LINE_BYTES_MAX:
                await stream.send_all(b"error: this line is too long\n")
                return
    except trio.BrokenResourceError:
        pass  # The caller is gone.


async def stay_registered(store: EmbeddedStore, address: str) -> None:
    """List this instance while it runs. If its lease was lost, because there was no quorum, register again."""
    while True:
        try:
            async with ServiceRegistry(store, "instances").registered(store.node_id, address, ttl_seconds=TTL_SECONDS):
                await trio.sleep_forever()
        except StoreError as error:
            print(store.node_id, "is not registered:", error, flush=True)
            await trio.sleep(PAUSE_SECONDS)


async def summarize(store: EmbeddedStore) -> None:
    """While this instance leads, write the sum of all counters. The block `leadership.term()` is cancelled when the
    leadership is over."""
    while True:
        try:
            async with store.election("summary", ttl_seconds=TTL_SECONDS) as election:
                leadership = await election.campaign(store.node_id)
                print(store.node_id, "leads, fence", leadership.fence, flush=True)
                async with leadership.term():
                    while True:
                        total = sum([int(each.value) async for each in store.items(prefix="counters/")])
                        await leadership.guarded().put("summary", f"{total} by {store.node_id}").commit()
                        await trio.sleep(SUMMARY_SECONDS)
        except StoreError as error:  # Most often LeaseLost or LeadershipLost.
            print(store.node_id, "does not lead:", error, flush=True)
            await trio.sleep(PAUSE_SECONDS)


async def main(node_id: str, folder: Path, listen: str, members: list[Member]) -> None:
    host, _, port = listen.rpartition(":")
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with (
            open_node(folder, node_id=node_id, members=members, bootstrap=True) as store,
            trio.open_nursery() as nursery,
        ):
            listeners = await nursery.start(partial(trio.serve_tcp, partial(serve, store), int(port), host=host))
            address = "{}:{}".format(*listeners[0].socket.getsockname()[:2])
            nursery.start_soon(stay_registered, store, address)
            nursery.start_soon(summarize, store)
            print(node_id, "serves on", address, flush=True)
            async for _ in signals:
                nursery.cancel_scope.cancel()
    print(node_id, "has stopped", flush=True)


def member_of(text: str) -> Member:
    """A member from `id=peer address/client address`."""
    node_id, _, addresses = text.partition("=")
    peer_address, _, client_address = addresses.partition("/")
    return Member(node_id, peer_address, client_address)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], [member_of(text) for text in sys.argv[4:]])
