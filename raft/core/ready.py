"""The effects that the core requests from its caller, in one structure.

The docstring of `Ready` says in which order the caller must carry them out.

See docs/reference/specification.md#3-order-of-durability.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from raft.errors import RaftError
from raft.interfaces import LogWrite
from raft.protocol.messages import InstallSnapshot, InstallSnapshotProgress, Message
from raft.types import Entry, ReadMode, TraceEvent


class Certainty(enum.Enum):
    """The outcome of a proposal that is not applied here.

    See docs/reference/specification.md#96-end-of-a-proposal.
    """

    NOT_APPLIED = "not applied"
    """An entry of another term is committed at the proposal's index, so the proposal certainly never has an effect."""
    UNKNOWN = "unknown"
    """A snapshot has replaced the log at the proposal's index, so other members may have applied the proposal."""


@dataclass(frozen=True, slots=True)
class ProposalEnded:
    """A proposal that this node appended as leader at (index, term) has ended without being applied here."""

    index: int
    term: int
    certainty: Certainty


@dataclass(slots=True)
class Ready:
    """The effects that have gathered since the last `take_ready`. The caller must handle the fields in the order in
    which they are listed.

    `write` must go to the log before a later `Ready` is handled. The messages in `send` may be sent at once. A message
    that depends on a write stays in the core until `persisted` reports that write. Until then, a later event (a cut, a
    new term) may make the message untrue. The entries in `apply` are committed *and* durable here: give them to the
    state machine, then call `applied(index)`.
    """

    write: LogWrite | None = None
    send: list[tuple[str, Message]] = field(default_factory=list)
    apply: list[Entry] = field(default_factory=list)
    reads_ready: list[int] = field(default_factory=list)
    """The tickets of READ_INDEX reads that must be served now, because the state machine has applied their read
    index."""
    reads_ready_by_mode: list[tuple[int, ReadMode]] = field(default_factory=list)
    """The (ticket, mode) of each read in another mode that must be served now."""
    reads_failed: list[tuple[int, RaftError]] = field(default_factory=list)
    ended: list[ProposalEnded] = field(default_factory=list)
    snapshot_wanted: list[str] = field(default_factory=list)
    """Peers that need entries which the log no longer has: start a transfer to each."""
    snapshot_chunks: list[tuple[str, InstallSnapshot]] = field(default_factory=list)
    """Chunks from the leader of the current term."""
    snapshot_progress: list[tuple[str, InstallSnapshotProgress]] = field(default_factory=list)
    """Reports from followers."""
    events: list[TraceEvent] = field(default_factory=list)
    peers_changed: bool = False
    """The set of peers to connect to may have changed. If this field is True, another field is always set, too."""
