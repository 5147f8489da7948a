"""Saving, verifying and restoring snapshots: damage is found, and an incomplete file never gets its name."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
import trio

from kvstore import EmbeddedStore, Member, MemberConfig, Put, Response
from kvstore.backup import save as backup_module
from kvstore.backup.file import AtomicFile, BackupDamaged, BackupFailed
from kvstore.backup.save import save_snapshot
from kvstore.embedded import open_node
from kvstore.errors import ResultCode
from kvstore.limits import SECOND_NS
from kvstore.member.folder import open_or_bootstrap
from kvstore.member.restore import REVISION_LEAP, SESSION_LEAP, read_initial_state, restore_folder
from kvstore.protocol.addresses import IN_PROCESS_ADDRESS
from kvstore.protocol.commands import LeaseGrant, RaiseFeatureLevel, RegisterSession, encode_command
from kvstore.protocol.messages import Request, RequestKind, decode_response, encode_request, snapshot_request
from kvstore.store.machine import KvMachine
from raft import (
    INT64_MAX,
    MIB,
    Configuration,
    Entry,
    EntryKind,
    Identity,
    InvalidConfiguration,
    ProtocolError,
    SnapshotHeader,
    encode_batch,
    encode_item,
    frame,
)
from storage import InlineFiles, NotEmpty, WrongCluster, open_data_folder, open_storage
from storage.snapshots.format import encode_header, encode_trailer
from tests.kvstore.server.test_service import RawClient
from tests.kvstore.support.in_memory_cluster import Cluster

pytestmark = pytest.mark.timeout(60)

MEMBERS = tuple(Member(f"s{i}", f"127.0.0.1:71{i}2", f"127.0.0.1:71{i}1") for i in (1, 2, 3))


def snapshot_of(folder: Path) -> Path:
    """The newest snapshot file of a data folder. A backup is an unchanged copy of such a file."""
    return sorted((folder / "groups/0/snapshots").glob("*.snap"))[-1]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A snapshot with three keys, of which one was removed, and a session with a kept result."""
    cluster = Cluster(tmp_path / "saved", 1)
    client = cluster.client()
    for key in (b"a", b"b", b"c"):
        client.do(Put(key, key * 3))
    node = cluster.hosts["s1"].node
    node.snapshot_now()
    cluster.settle()
    return snapshot_of(tmp_path / "saved" / "s1")


def restored_machine(folder: Path) -> KvMachine:
    """The state machine of a member that starts from this folder."""
    held = open_data_folder(folder)
    files = InlineFiles(folder)
    opened: list[object] = []
    open_storage(files, identity=held.identity, done=opened.append)
    files.run()
    snapshots = opened[0].snapshots  # type: ignore[attr-defined]
    machine = KvMachine()
    machine.restore(snapshots.latest().header.machine, snapshots.chunks(snapshots.latest()))
    files.close()
    held.close()
    return machine


def config(folder: Path, node_id: str = "s1", token: str = "new") -> MemberConfig:
    return MemberConfig(folder=folder, node_id=node_id, members=MEMBERS, cluster_token=token)


# The content of a file.


def test_a_bit_that_flipped_anywhere_in_the_file_is_found(saved: Path, tmp_path: Path) -> None:
    data, bad = saved.read_bytes(), tmp_path / "bad"
    read_initial_state(saved)
    for place in range(len(data)):
        bad.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(BackupDamaged):
            read_initial_state(bad)


def test_a_file_that_was_cut_anywhere_or_goes_on_behind_its_end_is_found(saved: Path, tmp_path: Path) -> None:
    data, bad = saved.read_bytes(), tmp_path / "bad"
    for size in range(len(data)):
        bad.write_bytes(data[:size])
        with pytest.raises(BackupDamaged):
            read_initial_state(bad)
    bad.write_bytes(data + b"\0")
    with pytest.raises(BackupDamaged, match="after the trailer"):
        read_initial_state(bad)


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\0" * 10, b"\0" * 5000])
def test_a_file_of_another_kind_is_no_snapshot(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(data)
    with pytest.raises(BackupDamaged):
        read_initial_state(tmp_path / "other")


def test_a_file_whose_session_ids_are_used_up_is_refused_by_its_name(tmp_path: Path) -> None:
    """The file's checksums are right, so a program wrote the session id in it. The session ids of a new cluster begin
    far above the ids of the old cluster. The session id in this file is so great that no ids are left above it."""
    machine = {**KvMachine().snapshot().header, "next_session_id": INT64_MAX - 1}
    header = SnapshotHeader(index=0, term=0, configuration=Configuration.of([Member("s1")]), machine=machine)
    identity = Identity(cluster_id=bytes(16), group_id=0, node_id="s1", incarnation_id=bytes(16))
    start = encode_header(header, identity)
    path = tmp_path / "saved"
    path.write_bytes(start + encode_trailer(0, 0, int.from_bytes(start[-4:], "big")))

    with pytest.raises(BackupFailed, match=r"saved: its revision 1 or session id \d+ leaves no room"):
        read_initial_state(path)


# A new cluster from a file.


def test_members_restored_from_one_file_begin_alike_in_one_new_cluster(saved: Path, tmp_path: Path) -> None:
    made = [restore_folder(config(tmp_path / node_id, node_id), saved) for node_id in ("s1", "s2", "s3")]
    machines = [restored_machine(tmp_path / node_id) for node_id in ("s1", "s2", "s3")]

    assert len({each.identity.cluster_id for each in made}) == 1
    assert made[0].identity.cluster_id != made[0].facts.cluster_id
    assert len({machine.state_hash() for machine in machines}) == 1
    found = {key: machines[0].get(key).record for key in (b"a", b"b", b"c")}
    assert {key: (record.value, record.mod_revision) for key, record in found.items() if record} == {
        b"a": (b"aaa", 2), b"b": (b"bbb", 3), b"c": (b"ccc", 4),
    }  # fmt: skip
    assert machines[0].revision == 4


def test_a_retry_of_the_old_cluster_is_not_answered_with_what_was_kept_for_it(saved: Path, tmp_path: Path) -> None:
    """The old session does not exist even after the new cluster has opened as many sessions as the old cluster had."""
    assert read_initial_state(saved).facts.sessions == 1
    restore_folder(config(tmp_path / "s1"), saved)
    machine = restored_machine(tmp_path / "s1")
    opening = encode_command(RegisterSession(60_000_000_000))
    retry = encode_command(Put(b"a", b"aaa"), session_id=1, request_no=1)

    batch = encode_batch(machine.leader_time, [opening, retry])
    session, answer = machine.apply(Entry(1, 1, EntryKind.COMMANDS, batch))

    assert session[2][1] > SESSION_LEAP
    assert answer[0] == ResultCode.SESSION_EXPIRED
    assert machine.revision == 4


def test_the_revision_leaps_if_that_is_asked_for_and_is_another_cluster_then(saved: Path, tmp_path: Path) -> None:
    plain = restore_folder(config(tmp_path / "plain"), saved)
    leapt = restore_folder(config(tmp_path / "leapt"), saved, revision_leap=1000)

    assert restored_machine(tmp_path / "leapt").revision == leapt.revision == plain.revision + 1000
    assert leapt.identity.cluster_id != plain.identity.cluster_id


def test_at_level_2_no_revision_of_the_old_cluster_is_used_again(tmp_path: Path) -> None:
    """A fence never repeats. A watch of the old cluster is informed that its revision is gone."""
    cluster = Cluster(tmp_path, 1)
    client = cluster.client()
    client.do(RaiseFeatureLevel(2))
    client.do(LeaseGrant(7, 60 * SECOND_NS))
    client.do(Put(b"a", b"1", lease_id=7))
    client.do(Put(b"a", b"2", lease_id=7))
    cluster.hosts["s1"].node.snapshot_now()
    cluster.settle()
    old = cluster.hosts["s1"].machine
    assert len(old.history) == 2

    restored = restore_folder(config(tmp_path / "new"), snapshot_of(tmp_path / "s1"))
    machine = restored_machine(tmp_path / "new")

    assert machine.revision == restored.revision == old.revision + REVISION_LEAP
    assert machine.history.first_revision > machine.compact_revision == machine.revision
    assert len(machine.history) == 0
    assert machine.leases.by_id[7].keys == {b"a"}
    assert machine.leases.next_id > SESSION_LEAP
    machine.check()


def test_another_file_or_token_makes_another_cluster(saved: Path, tmp_path: Path) -> None:
    """If two clusters had the same id, members that begin with different states could vote for each other."""
    first = restore_folder(config(tmp_path / "first"), saved)
    again = restore_folder(config(tmp_path / "again", token="newer"), saved)
    second = restore_folder(config(tmp_path / "second"), snapshot_of(tmp_path / "first"))

    assert len({each.identity.cluster_id for each in (first, again, second)}) == 3


def test_no_token_that_can_be_typed_gives_a_restored_cluster(saved: Path, tmp_path: Path) -> None:
    """An empty folder with the same cluster id would be a member without the restored keys."""
    restored = restore_folder(config(tmp_path / "s1"), saved)
    given = config(tmp_path / "s1")
    assert given.configuration is not None

    with pytest.raises(WrongCluster):
        open_data_folder(tmp_path / "s1", expect_cluster_id=restored.facts.cluster_id)
    with pytest.raises(WrongCluster):
        open_or_bootstrap(given)


def test_restoring_touches_no_folder_that_holds_something(saved: Path, tmp_path: Path) -> None:
    restore_folder(config(tmp_path / "s1"), saved)
    with pytest.raises(NotEmpty):
        restore_folder(config(tmp_path / "s1"), saved)


def test_a_damaged_file_makes_no_folder(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(BackupDamaged):
        restore_folder(config(tmp_path / "s1"), tmp_path / "bad")
    assert not (tmp_path / "s1").exists()


def test_a_cluster_of_several_is_not_restored_without_a_new_token(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="cluster-token"):
        restore_folder(config(tmp_path / "s1", token=""), saved)


# A file is complete, or it does not exist.


def test_what_fails_halfway_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> None:
        with AtomicFile(tmp_path / "file", force=False) as aside:
            aside.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_early", [True, False])
def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path: Path, is_early: bool) -> None:
    """An existing file is not replaced without force, even if it appears while the new file is being written."""
    path = tmp_path / "file"
    if is_early:
        path.write_bytes(b"old")

    def write() -> None:
        with AtomicFile(path, force=False) as aside:
            assert not is_early
            path.write_bytes(b"old")
            aside.publish()

    with pytest.raises(BackupFailed, match="there is a file already"):
        write()
    assert path.read_bytes() == b"old"

    with AtomicFile(path, force=True) as aside:
        aside.write(b"new")
        aside.publish()
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


# Saving from a running member.


async def save(store: EmbeddedStore, path: Path, **options: object) -> backup_module.SavedSnapshot:
    return await save_snapshot(store, path, member=IN_PROCESS_ADDRESS, **options)  # type: ignore[arg-type]


async def test_every_write_acknowledged_before_is_in_the_file(tmp_path: Path) -> None:
    """The file must have every acknowledged write, even if the save makes no read that shows the newest revision. So an
    older snapshot of the member does not suffice."""
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        for turn in range(3):
            revision = (await store.put("key", f"{turn}")).revision
            saved = await save(store, tmp_path / f"{turn}")
            assert saved.facts.revision == revision
            assert read_initial_state(tmp_path / f"{turn}").facts == saved.facts
        revision = (await store.put("key", "later")).revision
        saved = await save(store, tmp_path / "by itself", existing=True)
        assert (saved.facts.revision, saved.is_older, saved.open_entries) == (revision, False, 0)


class CannotBuild:
    """Stands in for a client of a member that makes no new snapshot, because its disk is full."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store
        self.deadline_seconds, self.execute, self.status = store.deadline_seconds, store.execute, store.status

    async def ask(self, request: Request) -> Response:
        response = await self._store.ask(request._replace(items=(*request.items[:4], False)))
        name, words, *_ = response.fields
        return response if name else response._replace(fields=(None, words, True, "no room"))


async def test_of_a_member_that_can_build_none_the_snapshot_it_has_is_taken_only_where_it_is_all_there_is(
    tmp_path: Path,
) -> None:
    """The command saves an older snapshot only on request, and reports that the snapshot is older."""
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        first = (await store.put("key", "in a snapshot")).revision
        await save(store, tmp_path / "first")
        await store.put("key", "after it")
        full, told = CannotBuild(store), list[str]()

        with pytest.raises(BackupFailed, match=r"no snapshot to send .* s1 gave up: no room"):
            await save(full, tmp_path / "file", wait_seconds=0.2, tell=told.append)  # type: ignore[arg-type]
        assert told == ["s1 gave up: no room; trying again"]
        saved = await save(full, tmp_path / "file", wait_seconds=0.1, existing=True)  # type: ignore[arg-type]

    assert saved.facts.revision == first == read_initial_state(tmp_path / "file").facts.revision
    assert saved.is_older
    assert saved.member is not None
    assert saved.member.revision == first + 1


class Replacing:
    """Stands in for a client. In each of the first `times` attempts to read, a new snapshot appears before the second
    page."""

    def __init__(self, store: EmbeddedStore, times: int, aside: Path) -> None:
        self._store, self._left, self._aside = store, times, aside
        self.deadline_seconds, self.execute = store.deadline_seconds, store.execute

    async def ask(self, request: Request) -> Response:
        if request.kind is RequestKind.SNAPSHOT and request.items[1] and self._left:
            self._left -= 1
            await self._store.put("more", bytes(1000))
            await save(self._store, self._aside, force=True)
        return await self._store.ask(request)


@pytest.mark.parametrize("times", [2, 100])
async def test_a_snapshot_that_is_replaced_while_it_is_read_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The save begins again a limited number of times, and the file contains nothing of an earlier snapshot."""
    monkeypatch.setattr(backup_module, "PAGE_BYTES", 500)
    path = tmp_path / "file"
    async with open_node(tmp_path / "data", bootstrap=True) as store:
        await store.put("key", bytes(3000))
        asking = Replacing(store, times, tmp_path / "aside")
        if times > 10:
            with pytest.raises(BackupFailed, match="replaced its snapshot 5 times"):
                await save_snapshot(asking, path, member=IN_PROCESS_ADDRESS)  # type: ignore[arg-type]
            assert not path.exists()
            return
        saved = await save_snapshot(asking, path, member=IN_PROCESS_ADDRESS)  # type: ignore[arg-type]

    assert saved.facts.revision == 2 + times
    assert read_initial_state(path).facts == saved.facts
    assert path.stat().st_size == saved.size_bytes


def test_a_member_that_lags_behind_gives_no_older_state_instead(tmp_path: Path) -> None:
    """The member reports its revision, and builds a snapshot as soon as it has the requested revision."""
    cluster = Cluster(tmp_path, 3)
    leader = cluster.leader()
    lagging = next(node_id for node_id in cluster.hosts if node_id != leader)
    client = cluster.client(ttl_ns=0)
    cluster.cut.add(lagging)
    client.do(Put(b"k", b"v"))
    revision = cluster.hosts[leader].machine.revision
    request = snapshot_request(f"{lagging}:1", revision_min=revision, build=True)

    name, words, is_being_built, _ = client.ask(request).fields
    assert (name, is_being_built) == (None, False), words

    cluster.cut.clear()
    cluster.wait(2)
    assert client.ask(request).fields[0::2] == (None, True)
    name, size_bytes, data = client.ask(request).fields
    assert len(data) == size_bytes
    assert (tmp_path / lagging / "groups/0/snapshots" / name).read_bytes() == data


def test_a_member_says_why_it_gave_a_build_up_until_it_is_asked_for_another(tmp_path: Path) -> None:
    """While a caller waits for the snapshot, an operator can make room on the disk."""
    cluster = Cluster(tmp_path, 1)
    client = cluster.client(ttl_ns=0)
    client.do(Put(b"k", b"v"))
    host = cluster.hosts["s1"]
    build = snapshot_request("s1:1", revision_min=host.machine.revision, build=True)
    look = snapshot_request("s1:1", revision_min=host.machine.revision)
    host.files.bytes_max = 0

    assert client.ask(build).fields[2:] == (True, "")
    assert client.ask(look).fields[2] is False
    assert "the disk is full" in client.ask(look).fields[3]

    host.files.bytes_max = None
    assert client.ask(build).fields[2:] == (True, "")
    assert client.ask(look).fields[0] is not None


def test_only_the_newest_snapshot_is_read_whatever_name_is_asked_for(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    client = cluster.client(ttl_ns=0)
    for name in ("../../../meta", "/etc/passwd", "0000000000000009-0000000000000001.snap"):
        assert client.ask(snapshot_request("s1:1", name)).fields[0] is None


def test_the_request_has_these_bytes_for_all_time() -> None:
    request = snapshot_request("a:1", "n", offset=3, bytes_max=4, revision_min=5, build=True)
    assert encode_request(9, request).hex() == "870907616e030405f5"


@pytest.mark.parametrize(
    "items", [[], [None, 0, 0, 0], [None, -1, 0, 0, True], [b"n", 0, 0, 0, True], [None, 0, 0, 0, 1]]
)
def test_a_request_that_makes_no_sense_ends_its_connection(tmp_path: Path, items: list[object]) -> None:
    client = RawClient(Cluster(tmp_path, 1))
    client.send(frame(encode_item([1, 7, *items])))

    assert client.is_closed
    with pytest.raises(ProtocolError, match="a snapshot request is"):
        decode_response(client.bodies.pop())


def test_a_page_has_at_most_a_mebibyte_and_never_more_than_is_asked_for(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    client = cluster.client(ttl_ns=0)
    for number in range(3):
        client.do(Put(b"%d" % number, bytes(800_000)))
    cluster.hosts["s1"].node.snapshot_now()
    cluster.settle()

    sizes = [len(client.ask(snapshot_request("s1:1", bytes_max=bytes_max)).fields[2]) for bytes_max in (0, 1 << 40, 7)]

    assert sizes == [MIB, MIB, 7]


async def test_a_full_disk_leaves_no_file_and_says_so(tmp_path: Path) -> None:
    """Here the operating system refuses to let any file grow beyond 4 kB."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    place = tmp_path / "place"
    place.mkdir()
    async with open_node(tmp_path / "data", bootstrap=True, listen_client="127.0.0.1:0") as store:
        await store.put("key", bytes(50_000))
        arguments = [sys.executable, "-m", "kvstore.cli.main", "snapshot", "save", str(place / "file")]
        done = await trio.run_process(
            [*arguments, "--endpoints", store.client_address], check=False, capture_stderr=True, preexec_fn=limit
        )

    assert done.returncode == 3, done.stderr
    assert b"cannot be written: file too large" in done.stderr
    assert list(place.iterdir()) == []
