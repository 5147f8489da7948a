"""CPU time of processes, user and system, all threads. Its grain is the kernel's: 10 ms."""

from __future__ import annotations

from collections.abc import Mapping


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """By name, what each process has used since it began."""
    import psutil

    found = {}
    for name, pid in pids.items():
        times = psutil.Process(pid).cpu_times()
        found[name] = times.user + times.system
    return found
