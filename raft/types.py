"""Small values that all parts use: log entries, positions, the hard state, roles, read modes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

ENTRY_OVERHEAD_BYTES = 32
"""Every bound in bytes counts an entry as its payload plus this number of bytes, so that empty entries are not free."""

ENTRY_PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
"""The largest payload of an entry (bytes), a constant of the protocol. No bound on frames between members may be below
it.

See docs/reference/specification.md#24-size-of-an-entry.
"""


LEADER_TIME_NS_MAX = 2**62
"""The greatest leader_time (ns) that an entry can have. The replicated clock stops there, after 146 years of
leadership. The state machine can add another 2**62 ns, and the sum still fits into 64 bits.

See docs/reference/specification.md#812-leader-time.
"""


class EntryKind(enum.IntEnum):
    """The kind of an entry's payload. The numbers are stored on disk: a later build may add numbers, but must not
    change the meaning of a number.

    See docs/reference/specification.md#21-entries.
    """

    COMMANDS = 1
    """A batch of client commands: CBOR array `[leader_time, command, ...]`."""
    NO_OP = 2
    """A new leader's first entry: CBOR array `[leader_time]`."""
    CONFIGURATION = 3
    """The members of the cluster: one encoded configuration."""


@dataclass(frozen=True, slots=True, init=False)
class Entry:
    """One log entry. The payload is encoded once, and the same bytes are logged, replicated and applied.

    See docs/reference/specification.md#21-entries.
    """

    index: int
    term: int
    kind: EntryKind
    payload: bytes

    def __init__(self, index: int, term: int, kind: EntryKind, payload: bytes) -> None:
        """Make an entry in 0.28 µs. The `__init__` that `dataclass` generates takes 0.49 µs. A starting member makes
        all entries of its log."""
        _set_index(self, index)
        _set_term(self, term)
        _set_kind(self, kind)
        _set_payload(self, payload)

    @property
    def size_bytes(self) -> int:
        """The size of this entry, as every bound in bytes counts it."""
        return len(self.payload) + ENTRY_OVERHEAD_BYTES


_set_index, _set_term, _set_kind, _set_payload = [
    Entry.__dict__[name].__set__ for name in ("index", "term", "kind", "payload")
]


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """The index of an entry together with the entry's term. (0, 0) is the position before the first entry."""

    index: int
    term: int


@dataclass(frozen=True, slots=True)
class HardState:
    """The state that a member must never forget (Raft Figure 2, persistent state).

    `commit_index` is only a hint: the value of `min(commit_index, durable_index)` when this hard state was written.

    See docs/reference/specification.md#45-hard-state.
    """

    term: int = 0
    voted_for: str | None = None
    commit_index: int = 0


class Role(enum.Enum):
    """The role of a member: the roles of Raft §5.1, and the pre-candidate of thesis §9.6."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event for observers. `name` is a fixed word (`became_leader`, `truncated`, …); `fields` has the details."""

    name: str
    fields: dict[str, Any]


class Acknowledge(enum.IntEnum):
    """The acknowledgement level of a command: it determines when the caller gets an answer. The level changes nothing
    else: commands of all levels go through the same log, and no level shows an entry above the high-water mark. The
    numbers are part of the client protocol.

    See docs/reference/specification.md#910-acknowledgement-levels.
    """

    NONE = 0
    """The caller gets no answer. The outcome stays unknown to the caller."""
    LEADER = 1
    """The caller gets an answer once the entry is durable on the leader. The entry may still be lost, and no client has
    seen its effect yet."""
    MAJORITY = 2
    """The caller gets an answer once the entry is committed and applied. This is the usual level."""
    IN_SYNC = 3
    """The caller gets an answer once the entry is committed, applied, and durable on every member in sync."""


class ReadMode(enum.Enum):
    """The mode in which a read is requested or served. A read may be served in a stronger mode than requested."""

    READ_INDEX = "round"
    """The leader serves the read after a majority has confirmed its leadership in a round of messages. The read is
    linearizable even if clocks are wrong."""
    LEASE = "lease"
    """The leader serves the read while its lease holds. The read is linearizable as long as no clock drifts by more
    than `clock_drift_ppm_max`."""
    FOLLOWER = "asked"
    """Any member serves the read, after it has requested a read index from the leader and has applied the log up to
    that index. The leader confirms the index by a round or by its lease, so the read has the same guarantee as a
    READ_INDEX or LEASE read."""
    BOUNDED_STALENESS = "bounded"
    """A member serves the read if it can prove that its state is not older than the read allows."""
