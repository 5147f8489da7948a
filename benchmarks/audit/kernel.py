"""`python -m benchmarks.audit.kernel`: measures the columnar kernels of the audit, and the encoding of their columns.

The time of a kernel is the median of REPETITIONS runs over the same columns; the time of the encoding is that of one
run. The first run over each history is not counted. It requests memory from the system, which can take as much time as
the kernel itself.

The histories for the kernel `witness` have revisions. The histories for the kernel `zones` have neither revisions nor
deletions: without revisions, nobody can tell which write made a key absent, and the audit leaves such keys to its
search.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from benchmarks.audit.histories import SHAPES, Shape, generate, table
from benchmarks.measure.machine import describe
from spark_audit.columnar import OK, Columns, encode, witness, zones

T = TypeVar("T")

REPETITIONS = 5
RESULTS = Path(__file__).resolve().parent / "results" / "kernel.json"
GOALS = {"witness": 0.25, "zones": 0.5}  # Seconds for 10⁶ operations.


@dataclass(frozen=True, slots=True)
class KernelCell:
    """One measurement. All `keys` are linearizable.

    `undecided_keys`: the number of keys that the kernel could not decide.
    """

    kernel: str
    shape: str
    operations: int
    unknown_share: float
    keys: int
    undecided_keys: int
    kernel_seconds: float
    kernel_seconds_all: tuple[float, ...]
    encode_seconds: float

    @property
    def per_million(self) -> float:
        return self.kernel_seconds * 1e6 / self.operations


def cells(sizes: tuple[int, ...], shapes: tuple[str, ...], repetitions: int) -> Iterator[KernelCell]:
    """Yield a measurement for every shape, with and without unknown writes, and with and without revisions."""
    for operations in sizes:
        for shape in (shape for shape in SHAPES if not shapes or shape.name in shapes):
            for unknown_share in (0.0, 0.01):
                made = replace(shape, unknown_share=unknown_share)
                yield _cell("witness", witness, made, operations, repetitions)
                without_revisions = replace(
                    made, revisions=False, delete_share=0.0, put_share=made.put_share + made.delete_share
                )
                yield _cell("zones", zones, without_revisions, operations, repetitions)


def _cell(
    name: str, kernel: Callable[[Columns], Any], shape: Shape, operations: int, repetitions: int
) -> KernelCell:  # fmt: skip
    rows = table(generate(shape, operations, seed=operations))
    encode(rows)
    encoding, columns = _timed(lambda: encode(rows))
    result = kernel(columns)
    seconds = tuple(_timed(lambda: kernel(columns))[0] for _ in range(repetitions))
    undecided = int(np.count_nonzero(result.status != OK))
    return KernelCell(
        name, shape.name, operations, shape.unknown_share, columns.keys, undecided,
        statistics.median(seconds), seconds, encoding,
    )  # fmt: skip


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


@click.command()
@click.option("--operations", "sizes", multiple=True, type=int, default=(100_000, 1_000_000), help="History sizes.")
@click.option("--shape", "shapes", multiple=True, type=click.Choice([shape.name for shape in SHAPES]))
@click.option("--repetitions", type=click.IntRange(1), default=REPETITIONS)
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS)
def main(sizes: tuple[int, ...], shapes: tuple[str, ...], repetitions: int, out: Path) -> None:
    """Measure, print, and write the raw numbers."""
    found: list[KernelCell] = []
    for cell in cells(sizes, shapes, repetitions):
        found.append(cell)
        print(
            f"{cell.kernel:8} {cell.shape:28} {cell.operations:>9} unknown {cell.unknown_share:.0%}: kernel"
            f" {cell.per_million:.3f} s, encoding {cell.encode_seconds * 1e6 / cell.operations:.3f} s per 10⁶;"
            f" {cell.undecided_keys} of {cell.keys} keys left",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        machine = describe(Path(folder))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine, "goals": GOALS, "cells": [asdict(c) for c in found]}, indent=1))


if __name__ == "__main__":
    main()
