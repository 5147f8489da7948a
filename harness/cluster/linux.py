"""System calls of Linux that Python does not wrap: freeze or shut down a file system, and enter a namespace.

The numbers come from the kernel's headers (linux/fs.h, ext4.h, sched.h). These numbers are part of the kernel's stable
interface and never change.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from pathlib import Path

_FREEZE, _THAW = 0xC0045877, 0xC0045878  # FIFREEZE, FITHAW
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_KEEP_ALL, _LOSE_UNSYNCED = 0, 2  # 0 first writes cached data to the disk; 2 (NOLOGFLUSH) loses it.
_NEW_MOUNTS, _NEW_TIME = 0x00020000, 0x00000080  # CLONE_NEWNS, CLONE_NEWTIME
_RECURSIVELY_PRIVATE = 0x4000 | 0x40000  # MS_REC, MS_PRIVATE
_OFFSETS = Path("/proc/self/timens_offsets")


def freeze(folder: int) -> None:
    """Make every write to the file system of the open `folder` wait in the kernel until `thaw`.

    Returns once all earlier writes are on the disk. Raises OSError if the file system cannot be frozen.
    """
    fcntl.ioctl(folder, _FREEZE, 0)


def thaw(folder: int) -> None:
    """Undo `freeze`. Raises OSError if the file system is not frozen."""
    fcntl.ioctl(folder, _THAW, 0)


def shut_down(folder: int, *, lose_unsynced: bool) -> None:
    """Detach the ext4 file system of the open `folder` from its disk: from now on every operation fails with EIO.

    `lose_unsynced`: if it is true, unsynced data is lost, as in a power failure; otherwise all data is written to the
    disk first. To use the file system again, unmount it and mount it again. Raises OSError if the file system cannot be
    shut down.
    """
    fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _LOSE_UNSYNCED if lose_unsynced else _KEEP_ALL))


def enter_private_mounts() -> None:
    """Move this thread, and the processes that it starts, into a new mount namespace.

    New mounts in this namespace are invisible to all other processes, and end with the last process of the namespace.
    Call this function before any other thread is started. Raises OSError if this user may not make a namespace.
    """
    _call("unshare", _NEW_MOUNTS)
    _call("mount", b"none", b"/", None, _RECURSIVELY_PRIVATE, None)


def shift_clocks_at_exec(shift_seconds: int) -> None:
    """From the next exec on, move this process's monotonic and boot clocks ahead of the machine's (below 0: behind).

    The process then seems to run on a machine that was booted at another time. Raises OSError if this user may not
    make a time namespace, or if a clock would be below 0.
    """
    _call("unshare", _NEW_TIME)
    _OFFSETS.write_text(f"monotonic {shift_seconds} 0\nboottime {shift_seconds} 0\n", encoding="ascii")


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
