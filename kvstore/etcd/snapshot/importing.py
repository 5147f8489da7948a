"""Reads a snapshot file of etcd: its present records, leases, users and roles.

`etcdctl snapshot save` makes such a file: a database of bbolt, with its SHA-256 behind it. The database of a stopped
member (`member/snap/db`) has the same format without the SHA-256.

The rows of the keys are read twice, because they are in the order of their revisions: only the last row of a key tells
whether the key exists. The memory holds the keys during the first pass, and never the values.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeVar

from kvstore.errors import UnusableFile
from kvstore.etcd.snapshot.bolt_reader import BoltReader
from kvstore.etcd.snapshot.rows import (
    AUTH,
    AUTH_ENABLED,
    AUTH_ROLES,
    AUTH_USERS,
    FINISHED_COMPACT,
    KEY,
    LEASE,
    META,
    EtcdLease,
    EtcdRole,
    EtcdUser,
    InvalidRow,
    KeyVersion,
    RevisionKey,
    decode_lease,
    decode_revision_key,
    decode_role,
    decode_user,
    decode_version,
)
from kvstore.named_files import open_regular

SHA_256_BYTES = 32
READ_BYTES = 1 << 20

_SECTOR_BYTES = 512
"""Pages are multiples of a sector, so the size of the file shows whether a SHA-256 is behind the pages. A file whose
SHA-256 was cut off as a whole cannot be told from the database of a member."""

_FIRST_REVISION = 1
"""The revision of an etcd without keys."""

_Row = TypeVar("_Row")


class EtcdSnapshot:
    """An open snapshot file. The file must not change meanwhile. All methods raise UnusableFile.

    After the file was opened: `revision` and `compact_revision` (0: nothing was compacted); `keys`, the number of
    present records; `has_checksum`; `auth_enabled`.
    """

    revision: int
    compact_revision: int
    keys: int
    has_checksum: bool
    auth_enabled: bool

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        """Open the file, verify its SHA-256 if it has one, and read which keys exist."""
        try:
            self._file: BinaryIO = open(open_regular(self._path), "rb")  # noqa: PTH123 - A descriptor.
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def records(self) -> Iterator[KeyVersion]:
        """Yield the present records, in the order of (mod_revision, place within the revision)."""
        for place, value in self._places():
            if place in self._present:
                yield self._decoded(KEY, decode_version, value)

    def leases(self) -> Iterator[EtcdLease]:
        """Yield the leases, in the order of their ids."""
        return self._messages(LEASE, decode_lease)

    def users(self) -> Iterator[EtcdUser]:
        """Yield the users, in the order of their names."""
        return self._messages(AUTH_USERS, decode_user)

    def roles(self) -> Iterator[EtcdRole]:
        """Yield the roles, in the order of their names. The role `root` has every right, whatever its permissions."""
        return self._messages(AUTH_ROLES, decode_role)

    def _read(self) -> None:
        try:
            size_bytes = os.fstat(self._file.fileno()).st_size
            rest = size_bytes % _SECTOR_BYTES
            if rest not in (0, SHA_256_BYTES):
                raise UnusableFile(
                    f"{self._path}: no snapshot of etcd, or cut short: its size, {size_bytes} bytes, is not a number "
                    "of pages, with or without a SHA-256 behind them. Use another copy, or save a new one"
                )
            self.has_checksum = rest == SHA_256_BYTES
            if self.has_checksum:
                size_bytes -= SHA_256_BYTES
                self._verify(size_bytes)
        except OSError as error:
            raise self._unreadable(error) from error
        self._reader = BoltReader(self._file, str(self._path), size_bytes)
        if KEY not in self._reader.bucket_names:
            raise UnusableFile(f"{self._path}: a database of bbolt, but not of etcd 3: it has no bucket `key`")
        meta = dict(self._reader.rows(META))
        compacted = meta.get(FINISHED_COMPACT)
        self.compact_revision = 0
        if compacted is not None:
            self.compact_revision = self._decoded(META, decode_revision_key, compacted).revision
        self.auth_enabled = dict(self._reader.rows(AUTH)).get(AUTH_ENABLED) == b"\1"
        self._index()

    def _verify(self, size_bytes: int) -> None:
        digest, left = hashlib.sha256(), size_bytes
        while left and (data := self._file.read(min(left, READ_BYTES))):
            digest.update(data)
            left -= len(data)
        if self._file.read(SHA_256_BYTES) != digest.digest():
            raise UnusableFile(
                f"{self._path}: a snapshot of etcd that was changed or cut short: it has another SHA-256 than its last "
                f"{SHA_256_BYTES} bytes say. Use another copy, or save a new one"
            )

    def _index(self) -> None:
        """Find the last version of each key that exists."""
        last: dict[bytes, RevisionKey] = {}
        self.revision = max(_FIRST_REVISION, self.compact_revision)
        for place, value in self._places():
            key = self._decoded(KEY, decode_version, value).key
            if place.is_deletion:
                last.pop(key, None)
            else:
                last[key] = place
            self.revision = max(self.revision, place.revision)
        self._present = frozenset(last.values())
        self.keys = len(self._present)

    def _places(self) -> Iterator[tuple[RevisionKey, bytes]]:
        for key, value in self._reader.rows(KEY):
            yield self._decoded(KEY, decode_revision_key, key), value

    def _messages(self, bucket: bytes, decode: Callable[[bytes], _Row]) -> Iterator[_Row]:
        for _, value in self._reader.rows(bucket):
            yield self._decoded(bucket, decode, value)

    def _decoded(self, bucket: bytes, decode: Callable[[bytes], _Row], data: bytes) -> _Row:
        try:
            return decode(data)
        except InvalidRow as error:
            raise UnusableFile(
                f"{self._path}: no sound database of etcd: in the bucket `{bucket.decode()}`: {error}. Use another "
                "copy, or save a new one"
            ) from error

    def _unreadable(self, error: OSError) -> UnusableFile:
        return UnusableFile(f"{self._path}: cannot be read: {(error.strerror or str(error)).lower()}. Check the name")
