"""The data folder is made once, locked by one process, and identified by its `meta`. Every refusal names its remedy.

See docs/reference/specification.md#15-data-folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import socket
import stat
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
    StorageError,
    SyncFile,
    WrongCluster,
    WrongNode,
    create_data_folder,
    holder_of,
    open_data_folder,
    read_identity,
)
from storage.files import disk
from tests.storage.support.builders import (
    CONFIGURATION,
    IDENTITY,
    LOG,
    SNAPSHOTS,
    Damage,
    built,
    entry,
    new_folder,
    opened,
    snapshot_header,
    synced,
    write,
)

pytestmark = pytest.mark.timeout(30)


def create(folder: Path) -> None:
    """Make the folder of a new member."""
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
    """`close` waits for the thread for a bounded time. The thread may still finish a write. So no other process may
    lock the folder."""
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
        assert "disk is lost: replace it by a new member" in str(refused.value)
    assert list(tmp_path.iterdir()) == []  # There is not even a lock file, so an empty folder stays empty.


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
    """The member may have voted. Only an interrupted first start may be repeated. Such a start leaves a mark in the
    folder."""
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
    open_data_folder(tmp_path).close()  # The refused open released the lock.


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


def test_a_folder_whose_lock_file_was_deleted_is_still_held_by_one(tmp_path: Path) -> None:
    """Some people run `rm LOCK` when a program reports that a folder is locked. `flock` locks an open file. So two
    opens in one process exclude each other like opens in two processes."""
    create(tmp_path)
    held = open_data_folder(tmp_path)
    (tmp_path / "LOCK").unlink()

    with pytest.raises(FolderLocked, match=r"another process.*Deleting LOCK frees nothing"):
        open_data_folder(tmp_path)
    with pytest.raises(NotEmpty):
        create(tmp_path)
    holder = holder_of(tmp_path)

    assert holder is not None
    assert not (tmp_path / "LOCK").exists()  # The refused open has not made the file again.
    held.close()
    assert holder_of(tmp_path) is None
    open_data_folder(tmp_path).close()


def test_a_member_of_an_older_build_and_one_of_this_build_exclude_each_other(tmp_path: Path) -> None:
    """An older build locks only the file `LOCK`."""
    create(tmp_path)
    with (tmp_path / "LOCK").open("r+b") as older:
        fcntl.flock(older, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(FolderLocked):
            open_data_folder(tmp_path)
        assert holder_of(tmp_path) is not None

    held = open_data_folder(tmp_path)
    with (tmp_path / "LOCK").open("r+b") as older, pytest.raises(BlockingIOError):
        fcntl.flock(older, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.close()


def test_a_folder_that_was_renamed_while_it_is_held_is_still_held(tmp_path: Path) -> None:
    create(tmp_path / "n1")
    held = open_data_folder(tmp_path / "n1")
    (tmp_path / "n1").rename(tmp_path / "n2")

    with pytest.raises(FolderLocked):
        open_data_folder(tmp_path / "n2")

    held.close()


def test_a_file_system_that_locks_no_folders_leaves_it_to_the_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Some network file systems cannot lock a folder. On such a file system the member runs with only the lock on the
    file, and reports this."""

    def flock(descriptor: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        really(descriptor, how)

    create(tmp_path)
    really = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", flock)
    held = open_data_folder(tmp_path)

    with pytest.raises(FolderLocked):
        open_data_folder(tmp_path)

    held.close()
    assert "do not delete LOCK" in caplog.text


def test_what_a_member_makes_is_for_its_own_user_alone(tmp_path: Path) -> None:
    """The files contain every value of every client, so other users must not read them. The parent folder does not
    belong to the member, so its mode stays."""
    before = os.umask(0)
    try:
        create(tmp_path / "made" / "n1")
        folder = open_data_folder(tmp_path / "made" / "n1")
        files = InlineFiles(folder.folder)
        storage = opened(files)
        synced(files, storage.log, write(entry(1), term=1))
        built(files, storage, snapshot_header(1))
        files.close()
        folder.close()
    finally:
        os.umask(before)

    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "made" / "n1").rglob("*")}
    assert len(modes) > 8
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert stat.S_IMODE((tmp_path / "made" / "n1").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o777


@pytest.mark.parametrize(("mode", "is_told"), [(0o755, True), (0o750, False), (0o700, False)])
def test_a_folder_that_everybody_can_read_keeps_its_mode_and_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_told: bool
) -> None:
    tmp_path.chmod(mode)
    create(tmp_path)
    open_data_folder(tmp_path).close()

    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode
    assert ("chmod 700" in caplog.text) == is_told


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")  # Only root may make a device node.


def open_and_close(folder: Path) -> None:
    """Open the folder, read the same files as a start, and close the folder."""
    held, files = open_data_folder(folder), InlineFiles(folder)
    try:
        opened(files)
    finally:
        files.close()
        held.close()


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("put", "words"), [(_fifo, "a fifo"), (_socket, "a socket"), (_device, "a device"), (Path.mkdir, "a folder")]
)
@pytest.mark.parametrize("name", ["LOCK", "meta", "pins", "ballast", f"{LOG}/*.wal", f"{SNAPSHOTS}/*.snap"])
def test_what_is_no_file_in_the_place_of_a_data_file_is_refused_by_its_name(
    put: Callable[[Path], None], words: str, name: str
) -> None:
    """The start refuses such a path. A plain open of a fifo would wait forever. If the start replaced the path, data
    could be lost."""
    with tempfile.TemporaryDirectory() as short:  # The path of a socket may have only about 100 bytes.
        folder = Path(short)
        create(folder)
        path = next(folder.glob(name), folder / name)
        path.unlink(missing_ok=True)
        put(path)

        with pytest.raises((OSError, StorageError), match=f"{words} is in the place of this file") as refused:
            open_and_close(folder)

        assert str(path) in str(refused.value)
        assert not path.is_file()


def test_a_data_file_may_be_a_link_to_a_file(tmp_path: Path) -> None:
    """Some operators put the log on another disk, and make a link to its folder or to one of its files."""
    create(tmp_path / "n1")
    (tmp_path / "n1" / LOG).rename(tmp_path / "log")
    (tmp_path / "n1" / LOG).symlink_to(tmp_path / "log")
    (tmp_path / "n1" / "pins").rename(tmp_path / "pins")
    (tmp_path / "n1" / "pins").symlink_to(tmp_path / "pins")

    held = open_data_folder(tmp_path / "n1")
    files = InlineFiles(tmp_path / "n1")
    assert opened(files).log.last_index == 0
    files.close()
    held.close()


@pytest.fixture
def as_nobody() -> Iterator[Callable[[], None]]:
    """Yield a function that drops root's rights until the test ends."""
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
        with pytest.raises(DiskFailing, match=r"kernel's log.*replace this node by a new member") as refused:
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
    """A member syncs the pin of a peer before it uses a message of that peer.

    See docs/reference/specification.md#13-incarnations-and-pins.
    """
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

    pins.pin("n2", b"9" * 16, said.append)  # The members have agreed on this incarnation.
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
