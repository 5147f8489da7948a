"""A second, slow implementation of the store, which carries out the log again and keeps every state.

The replay shares no code with the store. Each entry is replayed once, when the first member applies the entry, with the
results of this member. A refused command must have changed nothing. If a command was refused because of a limit on
keys, it must exceed this limit. The result of any other command must equal the result of the replay. So a wrong result
is found even if all members give this result.

See docs/reference/specification.md#8-store.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.sim.checks.history import NOT_CARRIED_OUT, read_commands
from harness.sim.engine.errors import broken, require
from kvstore import CommandKind, Comparison, Reason, ResultCode, StoreLimits, Target
from raft import Entry, EntryKind

IS_REPLAY = "the store is the replay of its log"
KEYS_ARE_BOUNDED = "no command deletes more keys, and no lease gets more, than the limit in force allows"
ONLY_EXCESS_IS_REFUSED = "only a change of more keys than the limit in force allows is refused for it"

HISTORY_LEVEL = 2

EXPIRED_PER_ENTRY = 256
"""An entry ends leases until the number of ended leases, plus the number of their keys, is at least this number."""

EVENT_BYTES = 64
"""In the size of the history, an event counts this many bytes, in addition to its key and the value before the change.
"""

FIRST_REVISION = 1

Record = tuple[bytes, int, int, int, int]
"""The record of a key: (value, create_revision, mod_revision, version, lease_id)."""

MaybeRecord = Record | None


class Event(NamedTuple):
    """A change of one key. `before` and `after`: the record before and after the change; None if the key was absent."""

    key: bytes
    before: MaybeRecord
    after: MaybeRecord


@dataclass(slots=True)
class ReplayedLease:
    """A lease that has not ended. Times are in ns of leader time."""

    lease_id: int
    ttl_ns: int
    deadline: int
    keys: set[bytes] = field(default_factory=set)


class EndedLease(NamedTuple):
    """The end of a lease. From `revision` on, the lease has no keys. `is_expired` is False if the lease was revoked."""

    lease_id: int
    revision: int
    is_expired: bool


def in_range(key: bytes, start: bytes, end: bytes | None) -> bool:
    """True if the range [start, end) contains the key. If `end` is None, the range has no upper end."""
    return key >= start and (end is None or key < end)


class StoreReplay:
    """The state after the newest entry that any member has applied, with all earlier states.

    `lease_ended` is called for each lease that ends.
    """

    def __init__(self, lease_ended: Callable[[EndedLease], None] = lambda _: None) -> None:
        self._lease_ended = lease_ended
        self.index = 0
        self.level = 1
        self.leader_time = 0
        self.revision = FIRST_REVISION
        self.records: dict[bytes, Record] = {}
        self.leases: dict[int, ReplayedLease] = {}
        self.hold_until = 0
        self.is_kept = False  # True while the store keeps a history.
        self._compact_revision = FIRST_REVISION
        self.first_revision = FIRST_REVISION + 1  # The store keeps every event from this revision on.
        self.limits = dict.fromkeys(StoreLimits.names(), 0) | StoreLimits().to_map()
        self._next_lease_id = 1
        # All events of each revision, even those that the store has dropped.
        self._events: dict[int, tuple[Event, ...]] = {}
        self._versions: dict[bytes, tuple[list[int], list[MaybeRecord]]] = {}  # For each key: (revisions, records).
        self._kept_bytes = self._kept_events = 0
        self._done: set[tuple[int, int]] = set()  # The commands that were carried out: (session, request number).

    # -- the states

    @property
    def compact_revision(self) -> int:
        """The oldest revision that can be read."""
        return self._compact_revision if self.is_kept else self.revision

    def events(self, revision: int) -> tuple[Event, ...]:
        """Return the events of a revision, in order; empty if no change has made this revision."""
        return self._events.get(revision, ())

    def events_in(
        self, start: bytes, end: bytes | None, first_revision: int, last_revision: int
    ) -> Iterator[tuple[int, Event]]:
        """Yield (revision, event) for the events of a range of keys in a range of revisions, in order."""
        for revision in range(first_revision, last_revision + 1):
            for event in self._events.get(revision, ()):
                if in_range(event.key, start, end):
                    yield revision, event

    def record_at(self, key: bytes, revision: int) -> MaybeRecord:
        """Return the record of a key at a revision."""
        revisions, records = self._versions.get(key, ([], []))
        place = bisect_right(revisions, revision)
        return records[place - 1] if place else None

    def state_at(self, start: bytes, end: bytes | None, revision: int) -> list[tuple[bytes, Record]]:
        """Return the records of a range of keys at a revision, in byte order of the keys."""
        keys = sorted(key for key in self._versions if in_range(key, start, end))
        found = ((key, self.record_at(key, revision)) for key in keys)
        return [(key, record) for key, record in found if record is not None]

    def known_keys(self) -> list[bytes]:
        """Return every key that was ever written."""
        return list(self._versions)

    # -- the log

    def carry_out(self, entry: Entry, results: Sequence[Any]) -> None:
        """Carry out a committed entry. Call this method once for each entry, in order."""
        if entry.kind is EntryKind.COMMANDS:
            leader_time, commands = read_commands(entry.index, entry.payload)
            self.applied(entry.index, leader_time, commands, results)
        elif entry.kind is EntryKind.NO_OP:
            leader_time, _ = read_commands(entry.index, entry.payload)
            self.applied_no_op(entry.index, leader_time)
        else:
            self.index = entry.index

    def applied_no_op(self, index: int, leader_time: int) -> None:
        """Carry out a no-op entry, which is the first entry of a leader."""
        self.index = index
        if self.level >= HISTORY_LEVEL:
            grace_end = max(leader_time, self.leader_time) + self.limits["lease_grace_ns"]
            self.hold_until = max(self.hold_until, grace_end)
        self._pass_time(leader_time)
        self._bound_history()

    def applied(self, index: int, leader_time: int, commands: Sequence[Any], results: Sequence[Any]) -> None:
        """Carry out the commands of an entry, and compare the results with the results of a member."""
        self.index = index
        self._pass_time(leader_time)
        for command, result in zip(commands, results, strict=True):
            self._bound_history()
            if self._is_retry(command, result):
                continue
            if result[0] == ResultCode.OK:
                self._carry_out(command[3:], result)
            elif result[0] == ResultCode.INVALID_REQUEST:
                self._check_excess(command[3:], result)
        self._bound_history()

    def _is_retry(self, command: Sequence[Any], result: Sequence[Any]) -> bool:
        """True if the result was kept from an earlier attempt, so that the command has no effect now."""
        session_id, request_no = command[:2]
        if session_id and request_no and result[0] not in NOT_CARRIED_OUT:
            if (session_id, request_no) in self._done:
                return True
            self._done.add((session_id, request_no))
        return False

    def _check_excess(self, body: Sequence[Any], result: Sequence[Any]) -> None:
        """Check a refusal because of the limit on keys.

        The refusal contains the number of keys and the limit. If the command is a transaction, the number is not
        checked.
        """
        reason, *bound = result[2:]
        if reason not in (Reason.TOO_MANY_KEYS, Reason.LEASE_IS_FULL):
            return
        limit, key = self.limits["delete_keys_max"], body[1]
        if body[0] == CommandKind.DELETE_RANGE:
            count = sum(in_range(each, key, body[2]) for each in self.records)
        elif body[0] in (CommandKind.PUT, CommandKind.APPEND):
            lease = self.leases.get(body[3]) if len(body) > 3 else None
            count = len(lease.keys - {key}) if lease is not None else 0
        else:
            count = bound[0]
        is_excess = count > limit or (count == limit and reason == Reason.LEASE_IS_FULL)
        require(is_excess and bound == [count, limit], ONLY_EXCESS_IS_REFUSED, body, self.index, result, count, limit)

    def _carry_out(self, body: Sequence[Any], result: Sequence[Any]) -> None:
        kind = body[0]
        if kind < CommandKind.REGISTER_SESSION:
            change = _Change(self)
            told = change.carry_out(body, result[2])
            self._seal(change.written)
        elif kind <= CommandKind.RAISE_FEATURE_LEVEL:
            self._administer(body)
            return
        else:
            told = self._lease_or_compact(body, result[2])
        require(
            (self.revision, told) == (result[1], _plain(result[2])),
            IS_REPLAY,
            f"{body} at {self.index} gave {result}; the replay is at {self.revision} and gives {told}",
        )

    def _administer(self, body: Sequence[Any]) -> None:
        if body[0] == CommandKind.CHANGE_LIMITS:
            changes = zip(StoreLimits.names(), body[1:], strict=False)
            self.limits |= {name: value for name, value in changes if value is not None}
            self._switch_history()
        elif body[0] == CommandKind.RAISE_FEATURE_LEVEL:
            self.level = max(self.level, body[1])
            self._switch_history()

    def _lease_or_compact(self, body: Sequence[Any], told: Sequence[Any]) -> list[Any]:
        kind = body[0]
        if kind == CommandKind.LEASE_RENEW:
            return [kind, *[self._renewed(lease_id) for lease_id in body[1:]]]
        if kind == CommandKind.LEASE_GRANT:
            return [kind, self._grant(body[1], body[2]), body[2]]
        if kind == CommandKind.LEASE_REVOKE:
            lease = self.leases.get(body[1])
            if lease is None:
                broken(IS_REPLAY, f"lease {body[1]} was revoked at {self.index}, and there is no such lease: {told}")
            return [kind, self._end_lease(lease, is_expired=False)]
        assert kind == CommandKind.COMPACT, body
        require(self.compact_revision < body[1] <= self.revision, IS_REPLAY, f"{body} was accepted at {self.index}")
        self._compact_revision = body[1]
        if body[1] > self.first_revision:
            self._drop_until(body[1])
        return [kind]

    # -- leases

    def _renewed(self, lease_id: int) -> int:
        lease = self.leases.get(lease_id)
        if lease is None:
            return 0
        lease.deadline = self.leader_time + lease.ttl_ns
        return lease.ttl_ns

    def _grant(self, lease_id: int, ttl_ns: int) -> int:
        require(lease_id not in self.leases, IS_REPLAY, f"lease {lease_id} was granted twice, at {self.index}")
        if lease_id == 0:
            while self._next_lease_id in self.leases:
                self._next_lease_id += 1
            lease_id = self._next_lease_id
            self._next_lease_id += 1
        self.leases[lease_id] = ReplayedLease(lease_id, ttl_ns, self.leader_time + ttl_ns)
        return lease_id

    def _pass_time(self, leader_time: int) -> None:
        """Set the leader time, and end the leases that have expired."""
        if leader_time <= self.leader_time:
            return
        self.leader_time, room = leader_time, EXPIRED_PER_ENTRY
        if leader_time < self.hold_until:
            return
        due = [lease for lease in self.leases.values() if lease.deadline <= leader_time]
        for lease in sorted(due, key=lambda lease: (lease.deadline, lease.lease_id)):
            if room <= 0:
                return
            room -= 1 + self._end_lease(lease, is_expired=True)

    def _end_lease(self, lease: ReplayedLease, *, is_expired: bool) -> int:
        written = {key: self.records.pop(key) for key in sorted(lease.keys)}
        self._seal(dict(written))
        del self.leases[lease.lease_id]
        self._lease_ended(EndedLease(lease.lease_id, self.revision, is_expired))
        return len(written)

    # -- changes

    def _seal(self, written: dict[bytes, MaybeRecord]) -> None:
        """Complete a change.

        `written`: each changed key with its old record. `self.records` already has the new records.
        """
        if not written:
            return
        self.revision += 1
        events = []
        for key, before in written.items():
            after = self.records.get(key)
            events.append(Event(key, before, after))
            revisions, records = self._versions.setdefault(key, ([], []))
            revisions.append(self.revision)
            records.append(after)
            self._attach(key, before[4] if before else 0, after[4] if after else 0)
        self._events[self.revision] = tuple(events)
        if self.is_kept:
            self._kept_events += len(events)
            self._kept_bytes += sum(map(_cost, events))

    def _attach(self, key: bytes, old_id: int, new_id: int) -> None:
        if old_id in self.leases:
            self.leases[old_id].keys.discard(key)
        if new_id:
            self.leases[new_id].keys.add(key)

    # -- the kept history

    def _switch_history(self) -> None:
        bounds = self.limits["history_bytes_max"], self.limits["history_events_max"]
        is_kept = self.level >= HISTORY_LEVEL and bool(bounds[0] and bounds[1])
        if is_kept == self.is_kept:
            return
        self.is_kept, self._kept_bytes, self._kept_events = is_kept, 0, 0
        self._compact_revision, self.first_revision = self.revision, self.revision + 1

    def _bound_history(self) -> None:
        """Drop the oldest revisions while the history exceeds its bounds. The newest revision is always kept."""
        if not self.is_kept:
            return
        bytes_max, events_max = self.limits["history_bytes_max"], self.limits["history_events_max"]
        while self._kept_bytes > bytes_max or self._kept_events > events_max:
            if self.first_revision >= self.revision:
                return
            self._drop_until(self.first_revision + 1)
            self._compact_revision = self.first_revision

    def _drop_until(self, revision: int) -> None:
        for dropped in range(self.first_revision, revision):
            self._kept_events -= len(self._events[dropped])
            self._kept_bytes -= sum(map(_cost, self._events[dropped]))
        self.first_revision = revision


def _cost(event: Event) -> int:
    return EVENT_BYTES + len(event.key) + (len(event.before[0]) if event.before is not None else 0)


def _plain(item: Any) -> Any:
    """Turn tuples into lists, at every depth."""
    return [_plain(part) for part in item] if isinstance(item, tuple | list) else item


class _Change:
    """A command during its execution. `written`: each key that the command has changed so far, with the old record."""

    def __init__(self, replay: StoreReplay) -> None:
        self._replay, self._records = replay, replay.records
        self._revision = replay.revision + 1
        self._range_keys = 0  # The number of keys in all ranges that this command has deleted so far.
        self.written: dict[bytes, MaybeRecord] = {}

    def carry_out(self, body: Sequence[Any], told: Sequence[Any]) -> list[Any]:
        """Carry out an operation, and return the body of its result. `told`: the body of the member's result."""
        match body[0]:
            case CommandKind.PUT:
                return self._put(body)
            case CommandKind.GET:
                return [2, *self._seen(body[1], body[2] if len(body) > 2 else 0, told[1:])]
            case CommandKind.DELETE:
                return self._delete(body[1], told)
            case CommandKind.RANGE:
                return self._range(body)
            case CommandKind.COMPARE_AND_SET:
                return self._compare_and_set(body, told)
            case CommandKind.TXN:
                return self._txn(body, self._path(body), told)
            case CommandKind.DELETE_RANGE:
                return self._delete_range(body)
            case CommandKind.APPEND:
                key = body[1] + self._revision.to_bytes(8, "big")
                self._write(key, body[2], body[3])
                return [9, key]
            case CommandKind.ADD:
                return self._add(body[1], body[2])
        raise AssertionError(body)

    def _write(self, key: bytes, value: bytes, lease_id: int) -> None:
        replay = self._replay
        if key in self.written or (lease_id and lease_id not in replay.leases):
            broken(IS_REPLAY, f"{key!r} was written at {replay.index} with lease {lease_id}; there are {replay.leases}")
        if lease_id and key not in (keys := replay.leases[lease_id].keys):
            self._check_limit(len(keys) + 1)  # `keys` does not yet include the keys that this command attaches.
        before = self._records.get(key)
        self.written[key] = before
        created, version = (before[1], before[3] + 1) if before else (self._revision, 1)
        self._records[key] = (value, created, self._revision, version, lease_id)

    def _check_limit(self, count: int) -> None:
        """Check that a number of keys (deleted by a command, or attached to a lease) is within the limit in force."""
        limit, index = self._replay.limits["delete_keys_max"], self._replay.index
        require(count <= limit, KEYS_ARE_BOUNDED, f"{count} at {index}, where {limit} are allowed")

    def _remove(self, key: bytes) -> Record:
        require(key not in self.written, IS_REPLAY, f"{key!r} was written twice at {self._replay.index}")
        before = self._records.pop(key)
        self.written[key] = before
        return before

    def _put(self, body: Sequence[Any]) -> list[Any]:
        _, key, value, lease_id, flags = (*body, 0, 0)[:5]
        before = self._records.get(key)
        if flags & 6:  # The key keeps its value (2), its lease (4), or both.
            assert before is not None, body
            value = before[0] if flags & 2 else value
            lease_id = before[4] if flags & 4 else lease_id
        self._write(key, value, lease_id)
        return [1, _plain(before)] if flags & 1 else [1]

    def _delete(self, key: bytes, told: Sequence[Any]) -> list[Any]:
        if key not in self._records:
            return [3, False, *_plain(told[2:])]
        self._remove(key)
        return [3, True]

    def _delete_range(self, body: Sequence[Any]) -> list[Any]:
        keys = sorted(key for key in self._records if in_range(key, body[1], body[2]))
        self._range_keys += len(keys)
        self._check_limit(self._range_keys)
        items = [[key, *self._remove(key)] for key in keys]
        return [7, len(keys), items] if body[3] else [7, len(keys)]

    def _add(self, key: bytes, delta: int) -> list[Any]:
        before = self._records.get(key)
        number = (int(before[0]) if before else 0) + delta
        self._write(key, b"%d" % number, before[4] if before else 0)
        return [10, number]

    def _compare_and_set(self, body: Sequence[Any], told: Sequence[Any]) -> list[Any]:
        _, key, value, expected = body
        target = Target.MOD_REVISION if isinstance(expected, int) else Target.VALUE
        if holds(self._records.get(key), (target, Comparison.EQUAL, key, expected)):
            self._write(key, value, 0)
            return [5, True]
        return [5, False, *self._seen(key, 0, told[2:])]

    # Transactions.

    def _path(self, body: Sequence[Any]) -> tuple[bool, list[Any]]:
        """Choose the branches of a transaction and of its inner transactions, before anything is written."""
        succeeded = all(self._compares(compare) for compare in body[1])
        branch = body[2] if succeeded else body[3]
        return succeeded, [self._path(each) if each[0] == CommandKind.TXN else None for each in branch]

    def _compares(self, compare: Sequence[Any]) -> bool:
        if len(compare) == 4 or compare[4] == b"":
            return holds(self._records.get(compare[2]), compare)
        found = [record for key, record in self._records.items() if in_range(key, compare[2], compare[4])]
        return all(holds(record, compare) for record in found) if found else holds(None, compare)

    def _txn(self, body: Sequence[Any], path: tuple[bool, list[Any]], told: Sequence[Any]) -> list[Any]:
        succeeded, inner = path
        branch = body[2] if succeeded else body[3]
        if succeeded != told[1] or len(branch) != len(told[2]):
            broken(IS_REPLAY, f"{body} at {self._replay.index} gave {told}, and the comparisons are {succeeded}")
        results = [
            self.carry_out(each, answer) if sub is None else self._txn(each, sub, answer)
            for each, sub, answer in zip(branch, inner, told[2], strict=True)
        ]
        return [6, succeeded, results]

    # Reads.

    def _at(self, revision: int) -> int:
        """Return the older revision that a read names, or 0 if the read needs the state with the writes so far."""
        replay = self._replay
        now = self._revision if self.written else replay.revision
        if revision in (0, now):
            return 0
        if not replay.compact_revision <= revision <= replay.revision:
            broken(
                "a read of a revision that is not kept is refused",
                f"{revision} was read at {replay.index}, {replay.compact_revision} to {replay.revision} can be read",
            )
        return revision

    def _seen(self, key: bytes, revision: int, told: Sequence[Any]) -> list[Any]:
        """Return the record of a key, or the part of a result that describes an absent key.

        The replay does not check the revision of the deletion of an absent key, and copies it from `told`.
        """
        at = self._at(revision)
        record = self._replay.record_at(key, at) if at else self._records.get(key)
        if record is not None:
            return [_plain(record)]
        return [None, at, False] if at else [None, *_plain(told[1:])]

    def _range(self, body: Sequence[Any]) -> list[Any]:
        _, start, end, limit, reverse, keys_only, count_only, revision, _ = body
        at = self._at(revision)
        if at:
            rows = self._replay.state_at(start, end, at)
        else:
            rows = sorted((key, record) for key, record in self._records.items() if in_range(key, start, end))
        return [4, *page(rows, limit, reverse=reverse, keys_only=keys_only, count_only=count_only)]


def page(
    rows: Sequence[tuple[bytes, Record]], limit: int, *, reverse: bool, keys_only: bool, count_only: bool
) -> list[Any]:
    """Return the page of a range, as [items, more, count].

    The pages of simulated runs are smaller than any bound in bytes.
    """
    if count_only:
        return [[], False, len(rows)]
    ordered = list(reversed(rows)) if reverse else list(rows)
    shown = ordered[: limit or None]
    items = [[key, None, *record[1:]] if keys_only else [key, *record] for key, record in shown]
    return [items, len(items) < len(rows), len(rows)]


_PLACES = {Target.VALUE: 0, Target.CREATE_REVISION: 1, Target.MOD_REVISION: 2, Target.VERSION: 3, Target.LEASE: 4}


def holds(record: MaybeRecord, compare: Sequence[Any]) -> bool:
    """Evaluate a comparison for one key."""
    target, comparison, operand = compare[0], compare[1], compare[3]
    if record is None and target == Target.VALUE:
        return False
    seen: Any = 0 if record is None else record[_PLACES[target]]
    match comparison:
        case Comparison.EQUAL:
            return bool(seen == operand)
        case Comparison.NOT_EQUAL:
            return bool(seen != operand)
        case Comparison.LESS:
            return bool(seen < operand)
    return bool(seen > operand)
