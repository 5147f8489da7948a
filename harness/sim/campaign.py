"""Runs many seeds on all cores and adds up their results."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from harness.sim.checks.coverage import CAMPAIGN_SEEDS_MIN, WANTED, WANTED_OF_ETCD, never
from harness.sim.simulation import SeedResult, run_etcd_seed, run_seed

VIOLATIONS_MAX = 20
"""After this many failing seeds a campaign starts no more seeds, because further failures would teach nothing new."""


@dataclass(slots=True)
class Totals:
    """The sum over the seeds so far.

    `seconds` is the processor time of the workers, and `wall_seconds` is real time.
    """

    seeds: int = 0
    events: int = 0
    simulated_ns: int = 0
    seconds: float = 0.0
    wall_seconds: float = 0.0
    covered: Counter[str] = field(default_factory=Counter)  # How many seeds hit each coverage point.
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[SeedResult] = field(default_factory=list)
    is_interrupted: bool = False
    wanted: Mapping[str, int] = field(default_factory=lambda: WANTED)  # The wanted coverage points.

    def add(self, result: SeedResult) -> None:
        """Add the result of one seed."""
        self.seeds += 1
        self.events += result.events
        self.simulated_ns += result.simulated_ns
        self.seconds += result.seconds
        self.covered.update(result.covered)
        self.counts.update(result.counts)
        if result.violation is not None:
            self.failures.append(result)

    @property
    def events_per_second(self) -> float:
        """Events per second of one core."""
        return self.events / self.seconds if self.seconds else 0.0

    @property
    def speed(self) -> float:
        """Simulated seconds per real second of one core."""
        return self.simulated_ns / 1e9 / self.seconds if self.seconds else 0.0

    def not_reached(self) -> list[str]:
        """The wanted coverage points that no seed has hit; empty before CAMPAIGN_SEEDS_MIN seeds have run."""
        return self.never_reached() if self.seeds >= CAMPAIGN_SEEDS_MIN else []

    def never_reached(self) -> list[str]:
        """The wanted coverage points that no seed has hit so far."""
        return never(self.covered, self.wanted)

    def reached_words(self) -> str:
        """How many of the wanted coverage points were hit, as text."""
        return f"{len(self.wanted) - len(self.never_reached())} of {len(self.wanted)} wanted marks"

    def to_json(self, commands: Mapping[int, str] | None = None) -> dict[str, Any]:
        """Return the totals as a JSON object. `commands`: for each failed seed, the options of the command that replays
        it.
        """
        return {
            "seeds": self.seeds,
            "events": self.events,
            "simulated_seconds": round(self.simulated_ns / 1e9, 3),
            "core_seconds": round(self.seconds, 3),
            "wall_seconds": round(self.wall_seconds, 3),
            "events_per_core_second": round(self.events_per_second),
            "simulated_per_core_second": round(self.speed, 2),
            "counts": dict(sorted(self.counts.items())),
            "marks": dict(sorted(self.covered.items())),
            "never_hit": self.never_reached(),
            "failures": [
                {"seed": f.seed, "rule": f.violation.rule, "detail": f.violation.detail}
                | ({"replay": f"hwm-harness simulate {commands[f.seed]} --trace"} if commands else {})
                for f in sorted(self.failures, key=lambda f: f.seed)
                if f.violation is not None
            ],
        }


def run_campaign(
    first_seed: int,
    seeds: int | None,
    *,
    seconds: float | None = None,
    jobs: int | None = None,
    with_etcd: bool = False,
) -> Generator[Totals, None, None]:
    """Run the seeds from `first_seed` upwards, and yield the totals each time some seeds have ended.

    The campaign ends after `seeds` seeds or `seconds` seconds, if these limits are given. The seeds run in `jobs`
    processes, by default one per core. Seeds are independent, so their order does not matter. To end the campaign
    early, close the generator, which waits for the running seeds, starts no further seeds, and ends its processes.

    `with_etcd`: True if every seed gets clients of etcd. Raises ExtraMissing if their libraries are not installed.
    """
    began = time.monotonic()
    totals = Totals(wanted=WANTED_OF_ETCD) if with_etcd else Totals()
    run = run_etcd_seed if with_etcd else run_seed
    numbers = count(first_seed) if seeds is None else iter(range(first_seed, first_seed + seeds))
    jobs = jobs or os.cpu_count() or 1
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running: set[Future[SeedResult]] = {pool.submit(run, seed) for seed in islice(numbers, 2 * jobs)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    totals.add(future.result())
                totals.wall_seconds = time.monotonic() - began
                yield totals
                if len(totals.failures) < VIOLATIONS_MAX and (seconds is None or totals.wall_seconds < seconds):
                    running |= {pool.submit(run, seed) for seed in islice(numbers, len(done))}
        finally:
            pool.shutdown(cancel_futures=True)
