"""A member that measures its snapshots: `python -m benchmarks.single.snapshot_member FOLDER SETTINGS`, SETTINGS in
JSON.

The commands are lines on standard input: `begin`, `snapshot`, `marks` and `end`. Each command is answered with one line
of JSON. Between `begin` and `end` the member measures three things. The first is how late the event loop is (measured
every 5 ms). The second is the wall time and the CPU time (of this thread) of each slice of snapshot work. The third is
the CPU time of each garbage collection. The CPU time of a slice excludes collections, because a collection can start at
any moment and visits the objects of all code.

For each slice of at least LONG_MS of CPU time, the resource usage is recorded too. After each measurement of the event
loop, a yardstick is timed: a computation that is always the same and needs no memory. If the yardstick takes long, the
machine is slow at that moment. Then the snapshot is not the cause of the lateness.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from harness.reports.percentile import percentile
from kvstore.member.config import MemberConfig
from kvstore.member.member import RunningMember, run_member
from kvstore.store import gc_tuning
from raft import Member, RaftConfig
from raft.snapshots.builder import SnapshotBuilder
from raft.snapshots.installer import SnapshotInstaller
from raft.snapshots.manager import SnapshotManager
from raft.snapshots.receiver import SnapshotReceiver
from raft.snapshots.sender import SnapshotSender

LOOK_SECONDS = 0.005
LONG_MS = 3.0
YARDSTICK = range(25_000)
"""The sum of these numbers, which takes about as long to compute as a slice of snapshot work."""

PARTS = {
    "build": (SnapshotBuilder, "advance"),
    "send": (SnapshotSender, "_chunk"),
    "receive": (SnapshotReceiver, "advance"),
    "install": (SnapshotInstaller, "step"),
}
"""The possible parts of a slice: (class, method) by name. A slice calls the parts that have work to do."""


class Slices:
    """The measurements of the slices of snapshot work.

    A slice is one call of `SnapshotManager.advance`, which builds, sends, receives or installs a part of a snapshot.
    """

    def __init__(self) -> None:
        self.clock_ms: list[float] = []
        self.cpu_ms: list[float] = []
        self.parts: dict[str, list[float]] = {name: [] for name in PARTS}  # CPU, ms.
        self.collections_ms: list[float] = []  # CPU.
        self.yardstick_ms: list[float] = []  # CPU.
        self.long: list[dict[str, float]] = []
        # CPU seconds of all collections, and CPU time at the start of the last collection.
        self._collected = self._began = 0.0

    def install(self) -> None:
        """Begin to measure, by wrapping methods of Highwatermark."""
        gc.callbacks.append(self._see_collection)
        self._wrap(SnapshotManager, "advance", self.cpu_ms, self.clock_ms, self.long)
        for name, (owner, method) in PARTS.items():
            self._wrap(owner, method, self.parts[name], [])

    def clear(self) -> None:
        """Discard all measurements so far."""
        for each in (self.clock_ms, self.cpu_ms, self.collections_ms, self.yardstick_ms, *self.parts.values()):
            each.clear()
        self.long.clear()

    def counts(self) -> dict[str, Any]:
        """Return a summary of the measurements since `clear`."""
        parts = {name: summary(values) for name, values in self.parts.items()}
        return {
            "slice_ms": summary(self.clock_ms),
            "slice_cpu_ms": summary(self.cpu_ms),
            "part_cpu_ms": parts,
            "collection_cpu_ms": summary(self.collections_ms),
            "yardstick_cpu_ms": summary(self.yardstick_ms),
            "long_slices": self.long,
        }

    def measure_yardstick(self) -> None:
        """Time the yardstick once."""
        began = time.thread_time()
        sum(YARDSTICK)
        self.yardstick_ms.append((time.thread_time() - began) * 1e3)

    def _see_collection(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            took = time.thread_time() - self._began
            self._collected += took
            self.collections_ms.append(took * 1e3)

    def _wrap(
        self,
        owner: type,
        name: str,
        cpu_ms: list[float],
        clock_ms: list[float],
        long: list[dict[str, float]] | None = None,
    ) -> None:
        method = getattr(owner, name)

        def measured(*arguments: Any) -> Any:
            before = usage() if long is not None else {}
            began, cpu = time.perf_counter(), time.thread_time() - self._collected
            try:
                return method(*arguments)
            finally:
                cpu_ms.append((time.thread_time() - self._collected - cpu) * 1e3)
                clock_ms.append((time.perf_counter() - began) * 1e3)
                if long is not None and cpu_ms[-1] >= LONG_MS:
                    did = {what: round(value - before[what], 3) for what, value in usage().items()}
                    long.append(
                        {"at": len(cpu_ms), "cpu_ms": round(cpu_ms[-1], 3), "clock_ms": round(clock_ms[-1], 3), **did}
                    )

        setattr(owner, name, measured)


def usage() -> dict[str, float]:
    """Return the resources that this thread has used until now (`getrusage`)."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return {"user_ms": used.ru_utime * 1e3, "system_ms": used.ru_stime * 1e3, "page_faults": used.ru_minflt,
            "read_faults": used.ru_majflt, "waits": used.ru_nvcsw, "displaced": used.ru_nivcsw}  # fmt: skip


class Lateness:
    """Measures how late the event loop resumes a task. `look` is called after each sample."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.ms: list[float] = []
        self._look = look

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            due = trio.current_time() + LOOK_SECONDS
            await trio.sleep_until(due)
            self.ms.append((trio.current_time() - due) * 1e3)
            self._look()


def summary(values: list[float]) -> dict[str, float]:
    """Return the number and the percentiles of a list of times in ms."""
    ordered = sorted(values) or [0.0]
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {"count": len(values), **{name: round(percentile(ordered, share), 3) for name, share in shares.items()},
            "max": round(ordered[-1], 3)}  # fmt: skip


async def obey(member: RunningMember, lateness: Lateness, slices: Slices) -> None:
    """Carry out and answer each line of standard input. The end of the input stops the member."""
    core = member.node.core
    lines = trio.lowlevel.FdStream(os.dup(0))
    buffer = b""
    while data := await lines.receive_some(4096):
        buffer += data
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            if line == b"begin":
                lateness.ms.clear()
                slices.clear()
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
                answer |= {"lag_ms": summary(lateness.ms), **slices.counts()}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    member.request_stop()


async def main() -> None:
    """Run the member until standard input ends."""
    settings = json.loads(sys.argv[2])
    config = MemberConfig(
        folder=Path(sys.argv[1]),
        node_id=settings["node_id"],
        members=tuple(Member(*each) for each in settings["members"]),
        raft=RaftConfig(**settings["raft"]),
    )
    slices = Slices()
    lateness = Lateness(slices.measure_yardstick)
    slices.install()
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[RunningMember]) -> None:
            await run_member(config, task_status=task_status)
            nursery.cancel_scope.cancel()

        with gc_tuning.suspended():  # As in `hwm serve`, no collection runs while the member starts.
            member: RunningMember = await nursery.start(run)
            gc_tuning.freeze_state()
        nursery.start_soon(lateness.watch)
        nursery.start_soon(obey, member, lateness, slices)


if __name__ == "__main__":
    trio.run(main)
