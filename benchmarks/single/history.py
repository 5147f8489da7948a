"""`python -m benchmarks.single.history`: measures what the kept history of the store costs.

Each measurement runs in a fresh process, with Python's garbage collector set as in a member. All times are CPU times,
so other processes do not count. The measurements are:

Puts: the CPU time to apply a put (`KvMachine.apply_batch`, in sessions), alternately without and with history. The time
is measured for entries of one put and for entries of 100 puts. The history is full, so each put adds an event and drops
one.

Memory: the resident bytes per kept event, without the bytes of its key and value.

Reads: gets and pages at random revisions of the history. First calls are measured separately.

Restore: the time to restore a snapshot with the whole history, and the longest step of this work.

Longest step: the longest single put, the time to drop the whole history in one step, and the longest put while the
dropped blocks are freed.

Keys have 16 bytes, and values have 128. `loop_ms` and `loop_ms_after` show the speed of the machine before and after
the measurements: the time of `sum(range(10**6))`, which takes 12.7 ms on the machine of the other results.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.measure.machine import describe
from benchmarks.measure.usage import resident_bytes
from kvstore.limits import StoreLimits
from kvstore.protocol.commands import (
    ChangeLimits,
    Command,
    Put,
    RaiseFeatureLevel,
    Range,
    RegisterSession,
    encode_command,
)
from kvstore.store import gc_tuning
from kvstore.store.machine import KvMachine
from raft import Entry, EntryKind, encode_batch

RESULTS = Path(__file__).resolve().parent.parent / "results" / "history.json"
EVENTS = 1_000_000
KEYS = 100_000
KEY_BYTES, VALUE_BYTES = 16, 128
SESSIONS = 16
WINDOW = 8  # The number of open requests per client.
RUN_ENTRIES = 64  # Entries that are applied together.
ROUND_PUTS = 32_000
UNBOUNDED = 2**40


class Filled:
    """A state machine at feature level 2.

    The machine applies puts in sessions: to each key in turn, in a scattered order.
    """

    def __init__(self, **limits: int) -> None:
        self.machine = KvMachine(StoreLimits(), on_applied=gc_tuning.note_allocations)
        self._count = self._index = 0
        self._values = [b"%07d" % number + bytes(VALUE_BYTES - 7) for number in range(1000)]
        setup: list[Command] = [RaiseFeatureLevel(2), ChangeLimits(**limits)]
        setup += [RegisterSession(2**60)] * SESSIONS
        self.apply_all(self._entries([[encode_command(command) for command in setup]]))

    def _entries(self, batches: list[list[bytes]]) -> list[Entry]:
        first = self._index + 1
        self._index += len(batches)
        return [
            Entry(index, 1, EntryKind.COMMANDS, encode_batch(0, batch)) for index, batch in enumerate(batches, first)
        ]

    def puts(self, count: int, to_an_entry: int) -> list[Entry]:
        """Return entries with the next `count` puts, `to_an_entry` puts in each."""
        raw = []
        for number in range(self._count, self._count + count):
            request_no = 1 + number // SESSIONS
            command = Put(b"key/%012d" % (number * 7919 % KEYS), self._values[number % 1000][:])
            acknowledged = max(0, request_no - WINDOW)
            raw.append(
                encode_command(
                    command,
                    session_id=1 + number % SESSIONS,
                    request_no=request_no,
                    acknowledged_up_to=acknowledged,
                )
            )
        self._count += count
        return self._entries([raw[at : at + to_an_entry] for at in range(0, count, to_an_entry)])

    def apply_all(self, entries: list[Entry]) -> None:
        for at in range(0, len(entries), RUN_ENTRIES):
            self.machine.apply_batch(entries[at : at + RUN_ENTRIES])

    def fill(self, count: int) -> None:
        """Apply at least `count` puts."""
        for _ in range(0, count, 10_000):
            self.apply_all(self.puts(min(count, 10_000), 100))


def _loop_ms() -> float:
    began = time.perf_counter()
    sum(range(10**6))
    return (time.perf_counter() - began) * 1e3


def measure_puts(to_an_entry: int, rounds: int, events: int) -> dict[str, Any]:
    """Apply rounds of puts alternately to a machine without history and to a machine with history."""
    machines = {
        "off": Filled(history_events_max=0),
        "on": Filled(history_bytes_max=UNBOUNDED, history_events_max=events),
    }
    for each in machines.values():
        each.fill(KEYS + events)
    gc_tuning.freeze_state()
    seconds: dict[str, list[float]] = {"off": [], "on": []}
    for turn in range(rounds):
        for name in ("off", "on") if turn % 2 else ("on", "off"):
            entries = machines[name].puts(ROUND_PUTS, to_an_entry)
            began = time.process_time()
            machines[name].apply_all(entries)
            seconds[name].append((time.process_time() - began) / ROUND_PUTS)
    off, on = (statistics.median(seconds[name]) * 1e6 for name in ("off", "on"))
    return {"to_an_entry": to_an_entry, "off_us": off, "on_us": on, "added_us": on - off, "ratio": on / off}


def measure_memory(events: int) -> dict[str, Any]:
    """Put every key once, then add `events` further events, and measure how much resident memory they take."""
    filled = Filled(history_bytes_max=UNBOUNDED, history_events_max=UNBOUNDED)
    filled.fill(KEYS)
    gc.collect()
    before, kept = resident_bytes(), len(filled.machine.history)
    filled.fill(events)
    began = time.process_time()
    gc.collect()
    first_ms = (time.process_time() - began) * 1e3
    began = time.process_time()
    gc.collect()
    next_ms = (time.process_time() - began) * 1e3
    each = (resident_bytes() - before) / (len(filled.machine.history) - kept)
    overhead = each - KEY_BYTES - VALUE_BYTES
    return {"bytes_each": each, "overhead_bytes": overhead, "first_collection_ms": first_ms, "next_ms": next_ms}


def measure_reads(events: int) -> dict[str, Any]:
    """Measure gets, and pages of 100 keys, at random revisions."""
    filled = Filled(history_bytes_max=UNBOUNDED, history_events_max=UNBOUNDED)
    filled.fill(KEYS + events)
    machine, rng = filled.machine, random.Random(1)
    lowest, highest = machine.revision - events, machine.revision

    def get() -> None:
        machine.read((2, b"key/%012d" % rng.randrange(KEYS), rng.randrange(lowest, highest)))

    def page() -> None:
        start = rng.randrange(KEYS - 100)
        request = Range(b"key/%012d" % start, b"key/%012d" % (start + 100), revision=rng.randrange(lowest, highest))
        assert machine.range(request).count == 100

    oldest = (2, b"never there", lowest)
    gc_tuning.freeze_state()
    return {
        "cold_get_us": _spent([lambda: machine.read(oldest)])[0],
        "get_us": statistics.median(_spent([get] * 2000)),
        "get_us_max": max(_spent([get] * 2000)),
        "oldest_get_us": statistics.median(_spent([lambda: machine.read(oldest)] * 200)),
        "cold_page_us": _spent([page])[0],
        "page_us": statistics.median(_spent([page] * 200)),
        "full_count_us": _spent([lambda: machine.range(Range(count_only=True, revision=lowest))])[0],
    }


def _spent(calls: list[Any]) -> list[float]:
    """Return the CPU time of each call, in µs."""
    found = []
    for call in calls:
        began = time.process_time()
        call()
        found.append((time.process_time() - began) * 1e6)
    return found


def measure_restore(events: int) -> dict[str, Any]:
    """Take and restore a snapshot of a store without history and of a store with `events` events.

    The difference between the two stores is the cost of the history.
    """
    without, took = _measure_restore(0), _measure_restore(events)
    return {"without": without, "with": took, "history_seconds": took["seconds"] - without["seconds"]}


def _measure_restore(events: int) -> dict[str, Any]:
    filled = Filled(history_bytes_max=UNBOUNDED, history_events_max=events)
    filled.fill(KEYS + events)
    gc_tuning.freeze_state()
    began = time.process_time()
    picture = filled.machine.snapshot()
    taken_ms = (time.process_time() - began) * 1e3
    began = time.process_time()
    chunks = list(picture.chunks)
    encoding = time.process_time() - began
    gc_tuning.freeze_state()
    steps = list(_steps(KvMachine().begin_restore(picture.header, iter(chunks))))
    return {
        "seconds": sum(steps),
        "longest_step_ms": max(steps) * 1e3,
        "taking_ms": taken_ms,
        "encoding_seconds": encoding,
        "bytes": sum(map(len, chunks)),
    }


def _steps(restoring: Any) -> Iterator[float]:
    goes_on = True
    while goes_on:
        began = time.process_time()
        goes_on = restoring.step()
        yield time.process_time() - began


def measure_longest_step(events: int) -> dict[str, Any]:
    """Measure the longest `apply_batch` of a single put, and a command that drops nearly the whole history."""
    filled = Filled(history_bytes_max=UNBOUNDED, history_events_max=UNBOUNDED)
    filled.fill(events)
    entries, more = filled.puts(22_000, 1), filled.puts(2_000, 1)
    gc_tuning.freeze_state()
    # Do not measure the first collection after the freeze: it visits every map to which a put has written since the
    # freeze.
    filled.apply_all(entries[:2_000])
    del entries[:2_000]
    single = [_spent([lambda each=each: filled.machine.apply_batch([each])])[0] for each in entries]
    compact = encode_command(ChangeLimits(history_events_max=10))
    entry = Entry(0, 1, EntryKind.COMMANDS, encode_batch(0, [compact]))
    forgotten = _spent([lambda: filled.machine.apply(entry)])[0]
    freed = [_spent([lambda each=each: filled.machine.apply_batch([each])])[0] for each in more]
    return {"put_us_max": max(single), "forget_all_us": forgotten, "put_us_max_while_freeing": max(freed)}


@click.command()
@click.option("--events", default=EVENTS, show_default=True, type=click.IntRange(20_000))
@click.option(
    "--rounds", default=9, show_default=True, type=click.IntRange(3), help="How many rounds of puts each state has."
)
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="The file for the results.")
def main(events: int, rounds: int, out: Path | None) -> None:
    """Measure the history. A run of full size writes results/history.json."""
    found: dict[str, Any] = {"machine": describe(Path.cwd()), "events": events, "loop_ms": _loop_ms()}
    bound = min(events, StoreLimits().history_bytes_max // (64 + KEY_BYTES + VALUE_BYTES))
    for name, measure, arguments in (
        ("lone puts", measure_puts, (1, rounds, bound)),
        ("puts in batches", measure_puts, (100, rounds, bound)),
        ("memory", measure_memory, (events,)),
        ("reads", measure_reads, (events,)),
        ("restore", measure_restore, (events,)),
        ("longest step", measure_longest_step, (events,)),
    ):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[name] = pool.apply(measure, arguments)
        click.echo(f"{name}: {json.dumps(found[name])}")
    found["loop_ms_after"] = _loop_ms()
    if out is None and events == EVENTS:
        out = RESULTS
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
