"""Carries out a plan. In each repetition, each group of cells is measured on one contender (a system with its load
generator) after the other.

Every group on every contender gets fresh servers and folders.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.load.plan import Cell, Contender, Group, Plan
from benchmarks.load.spec import LoadResult, LoadSpec
from benchmarks.systems.run import Running, SystemFailed, running

FILL_ATTEMPTS_MAX = 3
"""The most attempts at filling a cluster. An election can make an attempt fail. The next attempt puts the same keys, so
the cells of the group can still be measured. Each failed attempt is reported as a failure.
"""

_FILL_IN_FLIGHT, _FILL_CONNECTIONS = 256, 8
_FILL_BYTES_IN_FLIGHT_MAX = 4 << 20

Row = dict[str, Any]


class Conductor:
    """Carries out a plan. `rows` and `failures` grow during the run."""

    def __init__(self, plan: Plan, contenders: Sequence[Contender], folder: Path, say: Callable[[str], None]) -> None:
        self.plan, self.contenders, self.folder, self.say = plan, contenders, folder, say
        self.rows: list[Row] = []
        self.failures: list[str] = []

    def run(self) -> None:
        """Run all repetitions. A failure does not end the run: it is printed and added to `failures`."""
        for repetition in range(1, self.plan.repetitions + 1):
            for group, cells in groupby(self.plan.cells, key=lambda cell: cell.group):
                self._run_group(group, list(cells), repetition)

    def _run_group(self, group: Group, cells: Sequence[Cell], repetition: int) -> None:
        # Each repetition begins with a different contender, so that none has an advantage because the disk has warmed
        # up.
        turn = (repetition - 1) % len(self.contenders)
        for contender in (*self.contenders[turn:], *self.contenders[:turn]):
            wanted = [cell for cell in cells if contender.takes_part(cell)]
            if not wanted:
                continue
            home = self.folder / f"{repetition}-{contender.name}"
            home.mkdir()
            try:
                with running(contender, group.members, home) as cluster:
                    self._fill(contender, cluster, group)
                    for cell in wanted:
                        self._measure(contender, cluster, cell, repetition)
            except (SystemFailed, subprocess.SubprocessError) as error:
                self._failed(f"{contender.name}, {group}: {error}")
            finally:
                shutil.rmtree(home, ignore_errors=True)

    def _fill(self, contender: Contender, cluster: Running, group: Group) -> None:
        in_flight = max(8, min(_FILL_IN_FLIGHT, _FILL_BYTES_IN_FLIGHT_MAX // group.value_bytes))
        spec = _spec(contender, Cell(group, "put", in_flight, _FILL_CONNECTIONS), seed=0, fill=True)
        for attempt in range(1, FILL_ATTEMPTS_MAX + 1):
            try:
                result = cluster.run(spec)
            except SystemFailed as error:
                trouble = str(error)
            else:
                done = result.revision_after - result.revision_before == group.existing_keys
                if done and not result.errors and not result.unanswered:
                    return
                trouble = f"{result.errors}, {result.unanswered} unanswered, {result.puts} put"
            self._failed(f"{contender.name}, {group}: filling, attempt {attempt}: {trouble}")
        raise SystemFailed("it could not be filled")

    def _measure(self, contender: Contender, cluster: Running, cell: Cell, repetition: int) -> None:
        spec = _spec(contender, cell, seed=repetition, seconds=self.plan.seconds, warmup=self.plan.warmup_seconds)
        where = f"{contender.name} {cell.label} in flight {cell.in_flight} rate {cell.rate} #{repetition}"
        try:
            result = cluster.run(spec)
        except SystemFailed as error:
            self._failed(f"{where}: {error}")
            return
        if not result.operations:
            self._failed(f"{where}: no operation ended in {spec.seconds} s")
            return
        row = row_of(contender, cell, repetition, result)
        self.rows.append(row)
        doubt = "" if row["verified"] else f"  NOT VERIFIED: {result.errors} {result.unanswered} unanswered"
        self.say(
            f"{contender.name:21} {cell.label:12} {cell.group.value_bytes:6} B {cell.group.members} members "
            f"{cell.in_flight or f'{cell.rate}/s':>6}  {row['ops_per_second']:>9,.0f}/s  p50 {row['p50_ms']:8.2f}  "
            f"p99 {row['p99_ms']:8.2f} ms  servers {row['cpu_us_per_op']:7.1f} µs/op{doubt}"
        )

    def _failed(self, text: str) -> None:
        self.failures.append(text)
        self.say(f"FAILED {text}")


def _spec(
    contender: Contender,
    cell: Cell,
    *,
    seed: int,
    seconds: float = 0.0,
    warmup: float = 0.0,
    fill: bool = False,
) -> LoadSpec:
    return LoadSpec(
        kind=contender.kind,
        endpoints=[],  # `Running.run` fills in the endpoints and `pids`.
        work=cell.work,
        in_flight=cell.in_flight,
        connections=cell.connections,
        rate=cell.rate,
        value_bytes=cell.group.value_bytes,
        existing_keys=cell.group.existing_keys,
        seed=seed,
        warmup_seconds=warmup,
        seconds=seconds,
        fill=fill,
    )


def row_of(contender: Contender, cell: Cell, repetition: int, result: LoadResult) -> Row:
    """Return the row of `latest.json` for one measurement.

    The row is `verified` if there was no error, every request was answered, and the revision rose by exactly the number
    of puts sent.
    """
    per_op = 1e6 / result.operations
    changed = result.revision_after - result.revision_before
    return {
        "system": contender.name,
        "work": cell.label,
        "in_flight": cell.in_flight or None,
        "connections": cell.connections if contender.generator != "in-process" else 0,
        "value_bytes": cell.group.value_bytes,
        "members": cell.group.members,
        "repetition": repetition,
        "ops_per_second": round(result.operations / result.seconds, 1),
        "p50_ms": result.latencies_ms.get("p50_ms"),
        "p99_ms": result.latencies_ms.get("p99_ms"),
        "cpu_us_per_op": round(sum(result.cpu_seconds.values()) * per_op, 2),
        "p999_ms": result.latencies_ms.get("p999_ms"),
        "max_ms": result.latencies_ms.get("max_ms"),
        "cpu_us_per_op_by_process": {name: round(spent * per_op, 2) for name, spent in result.cpu_seconds.items()},
        "generator": contender.generator,
        "generator_cpu_us_per_op": (
            None if contender.generator == "in-process" else round(result.generator_cpu_seconds * per_op, 2)
        ),
        "existing_keys": cell.group.existing_keys,
        "offered_per_second": cell.rate or None,
        "operations": result.operations,
        "seconds": round(result.seconds, 3),
        "errors": sum(result.errors.values()) + result.unanswered,
        "verified": not result.errors and not result.unanswered and changed == result.puts,
    }
