"""Finds contradictions about one key: writes that are reported as lost although they were seen, and writes that are
reported as committed although they cannot have taken effect.

See docs/internals/audit-proofs.md, section 12.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_audit.history.clocks import Clocks
from spark_audit.services.key_facts import Candidate, Change, Delivered, KeyRead
from spark_audit.services.naming import Finding, RowName, change_words, finding
from spark_audit.services.outcomes import OUTCOMES, WriteFate
from spark_audit.services.watches import WatchPart
from spark_audit.verdict.verdict import ShownOperation
from spark_audit.verdict.words import short


class _Closed(NamedTuple):
    """The revisions above `after` and up to `upto`. At none of them can a write that no response shows have changed the
    key.
    """

    after: int
    upto: int
    shown: ShownOperation


@dataclass(frozen=True, slots=True)
class KeyEvidence:
    """The evidence about a key. `changes`, `events`: the changes and the events of the key, by revision. `reads`:
    linearizable reads, and reads at a revision. `candidates`: the writes of unknown outcome, without the lost ones.
    `parts`: op_id → part of a watch.
    """

    key: str
    changes: Mapping[int, Change]
    events: Mapping[int, Sequence[Delivered]]
    reads: Sequence[KeyRead]
    candidates: Sequence[Candidate]
    parts: Mapping[int, WatchPart]
    clocks: Clocks

    def lost_but_seen(self, lost: Iterable[WriteFate]) -> Iterator[Finding]:
        """Yield a finding for each lost write whose value was seen, if no other write can have written the value."""
        for one in lost:
            if self._is_written_by_others(one):
                continue
            seen = next(self._sightings(one.value), None)
            if seen is not None:
                where, words = seen
                shown = (one.name.shown(f"wrote {short(one.value)}"), one.told.shown("says lost"), where)
                text = f"{one.told.words} says that {one.name.words} is lost, although {words}"
                yield finding(OUTCOMES, self.key, text, *shown)

    def revision_shown(self, one: WriteFate) -> int | None:
        """Return the revision at which reads show a committed put; None if no read shows the put, or if its value is
        not unique."""
        if self._is_written_by_others(one):
            return None
        shown = [read.mod_revision for read in self.reads if read.found and read.value == one.value]
        revision = min((revision for revision in shown if revision is not None), default=None)
        return None if revision in self.changes else revision

    def never_happened(self, one: WriteFate) -> Finding | None:
        """Return a finding if a committed put that no response shows cannot have changed the key at any revision.

        The revision of the put is above the revision of each operation on the key that returned before the call of the
        put. It is not above the revision of any read that was called after the answer that reports the put as
        committed. Three kinds of facts exclude revisions in between. A read that shows a record excludes all revisions
        after the record, up to the revision of the read. A known change excludes its own revision. If the version of a
        record equals the number of known changes since its creation, all revisions since the creation are excluded.
        """
        before = [each for each in self._reached() if self._precedes(each[1], one.name)]
        after = [each for each in self._upto() if self._precedes(one.told, each[1])]
        if not before or not after:
            return None
        low, high = max(before, key=lambda each: each[0]), min(after, key=lambda each: each[0])
        used = _cover(low[0], high[0], list(self._closed()))
        if used is None:
            return None
        text = (
            f"{one.told.words} says that {one.name.words} is committed, although the answers about {self.key} leave no "
            f"revision for it between {low[1].words} and {high[1].words}"
        )
        ends = (low[1].shown(f"had reached revision {low[0]}"), high[1].shown(f"shows the key at revision {high[0]}"))
        mine = (one.name.shown(f"wrote {short(one.value)}"), one.told.shown("says committed"))
        return finding(OUTCOMES, self.key, text, *mine, *(each.shown for each in used), *ends)

    def _is_written_by_others(self, one: WriteFate) -> bool:
        unknown = (each.value for each in self.candidates if each.kind == "put" and each.plain_id != one.plain_id)
        known = (change.value for change in self.changes.values() if change.kind == "put")
        return any(value == one.value for value in unknown) or any(value in (one.value, None) for value in known)

    def _sightings(self, value: str) -> Iterator[tuple[ShownOperation, str]]:
        for read in sorted(self.reads, key=lambda read: (read.name.call_ns, read.name.op_id)):
            if read.found and read.value == value:
                words = f"returned {short(value)}"
                yield read.name.shown(words), f"{read.name.words} {words}"
        for revision in sorted(self.events):
            for event in self.events[revision]:
                if event.kind == "put" and event.value == value:
                    words = f"delivered the {change_words('put', value, revision)} of {self.key}"
                    name = self.parts[event.watch].name
                    yield name.shown(words), f"{name.words} {words}"

    def _reached(self) -> Iterator[tuple[int, RowName]]:
        """Yield (revision, name) for each operation: when it returned, the store had reached this revision."""
        yield from ((change.revision, change.name) for change in self.changes.values())
        yield from ((revision, read.name) for read in self.reads if (revision := _revision_of(read)) is not None)

    def _upto(self) -> Iterator[tuple[int, RowName]]:
        """Yield (revision, name) for each operation: no change that returned before the call of this operation has a
        higher revision.
        """
        yield from ((change.revision - 1, change.name) for change in self.changes.values())
        yield from ((read.name.revision, read.name) for read in self.reads if not read.at and read.name.revision)

    def _closed(self) -> Iterator[_Closed]:
        known = sorted({*self.changes, *self.events})
        for revision, change in self.changes.items():
            yield _Closed(revision - 1, revision, change.name.shown(f"made revision {revision}"))
        for revision, events in self.events.items():
            name = self.parts[events[0].watch].name
            yield _Closed(revision - 1, revision, name.shown(f"delivered revision {revision} of {self.key}"))
        for read in self.reads:
            upto = read.at or read.name.revision
            if read.found and read.mod_revision is not None and upto is not None:
                words = f"shows the record of revision {read.mod_revision} at revision {upto}"
                yield _Closed(read.mod_revision, upto, read.name.shown(words))
                created, version = read.create_revision, read.version
                if created is not None and version is not None:
                    inside = sum(created <= revision <= read.mod_revision for revision in known)
                    if inside >= version:
                        words = f"shows version {version} of the record of revision {created}"
                        yield _Closed(created - 1, read.mod_revision, read.name.shown(words))

    def _precedes(self, first: RowName, second: RowName) -> bool:
        margin = self.clocks.margin_ns(first.clock, second.clock)
        return margin is not None and first.return_ns is not None and first.return_ns + margin < second.call_ns


def _revision_of(read: KeyRead) -> int | None:
    return read.at or read.name.revision or read.mod_revision


def _cover(low: int, high: int, closed: Collection[_Closed]) -> list[_Closed] | None:
    """Return intervals that together contain all revisions above `low` and up to `high`; None if there are no such
    intervals.
    """
    used: list[_Closed] = []
    ordered = sorted(closed, key=lambda each: (each.after, each.upto, each.shown.op_id))
    place = 0
    while low < high:
        best: _Closed | None = None
        while place < len(ordered) and ordered[place].after <= low:
            if best is None or ordered[place].upto > best.upto:
                best = ordered[place]
            place += 1
        if best is None or best.upto <= low:
            return None
        used.append(best)
        low = best.upto
    return used
