"""Judges one key: compares its changes, the events that watches delivered about it, and its reads at a revision.

See docs/internals/audit-proofs.md, section 11.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_audit.history.clocks import Clocks
from spark_audit.report.material import rounded_latency
from spark_audit.services.committed import KeyEvidence
from spark_audit.services.key_facts import Candidate, Change, Delivered, KeyFact, KeyRead, Sighting, prefix_and_revision
from spark_audit.services.leases import LEASES, Lease, LeaseCall, LeaseEnd, early_end
from spark_audit.services.naming import Finding, change_words, finding
from spark_audit.services.outcomes import WriteFate
from spark_audit.services.revision_order import Listed
from spark_audit.services.settlements import CANDIDATES_MAX, OpenEvent, Settlement, all_visible
from spark_audit.services.watches import WatchPart, WatchSegment
from spark_audit.verdict.verdict import ShownOperation
from spark_audit.verdict.words import short, span

_Seen = tuple[str | None, int | None, int, int | None]  # value, create revision, revision, version

GAP, SOURCE, PREVIOUS, HISTORIC = "watch_gap", "watch_source", "watch_previous", "historic"


@dataclass(slots=True)
class KeyResult:
    """The findings and the counts of one key, or of several keys together.

    `counts`: property → the number of findings, of which `findings` may keep only some. `checked`: property → the
    number of judgements. `lags`: lag (ns, rounded as latencies are) → the number of events with this lag. The lag of an
    event is the time from the return of the write to the arrival of the event. `ends`: the ends of leases that events
    show. `opened`: events that an unknown write made, if only the check of the whole run can find this write. `listed`:
    the messages about revisions that were not made by an acknowledged operation with several changes. `sightings`:
    sightings of records that appends of unknown outcome may have made.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    settled: list[Settlement] = field(default_factory=list)
    ends: list[LeaseEnd] = field(default_factory=list)
    opened: list[OpenEvent] = field(default_factory=list)
    listed: list[Listed] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    lags: Counter[int] = field(default_factory=Counter)

    def add(self, other: KeyResult) -> None:
        """Add the result of other keys."""
        self.findings += other.findings
        self.settled += other.settled
        self.ends += other.ends
        self.opened += other.opened
        self.listed += other.listed
        self.sightings += other.sightings
        self.counts.update(other.counts)
        self.checked.update(other.checked)
        self.lags.update(other.lags)


@dataclass(frozen=True, slots=True)
class _Known:
    """A change that is known: acknowledged, delivered, or both."""

    revision: int
    kind: str
    value: str | None
    change: Change | None
    event: Delivered | None

    @property
    def words(self) -> str:
        return change_words(self.kind, self.value, self.revision)


@dataclass(frozen=True, slots=True)
class About:
    """Information about a key, besides its facts.

    `parts`: op_id → part, for all parts of watches. `segments`: the segments of watches whose range contains the key.
    `attached`: the operations that attached the key to a lease. `leases`: all leases, by id. `appended`: the values of
    the appends of unknown outcome that may have made the key. `lost`, `committed`: the accepted writes of the key that
    an answer reports as lost or committed.
    """

    parts: Mapping[int, WatchPart]
    segments: Sequence[WatchSegment]
    attached: Sequence[LeaseCall]
    leases: Mapping[int, Lease]
    clocks: Clocks
    appended: Collection[str] = ()
    lost: Collection[WriteFate] = ()
    committed: Collection[WriteFate] = ()


def check_key(key: str, facts: Iterable[KeyFact], about: About) -> KeyResult:
    """Judge one key."""
    return _Key(key, facts, about).judge()


class _Key:
    def __init__(self, key: str, facts: Iterable[KeyFact], about: About) -> None:
        self.key, self.segments, self.leases, self.clocks = key, about.segments, about.leases, about.clocks
        self.parts, self.appended = about.parts, about.appended
        self.lost, self.committed = about.lost, about.committed
        self.attached = {call.name.revision: call for call in about.attached if call.name.revision is not None}
        self.result = KeyResult()
        covering = {part.name.op_id for segment in about.segments for part in segment.parts}
        self.changes: dict[int, Change] = {}
        self.candidates: list[Candidate] = []
        self.reads: list[KeyRead] = []
        self.events: dict[int, list[Delivered]] = {}
        sightings: list[Sighting] = []
        for fact in facts:
            if isinstance(fact, Change):
                other = self.changes.setdefault(fact.revision, fact)
                if fact.name.op_id < other.name.op_id:
                    self.changes[fact.revision] = fact
            elif isinstance(fact, Candidate):
                self.candidates.append(fact)
            elif isinstance(fact, KeyRead):
                self.reads.append(fact)
            elif isinstance(fact, Sighting):
                sightings.append(fact)
            elif fact.watch in covering:
                self.events.setdefault(fact.revision, []).append(fact)
            else:
                self._wrong(SOURCE, f"{self._words(fact)}, a key that it did not ask for", fact)
        for delivered in self.events.values():
            delivered.sort(key=lambda event: (event.arrival_ns, event.watch))
        self.known = {revision: self._known(revision) for revision in sorted({*self.changes, *self.events})}
        self.revisions = list(self.known)
        self.exact: dict[int, tuple[int, int]] = {}
        self._note_sightings(sightings)

    def _note_sightings(self, sightings: Iterable[Sighting]) -> None:
        """Keep the earliest sighting of each kind, if an append of unknown outcome may have made the record.

        A sighting is not kept if another operation explains it. This is the case if a known change has the revision of
        the record. If the sighting has no revision, it is also the case if a put of the key is known, or if another
        write of unknown outcome may have changed the key.
        """
        revision = prefix_and_revision(self.key)[1]
        has_writer = bool(self.candidates) or any(change.kind == "put" for change in self.changes.values())
        kept: dict[tuple[str | None, int | None], Sighting] = {}
        for one in sorted(sightings, key=lambda one: (one.seen_ns, one.name.op_id)):
            made = revision if one.revision is None else one.revision
            is_explained = made in self.changes or (one.revision is None and has_writer)
            if not is_explained and self._may_be_appended(one.value, made):
                kept.setdefault((one.value, one.revision), one)
        self.result.sightings += kept.values()

    def _known(self, revision: int) -> _Known:
        change, delivered = self.changes.get(revision), self.events.get(revision)
        event = delivered[0] if delivered else None
        source = change or event
        assert source is not None
        value = source.value
        if change is not None and change.value is None and change.kind == "put" and event is not None:
            value = event.value  # The row of an append does not have the whole value, but its event does.
        return _Known(revision, source.kind, value, change, event)

    def judge(self) -> KeyResult:
        for revision in self.events:
            self._compare(revision)
        self._match()
        if self.lost or self.committed:
            self._judge_told()
        self.exact = self._replayed()
        self._compare_replay()
        for segment in self.segments:
            self._judge_segment(segment)
        for read in self.reads:
            if read.at:
                self._judge_read(read)
            else:
                self._judge_leased(read)
        self.result.counts.update(one.judged for one in self.result.findings)
        return self.result

    # -- made up

    def _compare(self, revision: int) -> None:
        """Compare the events of a revision with each other, and with the acknowledged change of this revision."""
        first = self.events[revision][0]
        self.result.checked[SOURCE] += len(self.events[revision])
        for event in self.events[revision][1:]:
            if _told(event) != _told(first):
                words = f"{self._words(event)}, although {self._name(first)} delivered {_event_words(first)}"
                self._wrong(SOURCE, words, event, first)
        created = first.create_revision == revision
        if first.kind == "put" and (created != (first.version == 1) or not 0 < first.create_revision <= revision):
            told = f"version {first.version} and create revision {first.create_revision}"
            self._wrong(SOURCE, f"{self._words(first)} with {told}, which exclude each other", first)
        change = self.changes.get(revision)
        if change is None:
            return
        shown = change.name.shown(f"made the {change_words(change.kind, change.value, revision)} of {self.key}")
        differs = change.kind == "put" and change.value is not None and change.value != first.value
        if change.kind != first.kind or differs:
            made = f"{change.name.words} made the {change_words(change.kind, change.value, revision)}"
            self._wrong(SOURCE, f"{self._words(first)}, although {made}", first, also=(shown,))
        for event in self.events[revision]:
            margin = self.clocks.margin_ns(change.name.clock, event.clock)
            if margin is not None and event.arrival_ns + margin < change.name.call_ns:
                early = span(change.name.call_ns - event.arrival_ns)
                self._wrong(SOURCE, f"{self._words(event)} {early} before it was called", event, also=(shown,))
            if margin == 0 and change.name.return_ns is not None:
                self.result.lags[rounded_latency(max(0, event.arrival_ns - change.name.return_ns))] += 1

    def _may_be_appended(self, value: str | None, revision: int) -> bool:
        """Return whether an append of unknown outcome may have made this record. `value`: None if it is not known."""
        if not self.appended or revision != prefix_and_revision(self.key)[1]:
            return False
        return value is None or (value in self.appended and all(one.value != value for one in self.candidates))

    def _match(self) -> None:
        """Find the unknown write that made each event without an acknowledged change.

        Equal writes are exchangeable, so the write that was called first gets the lowest revision. An event is a
        violation if no write is left for it, or if its write was called only after the event had arrived.
        """
        unexplained: dict[tuple[str, str | None], list[int]] = {}
        for revision in sorted(self.events):
            if revision not in self.changes:
                event = self.events[revision][0]
                if event.kind == "put" and self._may_be_appended(event.value, revision):
                    name = self.parts[event.watch].name
                    one = Sighting(self.key, event.value, revision, event.arrival_ns, event.watch, name)
                    self.result.sightings.append(one)
                    continue
                unexplained.setdefault((event.kind, event.value), []).append(revision)
        for (kind, value), revisions in unexplained.items():
            mine = [one for one in self.candidates if one.kind == kind and (kind == "delete" or one.value == value)]
            mine = list({one.plain_id: one for one in mine}.values())  # Both branches of a txn may write the value.
            mine.sort(key=lambda one: (one.name.call_ns, one.plain_id))
            if kind == "delete":
                mine = self._by_lease(mine, revisions)
            batches = any(one.op == "txn" for one in mine)
            exchangeable = len(mine) == 1 or (
                kind == "delete" and all_visible(mine, revisions, self.segments, self.clocks)
            )
            of_lease = Counter(one.lease_id for one in mine)
            for number, revision in enumerate(revisions):
                first = self.events[revision][0]
                candidate = mine[number] if number < len(mine) else None
                if candidate is None or self._is_late(candidate, first):
                    self._made_up(first, candidate)
                elif batches:
                    self._open(first, mine)
                elif candidate.name.clock == first.clock and (
                    exchangeable or (of_lease[candidate.lease_id] == 1 and self._ended_by(candidate, revision))
                ):
                    self.result.settled.append(Settlement(candidate, self.key, revision, first.arrival_ns))
            if kind == "delete":
                for revision in revisions:
                    self._judge_end(self.events[revision][0], mine)

    def _judge_told(self) -> None:
        """Judge the writes that answers report as lost or committed. Settle each committed write whose revision is
        known.

        A committed write had taken effect before the answer returned.
        """
        history = KeyEvidence(self.key, self.changes, self.events, self.reads, self.candidates, self.parts, self.clocks)
        self.result.findings += history.lost_but_seen(self.lost)
        settled = {one.candidate.plain_id: place for place, one in enumerate(self.result.settled)}
        opened = {one.plain_id for event in self.result.opened for one in event.candidates or self.candidates}
        for one in self.committed:
            candidate = next((each for each in self.candidates if each.plain_id == one.plain_id), None)
            told_ns = one.told.return_ns
            if candidate is None or told_ns is None:
                continue
            place = settled.get(one.plain_id)
            if place is not None:
                event = self.result.settled[place]
                self.result.settled[place] = replace(event, seen_ns=min(event.seen_ns, told_ns))
            elif (revision := history.revision_shown(one)) is not None:
                self.result.settled.append(Settlement(candidate, self.key, revision, told_ns))
                made = Change(revision, "put", one.value, one.name._replace(revision=revision))
                self.known[revision] = _Known(revision, "put", one.value, made, None)
                self.known = dict(sorted(self.known.items()))
                self.revisions = list(self.known)
            elif one.plain_id not in opened and self._is_unseen(one) and (wrong := history.never_happened(one)):
                self.result.findings.append(wrong)

    def _is_unseen(self, one: WriteFate) -> bool:
        """Return whether no event and no read shows the value of a committed put."""
        values = [event.value for events in self.events.values() for event in events]
        return one.value not in values and all(read.value != one.value for read in self.reads)

    def _open(self, event: Delivered, candidates: Sequence[Candidate]) -> None:
        """Pass an event on to the check of the whole run.

        That check uses the other events of the same revision to find the candidate that made the event.
        """
        mine = [one for one in candidates if not self._is_late(one, event)]
        self.result.opened.append(
            OpenEvent(
                self.key,
                event.revision,
                event.kind,
                event.value,
                event.arrival_ns,
                event.clock,
                event.watch,
                tuple(mine) if len(mine) <= CANDIDATES_MAX else None,
            )
        )

    def _ended_by(self, candidate: Candidate, revision: int) -> bool:
        """Return whether the record that was deleted at this revision was attached to the lease of the candidate."""
        return candidate.lease_id != 0 and candidate.lease_id == self._lease_before(revision)

    def _replayed(self) -> dict[int, tuple[int, int]]:
        """Return revision → (create revision, version) of each put; empty if some change of the key is not known."""
        made: dict[int, tuple[int, int]] = {}
        may_be_appended = self._may_be_appended(None, revision := prefix_and_revision(self.key)[1])
        if any(True for _ in self._unsettled()) or (may_be_appended and revision not in self.known):
            return made
        before: tuple[int, int] | None = None
        for revision, known in self.known.items():
            if known.kind == "delete":
                before = None
            else:
                before = made[revision] = (before[0], before[1] + 1) if before is not None else (revision, 1)
        return made

    def _compare_replay(self) -> None:
        for revision, (create, version) in self.exact.items():
            for event in self.events.get(revision, ())[:1]:
                if (event.create_revision, event.version) != (create, version):
                    told = f"version {event.version} and create revision {event.create_revision}"
                    text = f"{self._words(event)} with {told}, although it has {version} and {create}"
                    self._wrong(SOURCE, text, event)

    def _by_lease(self, candidates: list[Candidate], revisions: Sequence[int]) -> list[Candidate]:
        """Assign a deletion to each of these revisions; return the deletions in the order of the revisions.

        If it is known that the record deleted at a revision was attached to a lease, the revision gets the deletion by
        this lease.
        """
        if len(revisions) >= len(candidates) or any(one.op == "txn" for one in candidates):
            return candidates
        rest, made = list(candidates), []
        for revision in revisions:
            lease_id = self._lease_before(revision)
            chosen = ([one for one in rest if lease_id and one.lease_id == lease_id] or rest)[0]
            rest.remove(chosen)
            made.append(chosen)
        return made + rest

    def _lease_before(self, revision: int) -> int | None:
        """Return the lease of the record that was deleted at this revision; 0 if the record had no lease, None if its
        lease is not known."""
        told = (event.previous for event in self.events[revision])
        if (before := next((record for record in told if record is not None), None)) is not None:
            return before.lease_id
        place = bisect_left(self.revisions, revision)
        if not place or any(one.kind == "put" for one in self.candidates):
            return None
        attach = self.attached.get(self.revisions[place - 1])
        return attach.lease_id if attach is not None else 0

    def _is_late(self, candidate: Candidate, event: Delivered) -> bool:
        margin = self.clocks.margin_ns(candidate.name.clock, event.clock)
        return margin is not None and event.arrival_ns + margin < candidate.name.call_ns

    def _made_up(self, event: Delivered, candidate: Candidate | None) -> None:
        if candidate is None:
            self._wrong(SOURCE, f"{self._words(event)}, which no operation of the run can have made", event)
            return
        late = candidate.name.shown("was called only after the event had arrived")
        self._wrong(SOURCE, f"{self._words(event)} before {candidate.name.words} was called", event, also=(late,))

    def _judge_end(self, event: Delivered, candidates: Sequence[Candidate]) -> None:
        """Record the end of the lease that made this deletion. Report the deletion if the lease cannot have expired
        before it.
        """
        ids = {one.lease_id for one in candidates if not self._is_late(one, event)}
        lease_id = self._lease_before(event.revision)
        if lease_id:
            ids &= {0, lease_id}
        if len(ids) != 1 or 0 in ids or lease_id == 0:
            return
        (lease_id,) = ids
        words = f"delivered the deletion of {self.key} (revision {event.revision}), whose lease {lease_id} had ended"
        end = LeaseEnd(lease_id, event.arrival_ns, self.parts[event.watch].name, words)
        self.result.ends.append(end)
        self.result.checked[LEASES] += 1
        lease = self.leases.get(lease_id)
        early = early_end(lease, end, self.key, self.clocks) if lease is not None else None
        if early is not None:
            self.result.findings.append(early)

    # -- gaps, and the previous records that events report

    def _judge_segment(self, segment: WatchSegment) -> None:
        low, high = bisect_left(self.revisions, segment.first), bisect_right(self.revisions, segment.last)
        ids = {part.name.op_id for part in segment.parts}
        last: Delivered | None = None
        missed = False
        for revision in self.revisions[low:high]:
            known = self.known[revision]
            mine = [event for event in self.events.get(revision, ()) if event.watch in ids]
            if segment.only is None or known.kind == segment.only:
                self.result.checked[GAP] += 1
                if not mine:
                    self._gap(segment, known)
                    missed = True
            elif mine:
                self._wrong(GAP, f"{self._words(mine[0])}, although it asked only for {segment.only}s", mine[0])
            if not mine:
                continue
            event = mine[0]
            if segment.only is None and last is not None and not missed:
                self._follows(last, event)
            self._judge_previous(segment, event)
            last, missed = event, False
        for revision, delivered in self.events.items():
            if revision > segment.last or revision < segment.first:
                for event in delivered:
                    if event.watch in ids:
                        self._judge_previous(segment, event)

    def _gap(self, segment: WatchSegment, known: _Known) -> None:
        part = segment.part_of(known.revision)
        did = f"did not deliver the {known.words} of {self.key}"
        upto = f"although it claims to have delivered everything up to revision {segment.last}"
        rows = [part.name.shown(did)]
        if segment.parts[-1] is not part:
            rows.append(segment.parts[-1].name.shown(f"delivered up to revision {segment.last}"))
        text = f"{part.name.words} {did}, {upto}"
        if known.change is not None:
            rows.append(known.change.name.shown(f"made the {known.words} of {self.key}"))
        elif known.event is not None:
            rows.append(self.parts[known.event.watch].name.shown(f"delivered the {known.words} of {self.key}"))
            text += f"; {self._name(known.event)} delivered it"
        self.result.findings.append(finding(GAP, self.key, text, *rows))

    def _follows(self, last: Delivered, event: Delivered) -> None:
        """Compare two successive events of a watch: the key must not have changed between them."""
        if event.kind == "delete":
            if last.kind == "delete":
                self._missing(last, event, "a put between two deletions")
            return
        created = last.kind == "delete"
        version, create = (1, event.revision) if created else (last.version + 1, last.create_revision)
        if (event.version, event.create_revision) != (version, create):
            got = f"version {event.version} and create revision {event.create_revision}, not {version} and {create}"
            self._missing(last, event, f"changes between them: it has {got}")

    def _missing(self, last: Delivered, event: Delivered, what: str) -> None:
        text = f"{self._name(last)} delivered the {_event_words(last)} of {self.key}, and {self._words(event)} next"
        self._wrong(GAP, f"{text}, without {what}", last, event)

    def _judge_previous(self, segment: WatchSegment, event: Delivered) -> None:
        if not self.parts[event.watch].previous:
            return
        self.result.checked[PREVIOUS] += 1
        before = event.previous
        place = bisect_left(self.revisions, event.revision)
        known = self.known[self.revisions[place - 1]] if place else None
        if before is None:
            if event.kind == "delete" or event.version != 1:
                self._wrong(PREVIOUS, f"{self._words(event)} without the record before it", event)
            return
        problem = None
        if event.kind == "put" and event.version == 1:
            problem = "although by the event's version there was none"
        elif not before.mod_revision < event.revision:
            problem = "which is not an earlier revision"
        elif event.kind == "put" and (before.version, before.create_revision) != (
            event.version - 1,
            event.create_revision,
        ):
            problem = f"of version {before.version} and create revision {before.create_revision}"
        else:
            seen = (before.value, before.create_revision, before.mod_revision, before.version)
            problem = self._record_problem(seen, known, lambda one: not self._is_late(one, event))
            if problem is None and (known is None or before.mod_revision > known.revision):
                covered = segment.only is None and segment.first <= before.mod_revision <= segment.last
                problem = "which the watch did not deliver" if covered else None
        if problem is not None:
            told = f"with {short(before.value)} of revision {before.mod_revision} as the record before"
            also = [known.change.name.shown(f"made the {known.words}")] if known is not None and known.change else []
            self._wrong(PREVIOUS, f"{self._words(event)} {told}, {problem}", event, also=also)

    def _record_problem(self, seen: _Seen, known: _Known | None, may_be: Callable[[Candidate], bool]) -> str | None:
        """Return the reason why the key cannot have had the reported record; None if it can have had the record.

        `known`: the last known change that the report may show. `may_be`: a function that returns whether an unknown
        write was called early enough to have made the record.
        """
        value, create, revision, version = seen
        if create is not None and version is not None:
            impossible = create < 1 or create > revision or (version == 1) != (create == revision)
            if impossible or not 1 <= version <= revision - create + 1:
                return f"of version {version} and create revision {create}, which exclude each other"
        if known is not None and (revision < known.revision or (revision == known.revision and known.kind == "delete")):
            return f"although the {known.words} is the last change before"
        if known is not None and revision == known.revision:
            if known.value is not None and value is not None and known.value != value:
                return f"although that was {short(known.value)}"
            exact = self.exact.get(revision)
            if exact is None and known.event is not None:
                exact = (known.event.create_revision, known.event.version)
            told = (create, version)
            if exact is not None and any(mine not in (None, true) for mine, true in zip(told, exact, strict=True)):
                return f"of version {version} and create revision {create}, although it has {exact[1]} and {exact[0]}"
            return None
        if self._may_be_appended(value, revision):
            return None
        unknown = (one.kind == "put" and one.value == value and may_be(one) for one in self._unsettled())
        return None if any(unknown) else "which no operation of the run can have written"

    # -- reads

    def _judge_read(self, read: KeyRead) -> None:
        """Judge a read at a revision: it must show the last change up to this revision."""
        self.result.checked[HISTORIC] += 1
        place = bisect_right(self.revisions, read.at)
        known = self.known[self.revisions[place - 1]] if place else None
        problem = self._read_problem(read, known)
        if problem is None:
            return
        if read.found:
            saw = f"returned {short(read.value)} of revision {read.mod_revision} at revision {read.at}"
        else:
            saw = f"found nothing at revision {read.at}"
        rows = [read.name.shown(saw)]
        if known is not None and known.change is not None:
            rows.append(known.change.name.shown(f"made the {known.words} of {self.key}"))
        elif known is not None and known.event is not None:
            rows.append(self.parts[known.event.watch].name.shown(f"delivered the {known.words} of {self.key}"))
        self.result.findings.append(finding(HISTORIC, self.key, f"{read.name.words} {saw}, {problem}", *rows))

    def _read_problem(self, read: KeyRead, known: _Known | None) -> str | None:
        if not read.found:
            may_delete = any(one.kind == "delete" and self._may_precede(one, read) for one in self._unsettled())
            if known is not None and known.kind == "put" and not (may_delete and known.revision < read.at):
                return f"although the {known.words} is the last change up to that revision"
            return None
        if read.mod_revision is None:
            return None
        if read.mod_revision > read.at:
            return "a later change"
        seen = (read.value, read.create_revision, read.mod_revision, read.version)
        return self._record_problem(seen, known, lambda one: self._may_precede(one, read))

    def _unsettled(self) -> Iterator[Candidate]:
        settled = {one.candidate.plain_id for one in self.result.settled}
        return (one for one in self.candidates if one.plain_id not in settled)

    def _may_precede(self, candidate: Candidate, read: KeyRead) -> bool:
        margin = self.clocks.margin_ns(read.name.clock, candidate.name.clock)
        ended = read.name.return_ns
        return margin is None or ended is None or candidate.name.call_ns <= ended + margin

    def _judge_leased(self, read: KeyRead) -> None:
        """Judge a read of a key that was attached to a lease: once the lease has ended, the record must be gone."""
        if not read.found or read.mod_revision is None:
            return
        attach = self.attached.get(read.mod_revision)
        lease = self.leases.get(attach.lease_id) if attach is not None else None
        if attach is None or lease is None:
            return
        self.result.checked[LEASES] += 1
        end = lease.ended_before(read.name.call_ns, read.name.clock, self.clocks)
        if end is not None:
            saw = f"returned the record of revision {read.mod_revision}, attached to lease {lease.lease_id}"
            text = f"{read.name.words} {saw}, although {end.name.words} {end.words} before it was called"
            did = f"attached {self.key} to lease {lease.lease_id}"
            rows = (read.name.shown(saw), end.name.shown(end.words), attach.name.shown(did))
            self.result.findings.append(finding(LEASES, self.key, text, *rows))

    # -- words

    def _name(self, event: Delivered) -> str:
        return self.parts[event.watch].name.words

    def _words(self, event: Delivered) -> str:
        return f"{self._name(event)} delivered the {_event_words(event)} of {self.key}"

    def _wrong(self, prop: str, text: str, *events: Delivered, also: Sequence[ShownOperation] = ()) -> None:
        rows = [self.parts[one.watch].name.shown(f"delivered the {_event_words(one)} of {self.key}") for one in events]
        self.result.findings.append(finding(prop, self.key, text, *rows, *also))


def _told(event: Delivered) -> tuple[object, ...]:
    return event.kind, event.value, event.create_revision, event.version, event.lease_id


def _event_words(event: Delivered) -> str:
    return change_words(event.kind, event.value, event.revision)
