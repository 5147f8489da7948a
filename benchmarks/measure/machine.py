"""Describes the machine well enough to judge the numbers, but with nothing that identifies it."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.measure.statistics import median

_SYNCS = 200
_MEMORY_FILESYSTEMS = {"tmpfs", "ramfs"}


def describe(folder: Path) -> dict[str, Any]:
    """Return the processor, memory, system and versions, and the time of a sync in `folder`.

    Call this function before the run, so that `load_average` does not include the run.
    """
    import psutil

    memory = psutil.virtual_memory()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory.total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: _version(name) for name in ("trio", "cbor2", "pysyncobj")},
        "filesystem": filesystem(folder),
        "fdatasync_us": round(sync_microseconds(folder)),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def filesystem(folder: Path) -> str:
    """Return the type of the file system of `folder`, such as `ext4`, or `unknown` if the system does not report it."""
    import psutil

    path, best = folder.resolve(), ("", "unknown")
    for mounted in psutil.disk_partitions(all=True):
        if path.is_relative_to(mounted.mountpoint) and len(mounted.mountpoint) >= len(best[0]):
            best = (mounted.mountpoint, mounted.fstype)
    return best[1]


def is_real_disk(folder: Path) -> bool:
    """Return False if `folder` is in memory, where a sync costs nothing."""
    return filesystem(folder) not in _MEMORY_FILESYSTEMS


def sync_microseconds(folder: Path) -> float:
    """Return the median time in µs to append and sync one block of 4 KiB."""
    sync = getattr(os, "fdatasync", os.fsync)
    costs = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            began = time.perf_counter()
            os.write(file.fileno(), b"\x5a" * 4096)
            sync(file.fileno())
            costs.append(time.perf_counter() - began)
    return median(costs) * 1e6
