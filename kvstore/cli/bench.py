"""`hwm bench`: measures the throughput and latency of a cluster from this process.

Several clients, each with several tasks, put and get until the time is over. In a closed loop, a task begins an
operation as soon as its previous operation has ended. In an open loop (`rate`), operations are due at fixed times. The
latency of an operation is measured from its due time, so the latency includes the time for which the operation waited
for other operations.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import click
import trio

from kvstore.cli.common import Data, ExitCode, Failure, Number, client_options, print_json, print_table, run_operation
from kvstore.cli.options.tls import client_tls
from kvstore.cli.options.user import NO_USER, UserOptions, client_user
from kvstore.cli.output import say
from kvstore.client.client import Client
from kvstore.errors import StoreError, Unavailable
from kvstore.protocol.commands import Delete
from kvstore.tls import Tls
from raft.runtime import Histogram

SECONDS_MAX = 86_400
GROWTH = 1.01
_STEPS = math.ceil(math.log(SECONDS_MAX / 1e-6) / math.log(GROWTH))
BOUNDS_SECONDS = tuple(1e-6 * GROWTH**step for step in range(_STEPS + 1))
"""Bounds of the histogram of latencies, from 1 µs to the longest run. Percentiles are at most 1 % too high."""

REFRESH_SECONDS = 0.25
ROWS = {
    "ops/s": "ops_per_second", "operations": "operations", "seconds": "seconds", "p50 ms": "p50_ms", "p99 ms": "p99_ms",
    "p99.9 ms": "p99_9_ms", "max ms": "max_ms", "client CPU µs/op": "client_cpu_us_per_op",
}  # fmt: skip


@click.command()
@client_options
@click.option("--seconds", type=Number(0.1, SECONDS_MAX), default=10.0, show_default=True, help="Duration.")
@click.option(
    "--in-flight", type=click.IntRange(1, 8192), default=64, show_default=True, help="Operations open at a time."
)
@click.option(
    "--clients", type=click.IntRange(1, 256), default=4, show_default=True, help="Clients; each has its own connection."
)
@click.option("--value-bytes", type=click.IntRange(0, 1 << 20), default=128, show_default=True)
@click.option("--keys", type=click.IntRange(1, 10_000_000), default=10_000, show_default=True, help="Different keys.")
@click.option(
    "--prefix", type=Data(), default="bench/", show_default=True, metavar="TEXT",
    help="The keys of the run begin with this. Keys that exist under these names are overwritten, and deleted.",
)  # fmt: skip
@click.option("--reads", type=Number(0, 1), default=0.0, show_default=True, help="The share of linearizable reads.")
@click.option(
    "--rate", type=Number(0, 10_000_000), default=0.0, metavar="N",
    help="Operations per second (open loop: each is due at a fixed time, from which its latency counts). 0: as many as "
    "possible.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Do not delete the keys at the end.")
def bench(
    endpoints: str,
    deadline_seconds: float,
    as_json: bool,
    seconds: float,
    in_flight: int,
    clients: int,
    value_bytes: int,
    keys: int,
    prefix: bytes,
    reads: float,
    rate: float,
    keep: bool,
) -> None:
    """Put and get under load for a while, and print throughput and latency.

    If this program runs on the machine of a member, it takes CPU time away from that member: "client CPU" shows how
    much. This program uses one core. If "of a core" is near 100 %, this program was the bottleneck, not the cluster.
    """
    spec = BenchSpec(
        endpoints=[part.strip() for part in endpoints.split(",") if part.strip()],
        deadline_seconds=deadline_seconds,
        seconds=seconds,
        in_flight=in_flight,
        clients=clients,
        value_bytes=value_bytes,
        keys=keys,
        prefix=prefix,
        reads=reads,
        rate=rate,
        tls=client_tls(),
        user=client_user(),
    )
    result = run_operation(partial(_run, spec, keep, as_json))
    if as_json:
        print_json(result.tally())
    else:
        _print(result)
    if result.last_error is not None:
        raise _failure(result, result.last_error)


async def _run(spec: BenchSpec, keep: bool, as_json: bool) -> Bench:
    """Measure, with a live display on a terminal. Then clean up, even after a failure."""
    result = Bench(spec)
    async with trio.open_nursery() as nursery:
        if sys.stderr.isatty() and not as_json:
            nursery.start_soon(_show_forever, result)
        try:
            failure: StoreError | None = None
            try:
                await result.run()
            except StoreError as error:
                failure = error
            if result.has_written and not keep:
                try:
                    await result.clean_up()
                except StoreError as error:
                    say(f"keys may be left under {spec.prefix!r}: {error}")
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result


async def _show_forever(result: Bench) -> None:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=True) as live:
        while True:
            live.update(_line(result), refresh=True)
            await trio.sleep(REFRESH_SECONDS)


def _line(result: Bench) -> str:
    tally = result.tally()
    errors = sum(result.errors.values())
    return (
        f"{result.phase}  {tally['seconds']:5.1f} of {result.spec.seconds:g} s  "
        f"{tally['ops_per_second']:10,.0f} ops/s  p50 {tally['p50_ms']:.2f} ms  p99 {tally['p99_ms']:.2f} ms  "
        f"errors {errors}"
    )


def _print(result: Bench) -> None:
    tally = result.tally()
    rows: list[tuple[str, object]] = [(title, tally[name]) for title, name in ROWS.items()]
    rows.append(("of a core", f"{tally['client_cpu_share']:.0%}"))
    rows += [(f"error: {word}", count) for word, count in sorted(result.errors.items())]
    print_table(("of this run", "value"), rows)


def _failure(result: Bench, last_error: StoreError) -> Failure:
    """Return the Failure for a run with failed operations. Its exit code is the exit code of the worst outcome."""
    failed = sum(result.errors.values())
    if "outcome_unknown" in result.errors:
        code = ExitCode.UNKNOWN
    else:
        code = ExitCode.UNAVAILABLE if isinstance(last_error, Unavailable) else ExitCode.FAILED
    return Failure(f"{failed} operations did not succeed; the last: {last_error}", code, last_error.hint)


DELETES_PER_TXN = 100  # A transaction may have 128 operations.
DELETERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSpec:
    """The load. `in_flight`: open operations of all clients together. `rate`: operations per second; 0 means a closed
    loop."""

    endpoints: Sequence[str]
    deadline_seconds: float
    seconds: float
    in_flight: int
    clients: int
    value_bytes: int
    keys: int
    prefix: bytes
    reads: float
    rate: float
    tls: Tls | None = None
    user: UserOptions = NO_USER

    def key(self, number: int) -> bytes:
        """Return the key with this number."""
        return b"%b%08d" % (self.prefix, number)

    def client(self) -> Client:
        """A client of the cluster under load."""
        name, password = self.user
        return Client(
            self.endpoints, deadline_seconds=self.deadline_seconds, tls=self.tls, user=name, password=password
        )


@dataclass(slots=True)
class Bench:
    """One run and its results so far."""

    spec: BenchSpec
    latencies: Histogram = field(default_factory=partial(Histogram, BOUNDS_SECONDS))  # Operations that succeeded.
    errors: Counter[str] = field(default_factory=Counter)  # By `StoreError.word`.
    last_error: StoreError | None = None
    elapsed_seconds: float = 0.0
    cpu_seconds: float = 0.0  # CPU time of this process during the measurement.
    phase: str = "connecting"
    has_written: bool = False
    _began: float = 0.0
    _due: itertools.count[int] = field(default_factory=itertools.count)

    async def run(self) -> None:
        """Connect, write all keys if there will be reads, and measure. Raises StoreError if the run cannot begin."""
        spec = self.spec
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(spec.client()) for _ in range(min(spec.clients, spec.in_flight))]
            for client in clients:
                self.has_written = client is not clients[0]
                await client.put(spec.key(0), os.urandom(spec.value_bytes))  # Connects, and opens a session.
            self.has_written = True
            if spec.reads:
                self.phase = "filling"
                value = os.urandom(spec.value_bytes)
                results = await clients[0].put_many((spec.key(number), value) for number in range(spec.keys))
                for error in (result for result in results if isinstance(result, StoreError)):
                    raise error
            self.phase = "measuring"
            await self._measure(clients)

    def tally(self) -> dict[str, Any]:
        """Return all figures, under the names of `--json`."""
        done, seconds = self.latencies.count, self.now_elapsed()
        return {
            "operations": done,
            "seconds": round(seconds, 3),
            "ops_per_second": round(done / seconds, 1) if seconds else 0.0,
            "p50_ms": round(self.latencies.percentile_seconds(0.5) * 1e3, 3),
            "p99_ms": round(self.latencies.percentile_seconds(0.99) * 1e3, 3),
            "p99_9_ms": round(self.latencies.percentile_seconds(0.999) * 1e3, 3),
            "max_ms": round(self.latencies.max_seconds * 1e3, 3),
            "errors": dict(self.errors),
            "client_cpu_us_per_op": round(self.cpu_seconds / done * 1e6, 1) if done else 0.0,
            "client_cpu_share": round(self.cpu_seconds / seconds, 3) if seconds else 0.0,
        }

    def now_elapsed(self) -> float:
        """Return the seconds measured so far."""
        if self.elapsed_seconds or not self._began:
            return self.elapsed_seconds
        return time.perf_counter() - self._began

    async def _measure(self, clients: Sequence[Client]) -> None:
        spec = self.spec
        cpu, self._began = time.process_time(), time.perf_counter()
        end = self._began + spec.seconds
        async with trio.open_nursery() as nursery:
            for number in range(spec.in_flight):
                nursery.start_soon(self._ask_until, end, clients[number % len(clients)], Random(number))
        self.elapsed_seconds = time.perf_counter() - self._began
        self.cpu_seconds = time.process_time() - cpu

    async def _ask_until(self, end: float, client: Client, random: Random) -> None:
        """Run one task of the load. After `end`, the task waits for its open operation, so that slow operations are
        also measured."""
        spec = self.spec
        value = random.randbytes(spec.value_bytes)
        while (began := time.perf_counter()) < end:
            if spec.rate:
                due = self._began + next(self._due) / spec.rate
                if due >= end:
                    return
                await trio.sleep(max(0.0, due - began))
                began = due
            key = spec.key(random.randrange(spec.keys))
            try:
                if spec.reads and random.random() < spec.reads:
                    await client.get(key)
                else:
                    await client.put(key, value)
            except StoreError as error:
                self.errors[error.word] += 1
                self.last_error = error
            else:
                self.latencies.observe(round((time.perf_counter() - began) * 1e9))

    async def clean_up(self) -> None:
        """Delete all keys that the run may have written. Raises StoreError."""
        spec, numbers = self.spec, iter(range(0, self.spec.keys, DELETES_PER_TXN))
        self.phase = "cleaning up"

        failures: list[StoreError] = []

        async def delete(client: Client) -> None:
            try:
                for first in numbers:
                    last = min(first + DELETES_PER_TXN, spec.keys)
                    await client.txn(success=[Delete(spec.key(number)) for number in range(first, last)])
            except StoreError as error:
                failures.append(error)

        async with (
            spec.client() as client,
            trio.open_nursery() as nursery,
        ):
            for _ in range(DELETERS):
                nursery.start_soon(delete, client)
        for error in failures:
            raise error
