"""A slow twin of the store, written from the specification alone: everything is copied, sorted and scanned anew.

It shares the command, result and error values with the real one, and no code. See
docs/reference/specification.md#8-store and docs/reference/specification.md#9-sessions-and-outcomes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from kvstore.errors import (
    InvalidRequest,
    KvError,
    QuotaExceeded,
    RequestClosed,
    RevisionAhead,
    RevisionCompacted,
    SessionExpired,
    StoreBusy,
)
from kvstore.limits import StoreLimits
from kvstore.protocol.commands import (
    ChangeLimits,
    CloseSession,
    Command,
    Compare,
    CompareAndSet,
    Comparison,
    Delete,
    Get,
    KeepAlive,
    Operation,
    Put,
    Range,
    RegisterSession,
    Target,
    Txn,
)
from kvstore.protocol.results import (
    Acknowledged,
    CompareAndSetResult,
    DeleteResult,
    GetResult,
    KeyRecord,
    OperationResult,
    PutResult,
    RangeResult,
    Record,
    Result,
    SessionRegistered,
    TxnResult,
)

Answer = Result | KvError


@dataclass
class NaiveSession:
    ttl: int
    last_seen: int
    floor: int = 0
    kept: dict[int, Answer] = field(default_factory=dict)


@dataclass
class NaiveStore:
    limits: dict[str, int]
    time: int = 0
    revision: int = 1
    records: dict[bytes, Record] = field(default_factory=dict)
    deleted: list[tuple[int, bytes]] = field(default_factory=list)  # (revision, key), oldest first.
    floor: int = 0
    sessions: dict[int, NaiveSession] = field(default_factory=dict)
    next_session: int = 1

    def entry(self, time: int, commands: list[tuple[int, int, int, Command]]) -> list[Answer]:
        self.time = max(self.time, time)
        self.sessions = {i: s for i, s in self.sessions.items() if s.last_seen + s.ttl > self.time}
        return [self._answer(*command) for command in commands]

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
        session.kept[number] = self._try(command, session_id)
        return session.kept[number]

    def _try(self, command: Command, session_id: int) -> Answer:
        before = copy.deepcopy((self.revision, self.records, self.deleted, self.floor))
        try:
            return self._carry_out(command, session_id)
        except KvError as error:
            self.revision, self.records, self.deleted, self.floor = before
            return error

    def _carry_out(self, command: Command, session_id: int) -> Result:
        match command:
            case Put() | Get() | Delete() | Range():
                return self._branch([command])[0]
            case CompareAndSet(key, value, expected):
                seen = self.records.get(key)
                if isinstance(expected, int):
                    matches = expected == (seen.mod_revision if seen else 0)
                else:
                    matches = seen is not None and seen.value == expected
                if matches:
                    return CompareAndSetResult(self._branch([Put(key, value)])[0].revision, True)
                got = self._get(key)
                return CompareAndSetResult(self.revision, False, got.record, got.deleted_revision, got.exact)
            case Txn(compares, success, failure):
                succeeded = all(self._holds(compare) for compare in compares)
                results = self._branch(list(success if succeeded else failure))
                return TxnResult(self.revision, succeeded, tuple(results))
            case RegisterSession(ttl):
                if session_id != 0:
                    raise InvalidRequest("out_of_range")
                if len(self.sessions) >= self.limits["sessions_max"]:
                    raise StoreBusy("sessions_max", self.limits["sessions_max"])
                self.sessions[self.next_session] = NaiveSession(ttl, self.time)
                self.next_session += 1
                return SessionRegistered(self.revision, self.next_session - 1, ttl)
            case ChangeLimits():
                for name in StoreLimits.names():
                    self.limits[name] = getattr(command, name) or self.limits[name]
                self._forget()
                return Acknowledged(self.revision, 19)  # type: ignore[arg-type]
            case KeepAlive() | CloseSession():
                raise InvalidRequest("session_required")
        raise AssertionError(command)

    def _holds(self, compare: Compare) -> bool:
        record = self.records.get(compare.key)
        seen: bytes | int
        if compare.target is Target.VALUE:
            if record is None:
                return False
            seen = record.value
        else:
            seen = getattr(record, compare.target.name.lower()) if record else 0
        wanted = compare.operand
        return {
            Comparison.EQUAL: seen == wanted,
            Comparison.NOT_EQUAL: seen != wanted,
            Comparison.LESS: seen < wanted,  # type: ignore[operator]
            Comparison.GREATER: seen > wanted,  # type: ignore[operator]
        }[compare.comparison]

    def _branch(self, operations: list[Operation]) -> list[OperationResult]:
        """Carry the operations out one after the other; the first write makes the next revision."""
        stored_before, old_revision, new = self._stored(), self.revision, self.revision + 1
        results: list[OperationResult] = []
        for op in operations:
            if isinstance(op, Put):
                old = self.records.get(op.key)
                created, version = (old.create_revision, old.version + 1) if old else (new, 1)
                self.records[op.key] = Record(op.value, created, new, version)
                self.deleted = [(r, k) for r, k in self.deleted if k != op.key]
                self.revision = new
                results.append(PutResult(new))
            elif isinstance(op, Get):
                results.append(self._get(op.key))
            elif isinstance(op, Delete):
                got = self._get(op.key)
                if got.record is None:
                    results.append(DeleteResult(0, False, got.deleted_revision, got.exact))
                else:
                    del self.records[op.key]
                    self.deleted.append((new, op.key))
                    self.revision = new
                    results.append(DeleteResult(new, True))
            else:
                results.append(self._range(op))
        if self._stored() > max(stored_before, self.limits["quota_bytes"]):
            raise QuotaExceeded(self._stored(), self.limits["quota_bytes"])
        if self.revision != old_revision:
            self._forget()
        return [type(r)(self.revision, *[getattr(r, n) for n in list(r.__dataclass_fields__)[1:]]) for r in results]

    def _get(self, key: bytes) -> GetResult:
        if key in self.records:
            return GetResult(self.revision, self.records[key])
        for revision, deleted in self.deleted:
            if deleted == key:
                return GetResult(self.revision, None, revision, True)
        return GetResult(self.revision, None, self.floor, self.floor == 0)

    def _range(self, request: Range) -> RangeResult:
        if request.revision > self.revision:
            raise RevisionAhead(request.revision, self.revision)
        if request.revision not in (0, self.revision):
            raise RevisionCompacted(request.revision, self.revision)
        inside = [k for k in sorted(self.records) if request.start <= k and (request.end is None or k < request.end)]
        page = inside[::-1] if request.reverse else inside
        page = page[: request.limit] if request.limit else page
        if request.count_only:
            return RangeResult(self.revision, (), False, len(inside))
        items = []
        for key in page:
            r = self.records[key]
            value = None if request.keys_only else r.value
            items.append(KeyRecord(key, value, r.create_revision, r.mod_revision, r.version, r.lease_id))
        return RangeResult(self.revision, tuple(items), len(page) < len(inside), len(inside))

    def _forget(self) -> None:
        while len(self.deleted) > self.limits["deletions_max"]:
            self.floor = self.deleted[0][0]
            self.deleted = [(r, k) for r, k in self.deleted if r > self.floor]

    def _stored(self) -> int:
        return sum(len(k) + len(r.value) + 64 for k, r in self.records.items())
