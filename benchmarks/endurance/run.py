"""Carries out an endurance run on a running and filled cluster: starts the load generators, and takes the samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import trio

from benchmarks.endurance.judge import Sample
from benchmarks.endurance.load import WINDOW_MAX, EnduranceSpec
from benchmarks.load.spec import LoadSpec
from benchmarks.load.workload import key_of, values_of
from benchmarks.systems.run import Running
from kvstore import Busy, Client, StoreError

SAMPLE_SECONDS = 1.0
PROGRESS_SAMPLES = 10
LIGHT_PAUSE_SECONDS = 0.1
LIGHT_PATIENCE_SECONDS = 30.0  # The time limit of an operation of the light client; exceeding it counts as an error.
STATUS_SECONDS = 2.0
GREEDY_WINDOWS = 6
"""The steady phase has this many parts of equal length. The greedy connection is open in every second part, that is,
for half of each third of the phase.
"""

END_SECONDS_MAX = 30.0
"""How long a generator may take to end after its load: it waits up to 20 s for the answers to its open requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The parameters of a run."""

    keys: int
    seconds: float
    in_flight: int = 1_024
    connections: int = 16
    put_share: float = 0.9
    value_bytes: int = 128
    greedy_in_flight: int = WINDOW_MAX
    overload_seconds: float = 20.0
    overload_factor: float = 3.0
    # The open requests of all these connections can exceed the number of proposals that a leader accepts, so the leader
    # must refuse some requests (Busy).
    overload_connections: int = 32
    recovery_seconds: float = 30.0

    @property
    def phase_seconds(self) -> dict[str, float]:
        return {"steady": self.seconds, "overload": self.overload_seconds, "recovery": self.recovery_seconds}

    @property
    def window_requests(self) -> int:
        """The most open requests in the overload, over all connections."""
        return WINDOW_MAX * self.overload_connections


class Generator:
    """One generator process. `news` returns the ticks since the last call."""

    def __init__(self, folder: Path, name: str, spec: EnduranceSpec) -> None:
        self.name = name
        self._output, self._complaint = folder / f"{name}.jsonl", folder / f"{name}.err"
        self._half = ""
        command = [sys.executable, "-m", "benchmarks.systems.child", str(os.getpid()), sys.executable, "-m"]
        with self._output.open("w") as out, self._complaint.open("w") as err:
            self._process = subprocess.Popen(
                [*command, "benchmarks.endurance.load"], stdin=subprocess.PIPE, stdout=out, stderr=err, text=True
            )
        assert self._process.stdin is not None
        self._process.stdin.write(spec.to_json())
        self._process.stdin.close()
        self._reader: IO[str] = self._output.open(encoding="utf-8")

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    async def over(self) -> None:
        """Wait until the process has ended."""
        while True:
            if self.is_over:
                return
            await trio.sleep(0.05)

    def news(self) -> list[dict[str, Any]]:
        """Return the new ticks. An incomplete last line of the output is kept until the rest of it arrives."""
        *lines, self._half = (self._half + self._reader.read()).split("\n")
        return [json.loads(line) for line in lines]

    def trouble(self) -> str | None:
        """Return why the process failed; None if it has not."""
        if self._process.returncode in (0, None):
            return None
        words = self._complaint.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{self.name}: {words[-1] if words else f'ended with {self._process.returncode}'}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.close()


@dataclass(slots=True)
class EnduranceRun:
    """One endurance run. `samples` grows during the run."""

    course: Course
    cluster: Running
    leader: str
    folder: Path
    say: Callable[[str], None]
    samples: list[Sample] = field(default_factory=list)
    puts: int = 0
    _phase: str = "steady"
    _greedy: bool = False
    _generators: list[Generator] = field(default_factory=list)
    _started: int = 0
    _began: float = 0.0
    _light: list[tuple[float, float]] = field(default_factory=list)
    _light_refused: int = 0
    _light_errors: dict[str, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Carry out the phases steady, overload and recovery. At the end, all generator processes are ended."""
        self._began = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._probe_forever)
                nursery.start_soon(self._sample_forever)
                await self._all_phases()
                nursery.cancel_scope.cancel()
        finally:
            for generator in self._generators:
                generator.end()
            if self.samples:
                self.samples[-1].light += self._light  # Operations since the last sample, even if they were cancelled.

    async def _all_phases(self) -> None:
        course = self.course
        self._start("steady", self._spec(course.seconds))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._greedy_now_and_then)
            await trio.sleep(course.seconds)
            nursery.cancel_scope.cancel()
        await self._all_over()
        rate = self.course.overload_factor * self.measured_per_second()
        self.say(f"overload: {rate:,.0f}/s offered for {course.overload_seconds:.0f} s")
        spec = self._spec(course.overload_seconds, rate=round(rate), connections=course.overload_connections)
        self._phase = "overload"
        self._start("overload", spec)
        await trio.sleep(course.overload_seconds)
        self._phase = "recovery"  # The last requests of the overload are still being answered.
        self._start("recovery", self._spec(course.recovery_seconds))
        await trio.sleep(course.recovery_seconds)
        self._phase = "over"
        await self._all_over()

    def measured_per_second(self) -> float:
        """Return the mean number of answers per second in the steady phase, without Busy refusals."""
        steady = [sample for sample in self.samples if sample.phase == "steady"]
        return sum(sample.answers - sample.refused for sample in steady) / max(len(steady), 1)

    async def _greedy_now_and_then(self) -> None:
        part = self.course.seconds / GREEDY_WINDOWS
        begun = trio.current_time()
        for number in range(1, GREEDY_WINDOWS, 2):
            await trio.sleep_until(begun + number * part)
            spec = self._spec(0.95 * part, in_flight=self.course.greedy_in_flight, connections=1)
            self._start(f"greedy-{number}", spec)
            self._greedy = True
            try:
                await trio.sleep(part)
            finally:
                self._greedy = False

    async def _all_over(self) -> None:
        """Wait until all generators have ended, so that their load is not added to the load of the next phase."""
        with trio.move_on_after(END_SECONDS_MAX):
            for generator in self._generators:
                await generator.over()

    def _start(self, name: str, spec: EnduranceSpec) -> None:
        self._generators.append(Generator(self.folder, name, spec))

    def _spec(
        self, seconds: float, *, in_flight: int | None = None, connections: int | None = None, rate: int = 0
    ) -> EnduranceSpec:
        course = self.course
        self._started += 1
        load = LoadSpec(
            kind="highwatermark",
            endpoints=[self.cluster.addresses[self._leader_now()]],
            work="mixed",
            in_flight=0 if rate else in_flight or course.in_flight,
            connections=connections or course.connections,
            rate=rate,
            value_bytes=course.value_bytes,
            existing_keys=course.keys,
            seed=self._started,
            warmup_seconds=0.0,
            seconds=seconds,
        )
        return EnduranceSpec(load=load, put_share=course.put_share)

    def _leader_now(self) -> str:
        """Return the leader of the highest term in the newest sample.

        After an election the run has failed, but it continues with the new leader.
        """
        newest = self.samples[-1] if self.samples else None
        claims = (
            [(newest.term[name] or 0, leader) for name, leader in newest.leader.items() if leader] if newest else []
        )
        return max(claims)[1] if claims else self.leader

    async def _probe_forever(self) -> None:
        """Run the light client: repeat a put, a get and a pause, on a connection of its own."""
        value = values_of(self.course.value_bytes, 0)[0]
        endpoints = list(self.cluster.addresses.values())
        async with Client(endpoints, deadline_seconds=LIGHT_PATIENCE_SECONDS) as client:
            while True:
                key = key_of(len(self.samples) % self.course.keys)
                await self._timed(client.put, key, value)
                await self._timed(client.get, key)
                await trio.sleep(LIGHT_PAUSE_SECONDS)

    async def _timed(self, operation: Callable[..., Awaitable[object]], *arguments: bytes) -> None:
        began = trio.current_time()
        try:
            await operation(*arguments)
        except Busy:
            self._light_refused += 1
        except StoreError as error:
            self._light_errors[f"light {error.word}"] = self._light_errors.get(f"light {error.word}", 0) + 1
        finally:  # Also count an operation that is cancelled at the end: it has waited for at least this long.
            self._light.append((began - self._began, trio.current_time() - began))

    async def _sample_forever(self) -> None:
        async with Client(list(self.cluster.addresses.values()), session=False) as client:
            await self._sample(client)  # Discard the first sample, because it includes the time to connect.
            due = trio.current_time()
            while True:
                due = max(due + SAMPLE_SECONDS, trio.current_time())
                await trio.sleep_until(due)
                if self._phase != "over":
                    self.samples.append(await self._sample(client))
                    if len(self.samples) % PROGRESS_SAMPLES == 0:
                        self._print_progress(self.samples[-PROGRESS_SAMPLES:])

    async def _sample(self, client: Client) -> Sample:
        """Take one sample. The `phase` of the sample is the phase in which sampling begins."""
        sample = Sample(at=trio.current_time() - self._began, phase=self._phase, greedy=self._greedy)
        sample.rss = resident_bytes(self.cluster)
        await self._ask_members(client, sample)
        for generator in self._generators:
            self._add_ticks(sample, generator)
        sample.light, self._light = self._light, []
        sample.light_refused, self._light_refused = self._light_refused, 0
        sample.errors.update(self._light_errors)
        self._light_errors = {}
        return sample

    async def _ask_members(self, client: Client, sample: Sample) -> None:
        async def ask(member: str, address: str) -> None:
            try:
                status = await client.status(address, deadline_seconds=STATUS_SECONDS)
            except StoreError:
                sample.term[member] = sample.leader[member] = None
            else:
                sample.term[member], sample.leader[member] = status.term, status.leader_id

        async with trio.open_nursery() as nursery:
            for member, address in self.cluster.addresses.items():
                nursery.start_soon(ask, member, address)

    def _add_ticks(self, sample: Sample, generator: Generator) -> None:
        for tick in generator.news():
            sample.answers += tick["answers"]
            sample.refused += tick["refused"]
            sample.offered += tick["offered"]
            sample.held_back += tick["held_back"]
            sample.load_max_ms = max(sample.load_max_ms, tick.get("max_ms", 0.0))
            for name, count in tick["errors"].items():
                sample.errors[name] = sample.errors.get(name, 0) + count
            self.puts += tick.get("puts", 0)
            if tick.get("unanswered"):
                sample.errors[f"unanswered, {generator.name}"] = tick["unanswered"]
        if generator.is_over and (trouble := generator.trouble()) is not None:
            sample.errors[trouble] = 1

    def _print_progress(self, samples: list[Sample]) -> None:
        longest = max((seconds for sample in samples for _, seconds in sample.light), default=0.0)
        newest = samples[-1]
        memory = "  ".join(f"{member} {size >> 20} MiB" for member, size in newest.rss.items())
        rate = sum(sample.answers for sample in samples) / len(samples)
        self.say(
            f"{newest.at:6.0f} s  {newest.phase:9}{' greedy' if newest.greedy else '       '} {rate:>9,.0f}/s  "
            f"light {longest * 1e3:7.1f} ms at the most  {memory}"
        )


def resident_bytes(cluster: Running) -> dict[str, int]:
    """Return the resident bytes of each member whose process is running."""
    import psutil

    found = {}
    for name, server in cluster.servers.items():
        try:
            found[name] = psutil.Process(server.pid).memory_info().rss
        except psutil.Error:
            continue
    return found
