"""The keys and values of a workload, in order. A seed determines them, so they are the same for every system."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from random import Random

from benchmarks.load.plan import KEY_BYTES, MIXED_PUT_SHARE

VALUES_MAX = 64
"""The number of different values.

The values are random bytes, so that no layer can save work by compressing or interning the values.
"""

DRAWS_MAX = 131_072
"""The number of operations that are drawn before a run, so that drawing takes no time during the measurement. A longer
run repeats these operations.
"""

Operation = tuple[bytes, bool]
"""A key, and True for a put or False for a get."""


def key_of(number: int) -> bytes:
    """Return the 16-byte key with this number. Keys sort in the order of their numbers."""
    return b"%0*d" % (KEY_BYTES, number)


def values_of(value_bytes: int, seed: int) -> list[bytes]:
    """Return the values of a run."""
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
    """Return endless operations on uniformly drawn keys.

    All connections use the same cyclic list of operations, but each connection starts at another operation.
    """
    operations = _drawing(work, keys, seed)
    start = connection * 7_919 % DRAWS_MAX
    return itertools.cycle(operations[start:] + operations[:start])


def filling(keys: int, connection: int, connections: int) -> Iterator[Operation]:
    """Return this connection's share of the fill, which puts each existing key once."""
    return ((key_of(number), True) for number in range(connection, keys, connections))
