"""The limits of the store. There are two kinds: replicated limits, and limits of one member.

`StoreLimits` are replicated state: set at init, changed by a command, carried in snapshots. Apply checks only these
limits, so all members decide alike. `AdmissionLimits` and `ServiceLimits` come from the configuration of one member,
and may differ between members. `AdmissionLimits` are checked before anything is proposed. `ServiceLimits` bound the
resources that clients may use on that member.

See docs/reference/specification.md#89-bounds-of-admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from raft import INT64_MAX, MEMBERS_MAX, LevelRange

KIB = 1024
MIB = 1024 * KIB
SECOND_NS = 1_000_000_000

TIME_NS_MAX = 2**62
"""The greatest time, and the greatest time-to-live, in ns. A deadline, which is the sum of two such numbers, is at most
2^63. Leader time reaches this number after 146 years of leadership."""

FEATURE_LEVEL_MIN = 1
FEATURE_LEVEL_MAX = 3
"""The lowest and the highest feature level that this build can apply (docs/reference/versions.md). A level fixes the
layouts of commands, results and snapshots. The level in force is replicated state, which `raise_feature_level` changes.
"""

FEATURE_LEVELS = LevelRange(FEATURE_LEVEL_MIN, FEATURE_LEVEL_MAX)

FEATURE_LEVEL_INITIAL = 1
"""The feature level of a state machine until a state is restored. This constant must never change. All founders of a
cluster begin at the same level, by default the highest level that their builds know (`kvstore.member.folder`)."""

RECORD_OVERHEAD_BYTES = 64
"""The bytes that a record counts towards the quota, in addition to its key and value."""

ITEM_OVERHEAD_BYTES = 64
"""The bytes that a record or a result counts towards the bounds on responses and kept results, in addition to its keys
and values."""

HISTORY_LEVEL = 2
"""The feature level that adds the history, leases, and further commands and options."""

ACCESS_LEVEL = 3
"""The feature level that adds users and roles."""

RESPONSE_BYTES_MAX = 3 * MIB
"""A constant of the protocol: the greatest size of the results of one command. Results of this size, with all their
numbers, fit in a client frame of 4 MiB.

Kept results and refused transactions depend on this bound. They are replicated state, so the bound cannot be
configured.
"""

COMPARE_KEYS_MAX = 10_000
"""A constant of the protocol: the greatest number of keys in all compared ranges of one command. A member compares
10,000 keys in about 4 ms."""

TXN_DEPTH_MAX = 4
"""A constant of the protocol: the greatest depth of nested transactions. A transaction without inner transactions has
the depth 1."""

PAGE_BYTES_MAX = MIB
"""A constant of the protocol: the greatest size of the response to one `range`, unless its first item alone is
larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """The replicated limits. On the wire, they are an array of numbers in this order. New limits may be added only at
    the end."""

    quota_bytes: int = 2 * 1024 * MIB  # Every member holds all stored bytes in memory.
    sessions_max: int = 10_000  # Each session costs memory until it expires.
    results_per_session_max: int = 4_096  # Kept results of one session that its client has not acknowledged.
    results_bytes_per_session_max: int = 8 * MIB  # The bytes of these results; no client can fill `results_bytes_max`.
    results_bytes_max: int = (
        256 * MIB
    )  # Kept results of all sessions, in bytes. One result may exceed this bound, or the bound of a session.
    deletions_max: int = 100_000  # Deleted keys whose revision is remembered exactly.
    # The limits from here on need feature level 2. If one of the two limits of the history is 0, no history is kept.
    history_bytes_max: int = 64 * MIB  # The bytes of keys and old values of the events, plus 64 for each event.
    history_events_max: int = 1_000_000
    leases_max: int = 100_000
    lease_grace_ns: int = 3 * SECOND_NS  # After an election no lease expires for this time.
    delete_keys_max: int = 1_024  # Keys that one command can delete by ranges, and keys of one lease. A member
    # removes them in one step, in 2 to 5 µs per key, and does nothing else meanwhile.
    min_in_sync: int = 1  # The number of voters that must be in sync for a write of level IN_SYNC.

    def __post_init__(self) -> None:
        for name in self.names():
            value, least, greatest = getattr(self, name), limit_min(name), limit_max(name)
            if type(value) is not int or not least <= value <= greatest:
                raise ValueError(f"{name} must be from {least} to {greatest}, not {value!r}")

    @classmethod
    def names(cls, level: int = FEATURE_LEVEL_MAX) -> tuple[str, ...]:
        """The names of the limits of a feature level, in the order of the wire."""
        return _STORE_LIMIT_NAMES if level >= HISTORY_LEVEL else _STORE_LIMIT_NAMES[:LEVEL_1_LIMITS]

    def to_map(self, level: int = FEATURE_LEVEL_MAX) -> dict[str, int]:
        """Return the limits by name, as in the header of a snapshot at this feature level."""
        return {name: getattr(self, name) for name in self.names(level)}

    @classmethod
    def from_map(cls, values: Mapping[str, Any]) -> StoreLimits:
        """Convert the result of `to_map` back to limits. Raises ValueError or TypeError for any other input."""
        return cls(**values)


_STORE_LIMIT_NAMES = tuple(field.name for field in fields(StoreLimits))

LEVEL_1_LIMITS = 6
"""The number of limits at feature level 1: the first limits of `StoreLimits`."""


HISTORY_LIMITS = ("history_bytes_max", "history_events_max")


def limit_min(name: str) -> int:
    """Return the least value of a replicated limit. If a limit of the history is 0, the history is switched off."""
    return 0 if name in (*HISTORY_LIMITS, "lease_grace_ns") else 1


LEASE_GRACE_NS_MAX = 3_600 * SECOND_NS
"""A constant of the protocol: the longest grace after an election."""

DELETE_KEYS_MAX_MAX = 100_000
"""A constant of the protocol: the greatest `delete_keys_max`. Removing 100,000 keys takes half a second, in which a
member does nothing else."""


_LIMITS_MAX = {
    "lease_grace_ns": LEASE_GRACE_NS_MAX,
    "delete_keys_max": DELETE_KEYS_MAX_MAX,
    "min_in_sync": MEMBERS_MAX,
}


def limit_max(name: str) -> int:
    """Return the greatest value of a replicated limit."""
    return _LIMITS_MAX.get(name, INT64_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """One member's bounds on the requests that it accepts from clients."""

    key_bytes_max: int = KIB
    value_bytes_max: int = MIB
    txn_operations_max: int = 128  # Comparisons, and operations of both branches, counted together.
    txn_bytes_max: int = 3 * MIB // 2  # Keys, values and operands, counted together.
    lease_ttl_ns_min: int = SECOND_NS  # With a shorter time, a busy owner would often lose its lease.
    lease_ttl_ns_max: int = 365 * 86_400 * SECOND_NS
    lease_renewals_max: int = 1_000  # The leases that one command renews, in about 1 ms at apply.
    session_ttl_ns_min: int = SECOND_NS  # With a shorter time, a client on a busy machine would often lose its session.
    session_ttl_ns_max: int = 300 * SECOND_NS  # After a client has disappeared, its session and the kept
    # results stay for at most this time, which is five times the TTL that the client of this package requests.
    # `hwm serve --session-ttl-max` changes this bound.

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if self.key_bytes_max + self.value_bytes_max + 2 * ITEM_OVERHEAD_BYTES > RESPONSE_BYTES_MAX:
            raise ValueError(f"a record must fit in a response of {RESPONSE_BYTES_MAX} bytes: lower value_bytes_max")
        if self.session_ttl_ns_min > self.session_ttl_ns_max or self.session_ttl_ns_max > TIME_NS_MAX:
            raise ValueError("session_ttl_ns_min must not exceed session_ttl_ns_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Bounds on the resources that clients may use on one member."""

    connections_max: int = 1_000  # Fewer if the limit on open files is lower (`resources.descriptor_budget`).
    operator_connections_max: int = 8  # Reserved places, for `hwm status` (`resources.connection_places`).
    closing_connections_max: int = 32  # Refused connections, open for a moment so that clients can read the reason.
    in_flight_max: int = 4_096  # Unanswered requests per connection; further requests wait in the socket.
    unsent_bytes_max: int = 8 * MIB  # Unread responses of a connection; at the bound, no more responses are made.
    incomplete_bytes_total_max: int = 128 * MIB  # Incomplete frames of all connections: room for 32 frames.
    unsent_bytes_total_max: int = (
        256 * MIB
    )  # All connections together: 32 clients that read nothing, each at `unsent_bytes_max`.
    mark_waits_max: int = 10_000  # Requests that wait for the high-water mark, of all connections, about 1 KB each.
    watches_max: int = 100_000
    watches_per_connection_max: int = 10_000
    watch_ranges_max: int = 10_000  # Distinct watched ranges of keys.
    history_age_ns_max: int = 0  # The age at which the leader compacts history; 0: none (`resources.history_age`).
    log_bytes_max: int = 8 * 1024  # Entries of a `read_log` response (1 ms of work); the first may be larger.
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)


ETCD_LIMITS = {
    "key_bytes_max": 8 * KIB,
    "value_bytes_max": 3 * MIB // 2,
    "txn_operations_max": 2_048,  # The port for etcd's clients has a bound of its own for each branch.
    "txn_bytes_max": 2 * MIB,
}
"""The bounds of admission of a member that serves etcd's clients, which expect at least these."""


def with_etcd_limits(limits: ServiceLimits) -> ServiceLimits:
    """Return the limits of a member that serves etcd's clients: bounds below ETCD_LIMITS are raised to ETCD_LIMITS."""
    admission = limits.admission
    wider = {name: max(value, getattr(admission, name)) for name, value in ETCD_LIMITS.items()}
    return replace(limits, admission=replace(admission, **wider))
