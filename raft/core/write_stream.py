"""The ordered write stream: it numbers the log writes, and knows how much of the log each write makes durable.

All changes since the last `take` become one `LogWrite`. Entries may be cut while the write that contains them is still
under way. So a cut lowers every `DurabilityClaim` that is above the remaining log.

See docs/reference/specification.md#3-order-of-durability.
"""

from __future__ import annotations

from collections import deque

from raft.interfaces import LogWrite
from raft.types import Entry, HardState, LogPosition

DurabilityClaim = tuple[int, int]
"""(sequence, index): once the write `sequence` is durable, the log is durable up to `index`."""


class WriteStream:
    """Collects the changes of the next `LogWrite`, and tracks how far the log is durable."""

    def __init__(self, *, durable_index: int) -> None:
        self.durable_index = durable_index
        self.durable_sequence = 0
        self.issued_sequence = 0  # The last write that was taken.
        self.pending = False  # True if there are changes that no `LogWrite` carries yet.
        self._claims: deque[DurabilityClaim] = deque()  # The claims are in rising order of sequence and index.
        # The last write with a new term, a vote or a reset. Every message waits for this write.
        self.barrier_sequence = 0
        self._hard_state_changed = False
        self._reset: LogPosition | None = None
        self._replace_from: int | None = None
        self._entries: list[Entry] = []

    @property
    def latest_sequence(self) -> int:
        """The number of the write after which every change made so far is durable."""
        return self.issued_sequence + 1 if self.pending else self.issued_sequence

    def sequence_for(self, index: int) -> int:
        """The number of the write after which term, vote and the log up to `index` are durable. This write may be
        durable already."""
        if index <= self.durable_index:
            return self.barrier_sequence
        for sequence, claimed_index in self._claims:
            if claimed_index >= index:
                return max(sequence, self.barrier_sequence)
        raise AssertionError(f"index {index} is beyond everything that was appended: {list(self._claims)}")

    @property
    def wants_state(self) -> bool:
        """True if the term or the vote has changed since the last call of `take`, so that the next call must pass
        both."""
        return self._hard_state_changed

    def change_hard_state(self) -> None:
        """Note that the term or the vote has changed. The caller passes the new values to `take`."""
        self._hard_state_changed = self.pending = True
        self.barrier_sequence = self.issued_sequence + 1

    def append(self, entries: list[Entry]) -> None:
        """Append entries to the log."""
        assert entries, "an append without entries"
        if self._entries:
            assert entries[0].index == self._entries[-1].index + 1, (entries[0], self._entries[-1])
        self._entries.extend(entries)
        self.pending = True
        self._add_claim(entries[-1].index)

    def truncate_from(self, index: int) -> None:
        """Cut the entries from `index` on. The entries that replace the cut entries are part of the same write.

        See docs/reference/specification.md#34-cut-and-replacement.
        """
        if self._entries and self._entries[0].index <= index:
            del self._entries[index - self._entries[0].index :]  # The store has never received these entries.
        elif self._reset is None:
            self._replace_from = index if self._replace_from is None else min(index, self._replace_from)
            self._entries.clear()
        else:
            assert index == self._reset.index + 1, (index, self._reset)
        self.pending = bool(self._hard_state_changed or self._entries or self._reset or self._replace_from)
        self.durable_index = min(self.durable_index, index - 1)
        self._claims = deque((sequence, min(claimed, index - 1)) for sequence, claimed in self._claims)

    def reset(self, position: LogPosition) -> None:
        """Replace the whole log by a durable snapshot at `position`.

        See docs/reference/specification.md#56-installing-a-snapshot.
        """
        self._reset, self._replace_from, self.pending = position, None, True
        self._entries.clear()
        self._claims.clear()
        self.durable_index = position.index
        self.barrier_sequence = self.issued_sequence + 1

    def take(self, hard_state: HardState | None) -> LogWrite | None:
        """Return all gathered changes as the next write of the stream, or None if there are none.

        `hard_state` must be given if `wants_state` is True.
        """
        if not self.pending:
            return None
        assert hard_state is not None or not self._hard_state_changed, "the term and the vote are to be written"
        self.issued_sequence += 1
        write = LogWrite(
            sequence=self.issued_sequence,
            hard_state=hard_state if self._hard_state_changed else None,
            reset=self._reset,
            replace_from=self._replace_from,
            entries=tuple(self._entries),
        )
        self._hard_state_changed, self._reset, self._replace_from = False, None, None
        self._entries.clear()
        self.pending = False
        return write

    def persisted(self, sequence: int) -> None:
        """Note that every write up to `sequence` is durable."""
        assert sequence <= self.issued_sequence, (sequence, self.issued_sequence)
        if sequence > self.durable_sequence:
            self.durable_sequence = sequence
        while self._claims and self._claims[0][0] <= sequence:
            index = self._claims.popleft()[1]
            if index > self.durable_index:
                self.durable_index = index

    def _add_claim(self, index: int) -> None:
        sequence = self.issued_sequence + 1
        if self._claims and self._claims[-1][0] == sequence:
            self._claims.pop()
        self._claims.append((sequence, index))
