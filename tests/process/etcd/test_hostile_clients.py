"""Each attack of `attacks.py` on a running member, beside twelve honest clients of gRPC.

The member goes on, its memory stays within a bound, nothing of the attackers is left when they have gone, and the 99th
percentile of the honest latencies at most doubles.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import trio

from harness.reports.percentile import percentile
from kvstore.etcd.schema import make
from tests.kvstore.etcd.grpc_client import GrpcClient, grpc_client
from tests.process.etcd.attacks import ATTACKS, KV
from tests.process.servers import running_cluster

CLIENTS = 12
CALLS_PER_SECOND = 200.0
QUIET_SECONDS, ATTACK_SECONDS, SETTLING_SECONDS = 8.0, 8.0, 1.0
P99_RATIO_MAX = 2.0
FLOOR_MS = 10.0
"""Below this percentile, the pauses of the machine decide, and no ratio says anything."""

RSS_BYTES_MAX = 768 << 20
"""As in `harness.runs.hostile`."""

BIG_VALUES = 60


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(40 * 60)
async def test_attacks_delay_honest_clients_little_and_leave_nothing_behind(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with running_cluster(tmp_path, 1, "--etcd") as cluster:
        (address,) = cluster.endpoints
        process = cluster.servers["s1"]._process
        assert process is not None
        member = psutil.Process(process.pid)
        async with grpc_client(address) as client:
            for number in range(BIG_VALUES):
                await client.call(f"{KV}/Put", make("PutRequest", key=b"big%d" % number, value=bytes(1_000_000)))
        found, failures = {}, []
        for name in ATTACKS:
            quiet = await p99_ms(address, QUIET_SECONDS)
            with attackers(name, address):
                await trio.sleep(SETTLING_SECONDS)
                hostile = await p99_ms(address, ATTACK_SECONDS)
                rss = member.memory_info().rss
            found[name] = f"{quiet:.1f} ms, {hostile:.1f} ms, {rss >> 20} MiB"
            record_property(name, found[name])
            print(name, found[name], flush=True)
            if hostile > P99_RATIO_MAX * max(quiet, FLOOR_MS) or rss > RSS_BYTES_MAX:
                failures.append(f"{name}: {found[name]}")
        assert not failures, failures


@contextmanager
def attackers(name: str, address: str) -> Iterator[None]:
    """Run the attackers in a process of their own."""
    process = subprocess.Popen([sys.executable, "-m", "tests.process.etcd.attacks", name, address])
    try:
        yield
        assert process.poll() is None, "the attackers have ended by themselves"
    finally:
        process.kill()
        process.wait()


async def p99_ms(address: str, seconds: float) -> float:
    """The 99th percentile of the latencies of the honest clients. Each call has to succeed."""
    latencies: list[float] = []

    async def work(client: GrpcClient, number: int) -> None:
        interval = CLIENTS / CALLS_PER_SECOND
        due = trio.current_time() + interval * number / CLIENTS
        end = trio.current_time() + seconds
        count = 0
        while due < end:
            await trio.sleep_until(due)
            key = b"honest%d" % number
            if count % 2:
                await client.call(f"{KV}/Range", make("RangeRequest", key=key))
            else:
                await client.call(f"{KV}/Put", make("PutRequest", key=key, value=b"%d" % count))
            latencies.append((trio.current_time() - due) * 1e3)
            count += 1
            due += interval

    async def one(number: int) -> None:
        async with grpc_client(address) as client:
            await work(client, number)

    with trio.fail_after(10 * seconds):
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(one, number)
    return percentile(sorted(latencies), 0.99)
