"""The status of a member, encoded as a map by field name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvstore.protocol.wire_types import from_wire
from raft import ProtocolError


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """A peer as the leader sees it. Members that do not lead report indexes of 0."""

    node_id: str
    state: str
    match_index: int
    next_index: int
    last_applied: int
    recent_active: bool
    is_in_sync: bool | None = None  # For a learner: whether it would be in sync as a voter. None: not reported.
    lag_ms: int | None = None  # The time since the peer last had the leader's whole log. None: not reported.


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """The status of one member. `commit_index` is the high-water mark. Both `commit_index` and `low_watermark` are
    inclusive.

    `state_hash` is empty unless it was requested. Two members with the same `last_applied` must have the same hash. If
    there is a hash, all fields have their values from the moment when the computation of the hash began, so the hash
    belongs to the state at `last_applied`. A field that a later build added has a default, because earlier builds do
    not send the field.

    See docs/reference/specification.md#6-marks.
    """

    node_id: str
    cluster_id: bytes
    role: str
    term: int
    leader_id: str | None
    first_index: int
    snapshot_index: int
    last_applied: int
    commit_index: int
    durable_index: int
    last_index: int
    low_watermark: int
    revision: int
    compact_revision: int
    keys: int
    stored_bytes: int
    quota_bytes: int
    sessions: int
    log_bytes: int
    open_proposals: int
    open_reads: int
    uncommitted_bytes: int
    failure: str | None
    state_hash: bytes
    peers: tuple[PeerView, ...]
    is_disk_full: bool = False  # Writes are refused because the disk is full.
    lacks_descriptors: str = ""  # The system's error if open files prevent writes.
    disk_hangs: bool = False  # An append to the log has been under way for more than two election time-outs.
    part: str = ""  # voter, learner, incoming or outgoing (`membership`); empty if its configuration lacks it.
    is_removed: bool = False  # This member was removed permanently, and stops.
    client_connections: int = 0  # The next field is the bound on this number (0: not reported).
    client_connections_max: int = 0
    feature_level: int = 1  # The level in force. The next two fields: the least and greatest that the build knows.
    feature_level_min: int = 1
    feature_level_max: int = 1
    commit_held_by: tuple[str, ...] = ()  # On the leader: voters with no durable entry above the high-water mark.
    low_watermark_held_by: tuple[str, ...] = ()  # On the leader: members with no durable state above it.
    duplicate_members: tuple[str, ...] = ()  # Ids under which two processes connected within a minute.
    log_held_by: str = ""  # The bound on compaction of the log: `own_snapshot` or `low_watermark`.
    watches: int = 0  # The watches of this member's own connections.
    leases: int = 0
    history_events: int = 0
    history_bytes: int = 0
    first_revision: int = 0  # Events from this revision on are kept (none, if it is above `revision`); 0: not reported.

    @property
    def lag(self) -> int:
        """The number of entries that this member knows to be committed but has not applied yet."""
        return self.commit_index - self.last_applied


def status_to_map(status: MemberStatus) -> dict[str, Any]:
    """Return the fields by name, for the wire, so that newer builds can add fields."""
    return asdict(status)


def status_from_map(item: object) -> MemberStatus:
    """Read a map made by `status_to_map`. Names that this build does not know are ignored. Raises ProtocolError."""
    try:
        peers = item.get("peers", ()) if isinstance(item, Mapping) else ()
        return from_wire(MemberStatus, item, peers=tuple(from_wire(PeerView, peer) for peer in peers))
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"not a member's status: {error}") from error
