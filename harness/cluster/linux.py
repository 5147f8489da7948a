"""Calls of Linux beyond Python's own: freezing and shutting down file systems, and namespaces.

The numbers are from the kernel's own headers (linux/fs.h, ext4.h, sched.h): they are its interface, and never change.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from pathlib import Path

_FREEZE, _THAW = 0xC0045877, 0xC0045878  # FIFREEZE, FITHAW
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_KEEP_ALL, _LOSE_UNSYNCED = 0, 2  # Whether what was written goes to the disk first; 2 is NOLOGFLUSH.
_NEW_MOUNTS, _NEW_TIME = 0x00020000, 0x00000080  # CLONE_NEWNS, CLONE_NEWTIME
_RECURSIVELY_PRIVATE = 0x4000 | 0x40000  # MS_REC, MS_PRIVATE
_OFFSETS = Path("/proc/self/timens_offsets")


def freeze(folder: int) -> None:
    """Make every write to the file system of this open folder wait, in the kernel, until `thaw`. OSError if it cannot.

    Returns once what was written before is on the disk.
    """
    fcntl.ioctl(folder, _FREEZE, 0)


def thaw(folder: int) -> None:
    """Undo `freeze`. OSError if it is not frozen."""
    fcntl.ioctl(folder, _THAW, 0)


def shut_down(folder: int, *, lose_unsynced: bool) -> None:
    """Take the disk from the file system (ext4) of this open folder: from now on everything fails with EIO.

    `lose_unsynced`: of what was not synced nothing reaches the disk, as when the power fails; otherwise all does.
    Only unmounting and mounting it brings it back. OSError if it cannot.
    """
    fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _LOSE_UNSYNCED if lose_unsynced else _KEEP_ALL))


def enter_private_mounts() -> None:
    """What this thread, and all that it starts, mounts from now on is seen by nobody else, and ends with them.

    Call it before there are other threads. OSError if this user may not.
    """
    _call("unshare", _NEW_MOUNTS)
    _call("mount", b"none", b"/", None, _RECURSIVELY_PRIVATE, None)


def shift_clocks_at_exec(shift_seconds: int) -> None:
    """From the next exec on this process's monotonic and boot clocks are ahead (below 0: behind) of the machine's.

    As if the machine had been booted at another time. OSError if this user may not, or the clock would be below 0.
    """
    _call("unshare", _NEW_TIME)
    _OFFSETS.write_text(f"monotonic {shift_seconds} 0\nboottime {shift_seconds} 0\n", encoding="ascii")


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
