"""Decides whether an output file named on a command line is replaced, written in place, or refused.

A regular file is replaced as a whole, by a rename. If the path is a link, the target is replaced, and the link stays.
Character devices and pipes are written in place, never replaced, since other processes use their names. The name of an
open descriptor (`/dev/stdout`, `/dev/fd/3`) is written in place too. Folders, sockets and block devices are refused.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

LINKS_MAX = 40
"""The greatest number of links that are followed. The kernel has the same limit."""


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The path of the file after links were followed, and whether the file is written in place."""

    path: Path
    is_written_in_place: bool


def find_target(path: Path) -> WriteTarget:
    """Decide how to write `path`. Raises OSError, with `path` and the reason, if `path` cannot be written."""
    place, mode = _follow(path)
    if mode is None or place.is_written_in_place or stat.S_ISREG(mode):
        return place
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return WriteTarget(place.path, is_written_in_place=True)
    what = "folder" if stat.S_ISDIR(mode) else "socket" if stat.S_ISSOCK(mode) else "block device"
    raise OSError(errno.EINVAL, f"this is a {what}", str(path))


def _follow(path: Path) -> tuple[WriteTarget, int | None]:
    """Follow the links; return the target and the mode of the file there. The mode is None if there is no file.

    The name of an open descriptor (in `/proc/`) is a link, but is treated as the target, because the file of an open
    descriptor must not be replaced.
    """
    named = path
    for _ in range(LINKS_MAX):
        if os.path.realpath(path.parent).startswith("/proc/"):
            return WriteTarget(path, is_written_in_place=True), path.stat().st_mode
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return WriteTarget(path, is_written_in_place=False), None
        if not stat.S_ISLNK(mode):
            return WriteTarget(path, is_written_in_place=False), mode
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(named))


def is_standard_output(path: Path) -> bool:
    """True if `path` is the name of a descriptor of this process (such as `/dev/stdout`), and the descriptor refers to
    the same file as standard output."""
    try:
        number = _own_descriptor(find_target(path).path)
        return number is not None and os.path.samestat(os.fstat(number), os.fstat(1))
    except OSError:
        return False


def _own_descriptor(path: Path) -> int | None:
    """Return the number in `/proc/self/fd/NUMBER`; None for any other path."""
    is_own = os.path.realpath(path.parent) == f"/proc/{os.getpid()}/fd"
    return int(path.name) if is_own and path.name.isdigit() else None


def open_in_place(path: Path) -> int:
    """Return a descriptor to write to the existing file `path`. Raises OSError, also if `path` is a pipe without a
    reader.

    If `path` names a descriptor of this process, that descriptor is duplicated, because a socket, or a file that
    another user has opened, cannot be opened again by its name.
    """
    if (number := _own_descriptor(path)) is not None:
        return os.dup(number)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads this pipe", str(path)) from error
        raise
    os.set_blocking(descriptor, True)
    return descriptor


def open_regular(path: Path) -> int:
    """Return a descriptor to read the file `path`. Raises OSError for a pipe or device, which might never end.

    The name of an open descriptor is accepted for any file except a folder. A pipe with such a name does not block for
    ever, because the program that passes the name also writes to the pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or (not stat.S_ISDIR(mode) and _follow(path)[0].is_written_in_place):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "this is a pipe, a device or a socket, not a file", str(path))
