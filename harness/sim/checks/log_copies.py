"""The copies of the log that one member has, in memory and on its disk, as an outside observer knows them.

`ShadowLogs` learns of every write that the node submits to its log, and of every sync that the disk has really done. So
the checks of durability do not depend on reports of the node or the log. After a crash, recovery must find all synced
writes, and may find the first few of the other writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.sim.checks.cluster import SafetyChecker
from harness.sim.engine.errors import broken, require
from harness.sim.world.shadow_log import ShadowLog
from raft import Entry, HardState, LogPosition, LogStore, LogWrite

LOG_BYTES_MAX = 1 << 40
"""The limit of one read of a log, in bytes. Simulated logs are small, so no read reaches it."""


class ShadowLogs:
    """The shadow logs of one member over all its processes: `memory` and `durable`."""

    def __init__(self, node_id: str, safety: SafetyChecker) -> None:
        self.node_id, self._safety = node_id, safety
        self.durable = ShadowLog(LogPosition(0, 0), [], HardState())
        self.memory = self.durable.copy()
        self.waiting: list[LogWrite] = []

    def append(self, write: LogWrite) -> None:
        """Check and record a write that the node submits to its log."""
        memory, safety = self.memory, self._safety
        self._check_hard_state(write.hard_state)
        self._check_cut(write)
        self.waiting.append(write)
        memory.carry_out(
            LogWrite(sequence=0, hard_state=write.hard_state, reset=write.reset, replace_from=write.replace_from)
        )
        for entry in write.entries:
            if entry.index != memory.last_index + 1:
                broken("no gap in a log", f"{self.node_id} appends {entry.index} after {memory.last_index}")
            before = memory.term_at(entry.index - 1)
            assert before is not None
            if not before <= entry.term <= memory.hard_state.term:
                broken("entry terms never fall", self.node_id, entry)
            safety.wrote(self.node_id, entry, before)
            memory.terms.append(entry.term)

    def was_read(self, entries: Sequence[Entry]) -> None:
        """Check entries that the node has read from its log: no later entry may have replaced them."""
        for entry in entries:
            term = self.memory.term_at(entry.index)
            require(
                term in (None, entry.term) and self._safety.has_written(entry),
                "an entry that is read back is the one that was written",
                f"{self.node_id} read ({entry.index}, {entry.term}), in force is term {term}",
            )

    def _check_hard_state(self, new: HardState | None) -> None:
        if new is None:
            return
        old = self.memory.hard_state
        require(new.term >= old.term, "terms never go back", self.node_id, old, new)
        if new.term == old.term and old.voted_for is not None:
            require(new.voted_for == old.voted_for, "one vote per term", self.node_id, old, new)

    def _check_cut(self, write: LogWrite) -> None:
        index = write.replace_from
        if index is None or index > self.memory.last_index:
            return
        term, own = self.memory.term_at(index), (write.hard_state or self.memory.hard_state).term
        # A member whose term is below the term in which the entry was committed was not counted as a holder. An earlier
        # leader may still overwrite the entry on this member (Raft §5.4.2). The member later receives the entry again.
        is_kept = (
            term is not None and self._safety.is_committed(index, term) and own >= self._safety.committed_in(index)
        )
        require(
            term is not None and not is_kept,
            "a committed entry is never cut",
            f"{self.node_id} cuts from {index}, term {term}; committed up to {self._safety.commit_index}",
        )

    def synced(self, count: int) -> None:
        """Record that the disk has synced the oldest `count` of the waiting writes."""
        for write in self.waiting[:count]:
            self.durable.carry_out(write)
        del self.waiting[:count]

    def holds_durably(self, index: int, term: int) -> bool:
        """True if the committed entry (index, term) would survive any crash of this member."""
        return index <= self.durable.base.index or self.durable.term_at(index) == term

    def recovered(self, log: LogStore, hard_state: HardState, snapshot: LogPosition) -> str:
        """Check the state that recovery found after a crash. From then on, the recovered state counts as durable.

        Returns a coverage point, or an empty string.
        """
        candidate = self.durable.copy()
        kept = self._whole_in(candidate, log, hard_state, snapshot)
        if kept is None:
            broken(
                "recovery finds everything that was promised",
                f"{self.node_id} was sure of {describe(self.durable)}, might have had {describe(candidate)},",
                f"and recovered {log.first_index}..{log.last_index} {log.term_runs()} {hard_state} snapshot {snapshot}",
            )
        lost = len(self.waiting) - kept
        self.waiting.clear()
        if is_behind(candidate, snapshot):
            candidate.base, candidate.terms = snapshot, []
        candidate.hard_state = hard_state
        self._check_contents(log, candidate)
        self.durable, self.memory = candidate, candidate.copy()
        return "a crash lost un-synced writes" if lost else "a crash kept un-synced writes" if kept else ""

    def are_all_in(self, log: LogStore, hard_state: HardState, snapshot: LogPosition) -> bool:
        """Return True if recovery found all durable data. A loss alone is not a violation.

        This method is for disks that may have lost entries because of a lie. The remaining entries on such a disk must
        still be entries that were written, because checksums reveal all others.
        """
        found = ShadowLog(LogPosition(log.first_index - 1, 0), expand(log.term_runs(), log.last_index), HardState())
        self._check_contents(log, found, first_index=log.first_index + 1)
        return self._whole_in(self.durable.copy(), log, hard_state, snapshot) is not None

    def _whole_in(
        self, candidate: ShadowLog, log: LogStore, hard_state: HardState, snapshot: LogPosition
    ) -> int | None:
        """Change `candidate` step by step into the state that recovery found.

        Returns how many of the waiting writes are complete in this state; None if recovery found no possible state.
        """
        terms = expand(log.term_runs(), log.last_index)
        for kept in self._might_be(candidate):
            if holds(candidate, terms, log, snapshot) and self._may_be_in_force(kept, hard_state, snapshot):
                return kept
        return None

    def _might_be(self, candidate: ShadowLog) -> Iterator[int]:
        """Turn `candidate` into each state that a crash may leave, one after the other.

        Yields how many writes are complete in each state. A crash keeps writes in order. One sync may write several
        frames, so a crash may keep only the first entries of a write. If the write also cuts the log, the crash keeps
        the cut together with the first entry (docs/reference/specification.md#34-cut-and-replacement).
        """
        yield 0
        for count, write in enumerate(self.waiting):
            candidate.carry_out(replace(write, entries=write.entries[:1]))
            yield count + (len(write.entries) <= 1)
            for place, entry in enumerate(write.entries[1:], start=2):
                candidate.terms.append(entry.term)
                yield count + (place == len(write.entries))

    def _may_be_in_force(self, whole: int, found: HardState, snapshot: LogPosition) -> bool:
        """True if recovery found the term and vote of the last complete write, or of a later write.

        Term and vote are written with entries, or before them.

        See docs/reference/specification.md#33-term-and-vote-come-first.
        """
        state = self.durable.hard_state
        allowed = []
        for count, write in enumerate([LogWrite(sequence=0), *self.waiting]):
            state = write.hard_state or state
            if count >= whole:
                allowed.append((state.term, state.voted_for))
        if (found.term, found.voted_for) in allowed:
            return True
        # The term may also be the term of the snapshot: a member that has an entry of a term knows the term, even if
        # the entry is only in a snapshot.
        return found == replace(found, term=snapshot.term, voted_for=None) and allowed[0][0] < snapshot.term

    def _check_contents(self, log: LogStore, shadow: ShadowLog, first_index: int = 0) -> None:
        """Check log matching again for the entries that are read back, which must be the entries that were written."""
        first_index = max(first_index, log.first_index)
        if first_index > log.last_index:
            return
        for entry in log.read(first_index, log.last_index, LOG_BYTES_MAX):
            before = shadow.term_at(entry.index - 1)
            if before is not None:
                self._safety.wrote(self.node_id, entry, before)


def expand(runs: Sequence[LogPosition], last_index: int) -> list[int]:
    """Turn runs of terms into one term per entry."""
    terms: list[int] = []
    for place, run in enumerate(runs):
        end = runs[place + 1].index if place + 1 < len(runs) else last_index + 1
        terms.extend([run.term] * (end - run.index))
    return terms


def is_behind(shadow: ShadowLog, snapshot: LogPosition) -> bool:
    """True if the log ends before the snapshot's index, or has another term at this index. A start drops such a log.

    See docs/reference/specification.md#55-choice-at-start.
    """
    if snapshot.index < shadow.base.index:
        return False
    return shadow.term_at(snapshot.index) != snapshot.term


def holds(shadow: ShadowLog, terms: list[int], log: LogStore, snapshot: LogPosition) -> bool:
    """True if the recovered log has exactly the entries of `shadow`, or was dropped for a newer snapshot."""
    if is_behind(shadow, snapshot):
        return log.last_index == snapshot.index and not terms
    return log.last_index == shadow.last_index and shadow.tail(log.first_index) == terms


def describe(shadow: ShadowLog) -> str:
    """Return a description of the log for an error message, as one line."""
    return f"{shadow.base}..{shadow.last_index} last term {shadow.term_at(shadow.last_index)} {shadow.hard_state}"
