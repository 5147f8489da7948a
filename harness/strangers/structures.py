"""Makes CBOR items, and small changes of given items, that a faulty or hostile program might send."""

from __future__ import annotations

from random import Random

import cbor2

Item = object
"""A value that `cbor2.dumps` takes: integers, floats, bytes, text, lists, maps, booleans, None, undefined, tags."""

INTEGERS = (
    0, 1, 2, 3, 5, 7, 23, 24, 100, 255, 256, 1_000, 65_535, 65_536, 2**31 - 1, 2**31, 2**32, 2**40, 2**53,
    2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**200, -1, -2, -24, -25, -256, -(2**31), -(2**63), -(2**63) - 1,
)  # fmt: skip
"""Small integers, and integers near the borders between CBOR encodings of different lengths."""

FLOATS = (0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e308, 5e-324)
TEXTS = ("", "a", "s1", "s2", "key", "\x00", "\n", "\x1b[2J", "é", "\U0001f600", "a" * 255, "a" * 5_000, "a..b:7101")
BYTES = (b"", b"a", b"k", b"\x00", b"\xff" * 16, bytes(16), b"x" * 300, b"x" * 70_000)
DEPTH_MAX = 4
WIDTH_MAX = 6


class Structures:
    """Makes and changes items at random. The same state of `random` gives the same items."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def item(self, depth: int = 0) -> Item:
        """Return a random item. `depth`: the number of items that contain the new item."""
        random = self._random
        kind = random.randrange(12 if depth < DEPTH_MAX else 8)
        match kind:
            case 0 | 1:
                return random.choice(INTEGERS)
            case 2:
                return random.randrange(-10, 200)
            case 3:
                return random.choice(TEXTS)
            case 4:
                return random.choice(BYTES)
            case 5:
                return random.choice((True, False, None))
            case 6:
                return random.choice(FLOATS)
            case 7:
                return random.randbytes(random.randrange(40))
            case 8 | 9:
                return [self.item(depth + 1) for _ in range(random.randrange(WIDTH_MAX))]
            case 10:
                return {self._key(): self.item(depth + 1) for _ in range(random.randrange(WIDTH_MAX))}
            case _:
                return random.choice((cbor2.CBORTag(random.randrange(300), self.item(depth + 1)), cbor2.undefined))

    def changed(self, item: Item, changes: int = 1) -> Item:
        """Return a copy of `item` with this number of random changes.

        A change replaces, removes, doubles, swaps or nests a part, or adds a number to an integer.
        """
        for _ in range(changes):
            item = self._changed_once(item)
        return item

    def changed_bytes(self, data: bytes) -> bytes:
        """Return a copy of `data` with one random change.

        The change flips a bit, removes, doubles or overwrites a part, inserts bytes, or cuts off the end.
        """
        random = self._random
        if not data:
            return random.randbytes(random.randrange(20))
        start = random.randrange(len(data))
        end = min(len(data), start + random.choice((1, 1, 2, 4, 8, 64)))
        match random.randrange(7):
            case 0:
                return data[:start] + bytes((data[start] ^ (1 << random.randrange(8)),)) + data[start + 1 :]
            case 1:
                return data[:start] + data[end:]
            case 2:
                return data[:end] + data[start:]
            case 3:
                return data[:start] + random.randbytes(end - start) + data[end:]
            case 4:
                return data[:start] + random.randbytes(random.randrange(1, 10)) + data[start:]
            case 5:
                return data[:start]
            case _:
                return data[:start] + random.choice((b"\x00", b"\xff")) * (end - start) + data[end:]

    def pieces(self, data: bytes) -> list[bytes]:
        """Split `data` into one to four pieces, as a socket might deliver it."""
        cuts = sorted(self._random.randrange(len(data) + 1) for _ in range(self._random.randrange(4)))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def _key(self) -> Item:
        return self._random.choice((self._random.choice(INTEGERS), self._random.choice(TEXTS)))

    def _changed_once(self, item: Item) -> Item:
        random = self._random
        if isinstance(item, dict) and item and random.random() < 0.8:
            key = random.choice(list(item))
            rest = {each: value for each, value in item.items() if each != key}
            return random.choice((rest, {**rest, key: self._changed_once(item[key])}, {**rest, self._key(): item[key]}))
        if isinstance(item, (list, tuple)) and item and random.random() < 0.85:
            items, place = list(item), random.randrange(len(item))
            match random.randrange(8):
                case 0:
                    del items[place]
                case 1:
                    items.insert(place, self.item(1))
                case 2:
                    items.insert(place, items[place])
                case 3:
                    other = random.randrange(len(items))
                    items[place], items[other] = items[other], items[place]
                case _:
                    items[place] = self._changed_once(items[place])
            return items
        if type(item) is int and random.random() < 0.4:
            return item + random.choice((-1, 1, 2, -(2**32), 2**32))
        if isinstance(item, bytes) and random.random() < 0.4:
            return self.changed_bytes(item)
        return random.choice(([item], self.item(1), self.item(1), self.item(1)))
