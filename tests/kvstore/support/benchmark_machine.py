"""The cost of apply: `python -m tests.kvstore.support.benchmark_machine [keys]` prints a line per kind of command."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from kvstore.protocol.commands import (
    Command,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    Get,
    Put,
    Range,
    RegisterSession,
    Target,
    Txn,
    encode_command,
)
from kvstore.store.machine import KvMachine
from raft import Entry, EntryKind, encode_batch

BATCH = 500
SESSIONS = 16
WINDOW = 64  # The number of requests that a client keeps open.
VALUE = b"v" * 100


def entries(count: int, command: Callable[[int], Command], *, first_no: int = 0) -> list[Entry]:
    """A log of `count` commands. With `first_no`, clients that keep WINDOW requests open have sent the commands under
    sessions."""

    def raw(i: int) -> bytes:
        if not first_no:
            return encode_command(command(i))
        number = first_no + i // SESSIONS
        return encode_command(
            command(i), session_id=1 + i % SESSIONS, request_no=number, acknowledged_up_to=max(0, number - WINDOW)
        )

    batches = [[raw(start + i) for i in range(BATCH)] for start in range(0, count, BATCH)]
    return [Entry(i + 1, 1, EntryKind.COMMANDS, encode_batch(0, batch)) for i, batch in enumerate(batches)]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds of CPU, what the call returned). CPU time does not include other processes."""
    gc.collect()
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def apply_all(machine: KvMachine, log: list[Entry]) -> None:
    """Apply a whole log and drop the results, as a member does after it has sent them."""
    for entry in log:
        machine.apply(entry)


def main(count: int = 200_000) -> None:
    """Print µs per command, then what a snapshot, a hash and a restore of `count` keys cost."""
    rng = random.Random(1)
    keys = [b"key/%09d" % number for number in rng.sample(range(10**9), count)]
    machine = KvMachine()
    machine.apply(Entry(1, 1, EntryKind.COMMANDS, encode_batch(0, [encode_command(RegisterSession(2**60))] * SESSIONS)))
    compare = Compare(b"key", Target.VERSION, Comparison.EQUAL, 0)
    runs: dict[str, tuple[Callable[[int], Command], int]] = {
        "put, new key": (lambda i: Put(keys[i], VALUE), 0),
        "put, overwrite": (lambda i: Put(keys[i], VALUE), 0),
        "put, overwrite, under a session": (lambda i: Put(keys[i], VALUE), 1),
        "get, under a session": (lambda i: Get(keys[i]), 1 + count),
        "compare_and_set": (lambda i: CompareAndSet(keys[i], VALUE, VALUE), 0),
        "txn, 1 comparison, put and get": (lambda i: Txn((compare,), (Put(keys[i], VALUE), Get(keys[0]))), 0),
        "range of 10 items": (lambda i: Range(keys[i], limit=10), 0),
    }
    for name, (command, first_no) in runs.items():
        log = entries(count, command, first_no=first_no)
        seconds, _ = timed(lambda log=log: apply_all(machine, log))  # type: ignore[misc]
        print(f"{name}: {seconds / count * 1e6:.2f} µs")
    taken, picture = timed(machine.snapshot)
    encoded, chunks = timed(lambda: list(picture.chunks))
    hashed, digest = timed(machine.state_hash)
    restored, _ = timed(lambda: KvMachine().restore(picture.header, chunks))
    print(f"{count} keys: picture {taken * 1e3:.0f} ms, chunks {encoded:.2f} s, hash {hashed:.2f} s, ", end="")
    print(f"restore {restored:.2f} s; {digest.hex()[:16]}")
    seconds, _ = timed(lambda: apply_all(machine, entries(count, lambda i: Delete(keys[i]))))
    print(f"delete (with encoding): {seconds / count * 1e6:.2f} µs")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
