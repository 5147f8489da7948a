"""A real etcd accepts an exported store, and shows the same records at every kept revision."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from kvstore.access.state import User
from kvstore.etcd.snapshot.bolt_reader import BoltReader
from kvstore.etcd.snapshot.bolt_writer import write_bolt
from kvstore.etcd.snapshot.export import export_etcd
from kvstore.etcd.snapshot.rows import KeyVersion, RevisionKey, encode_revision_key, encode_version
from kvstore.etcd.snapshot.to_store import read_etcd_store
from kvstore.protocol.commands import Compact, Delete, LeaseGrant, Put, Txn
from kvstore.protocol.results import KeyRecord
from tests.kvstore.etcd.snapshot import real_etcd
from tests.kvstore.etcd.snapshot.saved import lived_in, records_at, save
from tests.kvstore.support.machine_fixture import SECOND, Fed
from tests.kvstore.support.users import commands_to_enable

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(real_etcd.missing()), reason=real_etcd.missing()),
]


def status_of(path: Path) -> dict[str, int]:
    """What `etcdutl snapshot status` says. It also checks every page: its place, its kind and the order of its keys."""
    status: dict[str, int] = json.loads(real_etcd.run("etcdutl", "snapshot", "status", str(path), "-w", "json"))
    return status


def test_an_etcd_goes_on_from_an_exported_store(tmp_path: Path) -> None:
    fed = lived_in(11)
    fed.do(Put(b"large", bytes(range(256)) * 3_000), time=4 * SECOND)
    fed.do(Delete(b"large"), time=4 * SECOND)
    machine = fed.machine
    file = tmp_path / "backup.db"
    summary = export_etcd(save(machine, tmp_path / "saved.snap"), file)
    lease_ids = sorted(machine.leases.by_id)
    assert len(lease_ids) == 4
    assert 1 < machine.compact_revision < machine.revision - 5

    status = status_of(file)
    assert status["revision"] == machine.revision == summary.revision
    # The other rows are two of the bucket `auth`, and four of the bucket `meta`.
    assert status["totalKey"] == summary.rows + summary.leases + 2 + 4
    real_etcd.restore(file, tmp_path / "etcd")  # It compares the SHA-256.
    with real_etcd.running(tmp_path / "etcd", is_restored=True) as etcd:
        assert etcd.answer("get", "k")["header"]["revision"] == machine.revision
        assert etcd.records_at(0) == records_at(machine, 0)
        assert records_at(machine, 0)
        kept = range(machine.compact_revision, machine.revision + 1)
        for revision in {*kept[:: len(kept) // 5], kept[-2], kept[-1]}:
            assert etcd.records_at(revision) == records_at(machine, revision), revision
        with pytest.raises(AssertionError, match="required revision has been compacted"):
            etcd.records_at(machine.compact_revision - 1)

        leases = etcd.answer("lease", "list")["leases"]
        assert sorted(lease["id"] for lease in leases) == lease_ids
        for lease_id in lease_ids:
            shown = etcd.answer("lease", "timetolive", f"{lease_id:x}", "--keys")
            # The store has granted (lease_id − 70) seconds and 1 ns.
            assert shown["granted-ttl"] == lease_id - 69
            assert 1 <= shown["ttl"] <= lease_id - 69
            assert len(shown.get("keys") or []) == len(machine.leases.by_id[lease_id].keys)

        written = etcd.answer("put", "new", "value")
        assert written["header"]["revision"] == machine.revision + 1
        etcd.control("put", "k00", "again")
        assert etcd.records_at(machine.revision) == records_at(machine, 0)
        etcd.control("compact", str(machine.revision + 1))
        etcd.control("defrag")
        assert {each.key for each in etcd.records_at(0)} == {
            *[each.key for each in records_at(machine, 0)], b"new", b"k00"
        }  # fmt: skip
        attached = {key for lease_id in lease_ids for key in machine.leases.by_id[lease_id].keys}
        for lease_id in lease_ids:
            etcd.control("lease", "revoke", f"{lease_id:x}")
        assert {each.key for each in etcd.records_at(0)}.isdisjoint(attached - {b"k00"})


def test_a_watch_from_an_old_revision_gets_the_kept_events(tmp_path: Path) -> None:
    fed = Fed(level=3)
    fed.do(Put(b"a", b"1"))
    fed.do(Txn((), (Put(b"b", b"2"), Put(b"a", b"3"))))
    fed.do(Txn((), (Delete(b"a"), Put(b"c", b"4"), Delete(b"b"))))
    file = tmp_path / "backup.db"
    export_etcd(save(fed.machine, tmp_path / "saved.snap"), file)
    real_etcd.restore(file, tmp_path / "etcd", "--skip-hash-check")

    with real_etcd.running(tmp_path / "etcd", is_restored=True) as etcd:
        words = etcd.watched(lines=18)
    assert words == [
        *("PUT", "a", "1"), *("PUT", "b", "2"), *("PUT", "a", "3"),
        *("DELETE", "a", ""), *("PUT", "c", "4"), *("DELETE", "b", ""),
    ]  # fmt: skip


def test_a_deletion_at_the_compact_revision_is_kept(tmp_path: Path) -> None:
    """The older versions of the deleted key were compacted."""
    fed = Fed(level=3)
    for command in (Put(b"a", b"1"), Put(b"b", b"2"), Delete(b"a"), Compact(4)):
        fed.do(command)
    file = tmp_path / "backup.db"
    export_etcd(save(fed.machine, tmp_path / "saved.snap"), file)
    real_etcd.restore(file, tmp_path / "etcd")

    with real_etcd.running(tmp_path / "etcd", is_restored=True) as etcd:
        assert etcd.records_at(4) == records_at(fed.machine, 4) == [KeyRecord(b"b", b"2", 3, 3, 1)]
        assert etcd.answer("put", "a", "new")["header"]["revision"] == 5
        assert etcd.watched(lines=6, revision=4) == ["DELETE", "a", "", "PUT", "a", "new"]
        assert etcd.records_at(5)[0] == KeyRecord(b"a", b"new", 5, 5, 1)


def test_users_and_roles_are_there_and_can_be_used_after_new_passwords(tmp_path: Path) -> None:
    fed = Fed(level=3)
    for command in commands_to_enable()[1:]:
        fed.do(command)
    file = tmp_path / "backup.db"
    export_etcd(save(fed.machine, tmp_path / "saved.snap"), file)
    real_etcd.restore(file, tmp_path / "etcd")

    with real_etcd.running(tmp_path / "etcd", is_restored=True) as etcd:
        assert etcd.control("user", "list").split() == ["ada", "eve", "root"]
        assert etcd.control("role", "list").split() == ["apps", "root"]
        for user in ("root", "ada"):
            etcd.control("user", "passwd", user, "--interactive=false", stdin="new\n")
        etcd.control("auth", "enable")
        etcd.control("--user", "ada:new", "put", "app/1", "v")
        with pytest.raises(AssertionError, match="permission denied"):
            etcd.control("--user", "ada:new", "put", "b", "v")
        with pytest.raises(AssertionError, match="authentication failed"):
            etcd.control("--user", "eve:eve's password", "get", "app/1")


@pytest.mark.parametrize("value_bytes", [10, 5_000])
def test_etcds_own_check_accepts_large_trees(tmp_path: Path, value_bytes: int) -> None:
    """The rows make a tree of three levels, and etcd deletes most of them by its compactions."""
    file = tmp_path / "backup.db"
    count = 20_000 if value_bytes < 100 else 3_000
    rows = (
        (
            encode_revision_key(RevisionKey(2 + number, 0)),
            encode_version(KeyVersion(b"k%d" % (number % 50), bytes(value_bytes), 2 + number % 50, 2 + number,
                                      1 + number // 50)),
        )
        for number in range(count)
    )  # fmt: skip
    names = (b"alarm", b"auth", b"authRoles", b"authUsers", b"cluster", b"key", b"lease", b"members")
    with file.open("wb") as target:
        write_bolt(target, [*[(name, rows if name == b"key" else ()) for name in names],
                            (b"members_removed", ()), (b"meta", ())])  # fmt: skip
    status = status_of(file)
    assert (status["revision"], status["totalKey"]) == (count + 1, count)

    real_etcd.restore(file, tmp_path / "etcd", "--skip-hash-check")
    with real_etcd.running(tmp_path / "etcd", is_restored=True) as etcd:
        etcd.control("compact", "--physical", str(count // 2))
        etcd.control("compact", "--physical", str(count))
        etcd.control("snapshot", "save", str(tmp_path / "again.db"))
    assert status_of(tmp_path / "again.db")["revision"] == count + 1


def test_a_snapshot_of_etcd_is_read(tmp_path: Path) -> None:
    with real_etcd.running(tmp_path / "etcd") as etcd:
        etcd.control("put", "a", "1")
        etcd.control("put", "large", "v" * 100_000)
        etcd.control("del", "a")
        etcd.control("snapshot", "save", str(tmp_path / "saved.db"))
    data = (tmp_path / "saved.db").read_bytes()

    reader = BoltReader(io.BytesIO(data), "saved.db", len(data) - 32)
    assert list(reader.rows(b"key")) == [
        (encode_revision_key(RevisionKey(2, 0)), encode_version(KeyVersion(b"a", b"1", 2, 2, 1))),
        (encode_revision_key(RevisionKey(3, 0)), encode_version(KeyVersion(b"large", b"v" * 100_000, 3, 3, 1))),
        (encode_revision_key(RevisionKey(4, 0, is_deletion=True)), encode_version(KeyVersion(b"a"))),
    ]
    assert set(reader.bucket_names) >= {b"key", b"lease", b"meta", b"auth", b"members"}


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_store_is_made_of_a_real_etcd_with_users(tmp_path: Path, *, is_stopped: bool) -> None:
    """The file is a saved snapshot, or the database of an etcd that was stopped."""
    user = ("--user", "root:secret")
    with real_etcd.running(tmp_path / "etcd") as etcd:
        lease_id = int(etcd.answer("lease", "grant", "600")["ID"])
        for number in range(20):
            etcd.control("put", f"k{number % 7}", str(number))
        etcd.control("put", "leased", "v", f"--lease={lease_id:x}")
        etcd.control("del", "k3")
        for name, role in (("root", "root"), ("ada", "apps")):
            etcd.control("user", "add", f"{name}:secret")
            etcd.control("role", "add", role)
            etcd.control("user", "grant-role", name, role)
        etcd.control("role", "grant-permission", "apps", "readwrite", "app/", "--prefix")
        etcd.control("role", "grant-permission", "apps", "read", "k", "--from-key")
        etcd.control("role", "grant-permission", "apps", "write", "one")
        records = etcd.records_at(0)
        revision = etcd.answer("get", "k")["header"]["revision"]
        etcd.control("auth", "enable")
        etcd.control(*user, "snapshot", "save", str(tmp_path / "saved.db"))
        if is_stopped:
            etcd.stop()

    path = tmp_path / "etcd" / "member" / "snap" / "db" if is_stopped else tmp_path / "saved.db"
    store, contents = read_etcd_store(path)

    assert [KeyRecord(key, *store.records[key]) for key in store.keys] == records
    assert (store.revision, contents.turned_off_auth) == (revision, True)
    assert store.leases.by_id[lease_id].keys == {b"leased"}
    assert store.leases.by_id[lease_id].ttl_ns == 600 * SECOND
    assert store.access.users == {"ada": User("ada", b"", ("apps",)), "root": User("root", b"", ("root",))}
    assert store.access.roles == {
        "apps": ((b"app/", b"app0", 3), (b"k", None, 1), (b"one", b"one\0", 2))
    }  # fmt: skip
    store.check()


def test_the_lease_of_an_exported_store_ends_in_etcd(tmp_path: Path) -> None:
    fed = Fed(level=3)
    fed.do(LeaseGrant(5, 1))
    fed.do(Put(b"leased", b"v", lease_id=5))
    file = tmp_path / "backup.db"
    export_etcd(save(fed.machine, tmp_path / "saved.snap"), file)
    real_etcd.restore(file, tmp_path / "etcd")

    with real_etcd.running(tmp_path / "etcd", is_restored=True) as etcd:
        assert etcd.watched(lines=6) == ["PUT", "leased", "v", "DELETE", "leased", ""]
