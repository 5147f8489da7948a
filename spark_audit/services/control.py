"""Collects the watches, leases, locks, appends and commits of a run, and makes the checks that need no facts about
single keys.

A `Summary` has the services in all rows or in some rows of a run; summaries can be joined. A `Plan` is made from the
summary of all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import as_bytes
from spark_audit.history.services import is_service, parse_service
from spark_audit.services.appends import APPENDS, Append, append_of, assign, key_findings
from spark_audit.services.consumers import CONSUMERS, Commit, commit_of, consumer_findings
from spark_audit.services.key_check import About, KeyResult, check_key
from spark_audit.services.key_facts import Fact, Interest, Subject, prefix_and_revision
from spark_audit.services.leases import LEASES, LeaseCall, calls_of, lease_findings, leases_of
from spark_audit.services.locks import LOCKS, LockCall, lock_findings, lock_of
from spark_audit.services.naming import Finding
from spark_audit.services.outcomes import (
    IN_SYNC,
    OUTCOMES,
    AcceptedWrite,
    Fates,
    HeldWrite,
    Told,
    accepted_of,
    copies_findings,
    fates_of,
    held_of,
    told_of,
)
from spark_audit.services.revision_order import Listed, Steps, acknowledged, judge_order
from spark_audit.services.unknown_batches import Settled, UnknownBatch, settle, unknown_batch
from spark_audit.services.watches import (
    BOOKMARK,
    ONCE,
    RESUME,
    WatchPart,
    WatchSegment,
    covers_key,
    order_findings,
    part_of_row,
    segments_of,
)

Row = Mapping[str, Any]


@dataclass(slots=True)
class Summary:
    """The watches, leases, locks, appends and commits of consumers in some rows of a run.

    `read_at`: the keys that were read at a revision. `unknown`: op_id → unknown transaction or deletion of a range.
    `findings`: violations that a single row shows. `accepted`, `told`, `held`: see outcomes.py. `rows`: the number of
    rows of services. `levels`: the number of writes with an acknowledgement level, and of queries of outcomes.
    """

    rows: int = 0
    levels: int = 0
    parts: list[WatchPart] = field(default_factory=list)
    leases: list[LeaseCall] = field(default_factory=list)
    locks: list[LockCall] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    read_at: set[str] = field(default_factory=set)
    unknown: dict[int, UnknownBatch] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    accepted: list[AcceptedWrite] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    held: list[HeldWrite] = field(default_factory=list)

    def note(self, row: Row) -> None:
        """Add a well-formed row. Rows other than rows of services, rows with a level, and unknown transactions are
        ignored.
        """
        if row.get("acknowledge") is not None:
            self.levels += 1
            self._note_level(row)
        if (batch := unknown_batch(row)) is not None:
            self.unknown[row["op_id"]] = batch
        if not is_service(row):
            return
        if row["op"] == "outcome":
            self.levels += 1
            if (told := told_of(row)) is not None:
                self.told.append(told)
            return
        self.rows += 1
        if row["op"] == "watch" and row["status"] == "ok":
            part, messages = part_of_row(row)
            self.parts.append(part)
            self.findings += order_findings(part, messages)
        elif row["op"] == "lock" and row["status"] == "ok":
            self.locks.append(lock_of(row))
        elif row["op"] == "get" and row["status"] == "ok" and parse_service(row)["revision"]:
            self.read_at.add(row["key"])
        elif (append := append_of(row)) is not None:
            self.appends.append(append)
        if (commit := commit_of(row)) is not None:
            self.commits.append(commit)
        self.leases += calls_of(row)

    def _note_level(self, row: Row) -> None:
        if (accepted := accepted_of(row)) is not None:
            self.accepted.append(accepted)
        if (held := held_of(row)) is not None:
            self.held.append(held)

    def forget(self, lost: Collection[int]) -> None:
        """Remove the appends, the lease calls and the unknown transactions that are lost. `lost`: their op_ids."""
        self.appends = [one for one in self.appends if one.name.op_id not in lost]
        self.leases = [one for one in self.leases if one.name.op_id not in lost]
        self.unknown = {op_id: one for op_id, one in self.unknown.items() if op_id not in lost}

    def add(self, other: Summary) -> None:
        """Add the summary of other rows."""
        self.rows += other.rows
        self.levels += other.levels
        self.parts += other.parts
        self.leases += other.leases
        self.locks += other.locks
        self.appends += other.appends
        self.commits += other.commits
        self.read_at |= other.read_at
        self.unknown |= other.unknown
        self.findings += other.findings
        self.accepted += other.accepted
        self.told += other.told
        self.held += other.held


@dataclass(slots=True)
class Plan:
    """The information about a whole run that the check of a key needs.

    `interest`: the keys to judge. `parts`: op_id → part of a watch. `attached`: key → the operations that attached it
    to a lease. `appended`: prefix → the values of appends of unknown outcome. `findings`: the violations found so far.
    `fates`: the outcomes of accepted writes. `min_in_sync`: the limit of the run; None if it is not known.
    """

    summary: Summary
    clocks: Clocks
    segments: list[WatchSegment]
    interest: Interest
    parts: dict[int, WatchPart]
    attached: dict[str, list[LeaseCall]]
    appended: dict[bytes, set[str]]
    findings: list[Finding]
    fates: Fates
    min_in_sync: int | None

    @classmethod
    def of(cls, summary: Summary, clocks: Clocks, min_in_sync: int | None = None) -> Plan:
        """Return the plan for a run. The summary must include all its rows."""
        fates = fates_of(summary.accepted, summary.told)
        summary.forget(fates.lost_ids)
        segments, found = segments_of(summary.parts)
        attached: dict[str, list[LeaseCall]] = {}
        for call in sorted(summary.leases, key=lambda call: call.name.op_id):
            if call.key is not None:
                attached.setdefault(call.key, []).append(call)
        ranges = [segment.parts[0].range for segment in segments]
        parts = {part.name.op_id: part for part in summary.parts}
        appended: dict[bytes, set[str]] = {}
        for append in summary.appends:
            if append.key is None:
                appended.setdefault(append.prefix, set()).add(append.value)
        interest = Interest.of(ranges, summary.read_at, attached, appended, told=fates.keys, lost=fates.lost_ids)
        found = [*summary.findings, *found, *key_findings(summary.appends), *fates.findings]
        found += copies_findings(summary.held, min_in_sync)
        return cls(summary, clocks, segments, interest, parts, attached, appended, found, fates, min_in_sync)

    def judge(self, facts: Mapping[Subject, Iterable[Fact]]) -> KeyResult:
        """Judge some keys and revisions, and return their joined result.

        `facts`: for each of these keys and revisions, all facts of the run.
        """
        together = KeyResult()
        leases = leases_of(self.summary.leases)
        for key in sorted(subject for subject in facts if isinstance(subject, str)):
            have = as_bytes(key)
            covering = [segment for segment in self.segments if covers_key(segment.parts[0].range, have)]
            appended = self.appended.get(prefix_and_revision(key)[0], ()) if self.appended else ()
            lost, committed = self.fates.lost.get(key, ()), self.fates.committed.get(key, ())
            about = About(
                self.parts, covering, self.attached.get(key, ()), leases, self.clocks, appended, lost, committed
            )
            mine = (fact for fact in facts[key] if not isinstance(fact, Steps | Listed))
            together.add(check_key(key, mine, about))
        for revision in sorted(subject for subject in facts if isinstance(subject, int)):
            listed = [fact for fact in facts[revision] if isinstance(fact, Listed)]
            source = acknowledged(fact for fact in facts[revision] if isinstance(fact, Steps))
            if not source:
                together.listed += listed
            found = judge_order(listed, source, self.parts)
            together.findings += found
            together.counts.update(one.judged for one in found)
        return together

    def judge_whole(self, keys: KeyResult) -> tuple[list[Finding], Counter[str], Settled]:
        """Make the checks that do not concern single keys. `keys`: the joined result of all keys and revisions.

        Return the findings, the number of judgements of each property, and the results about unknown transactions and
        unknown deletions of ranges.
        """
        settled = settle(keys.opened, self.summary.unknown, self.segments, self.parts)
        rows, unexplained = assign(self.summary.appends, keys.sightings)
        settled.rows |= rows
        settled.findings += unexplained
        leases = leases_of(self.summary.leases, keys.ends)
        found = [*self.findings, *settled.findings, *self._order_findings(keys.listed, settled)]
        found += [*lease_findings(leases, self.clocks), *lock_findings(self.summary.locks, self.clocks)]
        found += consumer_findings(self.summary.commits, self.summary.appends)
        checked: Counter[str] = Counter()
        checked[ONCE] = sum(part.events for part in self.summary.parts)
        checked[BOOKMARK] = sum(part.bookmarks for part in self.summary.parts)
        checked[RESUME] = sum(part.resumes is not None for part in self.summary.parts)
        checked[LEASES] = sum(call.kind != "attach" for call in self.summary.leases)
        checked[LOCKS] = len(self.summary.locks)
        checked[CONSUMERS] = sum(commit.is_certain for commit in self.summary.commits)
        checked[OUTCOMES] = len(self.summary.told)
        checked[IN_SYNC] = len(self.summary.held) if self.min_in_sync is not None else 0
        told = (append for append in self.summary.appends if append.key is not None)
        checked[APPENDS] = sum(append.name.revision is not None for append in told)
        return found, checked, settled

    def _order_findings(self, listed: Iterable[Listed], settled: Settled) -> Iterator[Finding]:
        """Yield a finding for each message in which the events of a revision are in a wrong order.

        A revision is left out if an acknowledged operation with several changes made it. The messages about any other
        revision are compared with the operations that may have made it. Such an operation is an unknown operation, or
        the end of a lease.
        """
        by_revision: dict[int, list[Listed]] = {}
        for message in listed:
            by_revision.setdefault(message.revision, []).append(message)
        for revision, messages in sorted(by_revision.items()):
            sources = settled.orders.get(revision)
            if sources is None:
                sources = self._end_of_lease({event for message in messages for event in message.events})
            yield from judge_order(messages, sources, self.parts)

    def _end_of_lease(self, events: Collection[tuple[str, str]]) -> list[Steps]:
        """Return the end of a lease as the source of these events; empty if no end of a lease can have made them."""
        if any(kind != "delete" or key not in self.attached for kind, key in events):
            return []
        return [Steps(tuple(sorted((key for _, key in events), key=as_bytes)), None)]
