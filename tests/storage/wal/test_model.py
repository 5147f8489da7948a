"""Compares the log with a list, for any sequence of appends, cuts, resets, syncs, drops, crashes and restarts."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raft import Entry, EntryKind, LogPosition
from storage import StorageLimits
from tests.storage.support.builders import built, new_folder, opened, snapshot_header, synced, write
from tests.storage.support.power_loss_files import keep_some, tear_some

LIMITS = StorageLimits(segment_bytes_max=500, frame_bytes_max=1024, ballast_bytes=0)
WRITTEN_AHEAD = StorageLimits(segment_bytes_max=5_000, frame_bytes_max=1024, ballast_bytes=0, preallocate_bytes=2_000)


class LogAgainstAList(RuleBasedStateMachine):
    """`model` is the state that the log must show. `durable` is the state that remains after a crash. While a sync is
    open, a crash leaves the state `flight`. The files of this test carry out a submission immediately, and only its
    `done` waits.

    Entries at or below `committed` are never cut, as in Raft (docs/reference/specification.md#36-conflicts).
    """

    limits = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.files = new_folder()
        self.storage = opened(self.files, self.limits)
        self.model: dict[int, Entry] = {}
        self.start = 0  # The model has no entry at or below this index.
        self.term = 0
        self.committed = 0
        self.done: list[BaseException | None] = []
        self.flight: tuple[int, dict[int, Entry], int] | None = None
        self.durable: tuple[int, dict[int, Entry], int] = (0, {}, 0)

    @property
    def last_index(self) -> int:
        """The last index of the model."""
        return max(self.model, default=self.start)

    @rule(sizes=st.lists(st.sampled_from([0, 1, 7, 60, 400]), min_size=1, max_size=4), rise=st.integers(0, 2))
    def append(self, sizes: list[int], rise: int) -> None:
        """Append new entries, perhaps in a new term."""
        self._append(self.last_index + 1, sizes, rise, cut=False)

    @rule(data=st.data(), sizes=st.lists(st.sampled_from([1, 60]), max_size=3))
    def replace(self, data: st.DataObject, sizes: list[int]) -> None:
        """Cut some entries that are not committed, and append entries of a new term instead."""
        low = max(self.committed, self.start) + 1
        self._append(data.draw(st.integers(low, max(low, self.last_index + 1))), sizes, rise=1, cut=True)

    @precondition(lambda self: self.flight is None)
    @rule()
    def start_sync(self) -> None:
        """Begin a sync. The operations of the sync run immediately, and its `done` waits."""
        self.flight = (self.start, dict(self.model), self.term)
        self.done.clear()
        self.storage.log.sync(self.committed, self.done.append)

    @precondition(lambda self: self.flight is not None)
    @rule()
    def finish_sync(self) -> None:
        """End the sync. Everything that was appended before the sync began is durable now."""
        assert self.flight is not None
        self.files.run()
        assert self.done == [None]
        self.durable, self.flight = self.flight, None

    @precondition(lambda self: self.durable[1] and self.flight is None)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Commit the durable entries that are still in the log. No later step cuts them."""
        agreed = [index for index, each in self.durable[1].items() if self.model.get(index) == each]
        if agreed:
            self.committed = max(self.committed, data.draw(st.sampled_from(agreed)))

    @precondition(lambda self: self.flight is None and self.committed > self.start)
    @rule()
    def compact(self) -> None:
        """Make a snapshot at the committed index, and forget the entries that it covers."""
        at = self.model[self.committed]
        built(self.files, self.storage, snapshot_header(at.index, at.term))
        self.storage.log.drop_before(at.index + 1)
        self.storage.snapshots.drop_older()
        self.files.run()

    @precondition(lambda self: self.flight is None)
    @rule(ahead=st.integers(1, 5))
    def install(self, ahead: int) -> None:
        """Install a snapshot from far ahead. This drops the whole log."""
        at = LogPosition(self.last_index + ahead, max(self.term, 1))
        self.storage.log.append(write(term=at.term))
        built(self.files, self.storage, snapshot_header(at.index, at.term))
        synced(self.files, self.storage.log, write(reset=(at.index, at.term)))
        self.term, self.model, self.start, self.committed = at.term, {}, at.index, at.index
        self.durable = (self.start, {}, self.term)

    @rule(seed=st.integers(0, 1 << 16))
    def lose_power(self, seed: int) -> None:
        """The power is lost. Synced entries remain, and entries that were only appended are lost."""
        random = Random(seed)
        self.files = self.files.after_power_loss(keep_some(random), tear_some(random))
        self.storage = opened(self.files, self.limits, seed)
        log = self.storage.log
        found = log.read(log.first_index, log.last_index, 1 << 40) if log.last_index >= log.first_index else []
        self.durable, self.flight = self.flight or self.durable, None
        self.start, self.model, self.term = self.durable
        self.start = max(self.start, log.first_index - 1)  # Compacted entries may be gone.
        self.model = {index: each for index, each in self.model.items() if index > self.start}
        assert self.storage.hard_state.term == self.term
        assert {each.index: each for each in found if each.index > self.start} == self.model
        assert self.committed <= self.last_index

    @invariant()
    def says_what_the_list_says(self) -> None:
        """Compare the first and last indexes, the terms and every entry."""
        log = self.storage.log
        assert log.last_index == self.last_index
        assert self.storage.snapshots.latest().header.index >= log.first_index - 1
        low = max(self.start + 1, log.first_index)
        if low <= self.last_index:
            assert log.read(low, self.last_index, 1 << 40) == [self.model[i] for i in range(low, self.last_index + 1)]
        runs: list[LogPosition] = []
        for index in range(low, self.last_index + 1):
            if not runs or runs[-1].term != self.model[index].term:
                runs.append(LogPosition(index, self.model[index].term))
        if low == log.first_index:
            assert list(log.term_runs()) == runs

    def teardown(self) -> None:
        """After one more restart, the log must show the same state."""
        self.lose_power(0)

    def _append(self, first_index: int, sizes: list[int], rise: int, *, cut: bool) -> None:
        self.term = max(1, self.term + rise)
        new = [
            Entry(first_index + position, self.term, EntryKind.COMMANDS, bytes([position + 1]) * size)
            for position, size in enumerate(sizes)
        ]
        replace_from = first_index if cut else None
        self.storage.log.append(write(*new, term=self.term, replace_from=replace_from))
        self.model = {index: each for index, each in self.model.items() if index < first_index}
        self.model |= {each.index: each for each in new}


class LogWrittenAheadAgainstAList(LogAgainstAList):
    """The same model, but frames are written over preallocated zeroes."""

    limits = WRITTEN_AHEAD


LogAgainstAList.TestCase.settings = settings(max_examples=70, stateful_step_count=30, deadline=None)
LogWrittenAheadAgainstAList.TestCase.settings = LogAgainstAList.TestCase.settings
TestLogAgainstAList = LogAgainstAList.TestCase
TestLogWrittenAheadAgainstAList = LogWrittenAheadAgainstAList.TestCase
