"""Finds which unknown transaction or deletion of a range made a revision, from the events that watches delivered.

One operation makes a revision. So if no acknowledged change explains a revision, all events of the revision are effects
of one operation. This operation is a candidate for each of these events. See docs/internals/audit-proofs.md, section
11.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from spark_audit.history.operation import as_bytes
from spark_audit.history.requests import parse_request
from spark_audit.history.services import parse_service
from spark_audit.services.key_facts import Candidate
from spark_audit.services.naming import Finding, RowName, change_words, finding
from spark_audit.services.revision_order import Steps
from spark_audit.services.settle import Row, batch_row
from spark_audit.services.settlements import OpenEvent, Settlement, Step
from spark_audit.services.watches import WatchPart, WatchSegment, covers_key

GAP, SOURCE = "watch_gap", "watch_source"

_SourceId: TypeAlias = tuple[str, int]  # ("row", plain_id) or ("lease", lease_id)


class UnknownBatch(NamedTuple):
    """A transaction or a deletion of a range whose outcome is unknown.

    `branches`: for each branch, the changes that it may have made, in their order. A deletion may also find no record.
    """

    branches: tuple[tuple[Step, ...], ...]
    name: RowName


def unknown_batch(row: Mapping[str, Any]) -> UnknownBatch | None:
    """Return the unknown transaction or deletion of a range that a well-formed row records; None for any other row."""
    if row["status"] != "unknown":
        return None
    if row["op"] == "delete_range":
        keys = sorted(set(parse_service(row)["keys"]), key=as_bytes)
        branches = [tuple(("delete", key, None) for key in keys)]
    elif row["op"] == "txn":
        request = parse_request(row)
        branches = [
            tuple((step["op"], step["key"], step["value"]) for step in request[name] if step["op"] in _WRITES)
            for name in ("success", "failure")
        ]
    else:
        return None
    made = tuple(branch for branch in dict.fromkeys(branches) if branch)
    return UnknownBatch(made, RowName.of(row)) if made else None


_WRITES = ("put", "delete")


@dataclass(slots=True)
class Settled:
    """The results about unknown writes. `rows`: op_id → the row that replaces an unknown transaction or deletion.

    `orders`: revision with open events → the operations that may have made the revision; empty if too little is known.
    """

    settlements: list[Settlement] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    orders: dict[int, list[Steps]] = field(default_factory=dict)


def settle(
    opened: Iterable[OpenEvent],
    unknown: Mapping[int, UnknownBatch],
    segments: Sequence[WatchSegment],
    parts: Mapping[int, WatchPart],
) -> Settled:
    """Settle the writes that these events show. `unknown`: op_id → unknown write. `segments`, `parts`: the watches of
    the run."""
    return _Settling(opened, unknown, segments, parts).settle()


class _Settling:
    def __init__(
        self,
        opened: Iterable[OpenEvent],
        unknown: Mapping[int, UnknownBatch],
        segments: Sequence[WatchSegment],
        parts: Mapping[int, WatchPart],
    ) -> None:
        self.unknown, self.segments, self.parts = unknown, segments, parts
        self.events: dict[int, list[OpenEvent]] = {}
        for event in sorted(opened, key=lambda event: (event.revision, event.key)):
            self.events.setdefault(event.revision, []).append(event)
        self.possible: dict[int, set[_SourceId]] = {}
        self.made: dict[_SourceId, int] = {}
        self.result = Settled()

    def settle(self) -> Settled:
        self.result.orders = {revision: [] for revision in self.events}
        for revision, events in self.events.items():
            if any(event.candidates is not None for event in events):
                self.possible[revision] = self._sources(events)
                if not self.possible[revision]:
                    self._impossible(revision)
        self._exclude()
        for revision, sources in self.possible.items():
            self.result.orders[revision] = self._orders(revision, sources)
            if len(sources) == 1:
                self._note(revision, *sources)
        return self.result

    def _sources(self, events: Sequence[OpenEvent]) -> set[_SourceId]:
        """Return the operations that may have made all these events."""
        mine = [set(map(_source_of, event.candidates)) for event in events if event.candidates is not None]
        return {source for source in set.intersection(*mine) if self._fitting(source, events)}

    def _fitting(self, source: _SourceId, events: Sequence[OpenEvent]) -> list[tuple[Step, ...]]:
        """Return the changes that the operation may have made, in their order, if it made all these events.

        There are two possibilities if both branches of a transaction include the events. A lease deletes keys in the
        order of their bytes.
        """
        told = {event.step for event in events}
        batch = self._batch(source)
        if batch is not None:
            return [branch for branch in batch.branches if told <= set(branch)]
        return [tuple(sorted(told, key=lambda step: as_bytes(step[1])))]

    def _batch(self, source: _SourceId) -> UnknownBatch | None:
        return self.unknown.get(source[1]) if source[0] == "row" else None

    def _exclude(self) -> None:
        """If only one operation can have made a revision, it made no other one: remove it from the candidates of all
        other revisions.

        The end of a lease is not removed, because the audit allows a lease to delete its keys at several revisions.
        """
        revisions: dict[_SourceId, list[int]] = {}
        for revision, sources in self.possible.items():
            for source in sources:
                revisions.setdefault(source, []).append(revision)
        certain = [revision for revision, sources in self.possible.items() if len(sources) == 1]
        for revision in certain:  # The loop appends to this list.
            for source in list(self.possible[revision]):
                if source[0] == "lease" or source in self.made:
                    continue
                self.made[source] = revision
                for other in revisions[source]:
                    if other != revision:
                        self.possible[other].discard(source)
                        if len(self.possible[other]) == 1:
                            certain.append(other)
                        elif not self.possible[other]:
                            self._impossible(other, source)

    def _orders(self, revision: int, sources: Iterable[_SourceId]) -> list[Steps]:
        """Return the orders in which these operations may have changed the keys.

        The result is empty if the changes of one of the operations are not known.
        """
        made: list[Steps] = []
        for source in sorted(sources):
            batch = self._batch(source)
            if batch is None and source[0] == "row":
                return []  # The source is a transaction that was acknowledged without a revision.
            name = batch.name if batch is not None else None
            for branch in self._fitting(source, self.events[revision]):
                made.append(Steps(tuple(key for _, key, _ in branch), name))
        return made

    def _note(self, revision: int, source: _SourceId) -> None:
        """Record that this operation made this revision."""
        events = self.events[revision]
        batch = self._batch(source)
        if batch is None:
            for event in events:
                mine = [one for one in event.candidates or () if _source_of(one) == source and one.op != "txn"]
                if len(mine) == 1 and mine[0].name.clock == event.clock:
                    self.result.settlements.append(Settlement(mine[0], event.key, revision, event.seen_ns))
            return
        told = {event.step for event in events}
        fitting = self._fitting(source, events)
        missed = [self._missed(branch, told, revision) for branch in fitting]
        whole = [branch for branch, faults in zip(fitting, missed, strict=True) if not faults]
        if not whole and len(fitting) == 1:
            self._gaps(batch.name, events[0], missed[0])
        if len(whole) != 1:
            return
        (branch,) = whole
        unseen = [step for step in branch if step[0] == "delete" and step not in told]
        seen = [event.seen_ns for event in events if event.clock == batch.name.clock]
        if seen and all(self._covering(step, revision) for step in unseen):
            steps = [step for step in branch if step not in unseen]
            self.result.rows[source[1]] = batch_row(source[1], batch.name, steps, revision, min(seen))

    def _missed(self, branch: Sequence[Step], told: set[Step], revision: int) -> list[tuple[Step, WatchSegment]]:
        """Return the puts that no watch delivered although one had to, each with a watch that had to deliver it."""
        puts = [step for step in branch if step[0] == "put" and step not in told]
        found = [(step, self._covering(step, revision)) for step in puts]
        return [(step, segment) for step, segment in found if segment is not None]

    def _covering(self, step: Step, revision: int) -> WatchSegment | None:
        """Return a watch that had to deliver this change; None if there is none."""
        kind, key, _ = step
        have = as_bytes(key)
        for segment in self.segments:
            asked = segment.only in (None, kind) and covers_key(segment.parts[0].range, have)
            if asked and segment.first <= revision <= segment.last:
                return segment
        return None

    # -- findings

    def _impossible(self, revision: int, source: _SourceId | None = None) -> None:
        """Report a revision that no operation can have made. `source`: the last candidate of this revision, if it was
        removed because it made another revision.
        """
        first, *others = self.events[revision]
        told = self._told(first)
        text = f"{self.parts[first.watch].name.words} {told}"
        rows = [self.parts[first.watch].name.shown(told)]
        if source is not None:
            made = self.events[self.made[source]][0]
            every = (one for event in self.events[revision] for one in event.candidates or ())
            name = next(one.name for one in every if _source_of(one) == source)
            text += f", which only {name.words} can have made, and that made revision {made.revision}"
            rows += [name.shown(f"made revision {made.revision}"), self.parts[made.watch].name.shown(self._told(made))]
        elif others:
            keys = ", ".join(one.key for one in others[:3])
            text += f", which no operation can have changed together with {keys}"
            rows += [self.parts[one.watch].name.shown(self._told(one)) for one in others[:3]]
        self.result.findings.append(finding(SOURCE, first.key, text, *rows))

    def _gaps(self, name: RowName, event: OpenEvent, missed: Sequence[tuple[Step, WatchSegment]]) -> None:
        """Report the puts of a transaction that a watch had to deliver but no watch delivered."""
        for (kind, key, value), segment in missed:
            part = segment.part_of(event.revision)
            did = f"did not deliver the {change_words(kind, value, event.revision)} of {key}"
            text = f"{part.name.words} {did}, although {name.words} also made the {event.kind} of {event.key}"
            rows = (
                name.shown(f"made revision {event.revision}"),
                self.parts[event.watch].name.shown(self._told(event)),
            )
            self.result.findings.append(finding(GAP, key, text, part.name.shown(did), *rows))

    def _told(self, event: OpenEvent) -> str:
        return f"delivered the {change_words(event.kind, event.value, event.revision)} of {event.key}"


def _source_of(candidate: Candidate) -> _SourceId:
    return ("lease", candidate.lease_id) if candidate.op == "lease" else ("row", candidate.plain_id)
