"""`python -m benchmarks.single.memory`: measures the memory per key and per log entry, and the time of collections.

Each measurement runs in a fresh process. A key has 16 bytes, and its value has 128. The column "over key and value" is
the resident memory per key or entry without these 144 bytes. The times are the CPU times of full runs of the garbage
collector.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.measure.usage import resident_bytes
from benchmarks.single.startup import log_entries, state_of

RESULTS = Path(__file__).resolve().parent.parent / "results" / "memory.json"
FULL = 1_000_000
KEY_AND_VALUE_BYTES = 16 + 128


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One measurement. `bytes_each`: the resident bytes per key or entry. `overhead_bytes`: the same, without the bytes
    of key and value.

    The three times are the times of three full collections in a row; `gc.freeze()` is called before the third.
    """

    what: str
    count: int
    bytes_each: float
    overhead_bytes: float
    first_collection_ms: float
    next_collection_ms: float
    frozen_collection_ms: float


def measure(what: str, count: int) -> MemoryRow:
    """Build `count` keys or log entries in this process, and measure memory and collections."""
    state_of(1000)  # Warm up, so that the memory of imports and of the first use is not measured.
    before = resident_bytes()
    kept = state_of(count) if what == "keys applied" else list(log_entries(count, 1, 100_000))
    bytes_each = (resident_bytes() - before) / count
    collections = [_collection_ms(), _collection_ms()]
    gc.freeze()
    collections.append(_collection_ms())
    del kept
    first, following, frozen = collections
    return MemoryRow(
        what=what,
        count=count,
        bytes_each=bytes_each,
        overhead_bytes=bytes_each - KEY_AND_VALUE_BYTES,
        first_collection_ms=first,
        next_collection_ms=following,
        frozen_collection_ms=frozen,
    )


def _collection_ms() -> float:
    began = time.process_time()
    gc.collect()
    return (time.process_time() - began) * 1e3


@click.command()
@click.option("--keys", default=FULL, show_default=True, type=click.IntRange(1000))
@click.option("--json", "out", type=click.Path(path_type=Path, dir_okay=False), help="The file for the results.")
def main(keys: int, out: Path | None) -> None:
    """Measure memory. A run of full size writes results/memory.json."""
    click.echo("| what | count | bytes each | over key and value | gc.collect() ms, first | again | frozen |")
    click.echo("|---|---|---|---|---|---|---|")
    rows = []
    for what in ("keys applied", "log entries of one put"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(measure, (what, keys))
        rows.append(row)
        times = f"{row.first_collection_ms:.0f} | {row.next_collection_ms:.0f} | {row.frozen_collection_ms:.1f}"
        click.echo(f"| {row.what} | {row.count:,} | {row.bytes_each:.0f} | {row.overhead_bytes:.0f} | {times} |")
    if out is None and keys == FULL:
        out = RESULTS
    if out is not None:
        out.write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
