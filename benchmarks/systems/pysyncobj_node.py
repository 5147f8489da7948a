"""One member of a PySyncObj cluster, and the load on it: `python -m benchmarks.systems.pysyncobj_node JSON`.

PySyncObj is a library without a client protocol, so the load is made inside the leader's process, by direct calls of a
replicated method. There is no client, no connection and no encoding of requests. This is the best case for PySyncObj.
The leader's CPU time includes that of the load generator. PySyncObj has a journal, which it never syncs.

If `tuned` is false, all settings are the defaults: a thread of PySyncObj ticks every 50 ms. If `tuned` is true, this
program calls `doTick`, which returns as soon as a socket is ready, and there is no compaction. With 16 or more requests
in flight, appends then leave every 0.5 or 2 ms; with fewer, each command is sent immediately.

The program prints `ready`. The program then answers each line on stdin with one line on stdout: the line `who` with
`leader` or `follower`, and a `LoadSpec` with the `LoadResult` of that load.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated

from benchmarks.load.spec import LoadResult, LoadSpec
from benchmarks.load.workload import drawn, filling, values_of
from benchmarks.measure.statistics import latencies_ms
from benchmarks.measure.usage import cpu_seconds

TUNED: dict[str, Any] = {
    "autoTick": False,
    "appendEntriesPeriod": 0.0005,
    # False at the start, so that PySyncObj prepares for sending without batches. Each load then sets the value.
    "appendEntriesUseBatch": False,
    "logCompactionMinEntries": 1 << 40,
    "logCompactionMinTime": 1 << 40,
}
UNBATCHED_IN_FLIGHT_MAX = 15
DRAIN_SECONDS_MAX, FILL_SECONDS_MAX = 20.0, 600.0  # PySyncObj sometimes never calls back.
IDLE_TICK_SECONDS = 0.002
LEADER_CALL_SECONDS = 0.001


class ReplicatedStore(SyncObj):  # type: ignore[misc]  # The library has no types.
    """A replicated dict that counts the applied puts."""

    def __init__(self, own: str, partners: list[str], settings: Any) -> None:
        self.records: dict[bytes, bytes] = {}
        self.revision = 0
        super().__init__(own, partners, settings)

    @replicated  # type: ignore[untyped-decorator]
    def put(self, key: bytes, value: bytes) -> None:
        """Write a value, on every member."""
        self.records[key] = value
        self.revision += 1


class InProcessLoad:
    """A closed loop: the callback of each put issues the next put."""

    def __init__(self, store: ReplicatedStore, spec: LoadSpec) -> None:
        self.store, self.spec = store, spec
        self.operations: Iterator[tuple[bytes, bool]] = (
            filling(spec.existing_keys, 0, 1)
            if spec.fill
            else drawn(spec.work, spec.existing_keys, spec.seed, connection=0)
        )
        self.values = itertools.cycle(values_of(spec.value_bytes, spec.seed))
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.puts = self.open = 0
        self.stopping = False
        # Guards the counts: the main thread issues the first puts, and the library's thread issues all others.
        self._counting = threading.Lock()

    def issue(self) -> None:
        """Put the next key, if there is one."""
        with self._counting:
            operation = None if self.stopping else next(self.operations, None)
            if operation is None:
                return
            self.puts += 1
            self.open += 1
        began = time.perf_counter()

        def done(_: object, reason: int) -> None:
            self.latencies.append(time.perf_counter() - began)
            if reason != FAIL_REASON.SUCCESS:
                self.errors[f"reason {reason}"] += 1
            self.issue()
            with self._counting:
                self.open -= 1

        self.store.put(operation[0], next(self.values), callback=done)

    def run(self, pause: Any) -> LoadResult:
        """Warm up, measure one window, and wait for the open puts.

        `pause(seconds)` waits for at most `seconds`, and lets the store work meanwhile.
        """
        spec, before = self.spec, self.store.revision
        for _ in range(spec.in_flight):
            self.issue()
        self._wait(pause, time.perf_counter() + spec.warmup_seconds)
        self.latencies = []
        cpu, began = cpu_seconds(spec.pids), time.perf_counter()
        self._wait(pause, began + spec.seconds)
        ended, cpu_after = time.perf_counter(), cpu_seconds(spec.pids)
        measured, self.latencies = self.latencies, []
        self.stopping = not spec.fill
        until = time.perf_counter() + (FILL_SECONDS_MAX if spec.fill else DRAIN_SECONDS_MAX)
        while self.open and time.perf_counter() < until:
            pause(0.01)
        return LoadResult(
            operations=len(measured),
            seconds=ended - began,
            puts=self.puts,
            revision_before=before,
            revision_after=self.store.revision,
            latencies_ms=latencies_ms(measured),
            cpu_seconds={name: cpu_after[name] - cpu[name] for name in cpu},
            generator_cpu_seconds=0.0,
            errors=dict(self.errors),
            unanswered=self.open,
        )

    def _wait(self, pause: Any, until: float) -> None:
        while (left := until - time.perf_counter()) > 0:
            pause(left)


def tuned_period_seconds(in_flight: int) -> float:
    """Return the time between appends. These values were the best of those that were tried.

    Without batches, each command is sent immediately. With a short period, it would be sent a second time with the next
    append.
    """
    if in_flight <= UNBATCHED_IN_FLIGHT_MAX:
        return 0.05
    return 0.0005 if in_flight <= 64 else 0.002


def answer(store: ReplicatedStore, line: str, settings: Any, tuned: bool) -> str:
    """Return the answer to one line of stdin. Carries out the load if the line is a `LoadSpec`."""
    if line == "who":
        return "leader" if store.isReady() and store.getStatus()["state"] == 2 else "follower"
    spec = LoadSpec.from_json(line)
    if tuned:
        settings.appendEntriesUseBatch = spec.in_flight > UNBATCHED_IN_FLIGHT_MAX
        settings.appendEntriesPeriod = tuned_period_seconds(spec.in_flight)
    pause = (lambda seconds: store.doTick(min(seconds, LEADER_CALL_SECONDS))) if tuned else time.sleep
    return InProcessLoad(store, spec).run(pause).to_json()


def main() -> None:
    """Run a member until stdin ends."""
    given = json.loads(sys.argv[1])
    tuned = bool(given["tuned"])
    settings = SyncObjConf(journalFile=given["journal"], **(TUNED if tuned else {}))
    store = ReplicatedStore(given["own"], given["partners"], settings)
    print("ready", flush=True)
    if not tuned:
        for line in sys.stdin:
            print(answer(store, line.strip(), settings, tuned), flush=True)
        os._exit(0)
    lines: deque[str] = deque()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    while True:
        store.doTick(IDLE_TICK_SECONDS)
        if lines:
            print(answer(store, lines.popleft(), settings, tuned), flush=True)


def _read_lines(lines: deque[str]) -> None:
    lines.extend(line.strip() for line in sys.stdin)
    os._exit(0)


if __name__ == "__main__":
    main()
