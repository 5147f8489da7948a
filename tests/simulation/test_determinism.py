"""One seed is one run, bit for bit, so every failure can be replayed and studied."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from harness.sim.engine.rng import identifier, stream
from harness.sim.simulation import SeedResult, run_seed
from raft import RaftCore, Ready

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = (3, 5, 24)  # Some of these seeds have a service and clients, and some have programs that call the node.


@cache
def first_run(seed: int) -> SeedResult:
    """All tests of this file compare their runs with this run. The run takes a second, so it is made only once."""
    return run_seed(seed)


def test_a_seed_run_twice_gives_the_same_trace() -> None:
    """The hash covers the time, place, kind and content of every event."""
    for seed in SEEDS:
        first, second = first_run(seed), run_seed(seed)

        assert first.trace_hash == second.trace_hash
        assert (first.events, first.simulated_ns, first.covered) == (second.events, second.simulated_ns, second.covered)


def test_another_seed_gives_another_trace() -> None:
    """The hash depends on the run and not only on the program."""
    assert len({first_run(seed).trace_hash for seed in SEEDS}) == len(SEEDS)


@pytest.mark.timeout(60)
def test_processes_that_hash_strings_differently_give_the_same_trace() -> None:
    """PYTHONHASHSEED changes the order of a set of strings, so no decision may depend on such an order."""
    program = (
        "import sys; from harness.sim.simulation import run_seed\n"
        "print(*(run_seed(int(seed)).trace_hash for seed in sys.argv[1:]))"
    )
    hashes = set()
    for hash_seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program, *map(str, SEEDS)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=True)
        hashes.add(done.stdout)

    assert hashes == {" ".join(first_run(seed).trace_hash for seed in SEEDS) + "\n"}


def test_the_order_in_which_peers_are_sent_to_is_in_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the order of a set decided the order of sending, only the trace would show this, because each link has its own
    delays."""
    expected, take_ready = first_run(SEEDS[0]).trace_hash, RaftCore.take_ready

    def take_in_another_order(core: RaftCore) -> Ready:
        ready = take_ready(core)
        # The sort is stable, so a peer's messages keep their order.
        ready.send.sort(key=lambda sent: sent[0], reverse=True)
        return ready

    monkeypatch.setattr(RaftCore, "take_ready", take_in_another_order)

    assert run_seed(SEEDS[0]).trace_hash != expected


def test_streams_are_named_by_seed_and_purpose() -> None:
    """Streams differ if their seeds or their purposes differ. The identifier below must never change."""
    assert stream(7, "net/n1>n2").getrandbits(32) == stream(7, "net/n1>n2").getrandbits(32)
    assert stream(7, "net/n1>n2").getrandbits(32) != stream(7, "net/n2>n1").getrandbits(32)
    assert stream(7, "plan").getrandbits(64) != stream(8, "plan").getrandbits(64)
    assert identifier(7, "cluster").hex() == "716319584e69e95a63532474ca7a74fa"
