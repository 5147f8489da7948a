"""The store that is made from a snapshot of etcd has its records, leases, users and roles, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstore.access.state import User
from kvstore.errors import UnusableFile
from kvstore.etcd.snapshot.rows import (
    EtcdLease,
    EtcdRole,
    EtcdUser,
    KeyVersion,
    encode_lease,
    encode_number,
    encode_role,
    encode_user,
)
from kvstore.etcd.snapshot.to_store import RECORD_BYTES_MAX, ImportSummary, read_etcd_store
from kvstore.limits import ETCD_LIMITS, SECOND_NS, TIME_NS_MAX
from kvstore.store.map import KeyValueMap
from tests.kvstore.etcd.snapshot.test_importing import row, written

pytestmark = pytest.mark.timeout(60)

KEY_MAX, VALUE_MAX = ETCD_LIMITS["key_bytes_max"], ETCD_LIMITS["value_bytes_max"]
FIRST = KeyVersion(b"a", b"1", 2, 2, 1)


def read(
    folder: Path,
    *versions: KeyVersion,
    leases: tuple[EtcdLease, ...] = (),
    users: tuple[EtcdUser, ...] = (),
    roles: tuple[EtcdRole, ...] = (),
    **buckets: dict[bytes, bytes],
) -> tuple[KeyValueMap, ImportSummary]:
    """The store of an etcd with these rows, one revision for each."""
    keys: dict[bytes, bytes] = {}
    for revision, version in enumerate(versions, start=2):
        keys |= row(revision, 0, version)
    found: dict[str, Any] = {
        "key": keys,
        "lease": {encode_number(each.lease_id): encode_lease(each) for each in leases},
        "authUsers": {each.name.encode(): encode_user(each) for each in users},
        "authRoles": {each.name.encode(): encode_role(each) for each in roles},
    }
    return read_etcd_store(written(folder / "db", found | buckets))


def test_present_records_keep_their_numbers(tmp_path: Path) -> None:
    store, contents = read(
        tmp_path,
        KeyVersion(b"b", b"1", 2, 2, 1),
        KeyVersion(b"a", b"2", 3, 3, 1),
        KeyVersion(b"b", b"3", 2, 4, 2),
        KeyVersion(b"gone", b"4", 5, 5, 1),
        KeyVersion(b"gone"),
    )

    assert dict(store.records.items()) == {b"a": (b"2", 3, 3, 1, 0), b"b": (b"3", 2, 4, 2, 0)}
    assert list(store.keys) == [b"a", b"b"]
    assert store.revision == contents.etcd_revision == 6
    assert store.deletion_of(b"gone") == store.deletion_of(b"never") == (6, False)
    assert (contents.keys, contents.stored_bytes) == (2, 2 * 66)
    assert list(contents.warnings) == []
    store.check()


def test_an_empty_etcd_makes_an_empty_store(tmp_path: Path) -> None:
    store, contents = read(tmp_path)

    assert (store.revision, contents.keys, contents.leases, contents.users, contents.roles) == (1, 0, 0, 0, 0)


def test_leases_keep_their_ids_and_begin_with_their_full_times(tmp_path: Path) -> None:
    store, contents = read(
        tmp_path,
        KeyVersion(b"a", b"", 2, 2, 1, lease_id=5),
        KeyVersion(b"b", b"", 3, 3, 1, lease_id=(1 << 63) - 1),
        KeyVersion(b"c", b"", 4, 4, 1, lease_id=77),
        leases=(EtcdLease(5, 60, 7), EtcdLease(6, 0), EtcdLease((1 << 63) - 1, 9_000_000_000)),
    )

    assert {lease_id: (each.ttl_ns, each.deadline) for lease_id, each in store.leases.by_id.items()} == {
        5: (60 * SECOND_NS, 60 * SECOND_NS),
        6: (SECOND_NS, SECOND_NS),
        (1 << 63) - 1: (TIME_NS_MAX, TIME_NS_MAX),
    }
    assert store.leases.by_id[5].keys == {b"a"}
    assert store.leases.by_id[(1 << 63) - 1].keys == {b"b"}
    assert store.records[b"c"] == (b"", 4, 4, 1, 0)
    assert (contents.leases, contents.without_lease) == (3, 1)
    assert [words[:20] for words in contents.warnings] == ["1 keys name a lease "]
    store.check()


def test_users_and_roles_keep_their_rights_and_lose_their_passwords(tmp_path: Path) -> None:
    store, contents = read(
        tmp_path,
        FIRST,
        users=(
            EtcdUser("ada", b"$2a$10$hash", ("apps", "a role that is gone")),
            EtcdUser("root", b"$2a$10$hash", ("root",)),
            EtcdUser("ünal", b"", ("root", "apps"), has_no_password=True),
        ),
        roles=(
            EtcdRole("all", ((0, b"\0", b"\0"),)),
            EtcdRole("apps", ((2, b"app/", b"app0"), (0, b"a", b""), (1, b"a", b"a\0"), (0, b"z", b"b"))),
            EtcdRole("root", ((2, b"ignored", b""),)),
        ),
        auth={b"authEnabled": b"\1"},
    )

    access = store.access
    assert access.users == {
        "ada": User("ada", b"", ("apps",)),
        "root": User("root", b"", ("root",)),
        "ünal": User("ünal", b"", ("apps", "root")),
    }
    assert access.roles == {"all": ((b"", None, 1),), "apps": ((b"a", b"a\0", 3), (b"app/", b"app0", 3))}
    assert not access.is_enabled
    assert (contents.turned_off_auth, contents.users, contents.roles) == (True, 3, 2)
    access.check()


def test_records_beyond_the_bounds_of_new_requests_are_imported_and_counted(tmp_path: Path) -> None:
    store, contents = read(
        tmp_path,
        KeyVersion(b"k" * (KEY_MAX + 1), bytes(VALUE_MAX + 1), 2, 2, 1),
        KeyVersion(b"k" * KEY_MAX, bytes(VALUE_MAX), 3, 3, 1),
        KeyVersion(b"large", bytes(VALUE_MAX + 1), 4, 4, 1),
        KeyVersion(b"larger", bytes(RECORD_BYTES_MAX - 6), 5, 5, 1),
    )

    assert len(store.records) == 4
    assert (contents.long_keys, contents.long_values) == (1, 2)
    assert [words.partition(" have ")[0] for words in contents.warnings] == ["1 keys", "2 values"]
    store.check()


def test_a_store_above_its_quota_is_announced() -> None:
    numbers = dict.fromkeys(ImportSummary.__dataclass_fields__, 0) | {"stored_bytes": 3 << 30}

    (words,) = ImportSummary(**numbers).warnings  # type: ignore[arg-type]
    assert "hwm limits set quota_bytes" in words


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"leases": (EtcdLease(-5, 60),)}, "the lease -5, .*`etcdctl lease revoke fffffffffffffffb`"),
        ({"users": (EtcdUser("a b", b"", ()),)}, "cannot have the user 'a b'"),
        ({"users": (EtcdUser("x" * 65, b"", ()),)}, "cannot have the user 'xxx"),
        ({"roles": (EtcdRole("x" * 65, ()),)}, "cannot have the role 'xxx"),
        ({"roles": (EtcdRole("r", ((0, b"k" * 1_026, b""),)),)}, "cannot have the role 'r'"),
        ({"lease": {b"1": encode_lease(EtcdLease(5, 1)), b"2": encode_lease(EtcdLease(5, 1))}}, "the lease 5 twice"),
        ({"lease": {b"1": b"\xff"}}, "in the bucket `lease`"),
        ({"authUsers": {b"1": b""}}, "a user has no name"),
    ],
)
def test_what_no_store_can_have_is_refused(tmp_path: Path, parts: dict[str, Any], words: str) -> None:
    with pytest.raises(UnusableFile, match=rf"db: .*{words}"):
        read(tmp_path, FIRST, **parts)


@pytest.mark.parametrize(
    "record",
    [
        FIRST._replace(create_revision=1),
        FIRST._replace(create_revision=3),
        FIRST._replace(create_revision=-2),
        FIRST._replace(mod_revision=3),
        FIRST._replace(version=0),
        FIRST._replace(version=2),
    ],
)
def test_numbers_that_no_store_can_reach_are_damage(tmp_path: Path, record: KeyVersion) -> None:
    with pytest.raises(UnusableFile, match="no sound database of etcd: at its revision 2, the key b'a' has"):
        read(tmp_path, record)


def test_a_record_that_no_response_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=f"b'a' and its value have {RECORD_BYTES_MAX + 1} bytes"):
        read(tmp_path, FIRST._replace(value=bytes(RECORD_BYTES_MAX)))
