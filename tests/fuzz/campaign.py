"""The size of a fuzzing test, its report, and bounds on the resources that the test uses."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

SECONDS_MAX = 3_600
"""Absolute time-out of a surface at 10⁶ inputs."""

sizes = pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(10_000, id="10k"),
        pytest.param(1_000_000, id="1M", marks=[pytest.mark.slow, pytest.mark.timeout(SECONDS_MAX)]),
    ],
)
"""A decorator that runs a test in both sizes. The test takes the argument `inputs`."""

RecordProperty = Callable[[str, object], None]
"""The type of pytest's fixture `record_property`."""

RSS_GROWTH_BYTES_MAX = 256 * 2**20
"""The greatest growth of a process, after any number of inputs. The growth by caches and by a fragmented heap stays
within this bound. If the process leaked every tenth of 10⁶ inputs of 3 KiB, its growth would exceed the bound."""


@contextmanager
def campaign(record_property: RecordProperty, *, surface: str, seed: int, inputs: int) -> Iterator[Random]:
    """Yield the random source of one run over a surface, report the run's size and seed, and assert that nothing
    leaked.

    `surface` is the name of the surface in the report of `make test-slow`. At the end no file descriptor may have
    stayed open, and the process may have grown by at most RSS_GROWTH_BYTES_MAX. Both are checked only on systems that
    have a /proc.
    """
    for name, value in (("surface", surface), ("seed", seed), ("inputs", inputs)):
        record_property(name, value)
    descriptors, rss_bytes = _open_descriptors(), _rss_bytes()
    yield Random(seed)
    gc.collect()
    assert _open_descriptors() <= descriptors, "a file descriptor leaked"
    growth_bytes = _rss_bytes() - rss_bytes
    record_property("rss_growth_bytes", growth_bytes)
    assert growth_bytes <= RSS_GROWTH_BYTES_MAX, f"the process grew by {growth_bytes} bytes over {inputs} inputs"


def _open_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - `os.listdir` is cheaper, and no paths are needed.
    except OSError:
        return 0


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
