"""A digest of the replicated state, which is computed from the fields, never from re-encoded CBOR.

In the input of the hash, each field follows its kind and length, so two different states never have the same input.

See docs/reference/specification.md#813-state-hash.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from kvstore.access.state import AccessState
from kvstore.limits import ACCESS_LEVEL, HISTORY_LEVEL, StoreLimits
from kvstore.protocol.results import ResultItem
from kvstore.store.access_rows import head_row, role_rows, user_rows
from kvstore.store.copy_on_write import (
    HistorySnapshotView,
    LeaseRow,
    SessionRow,
    SessionsSnapshotView,
    StoreSnapshotView,
    lease_rows,
)
from kvstore.store.map import KeyValueMap
from kvstore.store.records import RecordItem
from kvstore.store.sealed_block import MaybeRecord
from kvstore.store.sessions import Session, Sessions

_BATCH_PARTS = 1024  # The number of parts that are joined and hashed by one call.
_RECORD = struct.Struct(">IIqqqq")
_DELETION = struct.Struct(">Iq")
_SESSION = struct.Struct(">qqqqI")

SLICE_PARTS = 512
"""The number of parts that one slice hashes, in about 0.5 ms: the parts of 170 records, or of 512 deletions or
results."""

SLICE_BYTES = 256 * 1024
"""The number of bytes after which a slice ends, even if the slice has fewer than `SLICE_PARTS` parts. SHA-256 takes 0.2
to 0.6 ms for 256 KiB."""

_PICTURE_ROWS = 128  # The number of rows that a view reads at a time.


def state_digest(store: KeyValueMap, sessions: Sessions, limits: StoreLimits, leader_time: int, level: int) -> bytes:
    """Return a digest of 32 bytes. The digests of two states are equal if and only if all replicated fields of the
    states are equal.

    Cost: O(n), about 1 s for 10⁶ small records. For tests and simulations; a running member uses StateHashing.
    """
    digest, gathered = hashlib.sha256(), list[bytes]()
    rows = ((key, store.records[key]) for key in store.keys)
    by_id = sessions.by_id
    whole_sessions = (_whole(by_id[session_id]) for session_id in sorted(by_id))
    head = _head(store, sessions, limits, leader_time, level)
    deletions = ((key, place[0]) for key, place in store.deletions.items())
    events, leases = HistorySnapshotView(store.history).newest_first(), lease_rows(store.leases)
    access = store.access if level >= ACCESS_LEVEL else None
    for part in _parts(head, rows, deletions, whole_sessions, events, leases, access):
        gathered.append(part)
        if len(gathered) >= _BATCH_PARTS:
            digest.update(b"".join(gathered))
            gathered.clear()
    digest.update(b"".join(gathered))
    return digest.digest()


class StateHashing:
    """Computes the `state_digest` of the state at its creation, in slices, while the state changes. The views of
    `copy_on_write.py` save the rows that change."""

    def __init__(
        self, store: KeyValueMap, sessions: Sessions, limits: StoreLimits, leader_time: int, level: int
    ) -> None:
        """Open views of the present state. Cost: O(sessions), like a snapshot."""
        self._state, self._clients = StoreSnapshotView(store, _PICTURE_ROWS), SessionsSnapshotView(sessions)
        self._parts = _parts(
            _head(store, sessions, limits, leader_time, level),
            chain.from_iterable(self._state.records()),
            ((key, revision) for places in self._state.deletions() for revision, _, key in places),
            self._clients.whole_sessions(),
            HistorySnapshotView(store.history).newest_first(),
            lease_rows(store.leases),
            store.access if level >= ACCESS_LEVEL else None,
        )
        self._digest = hashlib.sha256()
        self.result = b""  # 32 bytes once `step` has returned False.

    def step(self) -> bool:
        """Hash one slice. Returns False once `result` is set."""
        gathered, room_bytes = list[bytes](), SLICE_BYTES
        for part in islice(self._parts, SLICE_PARTS):
            gathered.append(part)
            room_bytes -= len(part)
            if room_bytes <= 0:
                break
        self._digest.update(b"".join(gathered))
        if gathered:
            return True
        self.close()
        self.result = self._digest.digest()
        return False

    def close(self) -> None:
        """Close the views, so that no more rows are saved. May be called twice."""
        self._state.close()
        self._clients.close()


def _parts(
    head: bytes,
    records: Iterable[tuple[bytes, RecordItem]],
    deletions: Iterable[tuple[bytes, int]],
    sessions: Iterable[tuple[SessionRow, Sequence[tuple[int, ResultItem]]]],
    events: Iterable[tuple[int, bytes, MaybeRecord]],
    leases: Iterable[LeaseRow],
    access: AccessState | None,
) -> Iterator[bytes]:
    """Yield the input of the hash. The sections need no separator, because `head` contains the number of rows of each
    section."""
    yield head
    for key, (value, create_revision, mod_revision, version, lease_id) in records:
        yield _RECORD.pack(len(key), len(value), create_revision, mod_revision, version, lease_id)
        yield key
        yield value
    for key, revision in deletions:
        yield _DELETION.pack(len(key), revision) + key
    for row, results in sessions:
        yield _SESSION.pack(*row[:4], len(results))
        if access is not None:
            yield field_bytes(row[4])
        for numbered in results:
            yield field_bytes(numbered)
    for event in events:
        yield field_bytes(event)
    for lease in leases:
        yield field_bytes(lease)
    if access is not None:
        yield field_bytes(head_row(access))
        for role in role_rows(access):
            yield field_bytes(role)
        for user in user_rows(access):
            yield field_bytes(user)


def _head(store: KeyValueMap, sessions: Sessions, limits: StoreLimits, leader_time: int, level: int) -> bytes:
    numbers = (level, leader_time, store.revision, store.deletion_floor, store.stored_bytes, sessions.next_id)
    counts = (len(store.records), len(store.deletions), len(sessions.by_id))
    head = field_bytes((numbers, counts, tuple(limits.to_map(level).values())))
    if level < HISTORY_LEVEL:
        return head
    history, leases = store.history, store.leases
    kept = (store.compact_revision, store.first_revision, len(history), history.size_bytes)
    return head + field_bytes((kept, (len(leases.by_id), leases.next_id, leases.hold_until)))


def _whole(session: Session) -> tuple[SessionRow, Sequence[tuple[int, ResultItem]]]:
    row = (session.session_id, session.ttl_ns, session.deadline, session.floor, session.owner)
    return row, sorted(session.results.items())


def field_bytes(item: Any) -> bytes:
    """Encode a plain value, or nested tuples of plain values: a letter for the kind, the length or the number, and the
    content."""
    if type(item) is tuple:
        return b"t%d:" % len(item) + b"".join([field_bytes(each) for each in item])
    if type(item) is bytes:
        return b"b%d:" % len(item) + item
    if type(item) is int:
        return b"i%d:" % item
    if type(item) is str:
        return b"s%d:" % len(item.encode()) + item.encode()
    assert item is None or type(item) is bool, type(item)
    return {None: b"n", True: b"T", False: b"F"}[item]
