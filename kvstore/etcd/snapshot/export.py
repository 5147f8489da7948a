"""Makes a snapshot file of etcd from a saved snapshot of the store.

`etcdutl snapshot restore` makes the data folder of a new etcd from such a file. The new etcd has the same revision and
compact revision, the present records, every kept older version, the leases with their full times to live, and the
users and roles. Sessions, bounds of users and the remembered deletions have no place in etcd.

Authentication is off in the file. etcd cannot verify the passwords of the store, so nobody could sign in to turn it
off. The password of a user is the verifier of the store, which etcd matches with no password, until an administrator
sets a new one.

All rows except `consistent_index` and `term` follow from replicated state, so the snapshots of two members at the same
state have equal rows.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from kvstore.access.state import ROOT, AccessState
from kvstore.backup.file import COPY_BYTES, AtomicFile, BackupDamaged, BackupFailed, BackupReader
from kvstore.etcd.snapshot.bolt_writer import Rows, write_bolt
from kvstore.etcd.snapshot.rows import (
    ALARM,
    AUTH,
    AUTH_ENABLED,
    AUTH_REVISION,
    AUTH_ROLES,
    AUTH_USERS,
    CLUSTER,
    CONSISTENT_INDEX,
    FINISHED_COMPACT,
    KEY,
    LEASE,
    MEMBERS,
    MEMBERS_REMOVED,
    META,
    SCHEDULED_COMPACT,
    TERM,
    EtcdLease,
    EtcdRole,
    EtcdUser,
    KeyVersion,
    RevisionKey,
    encode_lease,
    encode_number,
    encode_revision_key,
    encode_role,
    encode_user,
    encode_version,
    to_etcd_permission,
)
from kvstore.store.leases import Leases
from kvstore.store.map import FIRST_REVISION, KeyValueMap
from kvstore.store.records import RecordItem
from kvstore.store.snapshot_codec import InvalidSnapshot, UnsupportedFeatureLevel, read_header, read_state
from raft import SnapshotHeader

_NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """The contents of a snapshot file of etcd. `rows`: the number of all kept versions, including deletions.

    `turned_off_auth`: true if authentication is on in the store; it is off in the file.
    """

    revision: int
    compact_revision: int
    keys: int
    rows: int
    leases: int
    users: int
    turned_off_auth: bool


def export_etcd(source: Path | None, target: Path, *, force: bool = False) -> ExportSummary:
    """Make the snapshot file `target` of etcd from the saved snapshot `source` (None: standard input).

    `force`: replace an existing file. Raises BackupFailed; then no incomplete file with the name `target` remains.

    Cost: O(n). The state is held in memory, as in a member. `target` is first written to an unnamed file beside it.
    """
    store, header = _read_store(source)
    with AtomicFile(target, force=force) as aside:
        try:
            with tempfile.TemporaryFile(dir=target.parent if target.parent.is_dir() else None) as file:
                summary = write_etcd(file, store, header.index, header.term)
                file.seek(0)
                digest = hashlib.sha256()
                while data := file.read(COPY_BYTES):
                    digest.update(data)
                    aside.write(data)
        except OSError as error:
            raise BackupFailed(
                f"{target}: cannot be written: {(error.strerror or str(error)).lower()}",
                "no incomplete file was left; make room for two files of this size, or name another place",
            ) from error
        aside.write(digest.digest())
        aside.publish()
    return summary


def write_etcd(file: BinaryIO, store: KeyValueMap, index: int, term: int) -> ExportSummary:
    """Write the database of an etcd with the state `store` to the empty file `file`, which must be seekable.

    `index`, `term`: the place of the state in the log; 0 if unknown. A snapshot file also has the SHA-256 of the
    database behind it. The store must not change meanwhile.
    """
    versions = _Counted(key_rows(store))
    access = store.access
    buckets: list[tuple[bytes, Rows]] = [
        (ALARM, ()),
        (AUTH, [(AUTH_ENABLED, b"\0"), (AUTH_REVISION, encode_number(access.revision))]),
        (AUTH_ROLES, _role_rows(access)),
        (AUTH_USERS, _user_rows(access)),
        (CLUSTER, ()),
        (KEY, versions),
        (LEASE, _lease_rows(store.leases)),
        (MEMBERS, ()),
        (MEMBERS_REMOVED, ()),
        (META, _meta_rows(store, index, term)),
    ]
    write_bolt(file, buckets)
    return ExportSummary(
        revision=store.revision,
        compact_revision=store.compact_revision,
        keys=len(store.records),
        rows=versions.count,
        leases=len(store.leases.by_id),
        users=len(access.users),
        turned_off_auth=access.is_enabled,
    )


def key_rows(store: KeyValueMap) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of the bucket `key`: every version that a read at a kept revision can show, and every kept
    deletion, in the order of (revision, place within the revision).

    The places of versions older than the history are forgotten. Such versions of one revision are in the order of their
    keys.
    """
    for key, (value, created, modified, version, lease_id), sub in _in_order(_older_versions(store)):
        row = KeyVersion(key, value, created, modified, version, lease_id)
        yield encode_revision_key(RevisionKey(modified, sub)), encode_version(row)
    history, last, sub = store.history, 0, 0
    for event in history.events(history.first_number, len(history)):
        sub = sub + 1 if event.revision == last else 0
        last = event.revision
        if event.after is None:
            row = KeyVersion(event.key)
        else:
            value, created, modified, version, lease_id = event.after
            row = KeyVersion(event.key, value, created, modified, version, lease_id)
        yield encode_revision_key(RevisionKey(last, sub, event.after is None)), encode_version(row)


def _older_versions(store: KeyValueMap) -> Iterator[tuple[bytes, RecordItem]]:
    """Yield the versions that no kept event has made, and that a read at the compact revision shows."""
    first_revision, compact_revision, history = store.first_revision, store.compact_revision, store.history
    for key, record in store.records.items():
        if record[2] < first_revision:
            yield key, record
    start = history.number_from(compact_revision + 1)
    for event in history.events(start, history.end_number - start):
        if event.before is not None and event.before[2] < first_revision:
            yield event.key, event.before


def _in_order(versions: Iterable[tuple[bytes, RecordItem]]) -> Iterator[tuple[bytes, RecordItem, int]]:
    """Yield the versions in the order of (revision, key), with their places within the revision."""
    by_key = sorted(versions, key=itemgetter(0))
    last, sub = 0, 0
    for key, record in sorted(by_key, key=_mod_revision):
        sub = sub + 1 if record[2] == last else 0
        last = record[2]
        yield key, record, sub


def _mod_revision(version: tuple[bytes, RecordItem]) -> int:
    return version[1][2]


def _lease_rows(leases: Leases) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of the leases. A lease gets its full time to live again, because deadlines change without a
    revision, and an owner may need time to find the new cluster."""
    for lease_id, lease in sorted(leases.by_id.items()):
        seconds = -(-lease.ttl_ns // _NS_PER_SECOND)
        yield encode_number(lease_id), encode_lease(EtcdLease(lease_id, seconds))


def _meta_rows(store: KeyValueMap, index: int, term: int) -> Iterator[tuple[bytes, bytes]]:
    if index:
        yield CONSISTENT_INDEX, encode_number(index)
    if store.compact_revision > FIRST_REVISION:
        compacted = encode_revision_key(RevisionKey(store.compact_revision, 0))
        yield FINISHED_COMPACT, compacted
        yield SCHEDULED_COMPACT, compacted
    if term:
        yield TERM, encode_number(term)


def _role_rows(access: AccessState) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of the roles. The role `root`, which a store always has, is a row in etcd, and is written if a
    user has it."""
    roles = dict(access.roles)
    if any(ROOT in user.roles for user in access.users.values()):
        roles[ROOT] = ()
    for name in sorted(roles, key=str.encode):
        rights_of: dict[tuple[bytes, bytes], int] = {}  # Two ranges can become one, from the first key on.
        for permission in roles[name]:
            if (changed := to_etcd_permission(permission)) is not None:
                kind, place = changed[0], changed[1:]
                rights_of[place] = rights_of.get(place, 0) | kind + 1
        permissions = tuple((rights - 1, *place) for place, rights in sorted(rights_of.items()))
        yield name.encode(), encode_role(EtcdRole(name, permissions))


def _user_rows(access: AccessState) -> Iterator[tuple[bytes, bytes]]:
    for name in sorted(access.users, key=str.encode):
        user = access.users[name]
        yield name.encode(), encode_user(EtcdUser(name, user.verifier, user.roles, not user.verifier))


class _Counted:
    """Rows that are counted when they are read, once."""

    def __init__(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for row in self._rows:
            self.count += 1
            yield row


def _read_store(source: Path | None) -> tuple[KeyValueMap, SnapshotHeader]:
    """Read and verify a saved snapshot, including all rows. Raises BackupFailed."""
    name = str(source or "standard input")
    with BackupReader(source) as backup:
        chunks = backup.chunks()
        try:
            read_header(backup.header.machine)
            store, _ = read_state(backup.header.machine, chunks)
            for _ in chunks:  # This call also verifies the file up to its end.
                pass
        except InvalidSnapshot as error:
            raise BackupDamaged(name, 0, error.reason) from error
        except UnsupportedFeatureLevel as error:
            known = f"its feature level is {error.level}; this build knows {error.levels}"
            raise BackupFailed(f"{name}: {known}", "use the build that saved it") from error
        return store, backup.header
