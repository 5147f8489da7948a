"""The single clock of a run: monotonic nanoseconds of this boot (docs/reference/specification.md#107-clocks)."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

NS_PER_SECOND = 1_000_000_000
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunClock:
    """The clock of all operations and events of a run. Because all times come from this clock, the error bound is 0.

    `clock_id` names the boot of the machine, because all processes of one boot share CLOCK_MONOTONIC. On a system
    without a boot id, `clock_id` is random, because times from different processes are then not comparable.
    """

    def __init__(self) -> None:
        try:
            self.clock_id = f"boot-{_BOOT_ID.read_text(encoding='ascii').strip()}"
        except OSError:
            self.clock_id = f"process-{uuid.uuid4()}"

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def to_json(self) -> dict[str, object]:
        return {"clock_id": self.clock_id, "error_bound_ns": 0}
