"""Members that were made from one snapshot of etcd form one cluster, and serve its records."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from harness.cluster.ports import free_ports
from kvstore import Client, Member, MemberConfig, RevisionCompacted, open_node
from kvstore.backup.file import BackupFailed
from kvstore.errors import UnusableFile
from kvstore.etcd.schema import make
from kvstore.etcd.snapshot.export import export_etcd
from kvstore.etcd.snapshot.rows import (
    EtcdLease,
    EtcdUser,
    KeyVersion,
    encode_lease,
    encode_number,
    encode_user,
)
from kvstore.limits import FEATURE_LEVEL_MAX, KIB, MIB
from kvstore.member.etcd_import import import_etcd_folder, read_etcd_state
from kvstore.member.restore import REVISION_LEAP, SESSION_LEAP
from kvstore.protocol.results import Record
from kvstore.store.snapshot_codec import read_header, read_state
from raft import INT64_MAX, InvalidConfiguration
from storage import NotEmpty
from tests.kvstore.cli.test_backup import restored_machine
from tests.kvstore.etcd.member import LEASE, serving
from tests.kvstore.etcd.snapshot.saved import lived_in, records_at, save
from tests.kvstore.etcd.snapshot.test_importing import row, written

pytestmark = pytest.mark.timeout(60)

NODES = ("s1", "s2", "s3")
MEMBERS = tuple(Member(f"s{i}", f"127.0.0.1:71{i}2", f"127.0.0.1:71{i}1") for i in (1, 2, 3))


def config(folder: Path, members: tuple[Member, ...] | None = MEMBERS, token: str = "new") -> MemberConfig:
    return MemberConfig(
        folder=folder, node_id=None if members is None else folder.name, members=members, cluster_token=token
    )


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A snapshot of etcd with the records of a store that has lived."""
    export_etcd(save(lived_in(5).machine, tmp_path / "saved.snap"), tmp_path / "etcd.db")
    return tmp_path / "etcd.db"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A snapshot of etcd with three records, a lease and a user."""
    keys = {
        **row(2, 0, KeyVersion(b"a", b"1", 2, 2, 1)),
        **row(3, 0, KeyVersion(b"b", b"1", 3, 3, 1, 0x1234567890)),
        **row(4, 0, KeyVersion(b"a", b"2", 2, 4, 2)),
    }
    lease, user = EtcdLease(0x1234567890, 300), EtcdUser("root", b"$2a$10$hash", ("root",))
    buckets = {
        "key": keys,
        "lease": {encode_number(lease.lease_id): encode_lease(lease)},
        "authUsers": {b"root": encode_user(user)},
        "auth": {b"authEnabled": b"\1"},
    }
    return written(tmp_path / "etcd.db", buckets, has_checksum=True)


def test_members_made_from_one_file_begin_alike_in_one_new_cluster(exported: Path, tmp_path: Path) -> None:
    made = [import_etcd_folder(config(tmp_path / node_id), exported) for node_id in NODES]
    machines = [restored_machine(tmp_path / node_id) for node_id in NODES]
    source = lived_in(5).machine

    assert len({each.identity.cluster_id for each in made}) == 1
    assert len({machine.state_hash() for machine in machines}) == 1
    machine = machines[0]
    assert records_at(machine, 0) == records_at(source, 0)
    assert machine.revision == made[0].revision == source.revision + REVISION_LEAP
    assert machine.feature_level == FEATURE_LEVEL_MAX
    assert machine.history.first_revision > machine.compact_revision == machine.revision
    assert machine.leases.by_id.keys() == source.leases.by_id.keys()
    assert machine.leases.next_id > SESSION_LEAP
    assert machine.history.is_on
    machine.check()


def test_another_file_token_leap_or_list_makes_another_cluster(exported: Path, small: Path, tmp_path: Path) -> None:
    made = [
        import_etcd_folder(config(tmp_path / "1" / "s1"), exported),
        import_etcd_folder(config(tmp_path / "2" / "s1", token="newer"), exported),
        import_etcd_folder(config(tmp_path / "3" / "s1"), exported, 0),
        import_etcd_folder(config(tmp_path / "4" / "s1", MEMBERS[:1]), exported),
        import_etcd_folder(config(tmp_path / "5" / "s1"), save_elsewhere(tmp_path)),
        import_etcd_folder(config(tmp_path / "6", None), small),
        import_etcd_folder(config(tmp_path / "7", None, token=""), small),
        import_etcd_folder(config(tmp_path / "8", None, token=""), small),
    ]

    assert len({each.identity.cluster_id for each in made}) == len(made)
    assert made[2].revision + REVISION_LEAP == made[0].revision


def save_elsewhere(folder: Path) -> Path:
    export_etcd(save(lived_in(6).machine, folder / "other.snap"), folder / "other.db")
    return folder / "other.db"


async def test_a_member_serves_the_records_with_all_their_numbers(small: Path, tmp_path: Path) -> None:
    imported = import_etcd_folder(config(tmp_path / "data", None, ""), small)
    assert imported.contents.turned_off_auth
    async with serving(tmp_path / "data") as etcd:
        found = await etcd.range(b"\0", b"\0")
        assert [
            (each.key, each.value, each.create_revision, each.mod_revision, each.version, each.lease)
            for each in found.kvs
        ] == [(b"a", b"2", 2, 4, 2, 0), (b"b", b"1", 3, 3, 1, 0x1234567890)]
        assert found.header.revision == imported.revision == 4 + REVISION_LEAP
        asked = make("LeaseTimeToLiveRequest", ID=0x1234567890, keys=True)
        shown = await etcd.grpc.call(f"{LEASE}/LeaseTimeToLive", asked)
        assert (shown.grantedTTL, 290 <= shown.TTL <= 300, list(shown.keys)) == (300, True, [b"b"])

        for revision in (2, 4, imported.revision - 1):
            with pytest.raises(RevisionCompacted):
                await etcd.store.get(b"a", at_revision=revision)
        with pytest.raises(RevisionCompacted):
            async with etcd.store.watch(b"a", from_revision=5) as events:
                await anext(events)

        written_now = await etcd.put(b"a", b"3")
        assert written_now.header.revision == imported.revision + 1
        again = (await etcd.range(b"a")).kvs[0]
        assert (again.create_revision, again.version) == (2, 3)


async def test_without_a_leap_a_watch_goes_on_behind_the_revision_of_etcd(small: Path, tmp_path: Path) -> None:
    imported = import_etcd_folder(config(tmp_path / "data", None, ""), small, 0)
    assert imported.revision == 4
    async with open_node(tmp_path / "data") as store:
        with trio.fail_after(30):
            await store.put("a", "3")
            async with store.watch("a", from_revision=5) as events:
                assert (await anext(events)).revision == 5


async def test_three_members_made_from_one_file_form_one_cluster(small: Path, tmp_path: Path) -> None:
    ports = free_ports(6)
    members = tuple(
        Member(node_id, f"127.0.0.1:{ports[2 * place]}", f"127.0.0.1:{ports[2 * place + 1]}")
        for place, node_id in enumerate(NODES)
    )
    for node_id in NODES:
        import_etcd_folder(config(tmp_path / node_id, members), small)
    with trio.fail_after(50):
        async with (
            open_node(tmp_path / "s1"),
            open_node(tmp_path / "s2"),
            open_node(tmp_path / "s3"),
            Client([each.client_address for each in members], deadline_seconds=30) as client,
        ):
            assert (await client.get("a")).record == Record(b"2", 2, 4, 2)
            await client.put("a", "3")
            assert len((await client.membership()).members) == 3


async def test_records_beyond_the_bounds_of_requests_are_served(tmp_path: Path) -> None:
    """The bounds hold only for new requests."""
    rows = {
        **row(2, 0, KeyVersion(b"k" * 9 * KIB, b"v", 2, 2, 1)),
        **row(3, 0, KeyVersion(b"large", bytes(5 * MIB // 2), 3, 3, 1)),
    }
    path = written(tmp_path / "etcd.db", {"key": rows})
    import_etcd_folder(config(tmp_path / "data", None, ""), path)
    async with serving(tmp_path / "data") as etcd:
        found = await etcd.store.get(b"large")
        assert found.record is not None
        assert len(found.record.value) == 5 * MIB // 2
        listed = await etcd.range(b"k", b"l")
        assert [each.key for each in listed.kvs] == [b"k" * 9 * KIB]
        await etcd.store.delete_range(prefix=b"kkk")
        await etcd.store.delete(b"large")


def test_a_damaged_file_makes_no_folder(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    for number, damaged in enumerate(
        (data[:-1], data[:-4096], data[:100], b"", data.replace(b"\x0a\x01a", b"\x0a\x02a"))
    ):
        (tmp_path / "bad").write_bytes(damaged)
        with pytest.raises(UnusableFile, match="bad: "):
            import_etcd_folder(config(tmp_path / "data", None), tmp_path / "bad")
        assert not (tmp_path / "data").exists(), number
    with pytest.raises(UnusableFile, match="cannot be read"):
        import_etcd_folder(config(tmp_path / "data", None), tmp_path / "nowhere")


def test_any_changed_byte_gives_one_clear_error_or_a_state_that_loads(small: Path, tmp_path: Path) -> None:
    """Without the SHA-256, a changed value cannot be found. But what is imported can be loaded by every member."""
    data, bad, draw = small.read_bytes()[:-32], tmp_path / "bad", random.Random(1)
    refusals, loaded = list[str](), 0
    for place, byte in enumerate(data):
        if not byte and draw.random() > 0.01:
            continue
        changed = bytearray(data)
        changed[place] ^= 1 << draw.randrange(8)
        bad.write_bytes(changed)
        try:
            state = read_etcd_state(bad, draw.choice((0, None)))
        except (UnusableFile, BackupFailed) as error:
            refusals.append(str(error))
        else:
            read_header(state.header)
            read_state(state.header, state.chunks)[0].check()
            loaded += 1
    assert len(refusals) > 50
    assert loaded > 50
    assert all(words.startswith(f"{bad}: ") for words in refusals)


def test_a_folder_that_holds_something_is_not_touched(small: Path, tmp_path: Path) -> None:
    import_etcd_folder(config(tmp_path / "data", None), small)
    with pytest.raises(NotEmpty):
        import_etcd_folder(config(tmp_path / "data", None), small)


def test_a_cluster_of_several_needs_a_token(small: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="cluster-token"):
        import_etcd_folder(config(tmp_path / "s1", token=""), small)
    assert not (tmp_path / "s1").exists()


def test_a_revision_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "etcd.db", {"key": row(INT64_MAX, 0, KeyVersion(b"a", b"", 2, INT64_MAX, 1))})

    with pytest.raises(BackupFailed, match=r"etcd\.db: its revision \d+ .*leaves no room"):
        read_etcd_state(path)
