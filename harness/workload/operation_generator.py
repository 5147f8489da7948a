"""Generates the operations of clients as a seeded stream over a few contended keys. Every written value is unique."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from harness.workload.read_modes import BY_ROUND, PlannedRead, ReadModes
from kvstore import Command, Compare, CompareAndSet, Comparison, Delete, Get, Operation, Put, Range, Target, Txn

KEYS_MAX = 10_000
LOCAL_READ_SHARE = 0.2  # The share of gets that are local if the stream has no read modes.
_HOT_SHARE = 0.5  # Half of all operations go to a quarter of the keys, because contention finds bugs.
_WEIGHTS = {"put": 30, "get": 38, "delete": 5, "cas": 15, "range": 4, "txn": 8}
_KINDS, _CUMULATIVE = (
    list(_WEIGHTS),
    [sum(list(_WEIGHTS.values())[: i + 1]) for i in range(len(_WEIGHTS))],
)


def key_names(count: int) -> list[bytes]:
    """Return the keys of a run.

    Two keys are difficult on purpose: one is not UTF-8, and the other begins with `base64:`.
    """
    keys = [f"key-{number:03d}".encode() for number in range(count)]
    for place, awkward in ((5, b"\xffkey-005"), (6, b"base64:key-006")):
        if place < count:
            keys[place] = awkward
    return keys


@dataclass(frozen=True, slots=True)
class Seen:
    """The newest record of a key that any client has seen. The next compare-and-set of the key expects this record."""

    value: bytes
    mod_revision: int


class View:
    """The newest record of each key that any client of the run has seen.

    A record may be stale. A comparison with a stale record must fail.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, Seen] = {}
        self.revision = 0  # The highest revision that any client has seen.

    def saw(self, key: bytes, value: bytes, mod_revision: int) -> None:
        self.revision = max(self.revision, mod_revision)
        before = self._seen.get(key)
        if before is None or before.mod_revision < mod_revision:
            self._seen[key] = Seen(value, mod_revision)

    def gone(self, key: bytes) -> None:
        self._seen.pop(key, None)

    def of(self, key: bytes) -> Seen | None:
        return self._seen.get(key)


@dataclass(frozen=True, slots=True)
class Planned:
    """One operation to carry out.

    `mode`: how a read is requested, if the stream has read modes. `local_of`: without read modes, the member that
    answers a local read (an index, modulo the number of members); None: the read is not local.
    """

    command: Command
    local_of: int | None = None
    mode: PlannedRead = BY_ROUND


class OperationSource:
    """The operations of one worker, which depend on (seed, worker) and, if they expect a record, on `view`.

    `modes`: the modes in which reads are requested; None: a fifth of the gets are local, and all other reads are
    linearizable by a round of heartbeats. `first`, `end`: listings show only keys from `first` on,
    and before `end`; `end` None: there is no upper bound.
    """

    def __init__(
        self,
        *,
        seed: int,
        worker: int,
        keys: Sequence[bytes],
        view: View,
        modes: ReadModes | None = None,
        first: bytes = b"",
        end: bytes | None = None,
    ) -> None:
        self._random = Random(f"workload {seed} {worker}")
        self._first, self._end = first, end
        self._modes, self._modes_random = modes, Random(f"ways {seed} {worker}")
        self._worker, self._keys, self._view = worker, keys, view
        self._written = 0

    def next(self) -> Planned:
        """Draw the next operation of this worker."""
        planned = self._next()
        if self._modes is not None and isinstance(planned.command, Get | Range):
            return Planned(planned.command, mode=self._modes.next(planned.command, self._modes_random))
        return planned

    def _next(self) -> Planned:
        match self._random.choices(_KINDS, cum_weights=_CUMULATIVE)[0]:
            case "put":
                return Planned(Put(self._key(), self._value()))
            case "get":
                local = self._random.random() < LOCAL_READ_SHARE
                return Planned(Get(self._key()), self._random.randrange(2**16) if local else None)
            case "delete":
                return Planned(Delete(self._key()))
            case "cas":
                return Planned(self._compare_and_set())
            case "range":
                return Planned(self._range())
            case _:
                return Planned(self._txn())

    def _compare_and_set(self) -> CompareAndSet:
        """Return a compare-and-set that expects a value, a revision, or the absence of the key."""
        key, value = self._key(), self._value()
        seen = self._view.of(key)
        if seen is None or self._random.random() < 0.1:
            return CompareAndSet(key, value, 0)
        return CompareAndSet(key, value, seen.value if self._random.random() < 0.5 else seen.mod_revision)

    def _range(self) -> Range:
        """Return a range between two keys, or of a prefix.

        Some ranges are read at the newest revision that a client has seen, like the later pages of a listing.
        """
        random = self._random
        start, end = sorted((self._key(), self._key()))
        if random.random() < 0.15:
            prefix = start[:-1]
            return self._bounded(Range(start=prefix, end=prefix[:-1] + bytes([prefix[-1] + 1])))
        listing = Range(
            start=b"" if random.random() < 0.2 else start,
            end=None if random.random() < 0.2 or start == end else end,
            revision=self._view.revision if random.random() < 0.1 else 0,
            limit=random.choice((0, 0, 3)),
            reverse=random.random() < 0.3,
            keys_only=random.random() < 0.1,
            count_only=random.random() < 0.1,
        )
        return self._bounded(listing)

    def _bounded(self, listing: Range) -> Range:
        first, end = self._first, self._end
        if end is not None and (listing.end is None or listing.end > end):
            listing = replace(listing, start=first if listing.start >= end else listing.start, end=end)
        if listing.start >= first:
            return listing
        return replace(
            listing, start=first, end=end if listing.end is not None and listing.end <= first else listing.end
        )

    def _txn(self) -> Txn:
        """Return a transaction that compares one or two keys.

        If the comparisons hold, the transaction changes both keys.

        Otherwise the transaction reads both keys, or changes one of them and reads a range.
        """
        first, second = self._key(), self._key()
        compares = [self._compare(first)]
        if self._random.random() < 0.2:
            compares.append(self._compare(second))
        success: list[Operation] = [Put(first, self._value()), Get(first)]
        if second != first:  # No key is written twice (docs/reference/specification.md#84-transactions).
            success.append(Delete(second) if self._random.random() < 0.2 else Put(second, self._value()))
        failure: tuple[Operation, ...] = (Get(first), Get(second))
        if self._random.random() < 0.2:
            failure = (Put(second, self._value()), self._bounded(Range(limit=3)))
        return Txn(tuple(compares), tuple(success), failure)

    def _compare(self, key: bytes) -> Compare:
        """Return a comparison: usually equality with the newest known record, and sometimes inequality or order."""
        random, seen = self._random, self._view.of(key)
        if random.random() < 0.2:
            target = random.choice((Target.VERSION, Target.CREATE_REVISION, Target.MOD_REVISION))
            comparison = random.choice((Comparison.NOT_EQUAL, Comparison.LESS, Comparison.GREATER))
            return Compare(key, target, comparison, seen.mod_revision if seen and random.random() < 0.7 else 1)
        if seen is None:
            return Compare(key, Target.VERSION, Comparison.EQUAL, 0)
        if random.random() < 0.5:
            return Compare(key, Target.VALUE, Comparison.EQUAL, seen.value)
        return Compare(key, Target.MOD_REVISION, Comparison.EQUAL, seen.mod_revision)

    def _key(self) -> bytes:
        hot = max(1, len(self._keys) // 4)
        return self._keys[self._random.randrange(hot if self._random.random() < _HOT_SHARE else len(self._keys))]

    def _value(self) -> bytes:
        """Return a value that is unique in the run (worker and number).

        A few values are not UTF-8, or begin with `base64:`.
        """
        self._written += 1
        name = f"w{self._worker}-{self._written}".encode()
        if self._written % 41 == 0:
            return b"\xff" + name
        return b"base64:" + name if self._written % 43 == 0 else name
