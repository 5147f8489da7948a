"""`hwm snapshot to-etcd` and `hwm import-etcd`: what they print, their exit codes, and what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvstore.cli.common import ExitCode
from kvstore.cli.main import cli
from kvstore.etcd.snapshot.importing import EtcdSnapshot
from kvstore.etcd.snapshot.rows import EtcdUser, KeyVersion, encode_user
from kvstore.limits import MIB
from kvstore.member.restore import REVISION_LEAP
from kvstore.protocol.commands import Delete, LeaseGrant, Put
from tests.kvstore.etcd.snapshot.saved import save
from tests.kvstore.etcd.snapshot.test_importing import row, written
from tests.kvstore.support.machine_fixture import SECOND, Fed
from tests.kvstore.support.users import commands_to_enable

pytestmark = pytest.mark.timeout(60)

MEMBERS = [f"--member=s{i}=127.0.0.1:71{i}2/127.0.0.1:71{i}1" for i in (1, 2, 3)]


def hwm(*arguments: str | Path, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)], input=stdin)


def store_with(*commands: Put | Delete | LeaseGrant, with_users: bool = False) -> Fed:
    fed = Fed(level=3)
    for command in commands:
        fed.do(command)
    for access in commands_to_enable() if with_users else ():
        fed.do(access)
    return fed


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A saved snapshot with two keys, of which one was removed, and a lease."""
    fed = store_with(Put(b"a", b"1"), Put(b"b", b"2"), Delete(b"a"), LeaseGrant(7, 60 * SECOND))
    return save(fed.machine, tmp_path / "saved.snap")


@pytest.fixture
def etcd_file(tmp_path: Path) -> Path:
    """A snapshot of etcd with two records and a user."""
    rows = {
        **row(2, 0, KeyVersion(b"a", b"1", 2, 2, 1)),
        **row(3, 0, KeyVersion(b"large", bytes(2 * MIB), 3, 3, 1)),
    }
    users = {b"root": encode_user(EtcdUser("root", b"$2a$10$hash", ("root",)))}
    return written(
        tmp_path / "etcd.db",
        {"key": rows, "authUsers": users, "auth": {b"authEnabled": b"\1"}},
        has_checksum=True,
    )


# Out: `hwm snapshot to-etcd`.


@pytest.mark.parametrize("is_piped", [False, True])
def test_a_snapshot_of_etcd_is_made_and_summed_up(saved: Path, tmp_path: Path, *, is_piped: bool) -> None:
    target = tmp_path / "backup.db"
    done = hwm("snapshot", "to-etcd", "-" if is_piped else saved, target, stdin=saved.read_bytes() if is_piped else b"")

    assert done.exit_code == ExitCode.OK, done.output
    assert done.stdout == f"{target}: revision 4, compact revision 1, 1 keys, 3 rows, 1 leases, 0 users\n"
    assert done.stderr == ""
    with EtcdSnapshot(target) as snapshot:
        assert [record.key for record in snapshot.records()] == [b"b"]


def test_the_summary_can_be_an_object(saved: Path, tmp_path: Path) -> None:
    done = hwm("snapshot", "to-etcd", saved, tmp_path / "backup.db", "--json")

    assert json.loads(done.stdout) == {
        "file": str(tmp_path / "backup.db"), "revision": 4, "compact_revision": 1, "keys": 1, "rows": 3, "leases": 1,
        "users": 0, "turned_off_auth": False,
    }  # fmt: skip


def test_who_used_authentication_is_told_how_to_turn_it_on_in_etcd(tmp_path: Path) -> None:
    fed = store_with(with_users=True)
    done = hwm("snapshot", "to-etcd", save(fed.machine, tmp_path / "saved.snap"), tmp_path / "backup.db")

    assert done.exit_code == ExitCode.OK
    for words in ("warning: authentication is off", "etcdctl user passwd NAME", "etcdctl auth enable"):
        assert words in done.stderr


def test_an_existing_file_is_replaced_only_by_force(saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup.db"
    target.write_bytes(b"old")

    done = hwm("snapshot", "to-etcd", saved, target)
    assert (done.exit_code, "give --force" in done.stderr, target.read_bytes()) == (ExitCode.FAILED, True, b"old")
    assert hwm("snapshot", "to-etcd", saved, target, "--force").exit_code == ExitCode.OK
    assert target.stat().st_size > 4096


def test_a_damaged_snapshot_gives_no_file(saved: Path, tmp_path: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-1])
    done = hwm("snapshot", "to-etcd", saved, tmp_path / "backup.db", "--json")

    assert done.exit_code == ExitCode.FAILED
    assert "no sound snapshot" in json.loads(done.stdout)["error"]["text"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["saved.snap"]


@pytest.mark.parametrize("target", ["-", "/dev/stdout"])
def test_a_stream_is_no_target(saved: Path, target: str) -> None:
    done = hwm("snapshot", "to-etcd", saved, target)

    assert (done.exit_code, "TARGET must be a file" in done.stderr) == (ExitCode.USAGE, True)


# In: `hwm import-etcd`.


def test_a_folder_is_made_of_a_snapshot_of_etcd(etcd_file: Path, tmp_path: Path) -> None:
    done = hwm("import-etcd", etcd_file, tmp_path / "data")

    assert done.exit_code == ExitCode.OK, done.output
    assert f"revision {3 + REVISION_LEAP} (etcd had 3), 2 keys, 0 leases, 1 users, 0 roles" in done.stderr
    assert "warning: 1 values have more than 1572864 bytes" in done.stderr
    assert "warning: authentication is off in the new cluster" in done.stderr
    assert "`hwm user password NAME`), and then run `hwm auth enable`" in done.stderr
    assert (tmp_path / "data" / "groups").is_dir()


def test_every_member_of_a_cluster_gets_the_same_cluster(etcd_file: Path, tmp_path: Path) -> None:
    options = [*MEMBERS, "--cluster-token=new", "--revision-leap=0", "--json"]
    made = [
        json.loads(hwm("import-etcd", etcd_file, tmp_path / node_id, "--node-id", node_id, *options).stdout)
        for node_id in ("s1", "s2", "s3")
    ]

    assert len({each["cluster_id"] for each in made}) == 1
    assert [each["node_id"] for each in made] == ["s1", "s2", "s3"]
    assert {name: made[0][name] for name in ("revision", "etcd_revision", "keys", "turned_off_auth")} == {
        "revision": 3, "etcd_revision": 3, "keys": 2, "turned_off_auth": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ([], ExitCode.FAILED, "SHA-256"),
        ([*MEMBERS, "--node-id=s4", "--cluster-token=t"], ExitCode.USAGE, "s4 is not in the member list"),
        ([*MEMBERS, "--node-id=s1"], ExitCode.USAGE, "needs a --cluster-token"),
    ],
)
def test_what_cannot_be_made_leaves_no_folder(
    etcd_file: Path, tmp_path: Path, options: list[str], code: ExitCode, words: str
) -> None:
    etcd_file.write_bytes(etcd_file.read_bytes()[:-1] + b"\0")
    done = hwm("import-etcd", etcd_file, tmp_path / "data", *options)

    assert (done.exit_code, words in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    done = hwm("import-etcd", tmp_path / name, tmp_path / "data")

    assert (done.exit_code, f"error: {tmp_path / name}: " in done.stderr) == (ExitCode.FAILED, True), done.stderr
    assert not (tmp_path / "data").exists()
