"""`Files` on a real disk: order, threads, short writes, many buffers, errors, closing."""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage import (
    CreateFile,
    Delete,
    Files,
    InlineFiles,
    MakeFolder,
    NotCarriedOut,
    Operation,
    RealFiles,
    Rename,
    SetSize,
    SyncFile,
    SyncFolder,
    Write,
    read_all,
)
from storage.files import disk
from storage.files.disk import BUFFERS_MAX, OPEN_FILES_MAX, SPARE_DESCRIPTORS, Disk, write_all
from tests.storage.support.builders import entries, everything, first_start, opened, synced, write

pytestmark = pytest.mark.timeout(30)
SECONDS_MAX = 20


class Loop:
    """The loop of the caller's thread. When the test demands it, this loop runs the callbacks that the I/O thread has
    posted."""

    def __init__(self) -> None:
        self._posted: queue.Queue[Callable[[], None]] = queue.Queue()

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.put(callback)

    def run_one(self) -> None:
        self._posted.get(timeout=SECONDS_MAX)()

    def wait_until_posted(self) -> None:
        self._posted.put(self._posted.get(timeout=SECONDS_MAX))


class RunnableRealFiles(RealFiles):
    """`RealFiles` with an additional method `run()`, which the builders of these tests need."""

    def __init__(self, folder: Path) -> None:
        self._loop = Loop()
        self._outstanding = 0
        super().__init__(folder, self._loop.post)

    def submit(self, operations: Sequence[Operation], done: Callable[[BaseException | None], None]) -> None:
        self._outstanding += 1
        super().submit(operations, done)

    def run(self) -> None:
        while self._outstanding:
            self._outstanding -= 1
            self._loop.run_one()


def carried_out(files: RealFiles, loop: Loop, *operations: Operation) -> BaseException | None:
    said: list[BaseException | None] = []
    files.submit(operations, said.append)
    loop.run_one()
    return said[0]


def open_files() -> int:
    """The number of descriptors that this process has open; 0 if the system does not report the number."""
    listing = Path("/proc/self/fd")
    return len(list(listing.iterdir())) if listing.is_dir() else 0


def test_real_and_inline_files_are_files(tmp_path: Path) -> None:
    inline: Files = InlineFiles(tmp_path)
    assert inline.names("nowhere") == []


def test_what_is_written_is_read_and_names_are_listed(tmp_path: Path) -> None:
    loop = Loop()
    files = RealFiles(tmp_path, loop.post)
    error = carried_out(
        files,
        loop,
        MakeFolder("a/b"),
        CreateFile("a/b/x"),
        Write("a/b/x", 0, (b"one", b"", b"two")),
        SyncFile("a/b/x"),
        SyncFolder("a/b"),
        SyncFolder(""),
    )

    assert error is None
    assert files.read("a/b/x", 2, 2) == b"et"
    assert files.read("a/b/x", 4, 100) == b"wo"
    assert files.read("a/b/x", 100, 1) == b""
    assert (files.size_bytes("a/b/x"), files.names("a"), files.names("a/b")) == (6, ["b"], ["x"])
    assert files.folder == tmp_path
    files.close()


def test_an_open_file_that_is_renamed_replaced_or_deleted_is_no_longer_read(tmp_path: Path) -> None:
    loop = Loop()
    files = RealFiles(tmp_path, loop.post)
    carried_out(files, loop, CreateFile("x"), Write("x", 0, (b"old",)), CreateFile("y"), Write("y", 0, (b"new",)))
    assert files.read("x", 0, 9) == b"old"

    assert carried_out(files, loop, Rename("y", "x")) is None

    assert files.read("x", 0, 9) == b"new"
    assert carried_out(files, loop, Write("x", 3, (b"er",)), SetSize("x", 4)) is None
    assert files.read("x", 0, 9) == b"newe"
    assert carried_out(files, loop, Delete("x"), Delete("x")) is None
    with pytest.raises(FileNotFoundError):
        files.read("x", 0, 1)
    with pytest.raises(FileNotFoundError):
        files.size_bytes("x")
    files.close()


def test_the_first_failure_ends_a_submission_and_is_reported(tmp_path: Path) -> None:
    loop = Loop()
    files = RealFiles(tmp_path, loop.post)

    error = carried_out(files, loop, CreateFile("x"), CreateFile("x"), CreateFile("never"))

    assert isinstance(error, FileExistsError)
    assert files.names("") == ["x"]
    assert isinstance(carried_out(files, loop, Write("missing", 0, (b"a",))), FileNotFoundError)
    files.close()


def test_a_mistake_of_the_program_is_told_like_a_failure_of_the_disk(tmp_path: Path) -> None:
    """Without this report, the thread would end silently, and the node would wait forever."""
    loop = Loop()
    files = RealFiles(tmp_path, loop.post)

    error = carried_out(files, loop, CreateFile("x"), Write("x", 0, ("no bytes",)))  # type: ignore[arg-type]

    assert isinstance(error, OSError)  # A node that gets such an error stops, and so promises nothing more.
    assert isinstance(error, NotCarriedOut)
    assert isinstance(error.__cause__, TypeError)
    assert "TypeError" in str(error)
    assert carried_out(files, loop, Write("x", 0, (b"a",))) is None
    files.close()


APPENDS: list[list[Operation]] = [
    [Write("x", 2, (b"alone",)), SyncFile("x")],
    [Write("x", 2, (b"a head", b"", b"and more")), SyncFile("x")],
    [Write("x", 2, ()), SyncFile("x")],
    [Write("x", 2, (b"here",)), SyncFile("y")],
    [Write("x", 2, (b"here",)), SyncFile("missing")],
    [Write("missing", 2, (b"nowhere",)), SyncFile("x")],
]


@pytest.mark.parametrize("append", APPENDS)
def test_an_append_with_its_sync_does_what_the_two_do_one_by_one(
    append: list[Operation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced_inodes: list[list[int]] = []
    monkeypatch.setattr(disk, "sync_data", lambda descriptor: synced_inodes[-1].append(os.fstat(descriptor).st_ino))
    seen = []
    for name, parts in (("together", [append]), ("apart", [append[:1], append[1:]])):
        (tmp_path / name).mkdir()
        on_disk = Disk(tmp_path / name)
        assert on_disk.carry_out([CreateFile("x"), Write("x", 0, (b"0123456789",)), CreateFile("y")]) is None
        names = {(tmp_path / name / each).stat().st_ino: each for each in ("x", "y")}
        synced_inodes.append([])
        errors = [error for part in parts if (error := on_disk.carry_out(part)) is not None]
        synced_names = [names[inode] for inode in synced_inodes[-1]]
        seen.append((on_disk.read("x", 0, 99), type(errors[0]) if errors else None))
        assert not errors or name == "apart" or synced_names == []  # After a failed sync, no further sync is tried.
        assert errors or synced_names == [append[1].path]  # type: ignore[union-attr]
        on_disk.close()
    assert seen[0] == seen[1]


@pytest.mark.parametrize("failing", ["write", "sync"])
def test_an_append_that_fails_tells_why_and_is_not_synced_behind_a_failed_write(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = Disk(tmp_path)
    assert on_disk.carry_out([CreateFile("x")]) is None
    broken = OSError(errno.EIO, "the medium is gone")
    syncs: list[int] = []

    def fail(*_: object) -> int:
        raise broken

    monkeypatch.setattr(disk, "sync_data", fail if failing == "sync" else syncs.append)
    if failing == "write":
        monkeypatch.setattr(os, "pwrite", fail)

    assert on_disk.carry_out([Write("x", 0, (b"abc",)), SyncFile("x")]) is broken
    assert not syncs
    monkeypatch.undo()
    on_disk.close()


def test_a_short_append_that_the_system_cuts_is_continued_and_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = Disk(tmp_path)
    assert on_disk.carry_out([CreateFile("x")]) is None
    syncs: list[int] = []
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: whole(descriptor, data[:2], offset))
    monkeypatch.setattr(disk, "sync_data", syncs.append)

    assert on_disk.carry_out([Write("x", 1, (b"abcdef",)), SyncFile("x")]) is None

    assert (on_disk.read("x", 0, 99), len(syncs)) == (b"\0abcdef", 1)
    on_disk.close()


def test_submissions_run_in_order_in_one_thread_and_done_on_the_callers(tmp_path: Path) -> None:
    loop = Loop()
    files = RealFiles(tmp_path, loop.post)
    said: list[tuple[int, int]] = []

    def note(number: int) -> Callable[[BaseException | None], None]:
        return lambda _: said.append((number, threading.get_ident()))

    files.submit([CreateFile("x")], note(0))
    for number in range(1, 50):
        files.submit([Write("x", number - 1, (bytes([number]),))], note(number))

    assert said == []  # The callback is never called from inside `submit`.
    for _ in range(50):
        loop.run_one()

    assert said == [(number, threading.get_ident()) for number in range(50)]
    assert files.read("x", 0, 100) == bytes(range(1, 50))
    files.close()


def test_after_close_everything_submitted_is_on_disk_and_nothing_is_called(tmp_path: Path) -> None:
    loop = Loop()
    files = RealFiles(tmp_path, loop.post)
    said: list[BaseException | None] = []
    files.submit([CreateFile("x")], said.append)
    loop.wait_until_posted()
    files.submit([Write("x", 0, (b"late",))], said.append)

    files.close()
    files.close()

    loop.run_one()  # The callback was posted before the close, but runs after it.
    assert said == []
    assert (tmp_path / "x").read_bytes() == b"late"


def test_the_system_is_asked_to_sync_the_very_file_and_the_very_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the bytes back cannot show that a sync is missing, because unsynced bytes can also be read until the
    power is lost."""
    synced_inodes: list[int] = []

    def note(descriptor: int) -> None:
        synced_inodes.append(os.fstat(descriptor).st_ino)

    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, name, note, raising=False)
    if hasattr(fcntl, "F_FULLFSYNC"):
        monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, _: note(descriptor))
    on_disk = Disk(tmp_path)
    (tmp_path / "log").mkdir()
    created: list[Operation] = [CreateFile("log/x"), Write("log/x", 0, (b"1",)), SyncFile("log/x"), SyncFolder("log")]

    assert on_disk.carry_out(created) is None
    # Nearly all appends have this form.
    assert on_disk.carry_out([Write("log/x", 1, (b"2",)), SyncFile("log/x")]) is None

    file, folder = (tmp_path / "log/x").stat().st_ino, (tmp_path / "log").stat().st_ino
    on_disk.close()
    assert synced_inodes == [file, folder, file]


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    loop = Loop()
    files = RealFiles(tmp_path, loop.post)
    buffers = tuple(b"%d," % number for number in range(3 * BUFFERS_MAX + 5))

    assert carried_out(files, loop, CreateFile("x"), Write("x", 0, buffers)) is None

    assert (tmp_path / "x").read_bytes() == b"".join(buffers)
    files.close()


@pytest.mark.parametrize("bytes_max", [1, 2, 3, 5, 7])
def test_short_writes_are_continued_where_they_stopped(tmp_path: Path, bytes_max: int) -> None:
    """A short write may stop at any byte, even between two buffers."""
    path = tmp_path / "x"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)

    def a_little(fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        return os.pwrite(fd, b"".join(buffers)[:bytes_max], offset)

    write_all(descriptor, [b"abc", b"", b"defgh", b"i", b"jklmnop"], 0, a_little)
    os.close(descriptor)

    assert path.read_bytes() == b"abcdefghijklmnop"


@pytest.mark.parametrize("bytes_max", [1, 2, 3, 5, 7])
def test_short_reads_are_continued_where_they_stopped(bytes_max: int) -> None:
    """A read may stop at any byte. Only an empty read means the end of the file. If the log took a short read for the
    end, it would cut valid frames."""
    content = b"abcdefghijklmnop"

    def a_little(length: int, offset: int) -> bytes:
        return content[offset : offset + min(length, bytes_max)]

    assert read_all(a_little, 10, 3) == content[3:13]
    assert read_all(a_little, 100, 3) == content[3:]
    assert read_all(a_little, 0, 3) == read_all(a_little, 5, 16) == b""


def test_a_member_opens_from_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test covers all files that a start reads: `meta`, `pins`, the log and a snapshot."""
    files = RunnableRealFiles(tmp_path)
    first_start(files)
    synced(files, opened(files).log, write(*entries(1, 500), term=1, voted_for="n1"))
    files.close()
    whole_read = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: whole_read(fd, min(length, 113), offset))

    files = RunnableRealFiles(tmp_path)
    assert everything(opened(files).log) == [*entries(1, 500)]
    files.close()


def test_no_more_than_the_bound_of_files_is_open(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    names = [f"f{number}" for number in range(3 * OPEN_FILES_MAX)]
    before = open_files()
    for name in names:
        assert disk.carry_out([CreateFile(name), Write(name, 0, (name.encode(),))]) is None
    for name in names:
        assert disk.read(name, 0, 100) == name.encode()
    assert open_files() <= before + 2 * OPEN_FILES_MAX + SPARE_DESCRIPTORS
    disk.close()
    assert open_files() == before


def test_a_whole_life_of_a_node_on_a_real_disk(tmp_path: Path) -> None:
    files = RunnableRealFiles(tmp_path)
    first_start(files)
    storage = opened(files)
    synced(files, storage.log, write(*entries(1, 500), term=1, voted_for="n1"))
    synced(files, storage.log, write(*entries(100, 200, term=2), term=2, replace_from=100))
    files.close()

    files = RunnableRealFiles(tmp_path)
    storage = opened(files)
    assert everything(storage.log) == [*entries(1, 99), *entries(100, 200, term=2)]
    files.close()


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from storage import InlineFiles, StorageLimits
from tests.storage.support.builders import entry, opened, synced, write
files = InlineFiles(Path(sys.argv[1]))
log = opened(files, StorageLimits(segment_bytes_max=2000, ballast_bytes=0)).log
synced(files, log, write(term=1))
while True:
    index = log.last_index + 1
    synced(files, log, write(entry(index), entry(index + 1)))
    print(log.last_index, flush=True)
"""


@pytest.mark.timeout(60)
def test_a_killed_process_loses_nothing_that_it_had_announced(tmp_path: Path) -> None:
    """`kill -9` comes at any moment. Several processes run on the same folder, one after the other."""
    files = InlineFiles(tmp_path)
    first_start(files)
    files.close()
    for life in range(4):
        arguments = [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(20 + 7 * life)]
            process.kill()
            lines += process.stdout.readlines()
        announced = [int(line) for line in lines if line.endswith("\n")]
        files = InlineFiles(tmp_path)
        log = opened(files).log
        assert log.last_index >= max(announced) > 0
        assert everything(log) == list(entries(1, log.last_index))
        files.close()


DISK_FULL = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from storage import InlineFiles
from tests.storage.support.builders import entry, everything, new_folder, opened, synced, write, first_start
files = InlineFiles(Path(sys.argv[1]))
first_start(files)
log = opened(files).log
synced(files, log, write(entry(1), term=1))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    synced(files, log, write(entry(2, payload=bytes(100_000))))
except OSError as error:
    print(type(error).__name__, error.errno)
"""


def test_a_write_that_the_system_cuts_off_fails_the_sync_and_loses_nothing_before_it(tmp_path: Path) -> None:
    """A limit on file sizes has the same effect as a full disk: first a short write, then an error."""
    result = subprocess.run(
        [sys.executable, "-c", DISK_FULL, str(tmp_path)], capture_output=True, text=True, timeout=SECONDS_MAX
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("OSError")
    files = InlineFiles(tmp_path)
    assert everything(opened(files).log) == list(entries(1, 1))
    files.close()
