"""The rows of etcd's buckets (etcd 3.5), encoded and decoded.

    key         revision key → KeyVersion: every kept version of every key, in the order of the revisions
    lease       lease id, 8 bytes → EtcdLease
    meta        consistent_index, term (8 bytes each); scheduledCompactRev, finishedCompactRev (revision keys)
    auth        authEnabled (1 byte), authRevision (8 bytes)
    authUsers   name → EtcdUser
    authRoles   name → EtcdRole
    alarm, cluster, members, members_removed: empty, because `etcdutl snapshot restore` writes these rows itself

A revision key is the revision (8 bytes), `_`, and the place of the change within its revision (8 bytes). A deletion
has a `t` behind it, and its version has only a key. All numbers of fixed size are big-endian. The other values are
messages of Protocol Buffers, of which this module knows just what these rows need. The encoding is the same as etcd's,
byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from kvstore.access.state import Permission
from kvstore.etcd.wire_format import BYTES, VARINT, fields, varint

KEY, LEASE, META = b"key", b"lease", b"meta"
AUTH, AUTH_USERS, AUTH_ROLES = b"auth", b"authUsers", b"authRoles"
ALARM, CLUSTER, MEMBERS, MEMBERS_REMOVED = b"alarm", b"cluster", b"members", b"members_removed"

CONSISTENT_INDEX, TERM = b"consistent_index", b"term"
SCHEDULED_COMPACT, FINISHED_COMPACT = b"scheduledCompactRev", b"finishedCompactRev"
AUTH_ENABLED, AUTH_REVISION = b"authEnabled", b"authRevision"

TO_THE_END = b"\0"
"""The end of a range that contains every key from its start on."""

_REVISION_KEY = struct.Struct(">QcQ")
_NUMBER = struct.Struct(">Q")
_TOMBSTONE_MARK = b"t"
_UINT64_MAX = (1 << 64) - 1
_INT64_MAX = (1 << 63) - 1


class InvalidRow(ValueError):
    """A row of a bucket is not valid."""


class RevisionKey(NamedTuple):
    """The key of a row of the bucket `key`. `sub`: the place of the change within its revision, from 0 on."""

    revision: int
    sub: int
    is_deletion: bool = False


class KeyVersion(NamedTuple):
    """One version of a key. A deletion has only the key."""

    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease_id: int = 0


class EtcdLease(NamedTuple):
    """A lease. `remaining_seconds` is 0 if etcd has not noted the remaining time."""

    lease_id: int
    ttl_seconds: int
    remaining_seconds: int = 0


class EtcdUser(NamedTuple):
    """A user. `password` is what etcd compares a password with, a hash of bcrypt."""

    name: str
    password: bytes
    roles: tuple[str, ...]
    has_no_password: bool = False


class EtcdRole(NamedTuple):
    """A role. `permissions`: (permission type, start, end), with the type 0 read, 1 write or 2 both.

    An empty end means the single key `start`, and TO_THE_END all keys from `start` on.
    """

    name: str
    permissions: tuple[tuple[int, bytes, bytes], ...]


# Fixed sizes.


def encode_revision_key(key: RevisionKey) -> bytes:
    """Return the 17 bytes of a revision key, or the 18 bytes of a deletion's."""
    encoded = _REVISION_KEY.pack(key.revision, b"_", key.sub)
    return encoded + _TOMBSTONE_MARK if key.is_deletion else encoded


def decode_revision_key(data: bytes) -> RevisionKey:
    """Decode a revision key. Raises InvalidRow."""
    size = _REVISION_KEY.size
    if len(data) < size or data[size:] not in (b"", _TOMBSTONE_MARK):
        raise InvalidRow(f"a revision key has {len(data)} bytes")
    revision, separator, sub = _REVISION_KEY.unpack_from(data)
    if separator != b"_" or not 1 <= revision <= _INT64_MAX or sub > _INT64_MAX:
        raise InvalidRow(f"{data!r} is not a revision key")
    return RevisionKey(revision, sub, len(data) > size)


def encode_number(number: int) -> bytes:
    """Return 8 bytes. A negative number, such as a lease id that a client has chosen, is in two's complement."""
    return _NUMBER.pack(number & _UINT64_MAX)


def decode_number(data: bytes) -> int:
    """Decode 8 bytes. Raises InvalidRow."""
    if len(data) != _NUMBER.size:
        raise InvalidRow(f"a number has {len(data)} bytes")
    (number,) = _NUMBER.unpack(data)
    return int(number)


# Messages.


def encode_version(version: KeyVersion) -> bytes:
    """Encode a row of the bucket `key`."""
    key, value, created, modified, number, lease_id = version
    parts = [b"\x0a", varint(len(key)), key]
    for tag, each in ((b"\x10", created), (b"\x18", modified), (b"\x20", number)):
        if each:
            parts += (tag, varint(each))
    if value:
        parts += (b"\x2a", varint(len(value)), value)
    if lease_id:
        parts += (b"\x30", varint(lease_id))
    return b"".join(parts)


def decode_version(data: bytes) -> KeyVersion:
    """Decode a row of the bucket `key`. Raises InvalidRow."""
    key, value, numbers = b"", b"", {2: 0, 3: 0, 4: 0, 6: 0}
    for number, item in _fields(data):
        if number == 1:
            key = _bytes(item)
        elif number == 5:
            value = _bytes(item)
        elif number in numbers:
            numbers[number] = _int64(item)
    if not key:
        raise InvalidRow("a version has no key")
    return KeyVersion(key, value, numbers[2], numbers[3], numbers[4], numbers[6])


def encode_lease(lease: EtcdLease) -> bytes:
    """Encode a row of the bucket `lease`."""
    return b"".join(_number_field(number, value) for number, value in enumerate(lease, start=1))


def decode_lease(data: bytes) -> EtcdLease:
    """Decode a row of the bucket `lease`. Raises InvalidRow."""
    numbers = {1: 0, 2: 0, 3: 0}
    for number, item in _fields(data):
        if number in numbers:
            numbers[number] = _int64(item)
    return EtcdLease(*numbers.values())


def encode_user(user: EtcdUser) -> bytes:
    """Encode a row of the bucket `authUsers`."""
    parts = [_bytes_field(1, user.name.encode())]
    if user.password:
        parts.append(_bytes_field(2, user.password))
    parts += [_bytes_field(3, role.encode()) for role in user.roles]
    parts.append(_bytes_field(4, _number_field(1, int(user.has_no_password))))
    return b"".join(parts)


def decode_user(data: bytes) -> EtcdUser:
    """Decode a row of the bucket `authUsers`. Raises InvalidRow."""
    name, password, roles, has_no_password = "", b"", list[str](), False
    for number, item in _fields(data):
        if number == 1:
            name = _text(item)
        elif number == 2:
            password = _bytes(item)
        elif number == 3:
            roles.append(_text(item))
        elif number == 4:
            has_no_password = any(_int64(each) for option, each in _fields(_bytes(item)) if option == 1)
    if not name:
        raise InvalidRow("a user has no name")
    return EtcdUser(name, password, tuple(roles), has_no_password)


def encode_role(role: EtcdRole) -> bytes:
    """Encode a row of the bucket `authRoles`."""
    parts = [_bytes_field(1, role.name.encode())]
    for kind, start, end in role.permissions:
        permission = [_number_field(1, kind), _bytes_field(2, start)]
        if end:
            permission.append(_bytes_field(3, end))
        parts.append(_bytes_field(2, b"".join(permission)))
    return b"".join(parts)


def decode_role(data: bytes) -> EtcdRole:
    """Decode a row of the bucket `authRoles`. Raises InvalidRow."""
    name, permissions = "", list[tuple[int, bytes, bytes]]()
    for number, item in _fields(data):
        if number == 1:
            name = _text(item)
        elif number == 2:
            permissions.append(_decode_permission(_bytes(item)))
    if not name:
        raise InvalidRow("a role has no name")
    return EtcdRole(name, tuple(permissions))


def _decode_permission(data: bytes) -> tuple[int, bytes, bytes]:
    kind, start, end = 0, b"", b""
    for number, item in _fields(data):
        if number == 1:
            kind = _int64(item)
        elif number == 2:
            start = _bytes(item)
        elif number == 3:
            end = _bytes(item)
    if not 0 <= kind <= 2:
        raise InvalidRow(f"a permission has the type {kind}")
    return kind, start, end


def to_etcd_permission(permission: Permission) -> tuple[int, bytes, bytes] | None:
    """Return the permission of etcd with the same keys and rights; None if it has no keys.

    A range of etcd cannot begin at the empty key, which is the name of no key, so it begins at the next.
    """
    start, end, rights = permission
    if end is None:
        return rights - 1, start or b"\0", TO_THE_END
    if (start, end) == (b"", b"\0"):
        return None
    return rights - 1, start or b"\0", b"" if end == start + b"\0" else end


def from_etcd_permission(permission: tuple[int, bytes, bytes]) -> Permission | None:
    """Return the permission of the store with the same keys and rights; None if it has no keys."""
    kind, key, end = permission
    if not end:
        return (key, key + b"\0", kind + 1) if key else None
    start = b"" if key == b"\0" else key
    if end == TO_THE_END:
        return start, None, kind + 1
    return (start, end, kind + 1) if start < end else None


# The encoding of Protocol Buffers.


def _number_field(number: int, value: int) -> bytes:
    """Encode a field with an integer. A field with the value 0 is left out."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def _bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message as (number, integer or bytes). Raises InvalidRow."""
    try:
        for number, value in fields(data):
            yield number, data[value] if isinstance(value, slice) else value
    except ValueError as error:
        raise InvalidRow(str(error)) from None


def _int64(item: int | bytes) -> int:
    if isinstance(item, bytes):
        raise InvalidRow("a field has bytes instead of an integer")
    return item - (1 << 64) if item > _INT64_MAX else item


def _bytes(item: int | bytes) -> bytes:
    if isinstance(item, int):
        raise InvalidRow("a field has an integer instead of bytes")
    return item


def _text(item: int | bytes) -> str:
    try:
        return _bytes(item).decode()
    except UnicodeDecodeError as error:
        raise InvalidRow("a name is not UTF-8") from error
