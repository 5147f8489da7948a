"""Encoding the replicated state as a header and chunks of CBOR, and decoding it.

The header is a map with `format`, `feature_level`, `revision`, `compact_revision`, `leader_time`, `next_session_id`,
`deletion_floor`, `limits` (a map), `keys`, `deletions`, `sessions`, `results` and `stored_bytes`. The last five must
equal the totals of the rows.

A chunk is an array `[section, row, row, ...]`. The sections follow each other in the order of this table. A section has
as many chunks as it needs, and none if it is empty. The last column of the table states the order of the rows of a
section:

    1 records    (key, value, create_revision, mod_revision, version, lease_id)     by key
    2 deletions  (key, deleted_revision)                                            oldest first
    3 sessions   (session_id, ttl_ns, deadline, floor)                              by id
    4 results    (session_id, request_no, result)                                   by session, then number

From feature level 2 on the header also has `first_revision`, `events`, `events_bytes`, `leases`, `next_lease_id` and
`lease_hold_until`, and two sections follow:

    5 history    (key sizes, keys, value sizes, values, revisions, create_revisions,
                  mod_revisions, versions, lease_ids)                               newest first
    6 leases     (lease_id, ttl_ns, deadline)                                       by id

From feature level 3 on the header also has `auth_enabled`, `auth_revision`, `token_key`, `roles` and `users`, a row of
a session ends with its owner, and two sections follow (`kvstore.store.access_rows`):

    7 roles      (role, ((start, end, rights), ...))                                by name
    8 users      (name, verifier, (role, ...), four bounds)                         by name

A row of the history contains up to 1,024 successive events, oldest first. Each of its columns is a byte string. The
columns of numbers have 4 bytes per number, or 8 bytes if the last revision does not fit in 4. Sizes always have 4
bytes, and lease ids 8. The column `lease_ids` is empty if no record before an event has a lease. `values` and all later
columns except `revisions` are fields of the record before the event, and are empty or 0 if the event is a creation. The
record after an event is computed from the present records and the newer events, so each version of a record is written
only once.

Existing snapshots have these layouts. New fields may be added only at the end of a row, with a new feature level.

See docs/reference/specification.md#53-state-of-the-store.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import chain, islice, repeat
from struct import Struct
from sys import byteorder
from typing import Any

import cbor2

from kvstore.access.state import ROOT, AccessState, Permission, User
from kvstore.limits import (
    ACCESS_LEVEL,
    FEATURE_LEVEL_INITIAL,
    FEATURE_LEVELS,
    HISTORY_LEVEL,
    ITEM_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    TIME_NS_MAX,
    StoreLimits,
)
from kvstore.protocol.access_commands import NAME_BYTES_MAX
from kvstore.protocol.cbor_heads import array_head, bytes_head, uint_head
from kvstore.protocol.commands import PAYLOAD_DEPTH_MAX
from kvstore.protocol.results import PUT_DONE
from kvstore.protocol.validation import is_count
from kvstore.store.access_rows import add_role, add_user, head_flaw, head_row, role_rows, user_rows
from kvstore.store.copy_on_write import (
    HistorySnapshotView,
    LeaseRow,
    SessionsSnapshotView,
    StoreSnapshotView,
    lease_rows,
)
from kvstore.store.leases import FIRST_LEASE_ID, GrantedLease
from kvstore.store.map import FIRST_REVISION, KeyValueMap
from kvstore.store.records import SLOTS, RecordItem, Records
from kvstore.store.sealed_block import ABSENT, BLOCK_EVENTS, EventColumns
from kvstore.store.sessions import FIRST_SESSION_ID, PUT_RESULT_BYTES, Session, Sessions, result_bytes
from raft import INT64_MAX, INT64_MIN, LevelRange, ProtocolError, StateSnapshot, decode_stored

FORMAT = 1
CHUNK_BYTES = 64 * 1024
"""The default bound on the size of a chunk. Only a chunk with a single row may be larger.

The bound is not part of the format: chunks of any size can be read. Encoding a chunk takes 0.5 to 1 ms, and the member
does nothing else in this time. A block of events is one row, so a chunk with events is larger, but its encoding does
not take more time."""

ROW_BYTES = 512
"""A view reads `chunk_bytes // ROW_BYTES` rows at a time: 128 for chunks of 64 KiB, and a few for the small chunks of
simulations."""

ALL_ROWS = 1 << 20
"""A number greater than the number of rows of any chunk."""

RECORDS, DELETIONS, SESSIONS, RESULTS, HISTORY, LEASES, ROLES, USERS = 1, 2, 3, 4, 5, 6, 7, 8

_usual_numbers = Struct(">BIBIBB").pack
_NARROW_MAX = 2**32 - 1
"""The greatest number in a column with 4 bytes per number."""


class InvalidSnapshot(Exception):
    """A snapshot of the store is not valid. The state is unchanged."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        remedy = "Replace this member as a new one (docs/operations/guide.md#damage)"
        return f"not a snapshot of the store: {self.reason}. {remedy}"


class UnsupportedFeatureLevel(Exception):
    """This build does not know the replicated feature level, so the member cannot continue.

    See docs/reference/specification.md#713-feature-levels.
    """

    def __init__(self, level: int, levels: LevelRange) -> None:
        super().__init__(level, levels)
        self.level, self.levels = level, levels

    def __str__(self) -> str:
        remedy = (
            "Start this member with the build of the other members"
            if self.level > self.levels.highest
            else "Start it with the build that it had; the cluster is upgraded in steps (docs/reference/versions.md)"
        )
        return f"the cluster is at feature level {self.level}, which is final; this build knows {self.levels}. {remedy}"


def header_of(
    store: KeyValueMap, sessions: Sessions, limits: StoreLimits, leader_time: int, level: int
) -> dict[str, Any]:
    """Return the header of a snapshot of this state."""
    header = {
        "format": FORMAT,
        "feature_level": level,
        "revision": store.revision,
        "compact_revision": store.compact_revision,
        "leader_time": leader_time,
        "next_session_id": sessions.next_id,
        "deletion_floor": store.deletion_floor,
        "limits": limits.to_map(level),
        "keys": len(store.records),
        "deletions": len(store.deletions),
        "sessions": len(sessions.by_id),
        "results": sum([len(session.results) for session in sessions.by_id.values()]),
        "stored_bytes": store.stored_bytes,
    }
    if level >= HISTORY_LEVEL:
        history, leases = store.history, store.leases
        header |= {
            "first_revision": store.first_revision,
            "events": len(history),
            "events_bytes": history.size_bytes,
            "leases": len(leases.by_id),
            "next_lease_id": leases.next_id,
            "lease_hold_until": leases.hold_until,
        }
    if level >= ACCESS_LEVEL:
        names = ("auth_enabled", "auth_revision", "token_key", "roles", "users")
        header |= dict(zip(names, head_row(store.access), strict=True))
    return header


def take_snapshot(
    store: KeyValueMap, sessions: Sessions, header: Mapping[str, Any], chunk_bytes: int = CHUNK_BYTES
) -> StateSnapshot:
    """Take a snapshot. Rows are saved before they change, and encoded when chunks are read. Cost: O(sessions)."""
    state, clients = StoreSnapshotView(store, max(1, chunk_bytes // ROW_BYTES)), SessionsSnapshotView(sessions)
    history, leases = HistorySnapshotView(store.history), lease_rows(store.leases)
    access, has_owners = store.access, _level_of(header) >= ACCESS_LEVEL

    def close() -> None:
        state.close()
        clients.close()

    def chunks() -> Iterator[bytes]:
        sections = (
            _record_rows(state),
            _deletion_rows(state),
            _session_rows(clients, has_owners=has_owners),
            _result_rows(clients),
            _event_rows(history),
            _lease_rows(leases),
            _plain_rows(role_rows(access)),
            _plain_rows(user_rows(access)),
        )
        parts = chain.from_iterable(_chunks(number, rows, chunk_bytes) for number, rows in enumerate(sections, RECORDS))
        while True:
            assert state.is_open, "a view that was closed is being read"
            if (chunk := next(parts, None)) is None:
                break
            yield chunk
        close()

    return StateSnapshot(header=header, chunks=chunks(), close=close)


def _chunks(section: int, rows: Iterable[tuple[bytes, int]], chunk_bytes: int) -> Iterator[bytes]:
    """Encode rows as chunks. A row is (its encoding, its bytes as counted for `chunk_bytes`)."""
    head, room = uint_head(section), chunk_bytes
    chunk: list[bytes] = []
    for row, size_bytes in rows:
        if room < size_bytes and chunk:
            yield array_head(1 + len(chunk)) + head + b"".join(chunk)
            chunk, room = [], chunk_bytes
        chunk.append(row)
        room -= size_bytes
    if chunk:
        yield array_head(1 + len(chunk)) + head + b"".join(chunk)


def _record_rows(view: StoreSnapshotView) -> Iterator[tuple[bytes, int]]:
    """Yield the encoded records. Encoding without `cbor2` takes 0.5 µs per row instead of 1.4 µs."""
    for records in view.records():
        for key, (value, created, modified, version, lease_id) in records:
            if created >= 1 << 16 and modified < 1 << 32 and version < 24 and lease_id == 0:  # The usual sizes.
                numbers = _usual_numbers(0x1A, created, 0x1A, modified, version, 0)
            else:
                numbers = b"".join(map(uint_head, (created, modified, version, lease_id)))
            row = b"".join((b"\x86", bytes_head(len(key)), key, bytes_head(len(value)), value, numbers))
            yield row, len(key) + len(value) + ITEM_OVERHEAD_BYTES


def _deletion_rows(view: StoreSnapshotView) -> Iterator[tuple[bytes, int]]:
    for places in view.deletions():
        for revision, _, key in places:
            row = b"".join((b"\x82", bytes_head(len(key)), key, uint_head(revision)))
            yield row, len(key) + ITEM_OVERHEAD_BYTES


def _session_rows(view: SessionsSnapshotView, *, has_owners: bool) -> Iterator[tuple[bytes, int]]:
    for *numbers, owner in view.sessions():
        encoded = b"".join(map(uint_head, numbers))
        if has_owners:
            yield b"\x85" + encoded + cbor2.dumps(owner), ITEM_OVERHEAD_BYTES
        else:
            yield b"\x84" + encoded, ITEM_OVERHEAD_BYTES


def _result_rows(view: SessionsSnapshotView) -> Iterator[tuple[bytes, int]]:
    for session_id, number, result in view.results():
        if result[2] is PUT_DONE:
            numbers = uint_head(session_id), uint_head(number), uint_head(result[1])
            row = b"".join((b"\x83", numbers[0], numbers[1], b"\x83\x00", numbers[2], b"\x81\x01"))
            yield row, PUT_RESULT_BYTES + ITEM_OVERHEAD_BYTES
        else:
            yield cbor2.dumps((session_id, number, result)), result_bytes(result) + ITEM_OVERHEAD_BYTES


def _event_rows(view: HistorySnapshotView) -> Iterator[tuple[bytes, int]]:
    """Yield the encoded blocks of events, newest first.

    Under a steady load, a snapshot contains one event for each put since the last snapshot. Therefore the events are
    written by column, which takes 0.5 µs per event instead of 1.3 µs.
    """
    for events in view.blocks():
        row = _event_row(events)
        yield row, len(row)


def _event_row(events: EventColumns) -> bytes:
    typecode = "I" if events.revisions[-1] <= _NARROW_MAX else "Q"
    keys, values = events.keys, events.values
    leases = b""
    if any(events.leases):
        leases = _raw("Q", events.leases) + bytes(8 * (len(events) - len(events.leases)))
    columns = (
        _raw("I", list(map(len, keys))),
        b"".join(keys),
        _raw("I", list(map(len, values))),
        b"".join(values),
        *[_raw(typecode, each) for each in (events.revisions, events.created, events.modified, events.versions)],
        leases,
    )
    encoded: bytes = cbor2.dumps(columns)
    return encoded


def _raw(typecode: str, numbers: Sequence[int]) -> bytes:
    """Return the numbers as unsigned integers of 4 bytes (`typecode` I) or 8 (Q), little-endian."""
    column = numbers if isinstance(numbers, array) and numbers.typecode == typecode else array(typecode, numbers)
    if byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _numbers(typecode: str, raw: bytes) -> array[int]:
    """Return the numbers that `_raw` has encoded."""
    column = array(typecode, raw)
    if byteorder == "big":
        column.byteswap()
    return column


def _lease_rows(rows: Iterable[LeaseRow]) -> Iterator[tuple[bytes, int]]:
    for row in rows:
        yield b"\x83" + b"".join(map(uint_head, row)), ITEM_OVERHEAD_BYTES


def _plain_rows(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[bytes, int]]:
    for row in rows:
        encoded = cbor2.dumps(row)
        yield encoded, len(encoded)


def read_header(header: Mapping[str, Any], levels: LevelRange = FEATURE_LEVELS) -> StoreLimits:
    """Verify a header, and return its replicated limits. Raises InvalidSnapshot or UnsupportedFeatureLevel."""
    numbers: dict[str, Any] = {
        name: header.get(name) for name in header_of(KeyValueMap(), Sessions(), StoreLimits(), 0, _level_of(header))
    }
    fields = numbers.pop("limits")
    if numbers["format"] != FORMAT:
        raise InvalidSnapshot(f"its format is {numbers['format']!r}; this build knows {FORMAT}")
    level = numbers["feature_level"]
    _require(is_count(level) and level >= FEATURE_LEVEL_INITIAL, f"feature_level is {level!r}")
    if header["feature_level"] not in levels:  # Checked first: the header of an unknown level may have other fields.
        raise UnsupportedFeatureLevel(header["feature_level"], levels)
    auth_fields = [numbers.pop(name, None) for name in ("auth_enabled", "auth_revision", "token_key")]
    for name, number in numbers.items():
        _require(is_count(number), f"{name} is {number!r}")
    _require(header["revision"] >= FIRST_REVISION, "its revision is 0")
    if header["feature_level"] < HISTORY_LEVEL:
        _require(header["compact_revision"] == header["revision"], "its compact_revision is not its revision")
    else:
        _require(1 <= header["compact_revision"] <= header["revision"], "its compact_revision is above its revision")
        step = header["first_revision"] - header["compact_revision"]
        _require(step in (0, 1), "its first_revision does not follow its compact_revision")
        _require(header["next_lease_id"] >= FIRST_LEASE_ID, "its next_lease_id is 0")
        _require(header["lease_hold_until"] <= 2 * TIME_NS_MAX, "its lease_hold_until is beyond all time")
    if header["feature_level"] >= ACCESS_LEVEL and (flaw := head_flaw(*auth_fields)) is not None:
        raise InvalidSnapshot(flaw)
    _require(header["leader_time"] <= TIME_NS_MAX, "its leader_time is beyond all time")
    _require(header["next_session_id"] >= FIRST_SESSION_ID, "its next_session_id is 0")
    _require(header["deletion_floor"] <= header["revision"], "its deletion_floor is above its revision")
    try:
        _require(set(fields) == set(StoreLimits.names(_level_of(header))), "its limits are those of another level")
        return StoreLimits.from_map(fields)
    except (TypeError, ValueError) as error:
        raise InvalidSnapshot(f"its limits: {error}") from error


def _level_of(header: Mapping[str, Any]) -> int:
    level = header.get("feature_level")
    return level if type(level) is int else FEATURE_LEVEL_INITIAL


def read_state(header: Mapping[str, Any], chunks: Iterable[bytes]) -> tuple[KeyValueMap, Sessions]:
    """Build the state that a verified header and its chunks describe. Raises InvalidSnapshot. Cost: O(n)."""
    reader = StateReader(header)
    for chunk in chunks:
        reader.feed(chunk)
        while reader.take(ALL_ROWS):
            pass
    return reader.finish()


class StateReader:
    """Builds a state from rows. Each row is validated when it is read, and the totals at the end.

    `store` and `sessions` are the state so far. The methods raise InvalidSnapshot.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        """`header` has passed `read_header`."""
        self._header = header
        self.store, self.sessions = KeyValueMap(), Sessions()
        self.store.revision, self.store.deletion_floor = header["revision"], header["deletion_floor"]
        self._has_history = header["feature_level"] >= HISTORY_LEVEL
        self._has_access = header["feature_level"] >= ACCESS_LEVEL
        self._users: dict[str, User] = {}
        self._roles: dict[str, tuple[Permission, ...]] = {}
        self._first_revision = header["first_revision"] if self._has_history else header["revision"] + 1
        self._attached: dict[int, set[bytes]] = {}  # Lease id → keys, until the row of the lease is read.
        self._history = HistoryReader(self.store, header) if self._has_history else None
        self._rows: Iterator[Any] = iter(())
        self._last_key = b""
        self._section = RECORDS
        self._results = 0
        self._last: tuple[int, ...] = (0, 0)

    def feed(self, chunk: bytes) -> None:
        """Add the next chunk, after `take` has read all rows of the previous chunk."""
        try:
            rows = decode_stored(chunk, PAYLOAD_DEPTH_MAX)
        except ProtocolError as error:
            raise InvalidSnapshot(f"a chunk is not CBOR of the profile ({error})") from error
        _require(type(rows) is tuple and len(rows) > 1 and type(rows[0]) is int, "a chunk is not an array of rows")
        section = rows[0]
        last = USERS if self._has_access else LEASES if self._has_history else RESULTS
        _require(self._section <= section <= last, f"section {section} after section {self._section}")
        if section != self._section:
            self._section, self._last = section, (0, 0)
        self._rows = islice(rows, 1, None)

    def take(self, records_max: int) -> bool:
        """Read up to `records_max` records, or half a row of events, or a quarter of `records_max` rows of another
        section. Returns False if no row was left."""
        if self._section == RECORDS:
            return self._take_records(islice(self._rows, records_max))
        if self._section == HISTORY:
            assert self._history is not None
            return self._history.take(self._rows)
        rows = islice(self._rows, max(1, records_max // 4))
        take, is_empty = self._taker(self._section), True
        for row in rows:
            if type(row) is not tuple or not take(row):
                raise _unsound(self._section, row)
            is_empty = False
        return not is_empty

    @property
    def leftovers(self) -> Records:
        """The records that this reader does not need after `finish`. The caller should free these records in slices,
        because there may be many."""
        return self._history.older if self._history is not None else Records()

    def finish(self) -> tuple[KeyValueMap, Sessions]:
        """Verify the totals in the header, and return the state, after all rows were taken. Cost: O(sessions)."""
        store, sessions, header = self.store, self.sessions, self._header
        sessions.next_id = header["next_session_id"]
        if self._history is not None:
            self._finish_level_2(self._history)
        if self._has_access:
            self._finish_level_3()
        found = {
            "keys": len(store.records),
            "deletions": len(store.deletions),
            "sessions": len(sessions.by_id),
            "results": self._results,
            "stored_bytes": store.stored_bytes,
        }
        for name, number in found.items():
            _require(number == header[name], f"{name}: {number} found, {header[name]} announced")
        return store, sessions

    def _finish_level_2(self, history: HistoryReader) -> None:
        store, header = self.store, self._header
        history.finish()
        _require(len(store.history) == header["events"], f"{len(store.history)} events, {header['events']} announced")
        _require(store.history.size_bytes == header["events_bytes"], "its events have another size than announced")
        leases = store.leases
        leases.next_id, leases.hold_until = header["next_lease_id"], header["lease_hold_until"]
        _require(len(leases.by_id) == header["leases"], f"{len(leases.by_id)} leases, {header['leases']} announced")
        for lease_id in self._attached:
            raise InvalidSnapshot(f"a key has lease {lease_id}, which does not exist")

    def _finish_level_3(self) -> None:
        header, users, roles = self._header, self._users, self._roles
        _require(len(users) == header["users"], f"{len(users)} users, {header['users']} announced")
        _require(len(roles) == header["roles"], f"{len(roles)} roles, {header['roles']} announced")
        root = users.get(ROOT)
        has_root = root is not None and ROOT in root.roles
        _require(has_root or not header["auth_enabled"], "authentication is on, and there is no user root")
        self.store.access = AccessState(
            header["auth_enabled"], header["auth_revision"], header["token_key"], users, roles
        )

    def _taker(self, section: int) -> Callable[[tuple[Any, ...]], bool]:
        return {
            DELETIONS: self._take_deletion,
            SESSIONS: self._take_session,
            RESULTS: self._take_result,
            LEASES: self._take_lease,
            ROLES: lambda row: add_role(row, self._roles),
            USERS: lambda row: add_user(row, self._roles, self._users),
        }[section]

    def _take_records(self, rows: Iterable[Any]) -> bool:
        """Read many records. Records have a separate loop, because a store may contain millions of records.

        With inline validation, a record takes 1.1 µs, including decoding. With a call for each record, it took 3.2 µs.
        If the two revisions of a record are equal, they become one int object, to save memory.
        """
        store, last_key, size_bytes, recent = self.store, self._last_key, 0, 0
        slots, revision, has_leases = store.records.slots, store.revision, self._has_history
        first_revision = self._first_revision
        keys: list[bytes] = []
        for row in rows:
            if type(row) is not tuple or len(row) != 6:
                raise _unsound(RECORDS, row)
            key, value, create_revision, mod_revision, version, lease_id = row
            if not (
                type(key) is bytes
                and type(value) is bytes
                and type(create_revision) is int
                and type(mod_revision) is int
                and type(version) is int
                and type(lease_id) is int
                and last_key < key
                and FIRST_REVISION < create_revision <= mod_revision <= revision
                and 1 <= version <= mod_revision - create_revision + 1
                and (lease_id == 0 or (has_leases and lease_id > 0))
            ):
                raise _unsound(RECORDS, row)
            if lease_id:
                self._attached.setdefault(lease_id, set()).add(key)
            if mod_revision >= first_revision:
                recent += 1
            created = mod_revision if create_revision == mod_revision else create_revision
            slots[hash(key) % SLOTS][key] = (value, created, mod_revision, version, lease_id)
            keys.append(key)
            size_bytes += len(key) + len(value)
            last_key = key
        store.keys.extend(keys)
        store.stored_bytes += size_bytes + len(keys) * RECORD_OVERHEAD_BYTES
        self._last_key = last_key
        if self._history is not None:
            self._history.missing += recent
        return bool(keys)

    def _take_deletion(self, row: tuple[Any, ...]) -> bool:
        store = self.store
        if len(row) != 2 or type(row[0]) is not bytes or not is_count(row[1]):
            return False
        key, revision = row
        if not key or key in store.records or key in store.deletions:
            return False
        if not max(store.deletion_floor + 1, self._last[0]) <= revision <= store.revision:
            return False
        store.remember_deletion(key, revision)
        self._last = (revision,)
        return True

    def _take_session(self, row: tuple[Any, ...]) -> bool:
        if len(row) != 4 + self._has_access or not all(map(is_count, row[:4])):
            return False
        session_id, ttl_ns, deadline, floor = row[:4]
        owner = row[4] if self._has_access else ""
        if type(owner) is not str or len(owner.encode()) > NAME_BYTES_MAX:
            return False
        leader_time = self._header["leader_time"]
        if not self._last[0] < session_id < self._header["next_session_id"] or not 1 <= ttl_ns <= TIME_NS_MAX:
            return False
        if not leader_time < deadline <= leader_time + ttl_ns:
            return False
        self.sessions.by_id[session_id] = Session(session_id, ttl_ns, deadline, floor, owner)
        self.sessions.deadlines.add(session_id, deadline)
        self._last = (session_id,)
        return True

    def _take_result(self, row: tuple[Any, ...]) -> bool:
        if len(row) != 3 or not is_count(row[0]) or not is_count(row[1]) or not self._last < row[:2]:
            return False
        session_id, request_no, result = row
        session = self.sessions.by_id.get(session_id)
        if session is None or request_no <= session.floor or not _is_result(result, self.store.revision):
            return False
        if result[2] == PUT_DONE:
            result = (*result[:2], PUT_DONE)
        self.sessions.keep(session, request_no, result)
        self._results += 1
        self._last = row[:2]
        return True

    def _take_lease(self, row: tuple[Any, ...]) -> bool:
        if len(row) != 3 or not all(map(is_count, row)):
            return False
        lease_id, ttl_ns, deadline = row
        if not max(FIRST_LEASE_ID, self._last[0] + 1) <= lease_id or not 1 <= ttl_ns <= TIME_NS_MAX:
            return False
        if deadline > self._header["leader_time"] + ttl_ns:
            return False
        lease = self.store.leases.by_id[lease_id] = GrantedLease(lease_id, ttl_ns, deadline)
        lease.keys = self._attached.pop(lease_id, lease.keys)
        self.store.leases.deadlines.add(lease_id, deadline)
        self._last = (lease_id,)
        return True


class HistoryReader:
    """Builds the history of `store` from the rows of the history section. The first row contains the newest events.
    `store` must contain all its records already."""

    def __init__(self, store: KeyValueMap, header: Mapping[str, Any]) -> None:
        self._store, self._history = store, store.history
        limits = header["limits"]
        history = store.history
        history.bytes_max, history.events_max = limits["history_bytes_max"], limits["history_events_max"]
        history.is_on = bool(history.bytes_max and history.events_max)
        history.compact_revision, history.first_revision = header["compact_revision"], header["first_revision"]
        self._left, self._bytes_left = header["events"], header["events_bytes"]
        history.reset(self._left, header["events_bytes"])
        self._revision = header["revision"]  # The greatest possible revision of an event that is still to be read.
        self._oldest = max(header["first_revision"], FIRST_REVISION + 1)  # The least possible revision of such events.
        self.missing = 0  # Record versions at or above `first_revision` whose events have not been read yet.
        self.older = Records()  # By key: the record before the last event that was read, or ABSENT.
        self._decoded: tuple[EventColumns, list[int]] | None = None  # Events that were decoded, but not added yet.

    def take(self, rows: Iterator[Any]) -> bool:
        """Decode the next row, or verify the events of the decoded row and add them to the history. The two steps are
        two calls, because together they take up to 5 ms. Returns False if no row was left. Raises InvalidSnapshot."""
        decoded, self._decoded = self._decoded, None
        if decoded is not None:
            self._add(*decoded)
            return True
        for row in rows:
            self._decoded = _event_columns(row)
            return True
        return False

    def _add(self, events: EventColumns, sizes: list[int]) -> None:
        """Add the next older events to the history. `sizes`: the counted bytes of each event. Raises
        InvalidSnapshot."""
        self._left -= len(events)
        self._bytes_left -= sum(sizes)
        _require_events(self._left >= 0, "more events than announced")
        _require(self._bytes_left >= 0, "its events have another size than announced")
        revisions = list(events.revisions)
        is_kept = self._oldest <= revisions[0] and revisions[-1] <= self._revision
        _require_events(is_kept and revisions == sorted(revisions), "revisions out of order")
        self._revision = revisions[0]
        afters = self._undo(revisions, events)
        events.new_values = [record[0] if record[2] else None for record in afters]
        new_leases = [record[4] for record in afters]
        if events.leases or any(new_leases):  # Both columns have the same length.
            events.leases = events.leases or array("Q", bytes(8 * len(events)))
            events.new_leases = new_leases
        self._history.prepend(events, sizes)

    def _undo(self, revisions: list[int], events: EventColumns) -> list[RecordItem]:
        """Return the records after the events. The record after a deletion has the `mod_revision` 0. Raises
        InvalidSnapshot if an event does not lead from the record before to the record after.

        A store may have a million events, so the record before an event is checked separately only if the history does
        not contain the event that wrote this record. Any other record before an event is checked as the record after
        the event that wrote it: that event must keep the create revision, add one to the version, and have a greater
        revision. At the end, `missing` is 0 if all these events were read.
        """
        slots, older_slots, oldest = self._store.records.slots, self.older.slots, self._oldest
        fields = events.values, events.created, events.modified, events.versions, chain(events.leases, repeat(0))
        befores = list(zip(*fields, strict=False))
        afters, missing = list[RecordItem](), self.missing
        for revision, key, before in zip(reversed(revisions), reversed(events.keys), reversed(befores), strict=True):
            slot = hash(key) % SLOTS
            older = older_slots[slot]
            after = older.get(key) or slots[slot].get(key, ABSENT)
            older[key] = before
            afters.append(after)
            modified = before[2]
            if modified >= oldest:
                missing += 1
                is_sound = modified < revision
            else:
                is_sound = before == ABSENT or _is_sound(before)
            if after[2] == revision:
                missing -= 1
                is_sound = is_sound and after[3] == before[3] + 1 and after[1] == (before[1] or revision)
            elif after[2] or not modified:
                is_sound = False
            if not is_sound:
                raise InvalidSnapshot(f"an event of revision {revision} does not lead from {before[1:]} to {after[1:]}")
        self.missing = missing
        afters.reverse()
        return afters

    def finish(self) -> None:
        """Complete the history. Raises InvalidSnapshot."""
        _require(self._left == 0, f"{self._left} events are missing")
        _require(self.missing == 0, "its events do not make its records")
        _require(self._history.is_on or not len(self._history), "it has events, but keeps no history")


def _event_columns(row: object) -> tuple[EventColumns, list[int]]:
    """Decode a block of events, without the records after the events. Return the events and the counted bytes of each
    event. Raises InvalidSnapshot if the columns do not have the same length."""
    if type(row) is not tuple or len(row) != 9 or {*map(type, row)} != {bytes}:
        raise InvalidSnapshot("a row of events is not 9 byte strings")
    key_sizes, keys, value_sizes, values, revisions, created, modified, versions, leases = row
    count = len(key_sizes) // 4
    _require_events(0 < count <= BLOCK_EVENTS, f"{count} events")
    typecode, width = ("I", 4) if len(revisions) == 4 * count else ("Q", 8)
    lengths = [len(column) for column in (key_sizes, value_sizes, revisions, created, modified, versions, leases)]
    expected = [4 * count, 4 * count, *[width * count] * 4, 8 * count if leases else 0]
    _require_events(lengths == expected, "columns of different lengths")
    columns = [_numbers(typecode, column) for column in (revisions, created, modified, versions)]
    _require_events(width == 4 or columns[0][-1] > _NARROW_MAX, "numbers that are too wide")
    lease_ids = _numbers("Q", leases)
    _require_events(not leases or 0 < max(lease_ids) <= INT64_MAX, "a column of leases without a valid lease id")
    each_key_size, each_value_size = _numbers("I", key_sizes), _numbers("I", value_sizes)
    each_key, each_value = _pieces(keys, each_key_size), _pieces(values, each_value_size)
    _require_events(all(each_key), "an event without a key")
    sizes = [
        key_size + value_size + RECORD_OVERHEAD_BYTES
        for key_size, value_size in zip(each_key_size, each_value_size, strict=True)
    ]
    return EventColumns(columns[0], each_key, each_value, columns[1], columns[2], columns[3], lease_ids, [], []), sizes


def _pieces(joined: bytes, sizes: Sequence[int]) -> list[bytes]:
    _require_events(sum(sizes) == len(joined), "keys or values of other sizes")
    return list(map(BytesIO(joined).read, sizes))


def _is_sound(record: RecordItem) -> bool:
    _, create_revision, mod_revision, version, _ = record
    return FIRST_REVISION < create_revision <= mod_revision and 1 <= version <= mod_revision - create_revision + 1


def _require_events(condition: bool, found: str) -> None:
    if not condition:
        raise InvalidSnapshot(f"a row of events has {found}")


def _is_result(item: object, revision: int) -> bool:
    """Return True if `item` can be kept and sent as a result: `(code, revision, ...)` of plain values and tuples."""
    if type(item) is not tuple or len(item) < 3 or not is_count(item[0]) or not is_count(item[1]):
        return False
    return FIRST_REVISION <= item[1] <= revision and _is_plain(item)


def _is_plain(item: object) -> bool:
    if type(item) is tuple:
        return all(map(_is_plain, item))
    if type(item) is int:
        return INT64_MIN <= item <= INT64_MAX
    return item is None or type(item) in (bytes, str, bool)


def _unsound(section: int, row: object) -> InvalidSnapshot:
    text = repr(row)
    shown = text if len(text) <= 120 else f"{text[:120]}…"
    return InvalidSnapshot(f"section {section} has the row {shown}")


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise InvalidSnapshot(reason)
