"""`python -m benchmarks.single.watchers`: many watchers of one key on few connections, beside a load of puts.

Three members run as processes. Windows with and without the watchers alternate. In both kinds of windows, clients put
other keys. While the watchers are there, another client writes the watched key once a second. A separate process holds
the connections of the watchers. This process counts the frames that it receives, and does not decode them.

An event's delay begins when the client that wrote the key has the answer, and ends when the last watcher's frame has
been read. One more connection has the same number of watches, but no program reads their messages.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import trio

from benchmarks.__main__ import data_folder
from benchmarks.load.dialect import receive_exactly
from benchmarks.load.plan import CONTENDERS
from benchmarks.load.spec import LoadSpec
from benchmarks.measure.machine import describe
from benchmarks.systems.run import Running, running
from kvstore import Client
from kvstore.protocol.messages import encode_client_hello, encode_request
from kvstore.protocol.watches import NO_FLAGS, WatchSpec, watch_request
from raft import frame

RESULTS = Path(__file__).resolve().parent.parent / "results" / "watchers.json"
KEY = b"watched"
VALUE_BYTES = 128
IN_FLIGHT, LOAD_CONNECTIONS, EXISTING_KEYS = 256, 16, 10_000
WINDOW_BYTES = 1 << 20
READ_BYTES = 1 << 18
HEAD_BYTES = 4
SETUP_SECONDS_MAX = 60.0
EVENT_SECONDS_MAX = 30.0
PERIOD_SECONDS = 1.0


class FrameCounter:
    """Counts frames in a stream of bytes by their lengths."""

    def __init__(self) -> None:
        self.count = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take the bytes that were read."""
        data = self._rest + data
        place, end = 0, len(data) - HEAD_BYTES
        while place <= end:
            after = place + HEAD_BYTES + int.from_bytes(data[place : place + HEAD_BYTES], "big")
            if after > len(data):
                break
            self.count += 1
            place = after
        self._rest = data[place:]


def connect(address: str, watches: int) -> socket.socket:
    """Return a connection that has asked for `watches` watches of the key. Only the member's hello has been read from
    it."""
    host, _, port = address.rpartition(":")
    link = socket.create_connection((host, int(port)))
    link.sendall(frame(encode_client_hello()))
    receive_exactly(link, int.from_bytes(receive_exactly(link, HEAD_BYTES), "big"))
    request = watch_request(WatchSpec(KEY, KEY + b"\0", 0, NO_FLAGS, WINDOW_BYTES))
    link.sendall(b"".join([frame(encode_request(number, request)) for number in range(1, watches + 1)]))
    return link


class Watchers:
    """Connections with watches of one key, in one process. `delays`: the delay of each event, in seconds."""

    def __init__(self, links: Sequence[socket.socket], watches: int) -> None:
        self._streams = [trio.SocketStream(trio.socket.from_stdlib_socket(link)) for link in links]
        self._counters = [FrameCounter() for _ in links]
        self._watches = watches  # On each connection.
        self._messages = 0  # For each watch.
        self.delays: list[float] = []

    async def _read(self, stream: trio.SocketStream, counter: FrameCounter) -> None:
        while counter.count < self._messages * self._watches:
            data = await stream.receive_some(READ_BYTES)
            if not data:
                raise ConnectionError("the member has closed a connection")
            counter.feed(data)

    async def receive_next(self, seconds_max: float) -> None:
        """Read until one more message has arrived for every watch."""
        self._messages += 1
        with trio.fail_after(seconds_max):
            async with trio.open_nursery() as nursery:
                for stream, counter in zip(self._streams, self._counters, strict=True):
                    nursery.start_soon(self._read, stream, counter)

    async def write_and_receive(self, client: Client) -> None:
        """Write the key once, and wait for all watchers."""
        answered = 0.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.receive_next, EVENT_SECONDS_MAX)
            await client.put(KEY, bytes(VALUE_BYTES))
            answered = time.monotonic()
        self.delays.append(time.monotonic() - answered)


async def watch(address: str, endpoints: Sequence[str], connections: int, watches: int) -> None:
    """Begin all watches, print `ready`, then write the key once a second until stdin is closed."""
    each = watches // connections
    stopped = connect(address, each)  # The watches of this connection begin as well, but nothing reads their messages.
    found = Watchers([connect(address, each) for _ in range(connections)], each)
    await found.receive_next(SETUP_SECONDS_MAX)  # Each watch is confirmed by a message.
    print("ready", flush=True)
    stdin = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
    async with Client(endpoints) as client, trio.open_nursery() as nursery:

        async def write() -> None:
            while True:
                began = trio.current_time()
                await found.write_and_receive(client)
                await trio.sleep_until(began + PERIOD_SECONDS)

        nursery.start_soon(write)
        while await stdin.receive_some():
            pass
        nursery.cancel_scope.cancel()
    stopped.close()
    print(json.dumps(found.delays), flush=True)


@contextmanager
def watching(cluster: Running, connections: int, watches: int) -> Iterator[list[float]]:
    """Run watchers on the leader, in a process of their own, during the block. The yielded list is filled at the end of
    the block."""
    leader = cluster.addresses[cluster.find_leader()]
    command = [sys.executable, "-m", "benchmarks.single.watchers", "--reader", leader, *cluster.addresses.values()]
    options = ["--connections", str(connections), "--watches", str(watches)]
    delays: list[float] = []
    with subprocess.Popen([*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        if reader.stdout.readline().strip() != "ready":
            raise SystemExit("the watchers could not begin")
        yield delays
        reader.stdin.close()
        delays += json.loads(reader.stdout.readline())


def spec(seconds: float, seed: int) -> LoadSpec:
    """Return a load of puts of other keys, or of every key once if `seconds` is 0."""
    return LoadSpec(
        kind="highwatermark",
        endpoints=[],
        work="put",
        in_flight=IN_FLIGHT,
        connections=LOAD_CONNECTIONS,
        rate=0,
        value_bytes=VALUE_BYTES,
        existing_keys=EXISTING_KEYS,
        seed=seed,
        warmup_seconds=0.0 if seconds == 0 else 0.3,
        seconds=seconds,
        fill=seconds == 0,
    )


def measure(connections: int, watches: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure windows with and without watchers, in turns."""
    contender = next(each for each in CONTENDERS if each.name == "highwatermark")
    with tempfile.TemporaryDirectory(dir=data_folder(None)) as folder, running(contender, 3, Path(folder)) as cluster:
        cluster.run(spec(0.0, 0))
        rates: dict[str, list[float]] = {"without": [], "with": []}
        all_delays: list[float] = []
        for turn in range(rounds):
            for name in ("without", "with") if turn % 2 else ("with", "without"):
                if name == "without":
                    result = cluster.run(spec(seconds, turn))
                else:
                    with watching(cluster, connections, watches) as delays:
                        result = cluster.run(spec(seconds, turn))
                    all_delays += delays
                if result.errors or result.unanswered:
                    raise SystemExit(f"a window is not verified: {result.errors}, {result.unanswered} unanswered")
                rates[name].append(result.operations / result.seconds)
    ratios = [one / other for one, other in zip(rates["with"], rates["without"], strict=True)]
    return {
        "puts_per_second": {name: statistics.median(found) for name, found in rates.items()},
        "ratio": statistics.median(ratios),
        "events": len(all_delays),
        "delay_ms": {"median": statistics.median(all_delays) * 1e3, "max": max(all_delays) * 1e3},
        "ratios": ratios,
    }


@click.command(help=__doc__)
@click.option("--connections", type=click.IntRange(1), default=10, show_default=True)
@click.option(
    "--watches",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="How many watches all connections have together.",
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=6.0, show_default=True, help="The length of a window.")
@click.option("--reader", is_flag=True, hidden=True)
@click.argument("addresses", nargs=-1)
def main(connections: int, watches: int, rounds: int, seconds: float, reader: bool, addresses: tuple[str, ...]) -> None:
    if reader:
        trio.run(watch, addresses[0], addresses[1:], connections, watches)
        return
    found = measure(connections, watches, rounds, seconds)
    text = json.dumps(
        {
            "machine": describe(data_folder(None)),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "connections": connections,
            "watches": watches,
            **found,
        },
        indent=1,
    )
    RESULTS.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
