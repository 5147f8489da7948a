"""A member that measures itself: `python -m benchmarks.snapshot_member FOLDER SETTINGS`, SETTINGS in JSON.

It obeys lines on standard input (`begin`, `snapshot`, `marks`, `end`), and answers each with one line of JSON. What is
measured between `begin` and `end`: how late the loop is, asked every 5 ms; and how long each slice of the snapshots'
own work took, in time of the clock and of this thread's CPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import trio

from kvstore import garbage
from kvstore.member import MemberConfig, RunningMember, run_member
from raft import Member, RaftConfig
from raft.effects import Effects
from raft.snapshotting import Snapshotting

LOOK_SECONDS = 0.005


class Slices:
    """Every step of `Snapshotting.pump` that did something: building, reading and sending chunks, installing."""

    def __init__(self) -> None:
        self.clock_ms: list[float] = []
        self.cpu_ms: list[float] = []

    def install(self) -> None:
        """Measure from now on. The method is wrapped: what is measured is the product's own."""
        pump = Snapshotting.pump

        def measured(snapshotting: Snapshotting, effects: Effects, now: int) -> None:
            began, cpu = time.perf_counter(), time.thread_time()
            pump(snapshotting, effects, now)
            self.clock_ms.append((time.perf_counter() - began) * 1e3)
            self.cpu_ms.append((time.thread_time() - cpu) * 1e3)

        Snapshotting.pump = measured  # type: ignore[method-assign, assignment]


class Lateness:
    """How late this loop is."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            due = trio.current_time() + LOOK_SECONDS
            await trio.sleep_until(due)
            self.ms.append((trio.current_time() - due) * 1e3)


def quantile(sorted_values: list[float], share: float) -> float:
    """The value below which `share` of them are; 0 if there are none."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))] if sorted_values else 0.0


def summary(values: list[float]) -> dict[str, float]:
    """Of a list of ms."""
    ordered = sorted(values)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {"count": len(ordered), **{name: round(quantile(ordered, share), 3) for name, share in shares.items()},
            "max": round(max(ordered, default=0.0), 3)}  # fmt: skip


async def obey(member: RunningMember, lateness: Lateness, slices: Slices) -> None:
    """Answer each line; the end of the input ends the member."""
    core = member.node.core
    lines = trio.lowlevel.FdStream(os.dup(0))
    buffer = b""
    while data := await lines.receive_some(4096):
        buffer += data
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            if line == b"begin":
                for each in (lateness.ms, slices.clock_ms, slices.cpu_ms):
                    each.clear()
            elif line == b"snapshot":
                member.node.snapshot_now()
            answer: dict[str, Any] = {
                "leads": core.leading_term is not None,
                "first_index": core.first_index,
                "snapshot_index": core.snapshot_index,
                "last_applied": core.last_applied,
                "commit_index": core.commit_index,
            }
            if line == b"end":
                answer |= {
                    "lag_ms": summary(lateness.ms),
                    "slice_ms": summary(slices.clock_ms),
                    "slice_cpu_ms": summary(slices.cpu_ms),
                }
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    member.request_stop()


async def main() -> None:
    """Run the member until the input ends."""
    settings = json.loads(sys.argv[2])
    config = MemberConfig(
        folder=Path(sys.argv[1]),
        node_id=settings["node_id"],
        members=tuple(Member(*each) for each in settings["members"]),
        raft=RaftConfig(**settings["raft"]),
    )
    lateness, slices = Lateness(), Slices()
    slices.install()
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[RunningMember]) -> None:
            await run_member(config, task_status=task_status)
            nursery.cancel_scope.cancel()

        with garbage.suspended():  # As `hwm serve` does.
            member: RunningMember = await nursery.start(run)
        garbage.spare_the_state()
        nursery.start_soon(lateness.watch)
        nursery.start_soon(obey, member, lateness, slices)


if __name__ == "__main__":
    trio.run(main)
