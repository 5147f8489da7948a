"""The load of `hwm bench`: some clients, some tasks on each, which put and get until the time is over.

Closed loop: a task asks again as soon as it is answered. Open loop (`rate`): operations are due at fixed moments, and
their latency counts from when they were due, so that waiting behind others shows.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from kvstore.cli.latencies import Latencies
from kvstore.client.client import Client
from kvstore.errors import StoreError
from kvstore.protocol.commands import Delete

DELETES_PER_TXN = 100  # Of the 128 operations that a transaction may have.
DELETERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSpec:
    """What to do. `in_flight`: operations open at a time, over all clients. `rate` per second; 0: a closed loop."""

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

    def key(self, number: int) -> bytes:
        """The name of one of its keys."""
        return b"%b%08d" % (self.prefix, number)


@dataclass(slots=True)
class Bench:
    """One run and what is known of it so far."""

    spec: BenchSpec
    latencies: Latencies = field(default_factory=Latencies)  # Of what was carried out.
    errors: Counter[str] = field(default_factory=Counter)  # By the stable word of each kind.
    last_error: StoreError | None = None
    elapsed_seconds: float = 0.0
    cpu_seconds: float = 0.0  # Of this process, within `elapsed_seconds`.
    phase: str = "connecting"
    has_written: bool = False
    _began: float = 0.0
    _due: itertools.count[int] = field(default_factory=itertools.count)

    async def run(self) -> None:
        """Connect, write all keys if there will be reads, and measure. Raises StoreError if it cannot begin."""
        spec = self.spec
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(Client(spec.endpoints, deadline_seconds=spec.deadline_seconds))
                for _ in range(min(spec.clients, spec.in_flight))
            ]
            for client in clients:
                self.has_written = client is not clients[0]
                await client.put(spec.key(0), os.urandom(spec.value_bytes))  # Connected, and with a session.
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
        """All figures, under the names of `--json`."""
        done, seconds = self.latencies.count, self.now_elapsed()
        return {
            "operations": done,
            "seconds": round(seconds, 3),
            "ops_per_second": round(done / seconds, 1) if seconds else 0.0,
            "p50_ms": round(self.latencies.percentile_ms(50), 3),
            "p99_ms": round(self.latencies.percentile_ms(99), 3),
            "p99_9_ms": round(self.latencies.percentile_ms(99.9), 3),
            "max_ms": round(self.latencies.max_seconds * 1e3, 3),
            "errors": dict(self.errors),
            "client_cpu_us_per_op": round(self.cpu_seconds / done * 1e6, 1) if done else 0.0,
            "client_cpu_share": round(self.cpu_seconds / seconds, 3) if seconds else 0.0,
        }

    def now_elapsed(self) -> float:
        """Seconds measured so far."""
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
        """One task. What it has asked before the end is waited for: slow answers count, too."""
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
                self.latencies.add(time.perf_counter() - began)

    async def clean_up(self) -> None:
        """Delete what it may have written. Raises StoreError."""
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
            Client(spec.endpoints, deadline_seconds=spec.deadline_seconds) as client,
            trio.open_nursery() as nursery,
        ):
            for _ in range(DELETERS):
                nursery.start_soon(delete, client)
        for error in failures:
            raise error
