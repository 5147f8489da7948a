"""Collects the watches, leases and locks of a run, and judges what needs no facts about single keys.

`Summary` collects them from all rows of a run or from some of them; summaries can be joined. A `Plan` is made from the
summary of all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_audit.history.clocks import Clocks
from spark_audit.history.operation import as_bytes
from spark_audit.history.services import is_service, parse_service
from spark_audit.services.key_check import About, KeyResult, check_key
from spark_audit.services.key_facts import Fact, Interest, Subject
from spark_audit.services.leases import LEASES, LeaseCall, LeaseEnd, calls_of, lease_findings, leases_of
from spark_audit.services.locks import LOCKS, LockCall, lock_findings, lock_of
from spark_audit.services.naming import Finding
from spark_audit.services.revision_order import Listed, Steps, judge_order
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
    """The watches, leases and locks in some rows of a run.

    `read_at`: the keys that were read at a revision. `findings`: violations that a single row shows.
    """

    rows: int = 0
    parts: list[WatchPart] = field(default_factory=list)
    leases: list[LeaseCall] = field(default_factory=list)
    locks: list[LockCall] = field(default_factory=list)
    read_at: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    def note(self, row: Row) -> None:
        """Add a well-formed row. A row that is not one of a service adds nothing."""
        if not is_service(row):
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
        self.leases += calls_of(row)

    def add(self, other: Summary) -> None:
        """Add the summary of other rows."""
        self.rows += other.rows
        self.parts += other.parts
        self.leases += other.leases
        self.locks += other.locks
        self.read_at |= other.read_at
        self.findings += other.findings


@dataclass(slots=True)
class Plan:
    """What is known of a whole run when its keys are judged.

    `interest`: the keys to judge. `parts`: op_id → part of a watch. `attached`: key → the operations that attached it
    to a lease. `findings`: the violations found so far.
    """

    summary: Summary
    clocks: Clocks
    segments: list[WatchSegment]
    interest: Interest
    parts: dict[int, WatchPart]
    attached: dict[str, list[LeaseCall]]
    findings: list[Finding]

    @classmethod
    def of(cls, summary: Summary, clocks: Clocks) -> Plan:
        """Return the plan for a run. The summary must include all its rows."""
        segments, found = segments_of(summary.parts)
        attached: dict[str, list[LeaseCall]] = {}
        for call in sorted(summary.leases, key=lambda call: call.name.op_id):
            if call.key is not None:
                attached.setdefault(call.key, []).append(call)
        ranges = [segment.parts[0].range for segment in segments]
        parts = {part.name.op_id: part for part in summary.parts}
        interest = Interest.of(ranges, summary.read_at, attached)
        return cls(summary, clocks, segments, interest, parts, attached, [*summary.findings, *found])

    def judge(self, facts: Mapping[Subject, Iterable[Fact]]) -> KeyResult:
        """Judge some keys and revisions, and return their joined result.

        `facts`: for each of these keys and revisions, all facts of the run.
        """
        together = KeyResult()
        leases = leases_of(self.summary.leases)
        for key in sorted(subject for subject in facts if isinstance(subject, str)):
            have = as_bytes(key)
            covering = [segment for segment in self.segments if covers_key(segment.parts[0].range, have)]
            about = About(self.parts, covering, self.attached.get(key, ()), leases, self.clocks)
            mine = (fact for fact in facts[key] if not isinstance(fact, Steps | Listed))
            together.add(check_key(key, mine, about))
        for revision in sorted(subject for subject in facts if isinstance(subject, int)):
            about_it = (fact for fact in facts[revision] if isinstance(fact, Steps | Listed))
            found = judge_order(about_it, self.parts)
            together.findings += found
            together.counts.update(one.judged for one in found)
        return together

    def judge_whole(self, ends: Sequence[LeaseEnd]) -> tuple[list[Finding], Counter[str]]:
        """Judge what does not concern single keys. Return the findings, and how many things were judged per property.

        `ends`: the ends of leases that the events of keys showed.
        """
        leases = leases_of(self.summary.leases, ends)
        found = [*self.findings, *lease_findings(leases, self.clocks), *lock_findings(self.summary.locks, self.clocks)]
        checked: Counter[str] = Counter()
        checked[ONCE] = sum(part.events for part in self.summary.parts)
        checked[BOOKMARK] = sum(part.bookmarks for part in self.summary.parts)
        checked[RESUME] = sum(part.resumes is not None for part in self.summary.parts)
        checked[LEASES] = sum(call.kind != "attach" for call in self.summary.leases)
        checked[LOCKS] = len(self.summary.locks)
        return found, checked
