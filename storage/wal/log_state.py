"""The logical state of a log: its first and last index, its terms, its hard state, and the rules for each write."""

from __future__ import annotations

from collections.abc import Sequence

from raft import HardState, LogPosition


class LogState:
    """The first and last index of a log, its terms as runs of equal terms, and the hard state in force.

    `start` is the position right before the first entry. If the entry at `start` was dropped, its term is unknown, and
    the term of `start` is 0. An unknown term is never compared with other terms.
    """

    def __init__(self, start: LogPosition, hard_state: HardState) -> None:
        self.start = start
        self.last_index = start.index
        self.end = start  # The position of the last entry; `start` if there is no entry.
        self.hard_state = hard_state
        self.runs: list[LogPosition] = []
        self.configuration_indexes: list[int] = []  # The callers of `apply` add indexes here.

    @property
    def first_index(self) -> int:
        """The index of the oldest entry; `last_index + 1` if there is none."""
        return self.start.index + 1

    def term_at(self, index: int) -> int:
        """The term at `index`; 0 if the term is unknown. The index of `start` is allowed, too. Cost: O(runs), from the
        end."""
        assert self.start.index <= index <= self.last_index, (index, self.start, self.last_index)
        for run in reversed(self.runs):
            if run.index <= index:
                return run.term
        return self.start.term

    def terms(self, first_index: int, last_index: int) -> list[int]:
        """The terms of the entries from `first_index` to `last_index`, one per entry. Cost: O(entries + runs)."""
        assert self.first_index <= first_index <= last_index <= self.last_index, (first_index, last_index, self)
        found: list[int] = []
        end = last_index + 1
        for run in reversed(self.runs):
            if run.index < end:
                begin = max(run.index, first_index)
                found[:0] = [run.term] * (end - begin)
                end = begin
            if end == first_index:
                break
        return found

    def apply(
        self,
        hard_state: HardState | None,
        reset: LogPosition | None,
        replace_from: int | None,
        first_index: int,
        terms: Sequence[int],
    ) -> str | None:
        """Apply one log write, in the order of the fields of `LogWrite`. If the write is impossible, return the reason.
        The caller must not use the state after an impossible write.

        See docs/reference/specification.md#46-order-of-entries.
        """
        if hard_state is not None:
            if hard_state.term < self.hard_state.term:
                return f"the term falls from {self.hard_state.term} to {hard_state.term}"
            if hard_state.term == self.hard_state.term and self.hard_state.voted_for not in (
                None,
                hard_state.voted_for,
            ):
                return f"the vote of term {hard_state.term} changes"
            self.hard_state = hard_state
        if reset is not None:
            if reset.term > self.hard_state.term:
                return f"the log is reset to term {reset.term} in term {self.hard_state.term}"
            self.start, self.last_index = reset, reset.index
            self.runs.clear()
            self.configuration_indexes.clear()
        elif replace_from is not None:
            if not 1 <= replace_from <= self.last_index + 1:
                return f"entries are replaced from {replace_from} on, behind the end at {self.last_index}"
            self._truncate(replace_from)
        problem = self._extend(first_index, terms) if terms else None
        self.end = LogPosition(self.last_index, self.runs[-1].term if self.runs else self.start.term)
        return problem

    def _truncate(self, from_index: int) -> None:
        if from_index < self.first_index:  # Compaction has dropped the entries before `from_index`.
            self.start = LogPosition(from_index - 1, 0)
        while self.runs and self.runs[-1].index >= from_index:
            self.runs.pop()
        while self.configuration_indexes and self.configuration_indexes[-1] >= from_index:
            self.configuration_indexes.pop()
        self.last_index = from_index - 1

    def _extend(self, first_index: int, terms: Sequence[int]) -> str | None:
        if first_index != self.last_index + 1:
            return f"entry {first_index} follows entry {self.last_index}"
        term = self.runs[-1].term if self.runs else self.start.term
        for index, entry_term in enumerate(terms, start=first_index):
            if entry_term != term or not self.runs:
                if entry_term < term:
                    return f"entry {index} of term {entry_term} follows one of term {term}"
                term = entry_term
                self.runs.append(LogPosition(index, term))
        if term > self.hard_state.term:
            return f"an entry of term {term} in term {self.hard_state.term}"
        self.last_index += len(terms)
        return None

    def drop_before(self, first_index: int) -> None:
        """Forget the entries below `first_index`, which is at most `last_index + 1`."""
        if first_index <= self.first_index:
            return
        self.start = LogPosition(first_index - 1, self.term_at(first_index - 1))
        while self.configuration_indexes and self.configuration_indexes[0] < first_index:
            self.configuration_indexes.pop(0)
        while self.runs and (self.runs[1].index if len(self.runs) > 1 else self.last_index + 1) <= first_index:
            self.runs.pop(0)
        if self.runs and self.runs[0].index < first_index:
            self.runs[0] = LogPosition(first_index, self.runs[0].term)
