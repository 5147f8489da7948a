"""`python -m benchmarks.memory`: what a key costs beyond its bytes."""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """The most memory this process has had resident (Linux)."""
    return _status("VmHWM")


def resident_bytes() -> int:
    """The memory this process has resident now (Linux)."""
    return _status("VmRSS")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the system does not tell {name}")
