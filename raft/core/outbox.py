"""Messages that wait for the disk: each leaves once the write that it depends on is durable.

A waiting message that a later event makes untrue never leaves: an acknowledgement of entries that were cut, a message
of a term that is over, a request for votes in a campaign that was given up.

See docs/reference/specification.md#31-messages-wait-for-the-disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raft.core.ready import Ready
from raft.protocol.messages import AppendAccepted, AppendRejected, Message, PreVoteRequest, VoteRequest


class Outbox:
    """Gathers the next `Ready`. Messages to one peer that wait for the same write keep their order."""

    def __init__(self) -> None:
        self.ready = Ready()
        self._durable_sequence = 0
        self._waiting: list[tuple[int, str, Message]] = []  # (sequence, peer_id, message)

    @property
    def waiting_count(self) -> int:
        """The number of messages that wait for the disk."""
        return len(self._waiting)

    def send(self, peer_id: str, message: Message, *, after: int = 0) -> None:
        """Send now, or once the write `after` is durable."""
        if after <= self._durable_sequence:
            self.ready.send.append((peer_id, message))
            return
        for place, (other_after, other_peer_id, other) in enumerate(self._waiting):
            if (other_after, other_peer_id, type(other)) == (after, peer_id, type(message)):
                self._waiting[place] = (after, peer_id, _joined(other, message))
                return
        self._waiting.append((after, peer_id, message))

    def release(self, durable_sequence: int) -> None:
        """Everything up to this write is durable: send the messages that waited for it."""
        if durable_sequence > self._durable_sequence:
            self._durable_sequence = durable_sequence
        if not self._waiting:
            return  # The usual case on a leader: its appends do not wait.
        still_waiting = []
        for after, peer_id, message in self._waiting:
            if after <= self._durable_sequence:
                self.ready.send.append((peer_id, message))
            else:
                still_waiting.append((after, peer_id, message))
        self._waiting = still_waiting

    def drop_terms_before(self, term: int) -> None:
        """The member moved to `term`: drop its waiting messages of older terms."""
        self._keep(lambda message: message.term >= term)

    def drop_acknowledgements(self) -> None:
        """A snapshot has replaced the log: drop the waiting acknowledgements of the old log."""
        self._keep(lambda message: not isinstance(message, AppendAccepted))

    def check_acknowledges_before(self, index: int) -> None:
        """Assert that no acknowledgement of entries from `index` on waits: the log was cut there, in a later term.

        Validation refuses a leader that contradicts its own appends within a term.
        """
        for _, peer_id, message in self._waiting:
            assert not isinstance(message, AppendAccepted) or message.match_index < index, (index, peer_id, message)

    def drop_campaign(self) -> None:
        """Drop the waiting requests for votes: the campaign was given up, or begins again."""
        self._keep(lambda message: not isinstance(message, PreVoteRequest | VoteRequest))

    def _keep(self, wanted: Callable[[Message], bool]) -> None:
        if self._waiting:
            self._waiting = [waiting for waiting in self._waiting if wanted(waiting[2])]


def _joined(older: Message, newer: Message) -> Message:
    """Merge two messages of one kind to one peer that wait for one write, so that the queue of a slow disk is bounded.

    Acknowledgements and read counters are cumulative; of all other fields the newest value holds.
    """
    assert older.term == newer.term, (older, newer)
    if isinstance(older, AppendAccepted) and isinstance(newer, AppendAccepted):
        match_index, read_counter = (
            max(older.match_index, newer.match_index),
            max(older.read_counter, newer.read_counter),
        )
        return replace(newer, match_index=match_index, read_counter=read_counter)
    if isinstance(older, AppendRejected) and isinstance(newer, AppendRejected):
        return replace(newer, read_counter=max(older.read_counter, newer.read_counter))
    return newer
