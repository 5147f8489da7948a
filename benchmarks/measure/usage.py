"""The CPU time of other processes, and the memory of this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """Return, by name, the CPU seconds of each process since its start.

    The CPU time is the user and system time of all threads, in steps of 10 ms.
    """
    import psutil

    found = {}
    for name, pid in pids.items():
        times = psutil.Process(pid).cpu_times()
        found[name] = times.user + times.system
    return found


def peak_bytes() -> int:
    """Return the greatest resident size that this process has had, in bytes (Linux)."""
    return _status("VmHWM")


def resident_bytes() -> int:
    """Return the resident size of this process now, in bytes (Linux)."""
    return _status("VmRSS")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the system does not tell {name}")
