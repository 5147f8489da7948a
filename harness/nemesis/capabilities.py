"""Tries which faults this user can make on this machine, and states the reason for each fault that is impossible."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.cluster.linux import enter_private_mounts
from harness.cluster.volumes import FileSystem, Volume
from harness.errors import BadInput, VolumeFailed
from harness.nemesis.schedule import DISK_KINDS, KINDS, Kind, parse_faults

_TRIAL_BYTES = 16 * 1024 * 1024
_TRIAL_SECONDS = 20.0
_SHIFT_SECONDS = 1_000_000
_SHIFTED = f"""
import os, sys, time
from harness.cluster.linux import shift_clocks_at_exec
shift_clocks_at_exec({_SHIFT_SECONDS})
os.execv(sys.executable, [sys.executable, "-c", "import time; print(time.monotonic() > {_SHIFT_SECONDS})"])
"""
_DESCRIPTORS = Path("/proc/self/fd")
_FAKETIME = "libfaketimeMT.so.1"  # The variant of libfaketime for programs with threads.
_FAKETIME_PLACES = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime", "/usr/lib64/faketime")

NO_JUMPS = (
    "leaders read by lease, which relies on clocks that are wrong by at most a hundredth; leave the share for lease "
    "out of --read-ways"
)

CONDITIONS: dict[Kind, str] = {"clock-jump": " where nobody reads by lease (`run --read-ways` without lease)"}
"""Kinds of faults that only some runs can use, on any machine, and the condition for their use."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The means of this machine to make faults. `unavailable`: each kind that cannot be made, with the reason."""

    file_system: FileSystem | None = None  # The file system of each member's volume; None: no volume can be made.
    faketime: Path | None = None  # The library that can change the wall clock of a single process.
    unavailable: dict[Kind, str] = field(default_factory=dict)

    def usable(self, kinds: Iterable[Kind], *, each_was_named: bool) -> tuple[Kind, ...]:
        """Return the kinds among `kinds` that this machine can make.

        `each_was_named`: the user named each kind instead of writing `all`. A named kind that cannot be made raises
        BadInput.
        """
        kinds = tuple(kinds)
        missing = [kind for kind in kinds if kind in self.unavailable]
        if missing and each_was_named:
            why = "; ".join(f"{kind}: {self.unavailable[kind]}" for kind in missing)
            raise BadInput(f"these faults cannot be made here: {why}", "see `hwm-harness faults`")
        return tuple(kind for kind in kinds if kind not in self.unavailable)


ANY_MACHINE = Capabilities()
"""The capabilities of every machine, without any trial: neither volumes nor libfaketime."""


def detect_capabilities(kinds: Iterable[Kind]) -> Capabilities:
    """Try whether this user can make faults of these kinds on this machine, and return the result.

    Call this function before any other thread is started, because the trial of disk faults moves this process into a
    new mount namespace.
    """
    kinds = tuple(kinds)
    unavailable: dict[Kind, str] = {}
    file_system: FileSystem | None = None
    faketime: Path | None = None
    if set(kinds) & set(DISK_KINDS):
        file_system, why_not = _disks()
        unavailable.update(why_not)
    if "boot-clock" in kinds and (problem := _trouble_with_time_namespaces()):
        unavailable["boot-clock"] = problem
    if "write-error" in kinds and not _DESCRIPTORS.exists():
        unavailable["write-error"] = f"the files of descriptors are looked up in {_DESCRIPTORS}, which does not exist"
    if "wall-clock" in kinds:
        faketime = find_faketime()
        if faketime is None:
            unavailable["wall-clock"] = f"{_FAKETIME} is not installed (package libfaketime)"
    return Capabilities(file_system, faketime, {kind: why for kind, why in unavailable.items() if kind in kinds})


def usable_faults(text: str, *, lease_reads: bool) -> tuple[tuple[Kind, ...], Capabilities]:
    """Parse the value of `--faults` and try its kinds. Returns (the kinds that can be made, the capabilities).

    `all` means all kinds that can be made. Any other value raises BadInput if one of its kinds cannot be made.
    `lease_reads`: leaders may answer reads by lease, which rules out `clock-jump`.
    """
    kinds = parse_faults(text)
    machine = detect_capabilities(kinds)
    if lease_reads and "clock-jump" in kinds:
        machine.unavailable["clock-jump"] = NO_JUMPS
    return machine.usable(kinds, each_was_named=kinds != KINDS), machine


def find_faketime() -> Path | None:
    """Return the path of libfaketime; None if it is not installed."""
    found = (path for place in _FAKETIME_PLACES for path in Path("/").glob(f"{place[1:]}/{_FAKETIME}"))
    return next(found, None)


def _disks() -> tuple[FileSystem | None, dict[Kind, str]]:
    try:
        enter_private_mounts()
    except OSError as error:
        why = f"a file system for each member cannot be mounted: {error.strerror} (run it as root)"
        return None, dict.fromkeys(DISK_KINDS, why)
    with tempfile.TemporaryDirectory(prefix="hwm-disks-") as folder:
        try:
            return "ext4", _trouble_with(Volume(Path(folder), "e", file_system="ext4", size_bytes=_TRIAL_BYTES))
        except (OSError, VolumeFailed) as error:
            why = f"no ext4 can be mounted on a loop device: {error}"
        try:
            _trouble_with(Volume(Path(folder), "t", file_system="tmpfs", size_bytes=_TRIAL_BYTES))
        except (OSError, VolumeFailed) as error:
            return None, dict.fromkeys(DISK_KINDS, f"{why}; nor a tmpfs: {error}")
    return "tmpfs", {kind: why for kind in DISK_KINDS if kind != "disk-full"}


def _trouble_with(volume: Volume) -> dict[Kind, str]:
    """Return the kinds of faults that cannot be made on `volume`, each with the reason.

    Raises OSError or VolumeFailed if the volume cannot be opened.
    """
    found: dict[Kind, str] = {}
    volume.open()
    try:
        _try(("disk-full",), found, volume.fill, volume.free)
        _try(("disk-hang", "disk-slow"), found, lambda: volume.freeze(0.0), volume.thaw)
        _try(("disk-error", "power-loss", "disk-lies"), found, volume.cut_power, volume.repair)
    finally:
        volume.close()
    return found


def _try(kinds: tuple[Kind, ...], found: dict[Kind, str], *acts: Callable[[], object]) -> None:
    try:
        for act in acts:
            act()
    except (OSError, VolumeFailed) as error:
        found.update(dict.fromkeys(kinds, str(error)))


def _trouble_with_time_namespaces() -> str:
    """Return why this user cannot change the monotonic clock of a process; an empty string if the user can."""
    command = [sys.executable, "-P", "-c", _SHIFTED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        return f"a process cannot get a clock of its own: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}"
    return "" if done.stdout.strip() == "True" else "a clock is not shifted by an exec (Linux before 6.1?)"
