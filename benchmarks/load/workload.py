"""The keys and values of a workload, in order: the same for every system, from a seed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from random import Random

from benchmarks.load.plan import KEY_BYTES, MIXED_PUT_SHARE

VALUES_MAX = 64
"""Different values, random bytes: nothing in the path can compress or intern them away."""

DRAWS_MAX = 131_072
"""Operations drawn in advance per run, so that drawing costs nothing while the clock runs; then they repeat."""

Operation = tuple[bytes, bool]
"""A key, and whether it is put (True) or got."""


def key_of(number: int) -> bytes:
    """16 bytes, in order of `number`."""
    return b"%0*d" % (KEY_BYTES, number)


def values_of(value_bytes: int, seed: int) -> list[bytes]:
    """The values of a run."""
    random = Random(seed)
    return [random.randbytes(value_bytes) for _ in range(VALUES_MAX)]


@functools.cache
def _drawing(work: str, keys: int, seed: int) -> list[Operation]:
    random = Random(seed)
    numbers = random.choices(range(keys), k=DRAWS_MAX)
    if work == "mixed":
        puts = [random.random() < MIXED_PUT_SHARE for _ in range(DRAWS_MAX)]
    else:
        puts = [work == "put"] * DRAWS_MAX
    return list(zip(map(key_of, numbers), puts, strict=True))


def drawn(work: str, keys: int, seed: int, connection: int) -> Iterator[Operation]:
    """Endless operations on uniformly drawn keys. Connections share one drawing and begin at different places."""
    operations = _drawing(work, keys, seed)
    start = connection * 7_919 % DRAWS_MAX
    return itertools.cycle(operations[start:] + operations[:start])


def filling(keys: int, connection: int, connections: int) -> Iterator[Operation]:
    """One put for each existing key, shared out over the connections."""
    return ((key_of(number), True) for number in range(connection, keys, connections))
