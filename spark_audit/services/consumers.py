"""Judges consumer groups: each record takes effect once, in order, and a group never moves back.

A record of a group is an append under the prefix of its log. A consumer commits a record: one transaction moves the
position of the group to the revision of the record, and carries out the append that the consumer made from the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spark_audit.history.operation import as_bytes
from spark_audit.history.services import answer_of, parse_service
from spark_audit.services.appends import Append
from spark_audit.services.naming import Finding, RowName, finding
from spark_audit.verdict.verdict import ShownOperation
from spark_audit.verdict.words import short

CONSUMERS = "consumers"


class Group(NamedTuple):
    """A consumer group. `log`: the prefix of its records. `from_revision`: the first revision that the group
    consumes."""

    name: str
    log: str
    from_revision: int


class Commit(NamedTuple):
    """A commit of one record. `position`: the revision of the record. `fence`: 0 if the outcome is unknown."""

    group: Group
    position: int
    fence: int
    name: RowName

    @property
    def is_certain(self) -> bool:
        """True if the commit was acknowledged."""
        return self.fence > 0

    @property
    def revision(self) -> int:
        """The revision at which an acknowledged commit took effect."""
        assert self.name.revision is not None, self
        return self.name.revision

    def shown(self) -> ShownOperation:
        """Return the row of the commit as an operation of a finding."""
        return self.name.shown(f"moved group {short(self.group.name)} to {self.position} with fence {self.fence}")


def commit_of(row: Mapping[str, Any]) -> Commit | None:
    """Return the commit that a well-formed row records; None for a failed commit or another operation."""
    if row["op"] != "consume" or row["status"] == "fail":
        return None
    request = parse_service(row)
    group = Group(request["group"], request["log"], request["from_revision"])
    fence = answer_of(row)["fence"] if row["status"] == "ok" else 0
    return Commit(group, request["position"], fence, RowName.of(row))


def consumer_findings(commits: Iterable[Commit], appends: Iterable[Append]) -> Iterator[Finding]:
    """Yield a finding for each commit that a sound group cannot make, and for each record that a group left out.

    The acknowledged commits of a group are judged in the order of their revisions. The position of each commit must be
    above the positions of all earlier commits, and below the revision of the commit. Its fence must not be below an
    earlier fence. Each acknowledged append to the log, from the first revision of the group up to its last position,
    must be the record of some commit, possibly of a commit of unknown outcome.
    """
    by_group: dict[Group, list[Commit]] = {}
    for commit in commits:
        by_group.setdefault(commit.group, []).append(commit)
    made = [append for append in appends if append.name.revision is not None]
    for group, mine in sorted(by_group.items()):
        certain = sorted(
            (commit for commit in mine if commit.is_certain), key=lambda one: (one.revision, one.name.op_id)
        )
        yield from _out_of_order(certain)
        log = as_bytes(group.log)
        records = {each.name.revision or 0: each for each in made if each.prefix.startswith(log)}
        for commit in mine:
            records.pop(commit.position, None)
        yield from _left_out(group, certain, records)


def _out_of_order(certain: Sequence[Commit]) -> Iterator[Finding]:
    furthest: Commit | None = None
    fenced: Commit | None = None
    for commit in certain:
        if commit.position >= commit.revision:
            yield _finding(f"it committed a record of revision {commit.position} at {commit.revision}", commit)
        if furthest is not None and commit.position == furthest.position:
            yield _finding(f"{furthest.name.words} had committed the same record before", commit, furthest)
        elif furthest is not None and commit.position < furthest.position:
            yield _finding(f"{furthest.name.words} had moved the group to {furthest.position} before", commit, furthest)
        if fenced is not None and commit.fence < fenced.fence:
            yield _finding(f"{fenced.name.words} had the higher fence {fenced.fence} before", commit, fenced)
        furthest = commit if furthest is None or commit.position > furthest.position else furthest
        fenced = commit if fenced is None or commit.fence > fenced.fence else fenced


def _left_out(group: Group, certain: Sequence[Commit], records: Mapping[int, Append]) -> Iterator[Finding]:
    """Yield a finding for each of these records that lies below the position of an acknowledged commit.

    `records`: revision → the record, for the records that no commit names.
    """
    ascending = sorted(certain, key=lambda one: (one.position, one.name.op_id))
    place = 0
    for revision, record in sorted(records.items()):
        if revision < group.from_revision:
            continue
        while place < len(ascending) and ascending[place].position < revision:
            place += 1
        if place == len(ascending):
            return
        appended = record.name.shown(f"appended {short(record.value)} to the log {short(group.log)}")
        problem = f"no commit of the group has the record {record.name.words} of revision {revision}"
        yield _finding(problem, ascending[place], *ascending[max(0, place - 1) : place], others=(appended,))


def _finding(problem: str, commit: Commit, *commits: Commit, others: Sequence[ShownOperation] = ()) -> Finding:
    shown = [one.shown() for one in (commit, *commits)]
    moved = f"{commit.name.words} moved group {short(commit.group.name)} to position {commit.position}"
    return finding(CONSUMERS, None, f"{moved}, but {problem}", *shown, *others)
