"""A closed-loop load through the production client `kvstore.Client`, with its sessions and retries.

`python -m benchmarks.load.client` reads a `LoadSpec` from stdin and prints a `LoadResult`. One process carries out the
whole load. There are as many clients as the spec has connections, and each client keeps one connection to the leader.
For each request in flight there is one task, which awaits one call after the other.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import trio

from benchmarks.load.spec import LoadResult, LoadSpec
from benchmarks.load.workload import Operation, drawn, values_of
from benchmarks.measure.statistics import latencies_ms
from benchmarks.measure.usage import cpu_seconds
from kvstore import Acknowledge, Client, StoreError, Tls

if TYPE_CHECKING:
    from kvstore.client.acknowledged_calls import Confirmed


class ClientLoad:
    """One run of the load."""

    def __init__(self, spec: LoadSpec) -> None:
        if spec.rate or spec.fill:
            raise ValueError("the production client is measured in a closed loop only")
        self.spec = spec
        self.tls = None if spec.tls_ca is None else Tls(ca=spec.tls_ca, cert=spec.tls_cert)
        self.values = itertools.cycle(values_of(spec.value_bytes, spec.seed))
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.puts = 0
        self.stopping = False
        # The level is known only at run time, so the type is cast to that of the levels with a result.
        self.acknowledge = cast("Confirmed", Acknowledge(spec.acknowledge))

    async def run(self) -> LoadResult:
        """Warm up, measure one window, and wait for the open calls.

        The revisions before and after show whether every put took place.
        """
        spec = self.spec
        async with Client(spec.endpoints, tls=self.tls) as asker:
            before = (await asker.get("no such key")).revision
            async with trio.open_nursery() as nursery:
                streams = [drawn(spec.work, spec.existing_keys, spec.seed, n) for n in range(spec.connections)]
                for operations in streams:
                    nursery.start_soon(self._run_client, operations, spec.in_flight // spec.connections)
                await trio.sleep(spec.warmup_seconds)
                self.latencies = []
                cpu, own, began = cpu_seconds(spec.pids), time.process_time(), time.perf_counter()
                await trio.sleep(spec.seconds)
                ended, own_after, cpu_after = time.perf_counter(), time.process_time(), cpu_seconds(spec.pids)
                measured, self.latencies = self.latencies, []
                self.stopping = True
            after = (await asker.get("no such key")).revision
        return LoadResult(
            operations=len(measured),
            seconds=ended - began,
            puts=self.puts,
            revision_before=before,
            revision_after=after,
            latencies_ms=latencies_ms(measured),
            cpu_seconds={name: cpu_after[name] - cpu[name] for name in cpu},
            generator_cpu_seconds=own_after - own,
            errors=dict(self.errors),
        )

    async def _run_client(self, operations: Iterator[Operation], tasks: int) -> None:
        async with Client(self.spec.endpoints, tls=self.tls) as client, trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(self._call_forever, client, operations)

    async def _call_forever(self, client: Client, operations: Iterator[Operation]) -> None:
        while not self.stopping:
            key, is_put = next(operations)
            began = time.perf_counter()
            try:
                if is_put:
                    self.puts += 1
                    await client.put(key, next(self.values), acknowledge=self.acknowledge)
                elif (await client.get(key)).record is None:
                    self.errors["absent"] += 1
            except StoreError as error:
                self.errors[type(error).__name__] += 1
            self.latencies.append(time.perf_counter() - began)


def main() -> None:
    """Read a spec from stdin, run the load, and print the result."""
    print(trio.run(ClientLoad(LoadSpec.from_json(sys.stdin.read())).run).to_json())


if __name__ == "__main__":
    main()
