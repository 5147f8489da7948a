"""The effects that the core requests, in one structure. The docstring of `Ready` states the order in which they are
carried out.

See docs/reference/specification.md#3-order-of-durability.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from raft.errors import RaftError
from raft.interfaces import LogWrite
from raft.protocol.messages import InstallSnapshot, InstallSnapshotProgress, Message
from raft.types import Entry, ReadMode, TraceEvent


class Certainty(enum.Enum):
    """The outcome of a proposal that is not applied here.

    See docs/reference/specification.md#96-end-of-a-proposal.
    """

    NOT_APPLIED = "not applied"
    """An entry of another term is committed at its index: the proposal certainly had no effect, and never will."""
    UNKNOWN = "unknown"
    """A snapshot replaced the log at its index: the proposal may have been applied."""


@dataclass(frozen=True, slots=True)
class ProposalEnded:
    """The entry (index, term), which this node appended as leader, has ended without being applied here."""

    index: int
    term: int
    certainty: Certainty


@dataclass(slots=True, init=False)
class Ready:
    """The effects that have gathered since the last `take_ready`. Handle the fields in this order.

    `write` goes to the log before anything of a later Ready. `send` may leave at once: a message that depends on a
    write stays in the core until `persisted` reports that write, because a later event may make the message untrue (a
    cut, a new term). `apply` is committed *and* durable here: give it to the state machine, then call `applied(index)`.
    """

    write: LogWrite | None
    send: list[tuple[str, Message]]
    apply: list[Entry]
    reads_ready: list[int]  # Tickets of reads that a round confirmed; the state is applied far enough. Serve now.
    reads_ready_by_mode: list[tuple[int, ReadMode]]  # The same for reads in other modes.
    reads_failed: list[tuple[int, RaftError]]
    ended: list[ProposalEnded]
    snapshot_wanted: list[str]  # Peers that are behind the log: start a transfer.
    snapshot_chunks: list[tuple[str, InstallSnapshot]]  # Chunks from the leader, whose term was checked.
    snapshot_progress: list[tuple[str, InstallSnapshotProgress]]  # From followers.
    events: list[TraceEvent]
    peers_changed: bool  # The set of peers to connect to has changed; never the only field set.

    def __init__(self) -> None:
        """Make an empty `Ready`. Every event makes one or two, and a generated `__init__` takes 0.57 µs instead of
        0.32."""
        self.write, self.peers_changed = None, False
        self.send, self.apply, self.events, self.ended = [], [], [], []
        self.reads_ready, self.reads_ready_by_mode, self.reads_failed = [], [], []
        self.snapshot_wanted, self.snapshot_chunks, self.snapshot_progress = [], [], []
