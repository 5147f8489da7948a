"""Messages that wait for the disk: each message is sent once the write that it depends on is durable.

If a later event makes a waiting message untrue, the message is dropped. Examples are a message of an earlier term, and
a request for votes in a campaign that was given up.

See docs/reference/specification.md#31-messages-wait-for-the-disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raft.core.ready import Ready
from raft.core.write_stream import WriteStream
from raft.protocol.messages import AppendAccepted, AppendRejected, Message, PreVoteRequest, VoteRequest


class Outbox:
    """Collects the messages of the next `Ready`. Messages to one peer that wait for the same write keep their order."""

    def __init__(self, writes: WriteStream) -> None:
        self.ready = Ready()
        self._writes = writes
        self.waiting: list[tuple[int, str, Message]] = []
        """The messages that wait for the disk, as (sequence, peer_id, message)."""

    def send(self, peer_id: str, message: Message, *, after: int = 0) -> None:
        """Send the message once the write `after` is durable, or now if that write is already durable."""
        if after <= self._writes.durable_sequence:
            self.ready.send.append((peer_id, message))
            return
        for place, (other_after, other_peer_id, other) in enumerate(self.waiting):
            if (other_after, other_peer_id, type(other)) == (after, peer_id, type(message)):
                self.waiting[place] = (after, peer_id, _joined(other, message))
                return
        self.waiting.append((after, peer_id, message))

    def release(self) -> None:
        """Send the messages whose writes have become durable."""
        still_waiting = []
        for after, peer_id, message in self.waiting:
            if after <= self._writes.durable_sequence:
                self.ready.send.append((peer_id, message))
            else:
                still_waiting.append((after, peer_id, message))
        self.waiting = still_waiting

    def drop_terms_before(self, term: int) -> None:
        """Drop the waiting messages of terms before `term`, because this member has moved to `term`."""
        self._keep(lambda message: message.term >= term)

    def drop_acknowledgements(self) -> None:
        """Drop the waiting acknowledgements of the old log, because a snapshot has replaced that log."""
        self._keep(lambda message: not isinstance(message, AppendAccepted))

    def check_acknowledges_before(self, index: int) -> None:
        """Assert that no waiting message acknowledges the entry at `index` or a later one. Called after the log was cut
        at `index`.

        A leader never contradicts its own appends, so the cut came from a leader of a later term. The acknowledgements
        of the earlier term were dropped when the term changed.
        """
        for _, peer_id, message in self.waiting:
            assert not isinstance(message, AppendAccepted) or message.match_index < index, (index, peer_id, message)

    def drop_campaign(self) -> None:
        """Drop the waiting requests for votes, because the campaign is over or begins again."""
        self._keep(lambda message: not isinstance(message, PreVoteRequest | VoteRequest))

    def _keep(self, wanted: Callable[[Message], bool]) -> None:
        if self.waiting:
            self.waiting = [waiting for waiting in self.waiting if wanted(waiting[2])]


def _joined(older: Message, newer: Message) -> Message:
    """Merge two messages of the same kind to the same peer that wait for the same write, so that a slow disk cannot
    make the queue grow without bound.

    A greater acknowledgement or read counter includes all lower ones, so the greater value is kept. All other fields
    are taken from the newer message.
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
