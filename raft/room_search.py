"""Notices that the disk is full, and looks for room now and then until it is not."""

from __future__ import annotations

from raft.ports import LogStore


class RoomSearch:
    """`next_at`: when to look again (monotonic ns); None while there is room."""

    def __init__(self, log: LogStore, interval_ns: int) -> None:
        self._log, self._interval_ns = log, interval_ns
        self.next_at: int | None = None

    def look(self, now: int) -> bool | None:
        """True if the disk has become full since the last look, False if it has room again, None if nothing changed."""
        is_full, was_full = self._log.is_disk_full, self.next_at is not None
        if not is_full:
            self.next_at = None
        elif self.next_at is None:
            self.next_at = now + self._interval_ns
        elif self.next_at <= now:
            self._log.look_for_room()
            self.next_at = now + self._interval_ns
        return is_full if is_full != was_full else None
