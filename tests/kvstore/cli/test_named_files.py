"""The way in which a save writes to a path depends on the kind of file at this path. Only a regular file is ever
replaced."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from kvstore.backup.file import AtomicFile, BackupFailed, BackupReader
from kvstore.named_files import find_target


def save(path: Path | None, data: bytes, *, force: bool = True) -> None:
    with AtomicFile(path, force=force) as aside:
        aside.write(b"begun, and ")
        aside.begin()
        aside.write(data)
        aside.publish()


def test_a_device_is_written_and_stays_one(tmp_path: Path) -> None:
    """For root, a rename would replace the machine's `/dev/null` by a regular file."""
    leads_to_null = tmp_path / "null"
    leads_to_null.symlink_to(os.devnull)
    before = Path(os.devnull).stat()

    for force in (True, False):
        save(leads_to_null, b"data", force=force)
        with pytest.raises(BackupFailed, match="no space left"):
            save(Path("/dev/full"), b"data", force=force)

    assert Path(os.devnull).stat().st_ino == before.st_ino
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    assert leads_to_null.is_symlink()
    assert list(tmp_path.iterdir()) == [leads_to_null]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_of_ones_own_is_not_replaced(tmp_path: Path) -> None:
    """The same case with a device that the rest of the machine does not use."""
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this container makes no devices")
    try:
        device.open("wb").close()
    except PermissionError:
        pytest.skip("devices have no effect on this file system")

    save(device, b"data")

    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_pipe_gets_all_of_it_at_the_end(tmp_path: Path) -> None:
    """If the save had to begin again, the pipe gets no bytes of the first attempt."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BackupFailed, match="nobody reads this pipe"):
        save(pipe, b"data")

    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    got: list[bytes] = []
    os.set_blocking(held, True)

    def read() -> None:
        while data := os.read(held, 1 << 16):
            got.append(data)

    reader = threading.Thread(target=read)
    data = os.urandom(300_000)
    writer = os.open(pipe, os.O_WRONLY)  # The reader does not see the end of the data while this descriptor is open.
    reader.start()
    save(pipe, data)
    os.close(writer)
    reader.join(20)
    os.close(held)

    assert not reader.is_alive()
    assert b"".join(got) == data
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_descriptor_by_its_name_is_written_in_place(tmp_path: Path) -> None:
    """With `hwm snapshot save /dev/stdout > file`, a rename would leave the file of the shell empty."""
    file = tmp_path / "file"
    with file.open("wb") as opened:
        save(Path(f"/dev/fd/{opened.fileno()}"), b"data", force=False)
        assert os.fstat(opened.fileno()).st_ino == file.stat().st_ino

    assert file.read_bytes() == b"data"


def test_what_stands_behind_an_open_descriptor_need_not_have_a_name() -> None:
    """`open` cannot open a socket, for example the standard output of a systemd service. A deleted file has no name."""
    near, far = socket.socketpair()
    with near, far:
        save(Path(f"/dev/fd/{near.fileno()}"), b"to a socket")
        assert far.recv(100) == b"to a socket"
    with tempfile.TemporaryFile() as file:
        file.write(b"before, ")
        file.flush()
        save(Path(f"/proc/self/fd/{file.fileno()}"), b"data")
        file.seek(0)
        assert file.read() == b"before, data"


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    """If the name of a backup is a link to another disk, the backup is written to that disk."""
    there, link = tmp_path / "there" / "file", tmp_path / "link"
    there.parent.mkdir()
    link.symlink_to("there/file")
    with pytest.raises(BackupFailed, match="a file already"):
        save(link, b"data", force=False)

    for data in (b"first", b"second"):
        save(link, data)
        assert there.read_bytes() == data

    assert link.is_symlink()
    assert list(there.parent.iterdir()) == [there]


def test_what_is_neither_replaced_nor_written_is_refused(tmp_path: Path) -> None:
    """The error says what the path is, for example a socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(BackupFailed, match="this is a socket"):
            save(tmp_path / "socket", b"data")
    with pytest.raises(BackupFailed, match="this is a folder"):
        save(tmp_path, b"data")
    round_link = tmp_path / "round"
    round_link.symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        find_target(round_link)


def test_a_pipe_in_the_place_of_a_saved_file_is_not_waited_for(tmp_path: Path) -> None:
    """A reader must not wait for a pipe at this path, because perhaps nobody will ever write to the pipe. A pipe that
    is given as an open descriptor is not refused."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BackupFailed, match="this is a pipe"), BackupReader(pipe):
        pass
    with pytest.raises(BackupFailed, match="is a directory"), BackupReader(tmp_path):
        pass
    reader, writer = os.pipe()
    os.write(writer, b"no snapshot")
    os.close(writer)
    with pytest.raises(BackupFailed, match="no sound snapshot"), BackupReader(Path(f"/dev/fd/{reader}")):
        pass
    os.close(reader)


def test_a_saved_snapshot_is_its_owners_alone(tmp_path: Path) -> None:
    """The snapshot contains every value of the store, and the usual umask would let every local user read it."""
    umask = os.umask(0o022)
    try:
        save(tmp_path / "store.snap", b"data")
    finally:
        os.umask(umask)

    assert stat.S_IMODE((tmp_path / "store.snap").stat().st_mode) == 0o600
