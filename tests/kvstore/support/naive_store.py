"""A slow twin of the store, written from the specification alone. Each call copies, sorts and scans everything.

It shares the command, result and error types with the real store, but no other code. See
docs/reference/specification.md#8-store and docs/reference/specification.md#9-sessions-and-outcomes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvstore.errors import (
    InvalidRequest,
    KvError,
    LeaseExists,
    LeaseNotFound,
    NotANumber,
    QuotaExceeded,
    RequestClosed,
    RevisionAhead,
    RevisionCompacted,
    SessionExpired,
    StoreBusy,
)
from kvstore.protocol.commands import (
    Add,
    Append,
    ChangeLimits,
    CloseSession,
    Command,
    Compact,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    DeleteRange,
    Get,
    KeepAlive,
    LeaseGrant,
    LeaseRenew,
    LeaseRevoke,
    Operation,
    Put,
    RaiseFeatureLevel,
    Range,
    RegisterSession,
    Target,
    Txn,
)
from kvstore.protocol.results import (
    Acknowledged,
    AddResult,
    AppendResult,
    CompareAndSetResult,
    DeleteRangeResult,
    DeleteResult,
    GetResult,
    KeyRecord,
    LeaseGranted,
    LeaseRevoked,
    LeasesRenewed,
    OperationResult,
    PutResult,
    RangeResult,
    Record,
    Result,
    SessionRegistered,
    TxnResult,
)

Answer = Result | KvError

Event = tuple[int, bytes, Record | None, Record | None]
"""(revision, key, record before, record after)"""

LEVEL_1_LIMITS = 6


@dataclass
class NaiveSession:
    ttl: int
    last_seen: int
    floor: int = 0
    kept: dict[int, Answer] = field(default_factory=dict)


@dataclass
class NaiveLease:
    ttl: int
    deadline: int


@dataclass(frozen=True)
class Chosen:
    """A transaction after its comparisons were evaluated."""

    succeeded: bool
    branch: tuple[Any, ...]


@dataclass
class NaiveStore:
    limits: dict[str, int]
    level: int = 1
    time: int = 0
    revision: int = 1
    records: dict[bytes, Record] = field(default_factory=dict)
    deleted: list[tuple[int, bytes]] = field(default_factory=list)  # (revision, key), oldest first.
    floor: int = 0
    # Revision → all records at this revision.
    past: dict[int, dict[bytes, Record]] = field(default_factory=lambda: {1: {}})
    events: list[Event] = field(default_factory=list)
    has_history: bool = False
    kept_from: int = 0  # The compact revision, if there is a history.
    sessions: dict[int, NaiveSession] = field(default_factory=dict)
    next_session: int = 1
    leases: dict[int, NaiveLease] = field(default_factory=dict)
    next_lease: int = 1
    hold_until: int = 0
    before: dict[bytes, Record] = field(default_factory=dict)  # The records before the present transaction.
    range_keys: int = 0  # How many keys the present transaction's ranges have removed.

    def entry(self, time: int, commands: list[tuple[int, int, int, Command]]) -> list[Answer]:
        if time > self.time:
            self.time = time
            self.sessions = {i: s for i, s in self.sessions.items() if s.last_seen + s.ttl > time}
            due = sorted((each.deadline, number) for number, each in self.leases.items() if each.deadline <= time)
            for _, number in due if self.hold_until <= time else []:
                self._end_lease(number)
        answers = []
        for command in commands:
            answers.append(self._answer(*command))
            self._bound_history()
        self._bound_history()
        return answers

    def no_op(self, time: int) -> None:
        if self.level >= 2:
            self.hold_until = max(self.hold_until, max(time, self.time) + self.limits["lease_grace_ns"])
        self.entry(time, [])

    @property
    def compact_revision(self) -> int:
        return self.kept_from if self.has_history else self.revision

    def next_deadline(self) -> int | None:
        sessions = [session.last_seen + session.ttl for session in self.sessions.values()]
        leases = [max(lease.deadline, self.hold_until) for lease in self.leases.values()]
        return min(sessions + leases, default=None)

    def _answer(self, session_id: int, number: int, acknowledged: int, command: Command) -> Answer:
        if session_id == 0:
            return self._try(command, 0)
        session = self.sessions.get(session_id)
        if session is None:
            return SessionExpired(session_id)
        session.last_seen = self.time
        session.floor = max(session.floor, acknowledged)
        session.kept = {n: a for n, a in session.kept.items() if n > session.floor}
        if isinstance(command, CloseSession):
            del self.sessions[session_id]
            return Acknowledged(self.revision, 17)  # type: ignore[arg-type]
        if isinstance(command, KeepAlive):
            return Acknowledged(self.revision, 18)  # type: ignore[arg-type]
        if number <= session.floor:
            return RequestClosed(number, session.floor)
        if number in session.kept:
            return session.kept[number]
        if len(session.kept) >= self.limits["results_per_session_max"]:
            return StoreBusy("results_per_session_max", self.limits["results_per_session_max"])
        answer = self._try(command, session_id)
        if not isinstance(answer, StoreBusy):
            session.kept[number] = answer
        return answer

    def _try(self, command: Command, session_id: int) -> Answer:
        before = copy.deepcopy((self.revision, self.records, self.deleted, self.floor))
        try:
            if flaw := self._flaw(command):
                raise InvalidRequest(flaw)
            return self._carry_out(command, session_id)
        except KvError as error:
            self.revision, self.records, self.deleted, self.floor = before
            return error

    # The forms that a level knows.

    def _flaw(self, command: Command) -> str | None:
        if self.level >= 2:
            return "key_written_twice" if isinstance(command, Txn) and writes_twice(command) else None
        match command:
            case Txn(compares, success, failure):
                for each in compares:
                    if each.end != b"":
                        return "malformed"
                    if each.target is Target.LEASE:
                        return "out_of_range"
                for branch in (success, failure):
                    seen = set()
                    for op in branch:
                        if flaw := "unknown_kind" if isinstance(op, Txn) else self._flaw(op):
                            return flaw
                        if isinstance(op, Put | Delete):
                            if op.key in seen:
                                return "key_written_twice"
                            seen.add(op.key)
                return None
            case Put(key, value):
                return None if command == Put(key, value) else "malformed"
            case Get(key):
                return None if command == Get(key) else "malformed"
            case ChangeLimits():
                values = [getattr(command, name) for name in self.limits]
                return "malformed" if any(each is not None for each in values[LEVEL_1_LIMITS:]) else None
            case DeleteRange() | Append() | Add() | LeaseGrant() | LeaseRevoke() | LeaseRenew() | Compact():
                return "unknown_kind"
        return None

    def _carry_out(self, command: Command, session_id: int) -> Result:
        match command:
            case Put() | Get() | Delete() | Range() | DeleteRange() | Append() | Add():
                return self._branch((command,))[0]
            case CompareAndSet(key, value, expected):
                seen = self.records.get(key)
                if isinstance(expected, int):
                    matches = expected == (seen.mod_revision if seen else 0)
                else:
                    matches = seen is not None and seen.value == expected
                if matches:
                    return CompareAndSetResult(self._branch((Put(key, value),))[0].revision, True)
                got = self._get(key)
                return CompareAndSetResult(self.revision, False, got.record, got.deleted_revision, got.exact)
            case Txn():
                chosen = self._choose(command)
                results = self._branch(chosen.branch)
                return TxnResult(self.revision, chosen.succeeded, tuple(results))
            case RegisterSession(ttl):
                if session_id != 0:
                    raise InvalidRequest("out_of_range")
                if len(self.sessions) >= self.limits["sessions_max"]:
                    raise StoreBusy("sessions_max", self.limits["sessions_max"])
                self.sessions[self.next_session] = NaiveSession(ttl, self.time)
                self.next_session += 1
                return SessionRegistered(self.revision, self.next_session - 1, ttl)
            case ChangeLimits():
                for name in self.limits:
                    wanted = getattr(command, name)
                    self.limits[name] = self.limits[name] if wanted is None else wanted
                self._forget()
                self._switch_history()
                return Acknowledged(self.revision, 19)  # type: ignore[arg-type]
            case RaiseFeatureLevel(level):
                self.level = max(self.level, level)
                self._switch_history()
                return Acknowledged(self.revision, 20)  # type: ignore[arg-type]
            case KeepAlive() | CloseSession():
                raise InvalidRequest("session_required")
            case LeaseGrant() | LeaseRevoke() | LeaseRenew():
                return self._lease(command)
            case Compact(revision):
                if revision > self.revision:
                    raise RevisionAhead(revision, self.revision)
                if revision <= self.compact_revision:
                    raise RevisionCompacted(revision, self.compact_revision)
                self.kept_from = revision
                self.events = [event for event in self.events if event[0] >= revision]
                return Acknowledged(self.revision, 24)  # type: ignore[arg-type]
        raise AssertionError(command)

    # Leases.

    def _lease(self, command: LeaseGrant | LeaseRevoke | LeaseRenew) -> Result:
        match command:
            case LeaseGrant(number, ttl):
                if number in self.leases:
                    raise LeaseExists(number)
                if len(self.leases) >= self.limits["leases_max"]:
                    raise StoreBusy("leases_max", self.limits["leases_max"])
                if number == 0:
                    while self.next_lease in self.leases:
                        self.next_lease += 1
                    number = self.next_lease
                    self.next_lease += 1
                self.leases[number] = NaiveLease(ttl, self.time + ttl)
                return LeaseGranted(self.revision, number, ttl)
            case LeaseRevoke(number):
                if number not in self.leases:
                    raise LeaseNotFound(number)
                count = self._end_lease(number)
                return LeaseRevoked(self.revision, count)
            case LeaseRenew(numbers):
                ttls = []
                for number in numbers:
                    lease = self.leases.get(number)
                    ttls.append(lease.ttl if lease else 0)
                    if lease:
                        lease.deadline = max(lease.deadline, self.time + lease.ttl)
                return LeasesRenewed(self.revision, tuple(ttls))

    def keys_of_lease(self, number: int) -> list[bytes]:
        return sorted(key for key, record in self.records.items() if record.lease_id == number)

    def _end_lease(self, number: int) -> int:
        keys = self.keys_of_lease(number)
        del self.leases[number]
        if keys:
            self._branch(tuple(Delete(key) for key in keys))
        return len(keys)

    # History.

    def _switch_history(self) -> None:
        wanted = self.level >= 2 and min(self.limits["history_bytes_max"], self.limits["history_events_max"]) > 0
        if wanted and not self.has_history:
            self.kept_from = self.revision
        if not wanted:
            self.events = []
        self.has_history = wanted

    def event_bytes(self) -> int:
        return sum(64 + len(key) + (len(before.value) if before else 0) for _, key, before, _ in self.events)

    def _bound_history(self) -> None:
        while self.events and (
            self.event_bytes() > self.limits["history_bytes_max"]
            or len(self.events) > self.limits["history_events_max"]
        ):
            oldest = self.events[0][0]
            if oldest == self.events[-1][0]:
                break
            self.events = [event for event in self.events if event[0] > oldest]
            self.kept_from = oldest + 1

    def _records_at(self, revision: int, *, has_written: bool) -> Mapping[bytes, Record] | None:
        """The records at that revision; None: the present records."""
        if revision > self.revision:
            raise RevisionAhead(revision, self.revision)
        if revision in (0, self.revision):
            return None
        if not self.has_history or revision < self.kept_from:
            raise RevisionCompacted(revision, self.compact_revision)
        assert has_written or revision in self.past
        return self.past[revision]

    # Operations.

    def _choose(self, command: Txn) -> Chosen:
        succeeded = all(self._holds(compare) for compare in command.compares)
        branch = command.success if succeeded else command.failure
        return Chosen(succeeded, tuple(self._choose(op) if isinstance(op, Txn) else op for op in branch))

    def _holds(self, compare: Compare) -> bool:
        if compare.end == b"":
            return holds_for(self.records.get(compare.key), compare)
        inside: list[Record | None] = [
            record for key, record in self.records.items() if is_within(key, compare.key, compare.end)
        ]
        return all(holds_for(record, compare) for record in inside or [None])

    def _branch(self, operations: tuple[Operation | Chosen, ...]) -> list[OperationResult]:
        """Carry the operations out one after the other. The first write makes the next revision."""
        before, stored_before, old_revision = dict(self.records), self._stored(), self.revision
        written: list[bytes] = []
        self.before, self.range_keys = before, 0
        results = self._run(operations, written, old_revision + 1)
        if self._stored() > max(stored_before, self.limits["quota_bytes"]):
            raise QuotaExceeded(self._stored(), self.limits["quota_bytes"])
        if self.revision != old_revision:
            self._forget()
            self.past[self.revision] = dict(self.records)
            if self.has_history:
                self.events += [(self.revision, key, before.get(key), self.records.get(key)) for key in written]
        return [self._at_the_end(result) for result in results]

    def _at_the_end(self, result: OperationResult) -> OperationResult:
        """The result with the transaction's revision; all results inside get the same revision."""
        if isinstance(result, TxnResult):
            return TxnResult(self.revision, result.succeeded, tuple(self._at_the_end(r) for r in result.results))
        return replace(result, revision=self.revision)

    def _run(self, operations: tuple[Any, ...], written: list[bytes], new: int) -> list[OperationResult]:
        results: list[OperationResult] = []
        for op in operations:
            if isinstance(op, Chosen):
                results.append(TxnResult(0, op.succeeded, tuple(self._run(op.branch, written, new))))
            else:
                results.append(self._operate(op, written, new))
        return results

    def _operate(self, op: Operation, written: list[bytes], new: int) -> OperationResult:
        match op:
            case Put(key, value, lease_id):
                old = self.records.get(key)
                if old is None and (op.keep_value or op.keep_lease):
                    raise InvalidRequest("key_not_found")
                if old is not None:
                    value = old.value if op.keep_value else value
                    lease_id = old.lease_id if op.keep_lease else lease_id
                self._write(key, value, lease_id, written, new)
                return PutResult(new, old if op.previous else None)
            case Append(prefix, value, lease_id):
                key = prefix + new.to_bytes(8, "big")
                self._write(key, value, lease_id, written, new)
                return AppendResult(new, key)
            case Add(key, delta):
                old = self.records.get(key)
                number = number_of(key, old.value if old else b"0") + delta
                if not -(2**63) <= number < 2**63:
                    raise NotANumber(key)
                self._write(key, str(number).encode(), old.lease_id if old else 0, written, new)
                return AddResult(new, number)
            case Get(key, revision):
                then = self._records_at(revision, has_written=bool(written))
                if then is None:
                    return self._get(key)
                record = then.get(key)
                return GetResult(0, record) if record else GetResult(0, None, revision, False)
            case Delete(key):
                got = self._get(key)
                if got.record is None:
                    return DeleteResult(0, False, got.deleted_revision, got.exact)
                self._remove(key, written, new)
                return DeleteResult(new, True)
            case DeleteRange(start, end):
                inside = sorted(key for key in self.records if is_within(key, start, end))
                self.range_keys += len(inside)
                if self.range_keys > self.limits["delete_keys_max"]:
                    raise InvalidRequest("too_many_keys", self.range_keys, self.limits["delete_keys_max"])
                items = tuple(item_of(key, self.records[key]) for key in inside)
                for key in inside:
                    self._remove(key, written, new)
                return DeleteRangeResult(new, len(inside), items if op.previous else ())
            case Range():
                return self._range(op, has_written=bool(written))
        raise AssertionError(op)

    def _write(self, key: bytes, value: bytes, lease_id: int, written: list[bytes], new: int) -> None:
        if lease_id and lease_id not in self.leases:
            raise LeaseNotFound(lease_id)
        keys = {each for each, record in self.before.items() if record.lease_id == lease_id}
        if lease_id and len(keys) >= self.limits["delete_keys_max"] and key not in keys:
            raise InvalidRequest("lease_is_full", len(keys), self.limits["delete_keys_max"])
        if key in written:
            raise InvalidRequest("key_written_twice")
        old = self.records.get(key)
        created, version = (old.create_revision, old.version + 1) if old else (new, 1)
        self.records[key] = Record(value, created, new, version, lease_id)
        self.deleted = [(r, k) for r, k in self.deleted if k != key]
        self.revision = new
        written.append(key)

    def _remove(self, key: bytes, written: list[bytes], new: int) -> None:
        if key in written:
            raise InvalidRequest("key_written_twice")
        del self.records[key]
        self.deleted.append((new, key))
        self.revision = new
        written.append(key)

    def _get(self, key: bytes) -> GetResult:
        if key in self.records:
            return GetResult(self.revision, self.records[key])
        for revision, deleted in self.deleted:
            if deleted == key:
                return GetResult(self.revision, None, revision, True)
        return GetResult(self.revision, None, self.floor, self.floor == 0)

    def _range(self, request: Range, *, has_written: bool) -> RangeResult:
        then = self._records_at(request.revision, has_written=has_written)
        records = self.records if then is None else then
        inside = [key for key in sorted(records) if is_within(key, request.start, request.end)]
        page = inside[::-1] if request.reverse else inside
        page = page[: request.limit] if request.limit else page
        if request.count_only:
            return RangeResult(self.revision, (), False, len(inside))
        items = [item_of(key, records[key]) for key in page]
        if request.keys_only:
            items = [replace(item, value=None) for item in items]
        return RangeResult(self.revision, tuple(items), len(page) < len(inside), len(inside))

    def _forget(self) -> None:
        while len(self.deleted) > self.limits["deletions_max"]:
            self.floor = self.deleted[0][0]
            self.deleted = [(r, k) for r, k in self.deleted if r > self.floor]

    def _stored(self) -> int:
        return sum(len(k) + len(r.value) + 64 for k, r in self.records.items())


def is_within(key: bytes, start: bytes, end: bytes | None) -> bool:
    return start <= key and (end is None or key < end)


def item_of(key: bytes, r: Record) -> KeyRecord:
    return KeyRecord(key, r.value, r.create_revision, r.mod_revision, r.version, r.lease_id)


def number_of(key: bytes, value: bytes) -> int:
    text = value.decode("latin-1")
    if len(text) > 20 or not text.removeprefix("-") or set(text.removeprefix("-")) - set("0123456789"):
        raise NotANumber(key)
    return int(text)


def holds_for(record: Record | None, compare: Compare) -> bool:
    seen: bytes | int
    if compare.target is Target.VALUE:
        if record is None:
            return False
        seen = record.value
    else:
        name = "lease_id" if compare.target is Target.LEASE else compare.target.name.lower()
        seen = getattr(record, name) if record else 0
    wanted = compare.operand
    return {
        Comparison.EQUAL: seen == wanted,
        Comparison.NOT_EQUAL: seen != wanted,
        Comparison.LESS: seen < wanted,  # type: ignore[operator]
        Comparison.GREATER: seen > wanted,  # type: ignore[operator]
    }[compare.comparison]


Write = tuple[str, bytes, bytes | None, int]
"""(put, delete or range, key or start, end, place of the operation in its branch)"""


def writes_twice(command: Txn) -> bool:
    return any(_writes(branch) is None for branch in (command.success, command.failure))


def _writes(branch: tuple[Operation, ...]) -> list[Write] | None:
    """All writes of a branch, whichever branches its inner transactions choose; None if two writes may write one
    key."""
    found: list[Write] = []
    for place, op in enumerate(branch):
        match op:
            case Txn():
                for inner in (_writes(op.success), _writes(op.failure)):
                    if inner is None:
                        return None
                    found += [(*write[:3], place) for write in inner]
            case Put(key) | Add(key):
                found.append(("put", key, None, place))
            case Delete(key):
                found.append(("delete", key, None, place))
            case DeleteRange(start, end):
                found.append(("range", start, end, place))
    return None if any(_meet(one, other) for one in found for other in found) else found


def _meet(one: Write, other: Write) -> bool:
    if one[0] != "put" or one[3] == other[3]:
        return False
    return is_within(one[1], other[1], other[2]) if other[0] == "range" else one[1] == other[1]
