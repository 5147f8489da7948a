"""The terms and the hard state of one log, as known to an observer outside the member."""

from __future__ import annotations

from raft import HardState, LogPosition, LogWrite


class ShadowLog:
    """The terms of one log.

    A snapshot replaces the entries up to `base`, and `terms` has the terms of later entries.
    """

    __slots__ = ("base", "hard_state", "terms")

    def __init__(self, base: LogPosition, terms: list[int], hard_state: HardState) -> None:
        self.base, self.terms, self.hard_state = base, terms, hard_state

    def copy(self) -> ShadowLog:
        """An independent copy."""
        return ShadowLog(self.base, list(self.terms), self.hard_state)

    @property
    def last_index(self) -> int:
        """The index of the last entry."""
        return self.base.index + len(self.terms)

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index`; None if the log does not contain the entry."""
        place = index - self.base.index
        if place > 0:
            return self.terms[place - 1] if place <= len(self.terms) else None
        return self.base.term if place == 0 else None

    def carry_out(self, write: LogWrite) -> None:
        """Apply one write of the node to its log."""
        if write.hard_state is not None:
            self.hard_state = write.hard_state
        if write.reset is not None:
            self.base, self.terms = write.reset, []
        elif write.replace_from is not None:
            del self.terms[max(0, write.replace_from - self.base.index - 1) :]
        for entry in write.entries:
            self.terms.append(entry.term)

    def tail(self, first_index: int) -> list[int]:
        """Return the terms from `first_index` on."""
        return self.terms[max(0, first_index - self.base.index - 1) :]
