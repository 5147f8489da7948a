"""`python -m benchmarks.single.caller_process WORLD CALLERS SECONDS ADDRESS`: a window of `benchmarks.single.callers`.

CALLERS tasks or threads of one client put 128 bytes, one call after the other. Prints the number of calls, the seconds,
and the CPU time of this process as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable

import trio

import kvstore
import kvstore.asyncio
import kvstore.blocking

WARMUP_SECONDS = 0.5
VALUE = b"v" * 128


class Window:
    """Counts the calls of the measured time. Each caller counts for itself."""

    def __init__(self, callers: int, seconds: float) -> None:
        self._seconds = seconds
        self.counts = [0] * callers
        self._begin: tuple[float, float, int] = (0.0, 0.0, 0)
        self._end: tuple[float, float, int] = (0.0, 0.0, 0)
        self.is_over = False

    def begin(self) -> None:
        """Begin to measure."""
        self._begin = self._now()

    def end(self) -> None:
        """End the measurement, and the callers."""
        self._end = self._now()
        self.is_over = True

    def _now(self) -> tuple[float, float, int]:
        return time.perf_counter(), time.process_time(), sum(self.counts)

    def result(self) -> dict[str, float]:
        """The calls, the seconds and the seconds of CPU."""
        (begin, begin_cpu, begin_calls), (end, end_cpu, end_calls) = self._begin, self._end
        return {"calls": end_calls - begin_calls, "seconds": end - begin, "cpu_seconds": end_cpu - begin_cpu}


def on_trio(address: str, callers: int, seconds: float) -> Window:
    """Tasks of trio."""
    window = Window(callers, seconds)

    async def put(client: kvstore.Client, number: int) -> None:
        key = b"caller-%08d" % number
        while not window.is_over:
            await client.put(key, VALUE)
            window.counts[number] += 1

    async def main() -> None:
        async with kvstore.Client([address]) as client, trio.open_nursery() as nursery:
            for number in range(callers):
                nursery.start_soon(put, client, number)
            await trio.sleep(WARMUP_SECONDS)
            window.begin()
            await trio.sleep(seconds)
            window.end()

    trio.run(main)
    return window


def on_asyncio(address: str, callers: int, seconds: float) -> Window:
    """Tasks of asyncio."""
    window = Window(callers, seconds)

    async def put(client: kvstore.asyncio.Client, number: int) -> None:
        key = b"caller-%08d" % number
        while not window.is_over:
            await client.put(key, VALUE)
            window.counts[number] += 1

    async def main() -> None:
        async with kvstore.asyncio.Client([address]) as client, asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(put(client, number))
            await asyncio.sleep(WARMUP_SECONDS)
            window.begin()
            await asyncio.sleep(seconds)
            window.end()

    asyncio.run(main())
    return window


def in_threads(address: str, callers: int, seconds: float) -> Window:
    """Plain threads."""
    window = Window(callers, seconds)

    def put(client: kvstore.blocking.Client, number: int) -> None:
        key = b"caller-%08d" % number
        while not window.is_over:
            client.put(key, VALUE)
            window.counts[number] += 1

    with kvstore.blocking.Client([address]) as client:
        threads = [threading.Thread(target=put, args=(client, number)) for number in range(callers)]
        for thread in threads:
            thread.start()
        time.sleep(WARMUP_SECONDS)
        window.begin()
        time.sleep(seconds)
        window.end()
        for thread in threads:
            thread.join()
    return window


WORLDS: dict[str, Callable[[str, int, float], Window]] = {
    "trio": on_trio,
    "asyncio": on_asyncio,
    "threads": in_threads,
}

if __name__ == "__main__":
    world, count, duration, endpoint = sys.argv[1:]
    print(json.dumps(WORLDS[world](endpoint, int(count), float(duration)).result()))
