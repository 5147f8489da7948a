"""`python -m benchmarks.single.leases`: measures the CPU time that a member needs for leases when it applies entries.

Each measurement runs in a fresh process, on one `KvMachine` with Python's garbage collector set as in a member. All
times are CPU times, so other processes do not count. Leader time is simulated. The measurements are:

Renewals: all leases are renewed every third of their TTL, as the client does, by commands with 1,000 ids each. Each
command has an entry of its own. The entries are spread evenly over the time, or follow each other without a pause.

Expiry: leases expire, each with one key, within one second or all at the same time. As a leader would, the benchmark
applies an entry without commands every 10 ms, and without a pause while further leases are due.

Removal: one command deletes a range of keys, and the end of a lease deletes as many keys.

`loop_ms` and `loop_ms_after` show the speed of the machine before and after the measurements: the time of
`sum(range(10**6))`, which takes 12.7 ms on the machine of the other results.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.measure.machine import describe
from kvstore.limits import SECOND_NS, StoreLimits
from kvstore.protocol.commands import (
    ChangeLimits,
    Command,
    DeleteRange,
    LeaseGrant,
    LeaseRenew,
    Put,
    RaiseFeatureLevel,
    encode_command,
)
from kvstore.store import gc_tuning
from kvstore.store.machine import KvMachine
from raft import Entry, EntryKind, encode_batch

RESULTS = Path(__file__).resolve().parent.parent / "results" / "leases.json"
LEASES, EXPIRING = 100_000, 10_000
KEYS = StoreLimits().delete_keys_max
TTL_NS = 10 * SECOND_NS
RENEWED_TOGETHER = 1_000
SECONDS = 30
STEP_NS = SECOND_NS // 100
ENTRY_COMMANDS = 100


class Leased:
    """A state machine at feature level 2, which times each entry that it applies."""

    def __init__(self) -> None:
        self.machine = KvMachine(on_applied=gc_tuning.note_allocations)
        self.steps: list[float] = []  # The CPU seconds of each entry since `begin`.
        self._index = 0
        self.apply(0, [RaiseFeatureLevel(2)])

    def apply(self, now: int, commands: Sequence[Command]) -> None:
        """Apply one entry. The time includes the search for the next deadline, which a leader makes after each
        entry."""
        self._index += 1
        entry = Entry(
            self._index, 1, EntryKind.COMMANDS, encode_batch(now, [encode_command(each) for each in commands])
        )
        began = time.process_time()
        self.machine.apply(entry)
        self.machine.next_deadline_by(now)
        self.steps.append(time.process_time() - began)

    def apply_all(self, now: int, commands: Sequence[Command]) -> None:
        for at in range(0, len(commands), ENTRY_COMMANDS):
            self.apply(now, commands[at : at + ENTRY_COMMANDS])

    def begin(self) -> None:
        """Begin to measure."""
        gc.collect()
        gc_tuning.freeze_state()
        self.steps.clear()

    def found(self) -> dict[str, float]:
        return {"seconds": sum(self.steps), "entries": len(self.steps), "longest_step_ms": max(self.steps) * 1e3}


def _loop_ms() -> float:
    began = time.perf_counter()
    sum(range(10**6))
    return (time.perf_counter() - began) * 1e3


def _key(number: int) -> bytes:
    return b"key/%012d" % (number * 7919 % 1_000_003)


def measure_renewals(leases: int, *, spread: bool) -> dict[str, Any]:
    """Renew all leases every third of their TTL, for SECONDS of leader time."""
    leased = Leased()
    period = TTL_NS // 3
    commands = -(-leases // RENEWED_TOGETHER)
    for number in range(commands):
        count = min(RENEWED_TOGETHER, leases - number * RENEWED_TOGETHER)
        leased.apply_all(number * period // commands if spread else 0, [LeaseGrant(0, TTL_NS)] * count)
    leased.begin()
    for first in range(period, SECONDS * SECOND_NS, period):
        for number in range(commands):
            low = 1 + number * RENEWED_TOGETHER
            ids = tuple(range(low, min(low + RENEWED_TOGETHER, leases + 1)))
            leased.apply(first + (number * period // commands if spread else number), [LeaseRenew(ids)])
    assert len(leased.machine.leases.by_id) == leases
    periods = (SECONDS * SECOND_NS - 1) // period
    seconds = sum(leased.steps)
    return {
        **leased.found(),
        "cpu_per_second": seconds / (periods * period / SECOND_NS),
        "us_per_renewal": seconds / (periods * leases) * 1e6,
    }


def measure_expiry(leases: int, *, spread: bool) -> dict[str, Any]:
    """Let leases expire, each with one key: within one second if `spread`, and otherwise all at the same time."""
    leased = Leased()
    for number in range(1, leases + 1):
        now = number * SECOND_NS // leases if spread else 0
        leased.apply(now, [LeaseGrant(number, TTL_NS), Put(_key(number), bytes(128), number)])
    leased.begin()
    now = TTL_NS
    while leased.machine.leases.by_id:
        leased.apply(now, [])
        due = leased.machine.next_deadline_by(now)
        now = now + 1 if due is not None and due <= now else now + STEP_NS
    return leased.found()


def measure_removal(keys: int) -> dict[str, Any]:
    """Delete a range of keys by one command, and let a lease with the same number of keys expire."""
    leased = Leased()
    leased.apply(0, [ChangeLimits(deletions_max=2 * keys), LeaseGrant(1, TTL_NS)])
    took = {}
    for turn in range(6):  # Only the last turn counts. The earlier turns fill the table of remembered deletions.
        for name, lease_id in (("range_ms", 0), ("lease_ms", 1)):
            if lease_id and turn:
                leased.apply(turn * 2 * TTL_NS, [LeaseGrant(1, TTL_NS)])
            puts = [Put(_key(number), bytes(128), lease_id) for number in range(keys)]
            leased.apply_all(turn * 2 * TTL_NS, puts)
            leased.begin()
            if lease_id:
                leased.apply(turn * 2 * TTL_NS + TTL_NS, [])
            else:
                leased.apply(turn * 2 * TTL_NS, [DeleteRange(b"key/", b"key0")])
            assert leased.machine.status().keys == 0
            took[name] = leased.steps[0] * 1e3
    return {"keys": keys, **took, "us_per_key": took["range_ms"] / keys * 1e3}


@click.command()
@click.option(
    "--leases",
    default=LEASES,
    show_default=True,
    type=click.IntRange(1_000, LEASES),
    help="How many leases are renewed.",
)
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="The file for the results.")
def main(leases: int, out: Path | None) -> None:
    """Measure leases. A run of full size writes results/leases.json."""
    found: dict[str, Any] = {"machine": describe(Path.cwd()), "leases": leases, "loop_ms": _loop_ms()}
    for name, measure, arguments, options in (
        ("renewals, spread", measure_renewals, (leases,), {"spread": True}),
        ("renewals, at once", measure_renewals, (leases,), {"spread": False}),
        ("expiry within a second", measure_expiry, (EXPIRING,), {"spread": True}),
        ("expiry at once", measure_expiry, (EXPIRING,), {"spread": False}),
        ("removal", measure_removal, (KEYS,), {}),
    ):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[name] = pool.apply(measure, arguments, options)
        click.echo(f"{name}: {json.dumps(found[name])}")
    found["loop_ms_after"] = _loop_ms()
    if out is None and leases == LEASES:
        out = RESULTS
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
