"""A small file system for each member's folder, so that this member's disk alone can be full, fail, hang or lose power.

An ext4 in a file, on a loop device; where that may not be mounted, a tmpfs, which can only be full. All calls here
block, for some tens of milliseconds, and a frozen file system for as long as it is frozen: call them from a thread.
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
SMALL_BYTES, USUAL_BYTES = 96 * _MIB, 2048 * _MIB  # Sparse: only what is written takes room.
_FILLING = "filling"
_COMMAND_SECONDS = 20.0
_THAW_GRACE_SECONDS = 5  # How much later than us the watchdog thaws.
_PIECES = (_MIB, 64 * 1024, 4096)  # Room is taken in pieces, in the end in single blocks.


class Volume:
    """One file system of `size_bytes`, mounted from `open` to `close`; the member's data goes to `data`."""

    def __init__(self, folder: Path, name: str, *, file_system: FileSystem, size_bytes: int) -> None:
        self._image = folder / f"{name}.img"
        self._mountpoint = folder / name
        self._file_system, self._size_bytes = file_system, size_bytes
        self._is_mounted = False
        self._guard: subprocess.Popen[bytes] | None = None  # Thaws it, should we not live to do it.

    @property
    def data(self) -> Path:
        """Where the member's folder is."""
        return self._mountpoint / "data"

    def open(self) -> None:
        """Make it and mount it. VolumeFailed where this user or this machine cannot."""
        self._mountpoint.mkdir(parents=True)
        if self._file_system == "ext4":
            with self._image.open("wb") as image:
                image.truncate(self._size_bytes)
            _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        self._mount()

    def close(self) -> None:
        """Unmount it, whatever state it is in, and remove it."""
        self.thaw()
        if self._is_mounted:
            self._unmount()
        self._image.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._mountpoint.rmdir()

    def keep(self, target: Path) -> None:
        """Copy the member's data to where it can be looked at when this is gone."""
        if self._is_mounted and self.data.exists():
            shutil.copytree(self.data, target)

    def fill(self) -> int:
        """Leave no room at all; returns how many bytes were free."""
        taken = 0
        with self._filling.open("ab") as filling:
            for piece in _PIECES:
                with contextlib.suppress(OSError):  # ENOSPC is what this is for.
                    while True:
                        os.posix_fallocate(filling.fileno(), taken, piece)
                        taken += piece
        return taken

    def free(self) -> None:
        """Undo `fill`."""
        self._filling.unlink(missing_ok=True)

    def freeze(self, seconds_max: float) -> None:
        """Every write and sync waits until `thaw`, and if nobody is left to call it, about `seconds_max`."""
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
        """Undo `freeze`, if there is anything to undo."""
        if self._guard is None:
            return
        with self._opened() as folder, contextlib.suppress(OSError):
            thaw(folder)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        self._guard.wait()
        self._guard = None

    def fail(self) -> None:
        """From now on everything fails with EIO; what was written is kept. Ends with `repair`."""
        with self._opened() as folder:
            shut_down(folder, lose_unsynced=False)

    def cut_power(self) -> None:
        """Lose what was not synced, and fail everything with EIO. Stop all writers first. Ends with `repair`."""
        with self._opened() as folder:
            shut_down(folder, lose_unsynced=True)

    def repair(self) -> None:
        """Unmount and mount again, which recovers the journal. Nobody may have a file of it open."""
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
            # A journal that is seldom committed by itself: what is on the disk is what somebody synced.
            _run("mount", "-o", "loop,nosuid,nodev,commit=300", str(self._image), str(self._mountpoint))
        else:
            _run("mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "none", str(self._mountpoint))
        self._is_mounted = True

    def _unmount(self) -> None:
        try:
            _run("umount", str(self._mountpoint))
        except VolumeFailed:
            _run("umount", "--lazy", str(self._mountpoint))  # Somebody has a file open: it goes when they do.
        self._is_mounted = False


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VolumeFailed(command[0], str(error)) from None
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0]
        raise VolumeFailed(command[0], words.removeprefix(f"{command[0]}: "))
