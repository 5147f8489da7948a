"""The lean load generator for long runs: the loops of `load.generator`, with a report every second and constant memory.

`python -m benchmarks.endurance.load` reads an `EnduranceSpec` from stdin. Each second it prints a *tick*, a JSON object
with the numbers of that second. The last tick has the field `ended`. Times are those of the system's monotonic clock,
so they can be compared with the times of other processes.

With a rate, the load is an open loop in which each connection has at most `window` open requests, because a real client
has such a bound too. A request that is due while its connection has `window` open requests is *held back*: it is
counted and never sent.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from benchmarks.load.generator import Load
from benchmarks.load.spec import LoadSpec
from benchmarks.load.workload import DRAWS_MAX, Operation, key_of
from benchmarks.measure.statistics import latencies_ms

TICK_SECONDS = 1.0

WINDOW_MAX = 4_096
"""The most requests of one connection that a member has open.

The member reads no more until it has answered some of these requests, so further requests would only fill socket
buffers.
"""

OFFER_MAX = 4_096
"""The most requests that an open loop issues at a time, so that even a late generator reads answers in between."""

NICENESS = 5
"""The niceness of a generator.

A generator shares the cores with the members. It must not take processor time from the members, because real clients
run on other machines.
"""

BUSY_NAMES = frozenset({"busy", "code 3"})
"""The names under which the dialect counts Busy refusals of the member and of the store (`ResultCode.BUSY`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnduranceSpec:
    """The request for one load. `put_share`: the share of puts among the operations; all other operations are gets."""

    load: LoadSpec
    put_share: float
    window: int = WINDOW_MAX

    def to_json(self) -> str:
        """Encode as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EnduranceSpec:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "load": LoadSpec(**fields["load"])})


class EnduringLoad(Load):
    """Carries out one load. `ticks` yields the numbers of each second."""

    def __init__(self, spec: EnduranceSpec) -> None:
        self.endurance = spec
        self.offered = self.held_back = 0
        super().__init__(spec.load)

    def _operations(self, connection: int) -> Iterator[Operation]:
        """Return endless operations on uniformly drawn keys.

        As in `benchmarks.load.workload`, a number of operations is drawn in advance and then repeated.
        """
        random = Random(f"{self.spec.seed} {connection}")
        numbers = random.choices(range(self.spec.existing_keys), k=DRAWS_MAX // self.spec.connections)
        share = self.endurance.put_share
        return itertools.cycle([(key_of(number), random.random() < share) for number in numbers])

    def ticks(self) -> Iterator[dict[str, Any]]:
        """Run for `seconds`, then wait for the answers to all open requests. Yields one tick per second."""
        gc.collect()
        gc.freeze()
        gc.disable()  # There is no cyclic garbage to collect; see `Load.run`.
        start = time.perf_counter()
        end = start + self.spec.seconds
        before = self._totals()
        for number in itertools.count(1):
            until = min(start + number * TICK_SECONDS, end)
            self._loop(start, until)
            before, tick = self._tick(before)
            yield tick
            if until == end:
                break
        self._drain(start, end, self.latencies)
        before, tick = self._tick(before)
        puts = sum(connection.puts for connection in self.connections)
        unanswered = sum(len(connection.open) for connection in self.connections)
        yield tick | {"ended": True, "puts": puts, "unanswered": unanswered}

    def _totals(self) -> Counter[str]:
        errors = sum((connection.dialect.errors for connection in self.connections), Counter[str]())
        counts = {"answers": self.answers, "offered": self.offered, "held_back": self.held_back}
        return Counter({**{f"error {name}": count for name, count in errors.items()}, **counts})

    def _tick(self, before: Counter[str]) -> tuple[Counter[str], dict[str, Any]]:
        totals = self._totals()
        more = {name: count - before[name] for name, count in totals.items()}
        errors = {name.removeprefix("error "): count for name, count in more.items() if name.startswith("error ")}
        tick = {
            "at": time.perf_counter(),
            "answers": more["answers"],
            "offered": more["offered"],
            "held_back": more["held_back"],
            "refused": sum(count for name, count in errors.items() if name in BUSY_NAMES),
            "errors": {name: count for name, count in errors.items() if count and name not in BUSY_NAMES},
            **latencies_ms(self.latencies),
        }
        self.latencies.clear()
        return totals, tick

    def _open_loop(self, start: float, until: float) -> None:
        """Issue requests when they are due, at even intervals since `start`, on the connections in turn.

        A request is held back if its connection has `window` open requests. A generator that falls behind offers less
        than its rate. The field `offered` of a tick is the number of requests that were offered.
        """
        rate, connections, window = self.spec.rate, self.connections, self.endurance.window
        while (now := time.perf_counter()) < until:
            due = min(int((now - start) * rate) + 1, self.offered + OFFER_MAX)
            moments = [start + number / rate for number in range(self.offered, due)]
            self.offered = max(due, self.offered)
            for number, connection in enumerate(connections):
                mine = moments[number :: len(connections)]
                taken = mine[: max(window - len(connection.open), 0)]
                self.held_back += len(mine) - len(taken)
                if taken:
                    connection.issue(taken)
                    connection.flush()
            for connection in self._readable(min(start + due / rate, until) - time.perf_counter()):
                self._receive_open(connection)


def main() -> None:
    """Read a spec from stdin, run the load, and print a tick every second."""
    os.nice(NICENESS)
    load = EnduringLoad(EnduranceSpec.from_json(sys.stdin.read()))
    try:
        for tick in load.ticks():
            print(json.dumps(tick), flush=True)
    except OSError as error:
        raise SystemExit(f"load generator: {error}") from error
    finally:
        load.close()


if __name__ == "__main__":
    main()
