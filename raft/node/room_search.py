"""Notices that the disk is full, or that no file can be opened, and looks now and then until there is room again."""

from __future__ import annotations

from raft.errors import DiskFull, NoDescriptors
from raft.interfaces import LogStore
from raft.types import TraceEvent


class RoomSearch:
    """`next_at`: when to look again (monotonic ns); None while there is room."""

    def __init__(self, log: LogStore, interval_ns: int) -> None:
        self._log, self._interval_ns = log, interval_ns
        self.next_at: int | None = None
        self._lacked_descriptors = ""  # At the last look.

    def look(self, now: int) -> bool | None:
        """True if writes are refused since the last look, False if they are taken again, None if nothing changed."""
        is_full, was_full = self._log.is_disk_full, self.next_at is not None
        if not is_full:
            self.next_at = None
        elif self.next_at is None:
            self.next_at = now + self._interval_ns
        elif self.next_at <= now:
            self._log.look_for_room()
            self.next_at = now + self._interval_ns
        if is_full and not was_full:
            self._lacked_descriptors = self._log.lacks_descriptors
        return is_full if is_full != was_full else None

    def refusal(self, node_id: str) -> DiskFull:
        """Why a command is refused now."""
        words = self._log.lacks_descriptors
        return NoDescriptors(node_id, words) if words else DiskFull(node_id)

    def event(self) -> TraceEvent:
        """What is to be told of a change that `look` has just found."""
        is_full, words = self.next_at is not None, self._lacked_descriptors
        if words:
            return TraceEvent("descriptors_lack", {"words": words}) if is_full else TraceEvent("descriptors_found", {})
        return TraceEvent("disk_full" if is_full else "disk_has_room", {})
