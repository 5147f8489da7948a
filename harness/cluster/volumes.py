"""A small file system for each member's folder, so that the disk of one member can be full, fail, hang or lose power.

The file system is an ext4 in a file, on a loop device. On a machine that cannot mount an ext4, the file system is a
tmpfs, whose only possible fault is a full disk. Call these functions from a worker thread, because each call blocks:
usually for some tens of milliseconds, but on a frozen file system until the thaw.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from harness.cluster.linux import freeze, shut_down, thaw
from harness.errors import VolumeFailed

FileSystem = Literal["ext4", "tmpfs"]

_MIB = 1024 * 1024
SMALL_BYTES, USUAL_BYTES = 96 * _MIB, 2048 * _MIB  # A volume takes less space than this, because its file is sparse.
_FILLING = "filling"
_COMMAND_SECONDS = 20.0
_THAW_GRACE_SECONDS = 5  # The watchdog waits this much longer than `seconds_max`.
_PIECES = (_MIB, 64 * 1024, 4096)  # `fill` allocates pieces of these sizes; the last size is a single block.


class Volume:
    """One file system of `size_bytes`, mounted from `open` to `close`.

    The folder `data` in it holds the member's data.
    """

    def __init__(self, folder: Path, name: str, *, file_system: FileSystem, size_bytes: int) -> None:
        self._image = folder / f"{name}.img"
        self._mountpoint = folder / name
        self._file_system, self._size_bytes = file_system, size_bytes
        self._is_mounted = False
        # The watchdog process, which thaws the file system if the harness ends before `thaw`.
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """The path of the member's folder."""
        return self._mountpoint / "data"

    def open(self) -> None:
        """Make the file system and mount it. Raises VolumeFailed if this user or this machine cannot do that."""
        self._mountpoint.mkdir(parents=True)
        if self._file_system == "ext4":
            with self._image.open("wb") as image:
                image.truncate(self._size_bytes)
            _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        self._mount()

    def close(self) -> None:
        """Unmount the file system, in whatever state, and remove it."""
        self.thaw()
        if self._is_mounted:
            self._unmount()
        self._image.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._mountpoint.rmdir()

    def keep(self, target: Path) -> None:
        """Copy the member's data to `target`, so that it outlives the volume."""
        if self._is_mounted and self.data.exists():
            shutil.copytree(self.data, target)

    def fill(self) -> int:
        """Allocate all free space of the file system. Returns how many bytes were free."""
        taken = 0
        with self._filling.open("ab") as filling:
            for piece in _PIECES:
                with contextlib.suppress(OSError):  # ENOSPC: no space for one more piece of this size.
                    while True:
                        os.posix_fallocate(filling.fileno(), taken, piece)
                        taken += piece
        return taken

    def free(self) -> None:
        """Undo `fill`."""
        self._filling.unlink(missing_ok=True)

    def freeze(self, seconds_max: float) -> None:
        """Make every write and sync wait until `thaw`.

        If `thaw` is not called within about `seconds_max`, a watchdog process thaws the file system.
        """
        assert self._guard is None, self._mountpoint
        where = shlex.quote(str(self._mountpoint.absolute()))
        wait = f"sleep {seconds_max + _THAW_GRACE_SECONDS:.1f}; exec fsfreeze --unfreeze {where}"
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", wait],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with self._opened() as folder:
            freeze(folder)

    def thaw(self) -> None:
        """Undo `freeze`; do nothing if the file system is not frozen."""
        if self._guard is None:
            return
        with self._opened() as folder, contextlib.suppress(OSError):
            thaw(folder)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait()
        self._guard = None

    def fail(self) -> None:
        """Make every operation fail with EIO until `repair`. All data that was written before is kept."""
        with self._opened() as folder:
            shut_down(folder, lose_unsynced=False)

    def cut_power(self) -> None:
        """Lose all unsynced data, and make every operation fail with EIO until `repair`. Stop all writers first."""
        with self._opened() as folder:
            shut_down(folder, lose_unsynced=True)

    def repair(self) -> None:
        """Unmount and mount again, which recovers the journal. No process may have a file of the volume open."""
        self._unmount()
        self._mount()

    @property
    def _filling(self) -> Path:
        return self._mountpoint / _FILLING

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        folder = os.open(self._mountpoint, os.O_RDONLY)
        try:
            yield folder
        finally:
            os.close(folder)

    def _mount(self) -> None:
        if self._file_system == "ext4":
            # With commit=300 the file system commits its journal without a sync only every 300 seconds. So hardly any
            # unsynced data is on the disk when the power fails.
            _run("mount", "-o", "loop,nosuid,nodev,commit=300", str(self._image), str(self._mountpoint))
        else:
            _run("mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "none", str(self._mountpoint))
        self._is_mounted = True

    def _unmount(self) -> None:
        try:
            _run("umount", str(self._mountpoint))
        except VolumeFailed:
            # The unmount has failed, because a process still has a file open. With --lazy, the kernel unmounts the file
            # system when that process ends.
            _run("umount", "--lazy", str(self._mountpoint))
        self._is_mounted = False


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VolumeFailed(command[0], str(error)) from None
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0]
        raise VolumeFailed(command[0], words.removeprefix(f"{command[0]}: "))
