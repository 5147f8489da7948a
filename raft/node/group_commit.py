"""Group commit: one sync at a time. All writes that arrive during a sync are part of the next sync.

`GroupCommit` also delays messages of the snapshot transfer until the write that they depend on is durable. If the node
is idle, `GroupCommit` writes an empty frame, which proves that the last frame with data was synced.

See docs/reference/specification.md#49-proof-of-the-last-frame,
docs/reference/specification.md#31-messages-wait-for-the-disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from raft.interfaces import LogStore, LogWrite
from raft.protocol.messages import Message

Send = tuple[str, Message]


class GroupCommit:
    """The syncs of one node's log. `durable(sequence)` is called when a sync has made the writes up to `sequence`
    durable."""

    def __init__(
        self,
        log: LogStore,
        *,
        durable: Callable[[int], object],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._log = log
        self._durable = durable
        self._failed = failed
        self.waiting: deque[tuple[int, Send]] = deque()  # (sequence, delayed message)
        self.under_way = False
        # The next two values are attributes, not properties, because they are read several times per event.
        self.has_work = False  # True if a sync is needed and no sync is under way.
        self.has_sends = False  # True if `take_sends` would return messages.
        self.began_at = 0  # The start (monotonic ns) of the latest sync.
        self.appended_sequence = 0
        self.durable_sequence = 0

    @property
    def is_quiet(self) -> bool:
        """True if no write waits for a sync and no sync is under way."""
        return not self.under_way and self.appended_sequence == self.durable_sequence

    @property
    def is_proven(self) -> bool:
        """True if `is_quiet` and a later frame proves that the last frame with data was synced."""
        return self.is_quiet and not self._log.has_unproven_batch

    def append(self, write: LogWrite) -> None:
        """Give the next write of the stream to the log."""
        assert write.sequence > self.appended_sequence, (write.sequence, self.appended_sequence)
        self._log.append(write)
        self.appended_sequence = write.sequence
        self.has_work = not self.under_way

    def start(self, commit_hint: int, now: int) -> None:
        """Start the next sync. No other sync may be under way. `now` is monotonic, in ns."""
        assert not self.under_way
        self.under_way, self.has_work, self.began_at = True, False, now
        sequence = self.appended_sequence
        self._log.sync(commit_hint, lambda error: self._synced(sequence, error))

    def prove(self, commit_hint: int, now: int) -> None:
        """Write an empty frame, unless there is data to write. The frame proves that the last frame with data was
        synced."""
        if self.is_quiet and self._log.has_unproven_batch:
            self.start(commit_hint, now)

    def send_after(self, sequence: int, peer_id: str, message: Message) -> None:
        """Delay `message` until `sequence` is durable. Delayed messages are sent in the order of these calls."""
        assert sequence <= self.appended_sequence, (sequence, self.appended_sequence)
        self.waiting.append((sequence, (peer_id, message)))
        self._look_at_sends()

    def take_sends(self) -> list[Send]:
        """Remove and return the delayed messages that may be sent now."""
        sends: list[Send] = []
        while self.waiting and self.waiting[0][0] <= self.durable_sequence:
            sends.append(self.waiting.popleft()[1])
        self.has_sends = False
        return sends

    def forget_sends(self) -> None:
        """Drop all delayed messages, because this node must acknowledge nothing after a failed sync.

        See docs/reference/specification.md#37-failed-sync.
        """
        self.waiting.clear()
        self.has_sends = False

    def _synced(self, sequence: int, error: BaseException | None) -> None:
        assert self.under_way
        self.under_way = False
        if error is not None:
            self._failed("syncing the log", error)
        elif sequence > self.durable_sequence:
            self.durable_sequence = sequence
            self._look_at_sends()
            self._durable(sequence)
        self.has_work = self.appended_sequence > self.durable_sequence

    def _look_at_sends(self) -> None:
        self.has_sends = bool(self.waiting) and self.waiting[0][0] <= self.durable_sequence
