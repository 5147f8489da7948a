"""The search for mutants: runs seed after seed on the copy of each mutant, until a rule is broken or no seeds are left.

All searches advance together: the next chunk of seeds always goes to a mutant on which few seeds have run so far.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.errors import HarnessError
from harness.mutants.errors import CleanCodeFails, CleanTestsFail
from harness.mutants.mutant import Mutant
from harness.mutants.outcome import REPLAYED, HuntResult, SeedOutcome
from harness.mutants.process import Workers
from harness.mutants.sandbox import Copies
from harness.mutants.tested import TestOutcome, run_tests

FIRST_LOOK_SEEDS = 4
"""The number of seeds in a mutant's first chunk, the *first look*. These seeds are run twice if none of them catches
the mutant.
"""

CHUNK_SEEDS_MAX = 160
"""The most seeds of one chunk, which one process runs. Each chunk of a mutant is twice as large as the previous one. So
the starts of processes soon take only a small share of the time.
"""

_HASH_SEEDS = (307, 288)
"""The values of PYTHONHASHSEED for two processes whose traces are compared. Under these two values, Python iterates a
set of member ids in opposite orders.
"""

_STILLBORN = "every seed crashes before anything is committed: it must be caught by a run. The first: "


@dataclass(slots=True)
class _Search:
    """The search for one mutant. Chunks of seeds are started in order, and several may run at the same time."""

    mutant: Mutant
    root: Path
    next_seed: int
    seeds_left: int
    chunk: int = FIRST_LOOK_SEEDS
    under_way: int = 0
    seeds_run: int = 0
    seconds: float = 0.0
    caught: SeedOutcome | None = None
    error: str | None = None
    outcomes: list[SeedOutcome] = field(default_factory=list)  # The outcomes of the first chunk.

    @property
    def wants_more(self) -> bool:
        """True if another chunk may start.

        While the first chunk runs, no other chunk starts, because the first chunk is enough for most mutants.
        """
        is_first_look = self.chunk == FIRST_LOOK_SEEDS and self.under_way
        return self.seeds_left > 0 and not self.caught and not self.error and not is_first_look

    def take_chunk(self) -> tuple[int, int, bool]:
        """Take the next chunk. Returns (its first seed, the number of its seeds, whether this is the first look)."""
        first, count = self.next_seed, min(self.chunk, self.seeds_left)
        is_first_look = self.seeds_run == 0 and self.under_way == 0
        self.next_seed += count
        self.seeds_left -= count
        self.under_way += 1
        return first, count, is_first_look


class Hunt:
    """The search for all chosen mutants. `run` yields after each chunk; `results` has the results known so far."""

    def __init__(
        self, mutants: Sequence[Mutant], copies: Copies, workers: Workers, *, first_seed: int, seeds_max: int, jobs: int
    ) -> None:
        self._copies, self._workers = copies, workers
        self._first_seed, self._seeds_max, self._jobs = first_seed, seeds_max, jobs
        self._mutants = list(mutants)
        self._searches: list[_Search] = []
        self._clean: dict[int, SeedOutcome] = {}
        self.results: dict[str, HuntResult] = {}
        self.seeds_run = 0

    @property
    def under_way(self) -> dict[str, int]:
        """The mutants whose search has not ended, each with the number of seeds that have run on it so far."""
        return {search.mutant.name: search.seeds_run for search in self._searches}

    def run(self) -> Iterator[HuntResult | None]:
        """Search for all mutants. Yields each result, and None after each chunk that has not ended a search.

        Raises CleanCodeFails, CleanTestsFail or WorkerFailed if the code without a mutant breaks a rule, fails a test,
        or does not run.
        """
        if any(not mutant.tests for mutant in self._mutants):
            self.check_clean()
        for mutant in self._mutants:
            if mutant.tests:
                yield self._ended(self._test(mutant))
                continue
            try:
                root = self._copies.with_mutant(mutant)
            except HarnessError as error:
                yield self._ended(HuntResult(name=mutant.name, seeds_run=0, seconds=0.0, error=str(error)))
            else:
                self._searches.append(_Search(mutant, root, self._first_seed, self._seeds_max))
        with ThreadPoolExecutor(self._jobs) as pool:
            running: dict[Future[list[SeedOutcome]], _Search] = {}
            try:
                while self._searches:
                    while len(running) < self._jobs and (search := self._next_search()) is not None:
                        first, count, is_first_look = search.take_chunk()
                        look = self.first_look if is_first_look else self._look
                        running[pool.submit(look, search.root, first, count)] = search
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield self._chunk_done(running.pop(future), future)
            finally:
                self._workers.stop()

    def check_clean(self) -> None:
        """Check that the code without a mutant breaks no rule in the first seeds. Raises CleanCodeFails."""
        for outcome in self.first_look(self._copies.clean, self._first_seed, min(FIRST_LOOK_SEEDS, self._seeds_max)):
            _require_clean(outcome)

    def _test(self, mutant: Mutant) -> HuntResult:
        """Run the tests of a mutant on its copy. Raises CleanTestsFail if a test fails without the mutant, too."""
        begun = time.monotonic()
        error: str | None = None
        outcome = TestOutcome()
        try:
            root = self._copies.with_mutant(mutant)
            outcome = run_tests(root, mutant.tests)
            self._copies.remove(root)
        except HarnessError as failure:
            error = str(failure)
        seconds = time.monotonic() - begun
        failed = outcome.failed[0] if outcome.failed else None
        if failed is not None and (clean := run_tests(self._copies.clean, mutant.tests)).failed:
            raise CleanTestsFail(clean.failed[0])
        return HuntResult(name=mutant.name, seeds_run=0, seconds=seconds, failed_test=failed, error=error)

    def first_look(self, root: Path, first_seed: int, count: int) -> list[SeedOutcome]:
        """Run seeds. If none of them breaks a rule, run them again with another hash seed, and compare the traces."""
        outcomes = self._look(root, first_seed, count)
        if any(outcome.is_catch for outcome in outcomes):
            return outcomes
        again = self._workers.run_seeds(root, first_seed, count, hash_seed=_HASH_SEEDS[1])
        for place, (outcome, replayed) in enumerate(zip(outcomes, again, strict=False)):
            if outcome.trace_hash != replayed.trace_hash:
                detail = f"trace hash {outcome.trace_hash} in one process, {replayed.trace_hash} in another"
                return [*outcomes[:place], replace(outcome, rule=REPLAYED, detail=detail)]
        return outcomes

    def _look(self, root: Path, first_seed: int, count: int) -> list[SeedOutcome]:
        outcomes = self._workers.run_seeds(root, first_seed, count, hash_seed=_HASH_SEEDS[0])
        last = outcomes[-1] if outcomes else None
        if last is not None and last.is_catch and root != self._copies.clean:
            self._confirm(last.seed)
        return outcomes

    def _confirm(self, seed: int) -> None:
        """Check that this seed breaks no rule without the mutant.

        Raises CleanCodeFails, because such a seed proves nothing.
        """
        if seed not in self._clean:
            for outcome in self._workers.run_seeds(self._copies.clean, seed, 1, hash_seed=_HASH_SEEDS[0]):
                self._clean[seed] = outcome
        if seed in self._clean:  # There is no outcome if the search was stopped.
            _require_clean(self._clean[seed])

    def _next_search(self) -> _Search | None:
        """Return the search that gets the next chunk; None if no search wants a chunk.

        Searches without a running chunk come first. Among equals, the search with the fewest seeds so far comes first.
        """
        waiting = [search for search in self._searches if search.wants_more]
        return min(waiting, key=lambda search: (search.under_way > 0, search.next_seed), default=None)

    def _chunk_done(self, search: _Search, future: Future[list[SeedOutcome]]) -> HuntResult | None:
        search.under_way -= 1
        try:
            outcomes = future.result()
        except HarnessError as error:
            search.error, outcomes = str(error), []
        search.seeds_run += len(outcomes)
        self.seeds_run += len(outcomes)
        search.seconds += sum(outcome.seconds for outcome in outcomes)
        search.chunk = min(2 * search.chunk, CHUNK_SEEDS_MAX)
        for outcome in outcomes:
            if outcome.is_catch and (search.caught is None or outcome.seed < search.caught.seed):
                search.caught = outcome
        if outcomes and search.seeds_run == len(outcomes) and all(outcome.is_stillborn for outcome in outcomes):
            search.error = _STILLBORN + outcomes[0].detail
        is_over = search.caught or search.error or not search.seeds_left
        if search.under_way or not is_over:
            return None
        self._searches.remove(search)
        self._copies.remove(search.root)
        return self._ended(
            HuntResult(
                name=search.mutant.name,
                seeds_run=search.caught.seed - self._first_seed + 1 if search.caught else search.seeds_run,
                seconds=search.seconds,
                caught=None if search.error else search.caught,
                error=search.error,
            )
        )

    def _ended(self, result: HuntResult) -> HuntResult:
        self.results[result.name] = result
        return result


def _require_clean(outcome: SeedOutcome) -> None:
    if outcome.rule is not None:
        raise CleanCodeFails(outcome.seed, outcome.rule, outcome.detail)
