"""An imported snapshot of etcd has the present records, leases, users and roles; a damaged file is refused."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path

import pytest

from kvstore.errors import UnusableFile
from kvstore.etcd.snapshot.bolt_writer import write_bolt
from kvstore.etcd.snapshot.export import export_etcd
from kvstore.etcd.snapshot.importing import EtcdSnapshot
from kvstore.etcd.snapshot.rows import (
    EtcdLease,
    EtcdRole,
    EtcdUser,
    KeyVersion,
    RevisionKey,
    encode_lease,
    encode_number,
    encode_revision_key,
    encode_version,
)
from kvstore.protocol.results import KeyRecord
from tests.kvstore.etcd.snapshot import real_etcd
from tests.kvstore.etcd.snapshot.saved import lived_in, records_at, save
from tests.kvstore.support.machine_fixture import Fed
from tests.kvstore.support.users import commands_to_enable, verifier_of

pytestmark = pytest.mark.timeout(60)


Buckets = Mapping[str, Mapping[bytes, bytes]]


def written(path: Path, buckets: Buckets, *, has_checksum: bool = False) -> Path:
    """A file with these buckets."""
    file = io.BytesIO()
    write_bolt(file, [(name.encode(), sorted(rows.items())) for name, rows in sorted(buckets.items())])
    data = file.getvalue()
    path.write_bytes(data + hashlib.sha256(data).digest() * has_checksum)
    return path


def row(revision: int, sub: int, version: KeyVersion) -> dict[bytes, bytes]:
    place = RevisionKey(revision, sub, is_deletion=not version.mod_revision)
    return {encode_revision_key(place): encode_version(version)}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_exported_store_is_imported_as_it_was(tmp_path: Path, seed: int) -> None:
    machine, path = lived_in(seed).machine, tmp_path / "backup.db"
    export_etcd(save(machine, tmp_path / "saved.snap"), path)

    with EtcdSnapshot(path) as snapshot:
        records = [KeyRecord(*record) for record in snapshot.records()]
        leases = list(snapshot.leases())
        assert snapshot.has_checksum
        assert (snapshot.revision, snapshot.compact_revision) == (machine.revision, machine.compact_revision)
        assert snapshot.keys == len(records)
        assert not snapshot.auth_enabled
    assert sorted(records, key=attrgetter("key")) == records_at(machine, 0)
    assert [record.mod_revision for record in records] == sorted(record.mod_revision for record in records)
    assert leases == [EtcdLease(lease_id, lease_id - 69) for lease_id in sorted(machine.leases.by_id)]


def test_users_and_roles_are_imported(tmp_path: Path) -> None:
    fed, path = Fed(level=3), tmp_path / "backup.db"
    for command in commands_to_enable()[1:]:
        fed.do(command)
    export_etcd(save(fed.machine, tmp_path / "saved.snap"), path)

    with EtcdSnapshot(path) as snapshot:
        assert list(snapshot.users()) == [
            EtcdUser("ada", verifier_of("ada"), ("apps",)),
            EtcdUser("eve", verifier_of("eve"), ()),
            EtcdUser("root", verifier_of("root"), ("root",)),
        ]
        assert list(snapshot.roles()) == [EtcdRole("apps", ((2, b"app/", b"app0"),)), EtcdRole("root", ())]


@pytest.mark.parametrize("has_checksum", [False, True])
def test_only_the_last_version_of_a_key_that_exists_is_a_record(tmp_path: Path, *, has_checksum: bool) -> None:
    a, b = KeyVersion(b"a", b"3", 4, 4, 1), KeyVersion(b"b", b"2", 2, 2, 1, lease_id=-5)
    rows = {
        **row(2, 0, KeyVersion(b"a", b"1", 2, 2, 1)),
        **row(2, 1, b),
        **row(3, 0, KeyVersion(b"a")),
        **row(4, 0, a),
        **row(5, 0, KeyVersion(b"c", b"", 5, 5, 1)),
        **row(6, 0, KeyVersion(b"c")),
        **row(7, 0, KeyVersion(b"never there")),
    }
    lease = {encode_number(-5): encode_lease(EtcdLease(-5, 60, 7))}
    path = written(
        tmp_path / "db", {"key": rows, "lease": lease, "auth": {b"authEnabled": b"\1"}}, has_checksum=has_checksum
    )

    with EtcdSnapshot(path) as snapshot:
        assert list(snapshot.records()) == [b, a]
        assert list(snapshot.leases()) == [EtcdLease(-5, 60, 7)]
        assert not [*snapshot.users(), *snapshot.roles()]
        assert (snapshot.revision, snapshot.compact_revision, snapshot.keys) == (7, 0, 2)
        assert (snapshot.auth_enabled, snapshot.has_checksum) == (True, has_checksum)


def test_the_compact_revision_may_be_the_greatest(tmp_path: Path) -> None:
    meta = {b"finishedCompactRev": encode_revision_key(RevisionKey(9, 0))}

    with EtcdSnapshot(written(tmp_path / "db", {"key": {}, "meta": meta})) as snapshot:
        assert (snapshot.revision, snapshot.compact_revision, snapshot.keys) == (9, 9, 0)


def test_an_empty_etcd_is_at_revision_1(tmp_path: Path) -> None:
    with EtcdSnapshot(written(tmp_path / "db", {"key": {}})) as snapshot:
        assert (snapshot.revision, snapshot.compact_revision) == (1, 0)


def test_a_flipped_byte_of_a_file_with_a_checksum_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "db", {"key": row(2, 0, KeyVersion(b"a", b"1", 2, 2, 1))}, has_checksum=True)
    data = path.read_bytes()
    for offset in [*range(0, len(data), 11), *range(len(data) - 32, len(data))]:
        changed = bytearray(data)
        changed[offset] ^= 1
        path.write_bytes(changed)
        with pytest.raises(UnusableFile, match="SHA-256"), EtcdSnapshot(path):
            pass


def test_a_file_that_was_cut_short_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "db", {"key": row(2, 0, KeyVersion(b"a", b"1", 2, 2, 1))}, has_checksum=True)
    data = path.read_bytes()
    pages = len(data) - 32
    for size in [*range(0, pages, 512), *range(32, pages, 512), *range(1, pages, 997), *range(pages + 1, len(data))]:
        path.write_bytes(data[:size])
        with pytest.raises(UnusableFile, match=r"SHA-256|no sound database|is not a number of pages"):
            EtcdSnapshot(path).__enter__()


@pytest.mark.parametrize(
    ("buckets", "found"),
    [
        ({"bucket": {}}, "has no bucket `key`"),
        ({"key": {b"short": b"\n\1k"}}, "in the bucket `key`: a revision key has 5 bytes"),
        ({"key": {encode_revision_key(RevisionKey(2, 0)): b""}}, "in the bucket `key`: a version has no key"),
        ({"key": {}, "meta": {b"finishedCompactRev": b"9"}}, "in the bucket `meta`: a revision key has 1 bytes"),
    ],
)
def test_a_database_of_another_kind_is_refused(tmp_path: Path, buckets: Buckets, found: str) -> None:
    with pytest.raises(UnusableFile, match=found), EtcdSnapshot(written(tmp_path / "db", buckets)):
        pass


@pytest.mark.parametrize("bucket", ["lease", "authUsers", "authRoles"])
def test_a_row_that_is_none_is_refused_when_it_is_read(tmp_path: Path, bucket: str) -> None:
    path = written(tmp_path / "db", {"key": {}, bucket: {b"x": b"\n"}})
    with EtcdSnapshot(path) as snapshot:
        rows = {"lease": snapshot.leases, "authUsers": snapshot.users, "authRoles": snapshot.roles}[bucket]()
        with pytest.raises(UnusableFile, match=f"in the bucket `{bucket}`: an integer has no end"):
            list(rows)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match="cannot be read: no such file"), EtcdSnapshot(tmp_path / "absent"):
        pass
    with pytest.raises(UnusableFile, match="cannot be read: is a directory"), EtcdSnapshot(tmp_path):
        pass


@pytest.mark.process
@pytest.mark.skipif(bool(real_etcd.missing()), reason=real_etcd.missing())
def test_a_snapshot_of_a_real_etcd_is_imported(tmp_path: Path) -> None:
    with real_etcd.running(tmp_path / "etcd") as etcd:
        lease_id = int(etcd.control("lease", "grant", "600").split()[1], 16)
        for number in range(40):
            etcd.control("put", f"k{number % 7}", "v" * 100 * number)
        etcd.control("put", "leased", "x", f"--lease={lease_id:x}")
        etcd.control("del", "k3")
        etcd.control("compact", "20")
        etcd.control("user", "add", "ann:secret")
        etcd.control("user", "add", "cert", "--no-password")
        etcd.control("role", "add", "reader")
        etcd.control("role", "grant-permission", "reader", "read", "k", "--prefix")
        etcd.control("role", "grant-permission", "reader", "readwrite", "", "--from-key")
        etcd.control("user", "grant-role", "ann", "reader")
        present = etcd.records_at(0)
        etcd.control("snapshot", "save", str(tmp_path / "saved.db"))

    with EtcdSnapshot(tmp_path / "saved.db") as snapshot:
        records = [KeyRecord(*record) for record in snapshot.records()]
        assert sorted(records, key=attrgetter("key")) == present
        assert (snapshot.revision, snapshot.compact_revision, snapshot.keys) == (43, 20, 7)
        assert list(snapshot.leases()) == [EtcdLease(lease_id, 600)]
        ann, cert = snapshot.users()
        assert (ann.name, ann.password[:4], ann.roles, ann.has_no_password) == ("ann", b"$2a$", ("reader",), False)
        assert cert == EtcdUser("cert", b"", (), has_no_password=True)
        assert list(snapshot.roles()) == [EtcdRole("reader", ((2, b"\0", b"\0"), (0, b"k", b"l")))]
        assert snapshot.has_checksum
