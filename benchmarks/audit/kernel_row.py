"""`python -m benchmarks.audit.kernel_row DIR`: the time of the columnar kernel for a run, as one line of JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import pyarrow.parquet as parquet

from spark_audit.columnar import encode, triage

REPETITIONS = 3


def main(folder: Path) -> None:
    """Print the times as JSON. `kernel_seconds` is the median of REPETITIONS runs over the same columns."""
    rows = parquet.read_table(folder / "ops")
    started = time.perf_counter()
    columns = encode(rows)
    encoding = time.perf_counter() - started
    seconds = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        triage(columns)
        seconds.append(time.perf_counter() - started)
    kernel = statistics.median(seconds)
    print(json.dumps({"kernel_seconds": kernel, "kernel_and_encoding_seconds": kernel + encoding}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
