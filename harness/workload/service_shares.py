"""The numbers of workers that use watches, leases, locks, ranges and consumer groups, in addition to other clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from harness.errors import BadInput
from harness.workload.named_numbers import parse_named_numbers

_WORDS = ("watches", "leases", "locks", "ranges", "consumers")
WORKERS_MAX = 1_000  # The limit per kind, because all workers run in the process of the harness.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceShares:
    """The numbers of workers of each kind.

    >>> ServiceShares.parse("watches=100,leases=4")
    ServiceShares(watches=100, leases=4, locks=0, ranges=0, consumers=0)
    """

    watches: int = 0
    leases: int = 0
    locks: int = 0
    ranges: int = 0
    consumers: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `--services`: for example `watches=100,leases=4,locks=4,ranges=2,consumers=3`, or `none`.

        Raises BadInput.
        """
        numbers: dict[str, int] = {}
        for word, number in parse_named_numbers(text, _WORDS, "--services").items():
            if not number.isdecimal() or not 0 <= int(number) <= WORKERS_MAX:
                raise BadInput(f"--services: {number!r} is not a number of workers", f"it goes from 0 to {WORKERS_MAX}")
            numbers[word] = int(number)
        return cls(**numbers)

    def __bool__(self) -> bool:
        return any(getattr(self, word) for word in _WORDS)

    def __str__(self) -> str:
        return ",".join(f"{word}={getattr(self, word)}" for word in _WORDS if getattr(self, word)) or "none"


NO_SERVICES = ServiceShares()
