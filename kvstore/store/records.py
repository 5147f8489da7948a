"""The map from key to record, split into many small dicts (parts), because Python copies a dict when it grows.

Copying a single dict takes 30, 70 and 120 ms when it exceeds 0.35, 0.7 and 1.4 million keys, and twice as long while
other processes are busy. Python cannot reserve the size of a dict in advance. A part is copied in 0.5 ms, or in 5 ms if
the system provides memory slowly. The parts have unequal shares of all keys, so they grow at different times.

A key lies in one slot of this map. The slot depends on the hash of the key, which differs between processes, so the
order of keys in this map must never be visible outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

RecordItem = tuple[bytes, int, int, int, int]
"""(value, create_revision, mod_revision, version, lease_id)"""

SHARES = tuple(range(8, 16))
"""The possible numbers of slots of a part: 8 to 15. For each number, `PARTS_OF_A_SHARE` parts have this number of
slots."""

PARTS_OF_A_SHARE = 16

SLOTS = PARTS_OF_A_SHARE * sum(SHARES)


class Records:
    """A map of records with methods of a dict. The record of a key is in the dict `slots[hash(key) % SLOTS]`, which hot
    loops access directly."""

    __slots__ = ("parts", "slots")

    def __init__(self) -> None:
        self.parts: list[dict[bytes, RecordItem]] = [{} for _ in range(PARTS_OF_A_SHARE * len(SHARES))]
        self.slots = [part for part, share in zip(self.parts, SHARES * PARTS_OF_A_SHARE, strict=True)
                      for _ in range(share)]  # fmt: skip

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __contains__(self, key: bytes) -> bool:
        return key in self.slots[hash(key) % SLOTS]

    def __getitem__(self, key: bytes) -> RecordItem:
        return self.slots[hash(key) % SLOTS][key]

    def __setitem__(self, key: bytes, record: RecordItem) -> None:
        self.slots[hash(key) % SLOTS][key] = record

    def part_of(self, key: bytes) -> dict[bytes, RecordItem]:
        """Return the part to which `key` belongs, even if the key has no record."""
        return self.slots[hash(key) % SLOTS]

    def get(self, key: bytes) -> RecordItem | None:
        """Return the record of `key`, or None."""
        return self.slots[hash(key) % SLOTS].get(key)

    def pop(self, key: bytes) -> RecordItem | None:
        """Remove the record of `key`. Returns the record, or None if there is none."""
        return self.slots[hash(key) % SLOTS].pop(key, None)

    def items(self) -> Iterator[tuple[bytes, RecordItem]]:
        """Yield every key with its record, in no defined order."""
        return chain.from_iterable(part.items() for part in self.parts)

    def take_apart(self) -> list[dict[bytes, RecordItem]]:
        """Return all parts, so that they can be freed one by one. Afterwards, the map must not be used."""
        self.slots.clear()
        return self.parts
