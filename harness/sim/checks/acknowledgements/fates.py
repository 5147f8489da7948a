"""Compares the answers of members about accepted entries with the committed entries.

See docs/reference/specification.md#910-acknowledgement-levels.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.engine.errors import require
from kvstore import EntryFate

LOST_TOLD = "an answer said that an accepted write was lost"
COMMITTED_TOLD = "an answer said that an accepted write was committed"
LOST = "an accepted write was lost"
DEFINITE = (EntryFate.COMMITTED, EntryFate.LOST)


class FateChecker:
    """Remembers the answers about each entry (index, term)."""

    def __init__(self, safety: SafetyChecker, cover: Callable[[str], None]) -> None:
        self._safety, self._cover = safety, cover
        self._said: dict[tuple[int, int], EntryFate] = {}
        self.accepted: set[tuple[int, int]] = set()  # The entries that an answer reported as accepted.

    def told(self, index: int, term: int, fate: EntryFate) -> None:
        """Check a member's answer about an entry. There may be no entry with this `index` and `term`."""
        safety, key = self._safety, (index, term)
        words = f"({index}, {term}) is told to be {fate.name}, committed up to {safety.commit_index}"
        match fate:
            case EntryFate.COMMITTED:
                require(safety.is_committed(index, term), "an entry that an answer calls committed is committed", words)
                self._cover(COMMITTED_TOLD)
            case EntryFate.LOST:
                require(self.is_lost(index, term), "an entry that an answer calls lost is lost", words)
                self._cover(LOST_TOLD)
            case EntryFate.FORGOTTEN:
                require(index <= safety.commit_index, "only a decided entry is forgotten", words)
            case EntryFate.OPEN:
                pass
        if fate in DEFINITE:
            before = self._said.setdefault(key, fate)
            require(before is fate, "the final outcome of an entry never changes", f"{words}, before {before.name}")

    def cover_lost(self) -> None:
        """Cover a coverage point if any accepted entry was lost. Call this method at the end of a run."""
        if any(self.is_lost(index, term) for index, term in self.accepted):
            self._cover(LOST)

    def is_lost(self, index: int, term: int) -> bool:
        """True if another entry is committed at this index, or if no entry of this term can still be committed at it.

        The terms of a log never fall, so an entry of this term cannot follow a committed entry of a higher term.
        """
        safety = self._safety
        if index <= safety.commit_index:
            return safety.committed_term(index) != term
        return safety.committed_term(safety.commit_index) > term
