"""Makes a store from a snapshot file of etcd.

The store has the present records with all their numbers, the leases with their ids and full times to live, and the
users and roles. Authentication is off, and no user has a password, because the store cannot verify the hashes of etcd.
There is no history.

The store follows from the file alone, so all members that import the same file begin alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kvstore.access.state import (
    RANGES_PER_ROLE_MAX,
    ROLES_MAX,
    ROLES_PER_USER_MAX,
    ROOT,
    USERS_MAX,
    AccessState,
    Permission,
    User,
)
from kvstore.errors import UnusableFile
from kvstore.etcd.snapshot.importing import EtcdSnapshot
from kvstore.etcd.snapshot.rows import EtcdLease, EtcdRole, EtcdUser, KeyVersion, from_etcd_permission
from kvstore.limits import (
    ITEM_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    RESPONSE_BYTES_MAX,
    SECOND_NS,
    TIME_NS_MAX,
    ServiceLimits,
    StoreLimits,
    with_etcd_limits,
)
from kvstore.protocol.access_commands import NAME_BYTES_MAX, RANGE_BYTES_MAX
from kvstore.store.access_rows import add_role, add_user, user_rows
from kvstore.store.leases import FIRST_LEASE_ID
from kvstore.store.map import FIRST_REVISION, KeyValueMap

RECORD_BYTES_MAX = RESPONSE_BYTES_MAX - 2 * ITEM_OVERHEAD_BYTES
"""The greatest size of a key and its value together, because the response to a get must hold them."""

_SHOWN_BYTES = 80
_ADMISSION = with_etcd_limits(ServiceLimits()).admission  # The members are meant to serve the clients of etcd.


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSummary:
    """What a store has that was made from a snapshot file of etcd.

    `etcd_revision`: the revision of etcd. `turned_off_auth`: true if authentication was on in etcd. `long_keys` and
    `long_values`: the numbers of keys, and of other records, that are longer than new requests may be, even if the
    members serve the clients of etcd. `without_lease`: the number of keys whose lease the file does not have.
    `stored_bytes`: the size of the records, as counted for `quota_bytes`.
    """

    etcd_revision: int
    keys: int
    leases: int
    users: int
    roles: int
    turned_off_auth: bool
    long_keys: int
    long_values: int
    without_lease: int
    stored_bytes: int

    @property
    def warnings(self) -> Iterator[str]:
        """What an operator should know of the contents."""
        if self.long_keys:
            yield (
                f"{self.long_keys} keys have more than {_ADMISSION.key_bytes_max} bytes: no request can name them, and "
                "a listing that comes in pages may fail behind one. Remove them by a prefix (`hwm del --prefix`)"
            )
        if self.long_values:
            yield (
                f"{self.long_values} values have more than {_ADMISSION.value_bytes_max} bytes: they can be read and "
                "removed, but no new value may be as long"
            )
        if self.without_lease:
            yield f"{self.without_lease} keys name a lease that the file does not have: they are kept, without a lease"
        if self.stored_bytes > (quota := StoreLimits().quota_bytes):
            yield (
                f"the records have {self.stored_bytes} bytes, more than the quota of {quota}: writes are refused until "
                "you raise it (`hwm limits set quota_bytes=...`)"
            )


def read_etcd_store(path: Path) -> tuple[KeyValueMap, ImportSummary]:
    """Make a store from the snapshot file `path` of etcd. Raises UnusableFile.

    Cost: O(n log n). The state is held in memory.
    """
    with EtcdSnapshot(path) as snapshot:
        return _Reader(path, snapshot).read()


class _Reader:
    def __init__(self, path: Path, snapshot: EtcdSnapshot) -> None:
        self._path, self._snapshot = path, snapshot
        self._store = KeyValueMap()
        self._long_keys = self._long_values = self._without_lease = 0

    def read(self) -> tuple[KeyValueMap, ImportSummary]:
        store, snapshot = self._store, self._snapshot
        store.revision = snapshot.revision
        store.deletion_floor = snapshot.revision  # The keys that were deleted until then are unknown.
        for lease in snapshot.leases():
            self._add_lease(lease)
        for record in snapshot.records():
            self._add_record(record)
        store.keys.extend(sorted([key for key, _ in store.records.items()]))
        roles = self._roles()
        store.access = AccessState(users=self._users(roles), roles=roles)
        return store, ImportSummary(
            etcd_revision=snapshot.revision,
            keys=len(store.records),
            leases=len(store.leases.by_id),
            users=len(store.access.users),
            roles=len(roles),
            turned_off_auth=snapshot.auth_enabled,
            long_keys=self._long_keys,
            long_values=self._long_values,
            without_lease=self._without_lease,
            stored_bytes=store.stored_bytes,
        )

    def _add_lease(self, lease: EtcdLease) -> None:
        lease_id, leases = lease.lease_id, self._store.leases
        if lease_id < FIRST_LEASE_ID:
            remedy = f"Revoke it (`etcdctl lease revoke {lease_id & (1 << 64) - 1:x}`), and save a new snapshot"
            self._refuse(f"it has the lease {lease_id}, and ids of this store begin at {FIRST_LEASE_ID}. {remedy}")
        if lease_id in leases.by_id:
            self._refuse_as_damaged(f"it has the lease {lease_id} twice")
        # etcd accepts times to live beyond all time of this store, which is 146 years.
        leases.grant(lease_id, min(max(1, lease.ttl_seconds) * SECOND_NS, TIME_NS_MAX), 0)

    def _add_record(self, record: KeyVersion) -> None:
        key, value, created, modified, version, lease_id = record
        store, size_bytes = self._store, len(key) + len(value)
        are_sound = FIRST_REVISION < created <= modified <= store.revision and 1 <= version <= modified - created + 1
        if not are_sound:
            numbers = f"create revision {created}, mod revision {modified} and version {version}"
            self._refuse_as_damaged(f"at its revision {store.revision}, the key {_shown(key)} has {numbers}")
        if size_bytes > RECORD_BYTES_MAX:
            self._refuse(
                f"the key {_shown(key)} and its value have {size_bytes} bytes, and a response holds "
                f"{RECORD_BYTES_MAX}. Remove or divide it in etcd, and save a new snapshot"
            )
        if len(key) > _ADMISSION.key_bytes_max:
            self._long_keys += 1
        elif len(value) > _ADMISSION.value_bytes_max:
            self._long_values += 1
        if lease_id:
            lease = store.leases.by_id.get(lease_id)
            if lease is None:
                self._without_lease += 1
                lease_id = 0
            else:
                lease.keys.add(key)
        store.records[key] = (value, created, modified, version, lease_id)
        store.stored_bytes += size_bytes + RECORD_OVERHEAD_BYTES

    def _roles(self) -> dict[str, tuple[Permission, ...]]:
        """Read the roles. The role `root` has every right in both stores, and is no row here."""
        roles: dict[str, tuple[Permission, ...]] = {}
        for role in self._snapshot.roles():
            if role.name != ROOT and not add_role((role.name, _permissions(role)), roles):
                self._refuse(
                    f"this store cannot have the role {role.name!r:.100}: {_NAMES}; a range has ends of at most "
                    f"{RANGE_BYTES_MAX} bytes, a role has at most {RANGES_PER_ROLE_MAX} ranges, and there are at most "
                    f"{ROLES_MAX} roles. Change it in etcd, and save a new snapshot"
                )
        return roles

    def _users(self, roles: dict[str, tuple[Permission, ...]]) -> dict[str, User]:
        users: dict[str, User] = {}
        for user in self._snapshot.users():
            (row,) = user_rows(AccessState(users={user.name: _without_password(user, roles)}))
            if not add_user(row, roles, users):
                self._refuse(
                    f"this store cannot have the user {user.name!r:.100}: {_NAMES}; a user has at most "
                    f"{ROLES_PER_USER_MAX} roles, and there are at most {USERS_MAX} users. Change it in etcd, and save "
                    "a new snapshot"
                )
        return users

    def _refuse_as_damaged(self, found: str) -> NoReturn:
        self._refuse(f"no sound database of etcd: {found}. Use another copy, or save a new one")

    def _refuse(self, found: str) -> NoReturn:
        raise UnusableFile(f"{self._path}: {found}")


_NAMES = f"a name has 1 to {NAME_BYTES_MAX} bytes without spaces"


def _permissions(role: EtcdRole) -> tuple[Permission, ...]:
    """Return the permissions in the order of the store. Two ranges of etcd can be the same range of the store."""
    rights_of: dict[tuple[bytes, bool, bytes], int] = {}
    for permission in role.permissions:
        if (found := from_etcd_permission(permission)) is not None:
            start, end, rights = found
            place = start, end is None, end or b""
            rights_of[place] = rights_of.get(place, 0) | rights
    return tuple(
        (start, None if is_to_the_end else end, rights)
        for (start, is_to_the_end, end), rights in sorted(rights_of.items())
    )


def _without_password(user: EtcdUser, roles: dict[str, tuple[Permission, ...]]) -> User:
    """Return the user without a password. A role that does not exist gives no rights, and is left out."""
    return User(user.name, b"", tuple(sorted({role for role in user.roles if role == ROOT or role in roles})))


def _shown(key: bytes) -> str:
    return repr(key[:_SHOWN_BYTES])
