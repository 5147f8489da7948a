"""The rows of an exported store, read as etcd reads them, show the same records at every kept revision."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kvstore.backup.file import BackupDamaged, BackupFailed
from kvstore.etcd.snapshot.bolt_reader import BoltReader
from kvstore.etcd.snapshot.export import ExportSummary, export_etcd, write_etcd
from kvstore.etcd.snapshot.rows import (
    EtcdLease,
    EtcdRole,
    EtcdUser,
    KeyVersion,
    RevisionKey,
    decode_lease,
    decode_number,
    decode_revision_key,
    decode_role,
    decode_user,
    decode_version,
)
from kvstore.protocol.access_commands import ChangeUserLimits, RoleAdd, RoleGrant, UserAdd, UserGrant
from kvstore.protocol.commands import ChangeLimits, Command, Compact, Delete, LeaseGrant, Put, Txn
from kvstore.protocol.results import KeyRecord
from kvstore.store.machine import KvMachine
from kvstore.store.snapshot_codec import read_state
from tests.kvstore.etcd.snapshot.saved import INDEX, TERM, lived_in, records_at, save
from tests.kvstore.support.machine_fixture import SECOND, Fed, restored
from tests.kvstore.support.users import commands_to_enable, verifier_of

pytestmark = pytest.mark.timeout(60)

Database = dict[bytes, dict[bytes, bytes]]


def exported(machine: KvMachine) -> tuple[ExportSummary, Database]:
    """The summary and the buckets of an exported machine."""
    picture, file = machine.snapshot(), io.BytesIO()
    store, _ = read_state(picture.header, picture.chunks)
    summary = write_etcd(file, store, 0, 0)
    reader = BoltReader(file, "backup.db", len(file.getvalue()))
    return summary, {name: dict(reader.rows(name)) for name in reader.bucket_names}


def versions_of(database: Database) -> list[tuple[RevisionKey, KeyVersion]]:
    return [(decode_revision_key(key), decode_version(value)) for key, value in database[b"key"].items()]


def shown_at(versions: list[tuple[RevisionKey, KeyVersion]], revision: int) -> list[KeyRecord]:
    """What etcd shows at a revision: for each key the last version that is not newer, unless it is a deletion."""
    last = {version.key: (place, version) for place, version in versions if place.revision <= revision}
    return [
        KeyRecord(*version._replace(value=version.value)) for _, (place, version) in sorted(last.items())
        if not place.is_deletion
    ]  # fmt: skip


def fed_with(*commands: Command, level: int = 3, **limits: int) -> Fed:
    fed = Fed(level=level, **limits)
    for command in commands:
        fed.do(command)
    return fed


def many_events() -> Fed:
    """More events than a block of the history has."""
    fed = fed_with(Put(b"000", b"old"))
    for number in range(25):
        fed.do(Txn((), tuple(Put(b"%03d" % key, b"%d" % number) for key in range(number, 2 * number + 90))))
    return fed


@pytest.mark.parametrize(
    "make",
    [
        lambda: lived_in(1),
        lambda: lived_in(2, changes=200),
        lambda: lived_in(3, history_events_max=30),
        lambda: lived_in(4, history_bytes_max=20_000),
        lambda: lived_in(5, history_events_max=0),
        lambda: lived_in(6, level=1),
        lambda: lived_in(7, level=2),
        many_events,
        fed_with,
        lambda: fed_with(level=1),
    ],
    ids=["a", "b", "few events", "few bytes", "no history", "level 1", "level 2", "blocks", "empty", "empty, level 1"],
)
def test_every_kept_revision_shows_the_same_records(make: Callable[[], Fed]) -> None:
    fed = make()
    machine = fed.machine
    summary, database = exported(machine)
    versions = versions_of(database)

    present = records_at(machine, 0)
    assert shown_at(versions, machine.revision) == present
    for revision in range(machine.compact_revision, machine.revision) if machine.feature_level > 1 else ():
        assert shown_at(versions, revision) == records_at(machine, revision)
    assert max([place.revision for place, _ in versions], default=1) <= machine.revision
    assert summary == ExportSummary(
        revision=machine.revision,
        compact_revision=machine.compact_revision,
        keys=len(present),
        rows=len(versions),
        leases=len(machine.leases.by_id),
        users=0,
        turned_off_auth=False,
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_are_those_that_etcd_itself_would_have(seed: int) -> None:
    """Each version once, places from 0 on without gaps, the revision of a row in its version, and nothing older than
    what the compact revision shows."""
    machine = lived_in(seed).machine
    versions = versions_of(exported(machine)[1])

    for (place, _), (following, _) in pairwise(versions):
        is_next_place = following[:2] == (place.revision, place.sub + 1)
        assert is_next_place or (following.revision > place.revision and following.sub == 0)
    for place, version in versions:
        assert version.mod_revision == (0 if place.is_deletion else place.revision)
        assert place.is_deletion == (version == KeyVersion(version.key))
    old = [version for place, version in versions if place.revision < machine.compact_revision]
    at_compact = {(each.key, each.mod_revision) for each in records_at(machine, machine.compact_revision)}
    assert old
    assert {(version.key, version.mod_revision) for version in old} <= at_compact


def test_a_transaction_keeps_the_order_of_its_changes() -> None:
    fed = fed_with(Put(b"b", b"1"), Txn((), (Put(b"c", b"2"), Delete(b"b"), Put(b"a", b"3"))))

    assert versions_of(exported(fed.machine)[1]) == [
        (RevisionKey(2, 0), KeyVersion(b"b", b"1", 2, 2, 1)),
        (RevisionKey(3, 0), KeyVersion(b"c", b"2", 3, 3, 1)),
        (RevisionKey(3, 1, is_deletion=True), KeyVersion(b"b")),
        (RevisionKey(3, 2), KeyVersion(b"a", b"3", 3, 3, 1)),
    ]


def test_a_compacted_revision_keeps_its_own_changes() -> None:
    fed = fed_with(Put(b"a", b"1"), Put(b"b", b"2"), Put(b"a", b"3"), Delete(b"b"), Compact(4))

    _, database = exported(fed.machine)
    assert versions_of(database) == [
        (RevisionKey(3, 0), KeyVersion(b"b", b"2", 3, 3, 1)),
        (RevisionKey(4, 0), KeyVersion(b"a", b"3", 2, 4, 2)),
        (RevisionKey(5, 0, is_deletion=True), KeyVersion(b"b")),
    ]
    compacted = decode_revision_key(database[b"meta"][b"finishedCompactRev"])
    assert compacted == RevisionKey(4, 0) == decode_revision_key(database[b"meta"][b"scheduledCompactRev"])


def test_a_history_that_was_switched_on_later_begins_after_the_older_versions() -> None:
    fed = fed_with(Txn((), (Put(b"b", b""), Put(b"a", b""))), level=2, history_events_max=0)
    fed.do(ChangeLimits(history_events_max=10))
    fed.do(Put(b"b", b"new"))

    assert versions_of(exported(fed.machine)[1]) == [
        (RevisionKey(2, 0), KeyVersion(b"a", b"", 2, 2, 1)),
        (RevisionKey(2, 1), KeyVersion(b"b", b"", 2, 2, 1)),
        (RevisionKey(3, 0), KeyVersion(b"b", b"new", 2, 3, 2)),
    ]


def test_members_with_the_same_log_export_the_same_file(tmp_path: Path) -> None:
    """A member that was restored from a snapshot has the same rows as one that has applied every entry."""
    fed = lived_in(8)
    other = KvMachine(fed.machine.limits)
    for entry in fed.entries:
        other.apply(entry)
    files = []
    for number, machine in enumerate((fed.machine, other, restored(fed.machine))):
        target = tmp_path / f"{number}.db"
        export_etcd(save(machine, tmp_path / f"{number}.snap"), target)
        files.append(target.read_bytes())

    assert files[0] == files[1] == files[2]


def test_a_lease_has_its_full_time_to_live_in_whole_seconds() -> None:
    fed = fed_with(LeaseGrant(5, 90 * SECOND), LeaseGrant(7, 1), LeaseGrant((1 << 63) - 1, 90 * SECOND + 1))
    fed.do(Put(b"a", b"", lease_id=7))

    _, database = exported(fed.machine)
    assert [decode_lease(row) for row in database[b"lease"].values()] == [
        EtcdLease(5, 90),
        EtcdLease(7, 1),
        EtcdLease((1 << 63) - 1, 91),
    ]
    assert [decode_number(key) for key in database[b"lease"]] == [5, 7, (1 << 63) - 1]
    assert [version.lease_id for _, version in versions_of(database)] == [7]


def test_users_and_roles_are_exported_and_authentication_is_off() -> None:
    fed = fed_with(*commands_to_enable()[1:])
    more: list[Command] = [
        RoleAdd("ranges"),
        RoleGrant("ranges", 1, b"", None),
        RoleGrant("ranges", 2, b"\0", None),
        RoleGrant("ranges", 2, b"", b"\0"),
        RoleGrant("ranges", 1, b"", b"m"),
        RoleGrant("ranges", 3, b"one", b"one\0"),
        UserAdd("certified", b""),
        UserGrant("certified", "ranges"),
        ChangeUserLimits("certified", watches_max=7),
    ]
    for command in more:
        fed.as_user("root", command)

    summary, database = exported(fed.machine)
    assert summary.users == 4
    assert summary.turned_off_auth
    assert database[b"auth"][b"authEnabled"] == b"\0"
    assert decode_number(database[b"auth"][b"authRevision"]) == fed.machine.access.revision
    assert [decode_user(row) for row in database[b"authUsers"].values()] == [
        EtcdUser("ada", verifier_of("ada"), ("apps",)),
        EtcdUser("certified", b"", ("ranges",), has_no_password=True),
        EtcdUser("eve", verifier_of("eve"), ()),
        EtcdUser("root", verifier_of("root"), ("root",)),
    ]
    assert [decode_role(row) for row in database[b"authRoles"].values()] == [
        EtcdRole("apps", ((2, b"app/", b"app0"),)),
        EtcdRole("ranges", ((2, b"\0", b"\0"), (0, b"\0", b"m"), (2, b"one", b""))),
        EtcdRole("root", ()),
    ]


def test_the_file_ends_with_its_sha_256(tmp_path: Path) -> None:
    source, target = save(lived_in().machine, tmp_path / "saved.snap"), tmp_path / "backup.db"

    summary = export_etcd(source, target)

    data = target.read_bytes()
    assert len(data) % 4096 == 32
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    assert target.stat().st_mode & 0o777 == 0o600
    meta = dict(BoltReader(io.BytesIO(data), "backup.db", len(data) - 32).rows(b"meta"))
    assert (decode_number(meta[b"consistent_index"]), decode_number(meta[b"term"])) == (INDEX, TERM)
    assert summary.revision == lived_in().machine.revision
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.db", "saved.snap"]


def test_an_existing_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    source, target = save(fed_with().machine, tmp_path / "saved.snap"), tmp_path / "backup.db"
    target.write_bytes(b"precious")

    with pytest.raises(BackupFailed, match="there is a file already"):
        export_etcd(source, target)
    assert target.read_bytes() == b"precious"
    export_etcd(source, target, force=True)
    assert len(target.read_bytes()) > 4096


def test_a_damaged_source_leaves_no_file(tmp_path: Path) -> None:
    source, target = save(lived_in().machine, tmp_path / "saved.snap"), tmp_path / "backup.db"
    data = bytearray(source.read_bytes())
    data[-30] ^= 1
    source.write_bytes(data)

    with pytest.raises(BackupDamaged, match="no sound snapshot"):
        export_etcd(source, target)
    assert not target.exists()
    with pytest.raises(BackupFailed, match="cannot be read"):
        export_etcd(tmp_path / "absent", target)


def test_a_target_without_a_folder_is_a_clear_error(tmp_path: Path) -> None:
    source = save(fed_with().machine, tmp_path / "saved.snap")

    with pytest.raises(BackupFailed, match="cannot be written: no such file or directory"):
        export_etcd(source, tmp_path / "absent" / "backup.db")
