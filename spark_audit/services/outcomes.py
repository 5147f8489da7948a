"""Collects the writes that a leader accepted, and the later answers about the outcomes of their entries.

See docs/reference/specification.md#1011-acknowledgement-levels. In the history, an accepted write has an unknown
outcome. If its entry was lost, the write has no effect. If its entry was committed, the write took effect between its
call and the return of the answer, unless the store may have refused it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from spark_audit.history.requests import parse_request
from spark_audit.history.services import (
    COMMITTED,
    LEASE_END_IDS,
    LOST,
    answer_of,
    is_service,
    parse_service,
    plain_rows,
)
from spark_audit.services.naming import Finding, RowName, finding

OUTCOMES, IN_SYNC = "outcomes", "in_sync"

Entry: TypeAlias = tuple[int, int]  # (index, term)
Row: TypeAlias = dict[str, Any]


class AcceptedWrite(NamedTuple):
    """A write that a leader accepted. `row`: its plain row, without fields that are null and without the output.

    `puts`: the (key, value) pairs that the write may put. `is_certain`: whether the store cannot refuse the write once
    its entry is committed.
    """

    entry: Entry
    status: str
    row: Mapping[str, Any]
    puts: tuple[tuple[str, str], ...]
    is_certain: bool
    name: RowName


class Told(NamedTuple):
    """An answer that reports whether an entry was committed or lost. `outcome`: COMMITTED or LOST."""

    entry: Entry
    outcome: str
    name: RowName


class HeldWrite(NamedTuple):
    """An acknowledged write of level IN_SYNC. `holders`: how many members have its entry, according to its answer."""

    key: str | None
    holders: int
    is_marked: bool  # Whether the answer says that fewer members than `min_in_sync` have the entry.
    name: RowName


class WriteFate(NamedTuple):
    """A write whose outcome is known. `value`: the value that it wrote. `told`: the row of the answer about it."""

    plain_id: int
    value: str
    name: RowName
    told: RowName


@dataclass(slots=True)
class Fates:
    """The outcomes of the accepted writes of a run.

    `lost`: key → the writes that certainly have not changed the key. `committed`: key → the puts that certainly have
    changed the key. `lost_ids`: the op_ids of all lost writes. `rows`: op_id → the rows that replace the plain row of a
    lost write.
    """

    lost: dict[str, list[WriteFate]] = field(default_factory=dict)
    committed: dict[str, list[WriteFate]] = field(default_factory=dict)
    lost_ids: frozenset[int] = frozenset()
    rows: dict[int, list[Row]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def keys(self) -> Collection[str]:
        """The keys whose reads and changes must agree with the answers."""
        return self.lost.keys() | self.committed.keys()


def accepted_of(row: Mapping[str, Any]) -> AcceptedWrite | None:
    """Return the accepted write that a well-formed row records; None for any other row."""
    if row.get("accepted_index") is None:
        return None
    plain = next((one for one in plain_rows(row) if one["op_id"] == row["op_id"]), None)
    if plain is None:
        return None
    request = parse_service(row) if is_service(row) else {}
    is_append = request.get("prefix") is not None
    kept = {name: value for name, value in plain.items() if value is not None and name != "output"}
    certain = plain["op"] == "put" and not request
    puts = () if is_append else tuple(_puts(plain))
    entry = (row["accepted_index"], row["accepted_term"])
    return AcceptedWrite(entry, row["status"], kept, puts, certain, RowName.of(row))


def _puts(plain: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if plain["op"] in ("put", "cas"):
        yield plain["key"], plain["value"]
    elif plain["op"] == "txn":
        request = parse_request(plain)
        for step in [*request["success"], *request["failure"]]:
            if step["op"] == "put":
                yield step["key"], step["value"]


def told_of(row: Mapping[str, Any]) -> Told | None:
    """Return the answer that a well-formed row records; None if it does not report an entry as committed or lost."""
    if row["op"] != "outcome" or row["status"] != "ok":
        return None
    request, outcome = parse_service(row), answer_of(row)["outcome"]
    return Told((request["index"], request["term"]), outcome, RowName.of(row)) if outcome in (COMMITTED, LOST) else None


def held_of(row: Mapping[str, Any]) -> HeldWrite | None:
    """Return the acknowledged write of level IN_SYNC that a well-formed row records; None for any other row."""
    if row.get("acknowledge") != "in_sync" or row["status"] != "ok":
        return None
    return HeldWrite(row["key"], len(set(row["acknowledged_by"])), bool(row.get("under_replicated")), RowName.of(row))


def fates_of(accepted: Iterable[AcceptedWrite], told: Iterable[Told]) -> Fates:
    """Return the outcomes of the accepted writes. If answers about an entry contradict each other, the writes of the
    entry stay unknown."""
    answers: dict[Entry, dict[str, RowName]] = {}
    for one in sorted(told, key=lambda one: (one.name.return_ns or 0, one.name.op_id)):
        answers.setdefault(one.entry, {}).setdefault(one.outcome, one.name)
    writes: dict[Entry, list[AcceptedWrite]] = {}
    for write in sorted(accepted, key=lambda write: write.name.op_id):
        writes.setdefault(write.entry, []).append(write)
    fates, lost_ids = Fates(), set[int]()
    for entry, names in sorted(answers.items()):
        mine = writes.get(entry, [])
        if len(names) > 1:
            fates.findings.append(_contradiction(entry, names, mine))
            continue
        ((outcome, name),) = names.items()
        for write in mine:
            wrong = _disproved(write, outcome, name)
            if wrong is not None:
                fates.findings.append(wrong)
            elif write.status == "unknown" and outcome == LOST:
                lost_ids.add(write.name.op_id)
                fates.rows |= _lost_rows(write, name)
                for key, value in dict.fromkeys(write.puts):
                    fates.lost.setdefault(key, []).append(WriteFate(write.name.op_id, value, write.name, name))
            elif write.status == "unknown" and write.is_certain and write.name.clock == name.clock:
                ((key, value),) = write.puts
                fates.committed.setdefault(key, []).append(WriteFate(write.name.op_id, value, write.name, name))
    fates.lost_ids = frozenset(lost_ids)
    return fates


def _contradiction(entry: Entry, names: Mapping[str, RowName], writes: Iterable[AcceptedWrite]) -> Finding:
    committed, lost = names[COMMITTED], names[LOST]
    where = f"the entry at index {entry[0]} of term {entry[1]}"
    text = f"{committed.words} says that {where} is committed, and {lost.words} that it is lost"
    shown = (write.name.shown("was accepted") for write in writes)
    return finding(OUTCOMES, None, text, committed.shown("says committed"), lost.shown("says lost"), *shown)


def _disproved(write: AcceptedWrite, outcome: str, told: RowName) -> Finding | None:
    """Return a finding if the status of the write contradicts the answer about its entry."""
    key = write.row.get("key")
    if write.status == "ok" and outcome == LOST:
        text = f"{write.name.words} was acknowledged, and {told.words} says that its entry is lost"
        return finding(OUTCOMES, key, text, write.name.shown("was acknowledged"), told.shown("says lost"))
    if write.status == "fail" and outcome == COMMITTED and write.is_certain:
        text = f"{write.name.words} was reported as failed, and {told.words} says that its entry is committed"
        return finding(OUTCOMES, key, text, write.name.shown("was reported as failed"), told.shown("says committed"))
    return None


def _lost_rows(write: AcceptedWrite, told: RowName) -> dict[int, list[Row]]:
    """Return the rows that replace the plain rows of a lost write: one failed row, and no row for a deletion by its
    lease."""
    ended = max(write.name.call_ns, told.return_ns or 0) if write.name.clock == told.clock else write.name.call_ns
    failed = {**write.row, "status": "fail", "return_ns": ended}
    return {write.name.op_id: [failed], LEASE_END_IDS + write.name.op_id: []}


def copies_findings(held: Iterable[HeldWrite], min_in_sync: int | None) -> list[Finding]:
    """Return a finding for each write of level IN_SYNC that too few members have, although its answer does not say so.

    Fewer than `min_in_sync` members are too few. An answer says so with the flag `under_replicated`. If the run does
    not state the limit, `min_in_sync` is None, and there are no findings.
    """
    found: list[Finding] = []
    for write in held if min_in_sync is not None else ():
        if write.holders < (min_in_sync or 0) and not write.is_marked:
            words = f"was acknowledged by {write.holders} members, although min_in_sync is {min_in_sync}"
            found.append(finding(IN_SYNC, write.key, f"{write.name.words} {words}", write.name.shown(words)))
    return found
