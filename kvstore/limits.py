"""The limits of the store, of two kinds that must not be mixed.

`StoreLimits` are replicated state: set at init, changed by a command, carried in snapshots. Apply checks these alone,
so all members decide alike. `AdmissionLimits` and `ServiceLimits` come from the configuration of one member, and
members may differ: the former are checked before anything is proposed, the latter bound what clients may cost that
member.

See docs/reference/specification.md#89-bounds-of-admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from raft import INT64_MAX, LevelRange

KIB = 1024
MIB = 1024 * KIB
SECOND_NS = 1_000_000_000

TIME_NS_MAX = 2**62
"""The greatest time and time-to-live, so that a deadline, their sum, is an int64, too. The replicated clock reaches it
after 146 years of leadership."""

FEATURE_LEVEL_MIN = 1
FEATURE_LEVEL_MAX = 1
"""The levels that this build can apply (docs/reference/versions.md). A level fixes the layouts of commands, results and
snapshots. The level in force is replicated state; `raise_feature_level` puts another one in force.
"""

FEATURE_LEVELS = LevelRange(FEATURE_LEVEL_MIN, FEATURE_LEVEL_MAX)

FEATURE_LEVEL_INITIAL = 1
"""The level at which every new store begins. It does not depend on the builds of the first members, because the builds
may differ, but the members' first states must be equal. This constant never changes."""

RECORD_OVERHEAD_BYTES = 64
"""The cost of a record in the quota besides its key and value."""

ITEM_OVERHEAD_BYTES = 64
"""The cost of a record, or a result, in the bounds on responses and kept results, besides its keys and values."""

RESPONSE_BYTES_MAX = 3 * MIB
"""A constant of the protocol: the size of the results of one command. A client frame of 4 MiB holds results of this
size with all their numbers.

Replicated state depends on this bound (kept results, and transactions that are refused because of it), so it is no
setting.
"""

PAGE_BYTES_MAX = MIB
"""A constant of the protocol: the size of the response to one `range`, unless its first item alone is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Replicated bounds. On the wire an array of these numbers in this order; it grows only at its end."""

    quota_bytes: int = 2 * 1024 * MIB  # All of it is in memory on every member.
    sessions_max: int = 10_000  # Each costs memory until it expires.
    results_per_session_max: int = 4_096  # Requests that a client has open, or has not acknowledged.
    results_bytes_per_session_max: int = 8 * MIB  # So that one client cannot use up the bound of all.
    results_bytes_max: int = (
        256 * MIB
    )  # Kept results of all sessions. Both bounds in bytes may be exceeded, by one result.
    deletions_max: int = 100_000  # Deleted keys whose revision is remembered exactly.

    def __post_init__(self) -> None:
        for name in self.names():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= INT64_MAX:
                raise ValueError(f"{name} must be from 1 to {INT64_MAX}, not {value!r}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the limits, in the order of the wire."""
        return _STORE_LIMIT_NAMES

    def to_map(self) -> dict[str, int]:
        """By name, as in a snapshot's header."""
        return {name: getattr(self, name) for name in self.names()}

    @classmethod
    def from_map(cls, values: Mapping[str, Any]) -> StoreLimits:
        """Read what `to_map` wrote. ValueError or TypeError if it is anything else."""
        return cls(**values)


_STORE_LIMIT_NAMES = tuple(field.name for field in fields(StoreLimits))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """One member's bounds on what it takes from clients."""

    key_bytes_max: int = KIB
    value_bytes_max: int = MIB
    txn_operations_max: int = 128  # Comparisons, and operations of both branches, counted together.
    txn_bytes_max: int = 3 * MIB // 2  # Keys, values and operands, counted together.
    session_ttl_ns_min: int = SECOND_NS  # With less, a client on a busy machine keeps losing its session.
    session_ttl_ns_max: int = 300 * SECOND_NS  # For this long a client that is gone holds a place of `sessions_max`,
    # and its results. Five times the TTL that this package's client requests; `hwm serve --session-ttl-max` changes it.

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
    """Bounds of the client side of one member."""

    connections_max: int = 1_000  # Fewer if the limit on open files is lower (`resources.descriptor_budget`).
    operator_connections_max: int = 8  # Beyond `connections_max`, for `hwm status` (`resources.connection_places`).
    closing_connections_max: int = 32  # Refused clients get a moment to read why; beyond this, the oldest gets none.
    in_flight_max: int = 4_096  # Unanswered requests per connection; further ones wait in their socket.
    unsent_bytes_max: int = 8 * MIB  # Responses that a client has not read; at the bound none are made.
    incomplete_bytes_total_max: int = 128 * MIB  # Incomplete frames of all connections: 32 of 4 MiB, the maximum.
    unsent_bytes_total_max: int = (
        256 * MIB
    )  # All connections together: 32 clients that read nothing, each at `unsent_bytes_max`.
    log_bytes_max: int = 8 * 1024  # Entries of one `read_log` response (1 ms of work), unless the first is larger.
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
