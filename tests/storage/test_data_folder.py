"""The data folder: made once, held by one, known by its `meta`; every refusal names its remedy (FORMATS §1)."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path

import pytest

from storage import (
    CorruptLog,
    CorruptMeta,
    CorruptSnapshot,
    CreateFile,
    DiskFailing,
    FolderLocked,
    InlineFiles,
    LogFailed,
    NewerFormat,
    NotEmpty,
    NotInitialized,
    NotWritable,
    RealFiles,
    SnapshotRefused,
    SyncFile,
    WrongCluster,
    WrongNode,
    create_data_folder,
    disk,
    open_data_folder,
    read_identity,
)
from tests.storage.builders import CONFIGURATION, IDENTITY, Damage, new_folder, opened

pytestmark = pytest.mark.timeout(30)


def create(folder: Path) -> None:
    """The explicit first start."""
    create_data_folder(folder, identity=IDENTITY, configuration=CONFIGURATION, machine_header={"revision": 1})


def test_a_first_start_makes_a_folder_that_opens_with_its_identity(tmp_path: Path) -> None:
    create(tmp_path / "new" / "n1")

    folder = open_data_folder(tmp_path / "new" / "n1", expect_cluster_id=IDENTITY.cluster_id, expect_node_id="n1")

    assert folder.identity == IDENTITY
    assert {path.name for path in folder.folder.iterdir()} == {"LOCK", "meta", "pins", "groups"}
    folder.close()
    folder.close()


def test_a_folder_whose_disk_hangs_is_left_in_time_and_stays_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program goes on. What the thread has begun it may still write, so nobody else may have the folder."""
    goes_on, is_syncing = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        is_syncing.set()
        goes_on.wait(30)

    create(tmp_path)
    monkeypatch.setattr(disk, "sync_data", hang)
    monkeypatch.setattr(RealFiles, "close", partialmethod(RealFiles.close, wait_seconds_max=0.02))
    folder = open_data_folder(tmp_path)
    files = folder.files(lambda _: None)
    files.submit([CreateFile("x"), SyncFile("x")], lambda _: None)
    is_syncing.wait(30)
    try:
        folder.close()

        with pytest.raises(FolderLocked):
            open_data_folder(tmp_path)
    finally:
        goes_on.set()
    while not files.close():
        pass
    folder.close()
    open_data_folder(tmp_path).close()


def test_a_node_that_finds_its_folder_missing_or_empty_refuses_and_names_both_remedies(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(NotInitialized, match="initialise it explicitly") as refused:
            open_data_folder(folder)
        assert "disk is lost: replace it as a new member" in str(refused.value)
    assert list(tmp_path.iterdir()) == []  # Not even a lock: an empty folder stays empty.


def test_a_folder_of_something_else_is_refused_by_both(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")

    with pytest.raises(NotInitialized, match=r"photo\.jpg"):
        open_data_folder(tmp_path)
    with pytest.raises(NotEmpty, match=r"photo\.jpg"):
        create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")

    with pytest.raises(NotInitialized, match="not a folder"):
        open_data_folder(path)
    with pytest.raises(NotWritable):
        create(path)


def test_a_second_first_start_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    create(tmp_path)
    before = (tmp_path / "meta").read_bytes()

    with pytest.raises(NotEmpty):
        create(tmp_path)

    assert (tmp_path / "meta").read_bytes() == before


def test_an_interrupted_first_start_is_no_member_and_can_be_repeated(tmp_path: Path) -> None:
    create(tmp_path)
    (tmp_path / "meta").unlink()
    (tmp_path / "INITIALIZING").write_bytes(b"")

    with pytest.raises(NotInitialized, match="interrupted"):
        open_data_folder(tmp_path)
    create(tmp_path)

    open_data_folder(tmp_path).close()
    assert not (tmp_path / "INITIALIZING").exists()


def test_a_log_without_meta_is_damage_and_is_never_initialised_over(tmp_path: Path) -> None:
    """It may have voted: only an interrupted first start, which is marked, may be repeated."""
    create(tmp_path)
    (tmp_path / "meta").unlink()

    with pytest.raises(CorruptMeta, match="missing"):
        open_data_folder(tmp_path)
    with pytest.raises(NotEmpty):
        create(tmp_path)


def test_a_folder_of_another_cluster_or_node_is_refused(tmp_path: Path) -> None:
    create(tmp_path)

    with pytest.raises(WrongCluster) as wrong_cluster:
        open_data_folder(tmp_path, expect_cluster_id=bytes(16))
    with pytest.raises(WrongNode) as wrong_node:
        open_data_folder(tmp_path, expect_node_id="n2")

    assert wrong_cluster.value.found == IDENTITY.cluster_id
    assert (wrong_node.value.found, wrong_node.value.expected) == ("n1", "n2")
    open_data_folder(tmp_path).close()  # The lock was let go.


def test_a_second_opener_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    create(tmp_path)
    held = open_data_folder(tmp_path)

    with pytest.raises(FolderLocked) as refused:
        open_data_folder(tmp_path)

    assert refused.value.pid == os.getpid()
    held.close()
    open_data_folder(tmp_path).close()


HOLD = """
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from storage import open_data_folder
folder = open_data_folder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_never_hold_one_folder_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    create(tmp_path)
    arguments = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderLocked) as refused:
            open_data_folder(tmp_path)
        holder.kill()
        holder.wait(20)

    assert refused.value.pid == holder.pid
    open_data_folder(tmp_path).close()


@pytest.fixture
def as_nobody() -> Iterator[Callable[[], None]]:
    """Call it to have no more rights than others have, until the end of the test."""
    user = os.geteuid()
    yield lambda: os.seteuid(65534) if user == 0 else None
    os.seteuid(user)


@pytest.mark.parametrize("number", [errno.EIO, errno.EUCLEAN])
@pytest.mark.parametrize("call", ["iterdir", "exists"])
def test_a_folder_whose_disk_fails_is_refused_and_the_owner_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    create(tmp_path)

    def fail(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, fail)
        with pytest.raises(DiskFailing, match=r"kernel's log.*replace this node as a new member") as refused:
            open_data_folder(tmp_path)

    assert os.strerror(number) in str(refused.value)


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_folder_that_cannot_be_written_or_read_is_refused(mode: int, as_nobody: Callable[[], None]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "n1"
        create(folder)
        Path(name).chmod(0o755)
        folder.chmod(mode)
        as_nobody()
        with pytest.raises(NotWritable, match="a folder that this user owns") as refused:
            open_data_folder(folder)
        with pytest.raises(NotWritable):
            create(folder / "below")
        os.seteuid(os.getuid())
        folder.chmod(0o755)

    assert "permission denied" in refused.value.reason.lower()


@pytest.mark.parametrize("name", ["meta", "pins"])
def test_every_flipped_byte_of_meta_and_pins_is_refused(name: str) -> None:
    files = new_folder()
    for offset in range(files.size_bytes(name)):
        spoiled = files.after_power_loss(lambda: True)
        Damage(spoiled, name).flip(offset, 0x20)
        with pytest.raises(CorruptMeta, match="new member") as refused:
            opened(spoiled)
        assert refused.value.path == name


@pytest.mark.parametrize("name", ["meta", "pins"])
def test_a_missing_or_shorter_meta_or_pins_is_refused(name: str) -> None:
    files = new_folder()
    for size_bytes in range(files.size_bytes(name)):
        spoiled = files.after_power_loss(lambda: True)
        Damage(spoiled, name).shrink(size_bytes)
        with pytest.raises(CorruptMeta):
            opened(spoiled)
    files.forget(name)
    with pytest.raises(CorruptMeta, match="missing"):
        opened(files)


def test_a_meta_of_a_newer_format_says_which_versions(tmp_path: Path) -> None:
    create(tmp_path)
    data = bytearray((tmp_path / "meta").read_bytes())
    files = new_folder()
    files.put("meta", bytes(data))
    damage = Damage(files, "meta")
    damage.set_byte(11, 9)
    damage.fix_checksum(0, len(data))
    (tmp_path / "meta").write_bytes(files.read("meta", 0, 1 << 20))

    with pytest.raises(NewerFormat) as refused:
        open_data_folder(tmp_path)
    assert (refused.value.found, refused.value.supported) == (9, 1)


def test_pins_are_durable_when_said_and_come_back_after_a_restart() -> None:
    """FORMATS §1: a pin is synced before any message of that peer is used."""
    files = new_folder()
    pins = opened(files).pins
    said: list[BaseException | None] = []
    pins.pin("n2", b"2" * 16, said.append)
    pins.pin("n3", b"3" * 16, said.append)
    assert dict(pins.pins()) == {}

    files.run()

    assert said == [None, None]
    assert dict(pins.pins()) == {"n2": b"2" * 16, "n3": b"3" * 16}
    assert opened(files.after_power_loss(lambda: False)).pins.pins() == pins.pins()

    pins.pin("n2", b"9" * 16, said.append)  # The members have agreed that it is this one.
    files.run()
    assert opened(files.after_power_loss(lambda: False)).pins.pins() == {"n2": b"9" * 16, "n3": b"3" * 16}


def test_errors_keep_their_fields_through_pickle() -> None:
    for error in (
        NotInitialized("d", "empty"),
        NotEmpty("d", ("a", "b", "c", "d")),
        WrongCluster("d", b"a", b"b"),
        WrongNode("d", "a", "b"),
        FolderLocked("d", None),
        NotWritable("d", "no"),
        DiskFailing("d", "no"),
        NewerFormat("p", 2, 1),
        CorruptMeta("p", "r"),
        CorruptLog("p", 5, "r"),
        CorruptSnapshot("p", 5, "r"),
        SnapshotRefused("r"),
        LogFailed("r"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_damage_found_while_opening_names_the_whole_path(tmp_path: Path) -> None:
    create(tmp_path)
    path = tmp_path / "groups/0/log/0000000000000001.wal"
    path.write_bytes(path.read_bytes()[:70])
    files = InlineFiles(tmp_path)

    with pytest.raises(CorruptLog) as refused:
        opened(files)

    assert (refused.value.path, refused.value.offset) == (str(path), 64)
    files.close()


def test_the_identity_can_be_read_without_holding_the_folder(tmp_path: Path) -> None:
    create(tmp_path)
    files = InlineFiles(tmp_path)
    assert read_identity(files) == IDENTITY
    files.close()
