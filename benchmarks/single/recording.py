"""`python -m benchmarks.single.recording`: measures what recording costs the clients of a store.

For each kind of operation and each setting, the script measures the processor time of one recorded operation, from the
call of the recorder to the end of `ok`, in a `with` statement. The time includes the system calls that write the rows.
The value printed is the median of the repetitions, and the least one, in microseconds.

FOLDER should be on the disk that will hold the history.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from spark_audit.record import Recorder

OPERATIONS = 20_000
REPETITIONS = 9
KEYS = [f"key {number:012}" for number in range(100)]
VALUE = b"v" * 128
SETTINGS: dict[str, dict[str, Any]] = {
    "hashed values": {},
    "plain values": {"values": "plain"},
    "sample of 10 %": {"sample": 0.1},
    'at_bound="drop"': {"at_bound": "drop"},
}


def _get(recorder: Recorder) -> None:
    for number in range(OPERATIONS):
        with recorder.get("client", KEYS[number % len(KEYS)]) as op:
            op.ok(VALUE)


def _put(recorder: Recorder) -> None:
    for number in range(OPERATIONS):
        with recorder.put("client", KEYS[number % len(KEYS)], VALUE) as op:
            op.ok()


def _microseconds(run: Callable[[Recorder], None], recorder: Recorder) -> list[float]:
    found: list[float] = []
    for _ in range(REPETITIONS):
        begun = time.process_time_ns()
        run(recorder)
        found.append((time.process_time_ns() - begun) / OPERATIONS / 1000)
    return found


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path())
def main(folder: Path) -> None:
    """Print the cost of a get and of a put for each setting."""
    for name, options in SETTINGS.items():
        for run in (_get, _put):
            place = Path(tempfile.mkdtemp(prefix="recording-", dir=folder))
            try:
                with Recorder(place / "history", **options) as recorder:
                    found = _microseconds(run, recorder)
            finally:
                shutil.rmtree(place)
            words = f"{name:16} {run.__name__[1:]}: {statistics.median(found):5.2f} µs (least {min(found):.2f})"
            click.echo(words)


if __name__ == "__main__":
    main()
