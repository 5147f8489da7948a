"""The workers of a run: their names, and how many operations they have carried out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvstore import Client

_RECENT_MAX = 64


class Worker:
    """One lane of a client: a sequence of operations, one at a time.

    After an unknown outcome, the lane must change its name.
    """

    def __init__(self, store: Client, name: str, lives: Iterator[int]) -> None:
        self.store = store
        self.session_id: int | None = None
        self._name, self._lives = name, lives
        self._life = next(lives)

    @property
    def client(self) -> str:
        """The value of the field `client` in the lane's next row."""
        return f"{self._name}.{self._life}"

    def begin_another_life(self) -> None:
        self._life = next(self._lives)


@dataclass(slots=True)
class Tally:
    """Approximate counts of the operations so far, for a display. The exact record is the history."""

    by_status: Counter[str] = field(default_factory=Counter)
    recent_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_MAX))

    @property
    def total(self) -> int:
        return self.by_status.total()
