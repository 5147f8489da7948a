"""A group of three consumer processes, while consumers and members are killed: each record takes effect once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest
import trio

from kvstore import Client, OutcomeUnknown, StoreError
from tests.process.consumers import consumer_program
from tests.process.servers import Server, ServerCluster, running_cluster

pytestmark = [pytest.mark.process]

CONSUMERS = 3
PATIENCE_SECONDS = 90.0
"""If something does not happen within this time, a test fails instead of hanging."""


class Program:
    """A process that runs `consumer_program`. It can be killed and started again."""

    def __init__(self, cluster: ServerCluster, errors: Path) -> None:
        self._cluster, self._errors = cluster, errors
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, consumer_program.__file__, "log/", "group", "done/"],
                env={**os.environ, "HWM_ENDPOINTS": ",".join(self._cluster.endpoints)},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """The process runs until it is killed."""
        assert self._process.poll() is None, self._errors.read_text()

    def kill(self) -> None:
        """Kill the process with `kill -9`, and wait until it has ended."""
        self._process.kill()
        self._process.wait()


@contextmanager
def started(folder: Path, cluster: ServerCluster) -> Iterator[list[Program]]:
    with ExitStack() as stack:
        programs = []
        for number in range(CONSUMERS):
            programs.append(Program(cluster, folder / f"consumer{number}.errors"))
            stack.callback(programs[-1].kill)
        yield programs


async def write(client: Client, written: list[bytes], ends: trio.Event) -> None:
    """Append records until the end. If an append may have failed, append another value instead."""
    number = 0
    while not ends.is_set():
        number += 1
        value = b"%06d" % number
        try:
            await client.append("log/", value)
        except OutcomeUnknown:  # At the end the log shows which of these records were appended.
            continue
        except StoreError:
            continue
        written.append(value)
        await trio.sleep(0.005)


async def values_below(client: Client, prefix: str) -> list[bytes]:
    """All values below a prefix, in the order of their appends."""
    return [item.value or b"" async for item in client.items(prefix=prefix)]


async def active_pid(client: Client) -> int | None:
    """The process of the active consumer."""
    status = await client.consumer_group("group")
    active = None if status is None else status.shares[0].active
    return None if active is None else int(active.name)


async def _until_more_is_done(client: Client, count: int) -> int:
    """Wait until more than `count` records are handled. Return their number."""
    with trio.fail_after(PATIENCE_SECONDS):
        async with client.watch(prefix="done/") as changes:
            while (done := (await client.range(prefix="done/")).count) <= count:
                await anext(changes)
    return done


async def _kill_a_consumer(client: Client, programs: list[Program], random: Random) -> None:
    """Kill the active consumer, or sometimes another one, and start it again."""
    pid = await active_pid(client)
    active = [program for program in programs if program.pid == pid]
    victim = active[0] if active and random.random() < 0.8 else random.choice(programs)
    victim.kill()
    victim.start()


async def _kill_a_member(server: Server) -> None:
    server.kill()
    server.start()
    assert await trio.to_thread.run_sync(server.wait_ready, abandon_on_cancel=True)


async def _run(folder: Path, kills: int) -> None:
    random, written, ends = Random(kills), list[bytes](), trio.Event()
    with running_cluster(folder, 3) as cluster, started(folder, cluster) as programs:
        async with cluster.client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(write, client, written, ends)
            done = await _until_more_is_done(client, 0)
            for kill in range(kills):
                if kill % 2:
                    await _kill_a_member(cluster.servers[f"s{random.randint(1, 3)}"])
                else:
                    await _kill_a_consumer(client, programs, random)
                done = await _until_more_is_done(client, done)
            ends.set()
        async with cluster.client() as client:
            log = await values_below(client, "log/")
            await _until_more_is_done(client, len(log) - 1)
            results = await values_below(client, "done/")
        for program in programs:
            program.check()
    assert set(written) <= set(log)
    assert results == log
    assert len(written) > 10 * kills


@pytest.mark.timeout(120)
async def test_each_record_takes_effect_once_though_consumers_and_members_are_killed(tmp_path: Path) -> None:
    """The short run of the test below, which has more kills."""
    await _run(tmp_path, kills=4)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_each_record_takes_effect_once_over_many_kills(tmp_path: Path) -> None:
    """The test kills consumers ten times, and members ten times."""
    await _run(tmp_path, kills=20)
