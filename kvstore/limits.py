"""The bounds of the store, of two sorts that must not be mixed.

`AdmissionLimits` come from the configuration of one member and are checked there, before anything is proposed: members
may differ. `StoreLimits` are replicated state, set at init, changed by a command, carried in snapshots: apply checks
these alone, so that all members decide alike.

See docs/reference/specification.md#89-bounds-of-admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from raft import INT64_MAX, LevelRange

KIB = 1024
MIB = 1024 * KIB
SECOND_NS = 1_000_000_000

TIME_NS_MAX = 2**62
"""The greatest time and time-to-live, so that a deadline is an int64 too. It is 146 years after the first leader."""

FEATURE_LEVEL_MIN = 1
FEATURE_LEVEL_MAX = 1
"""What this build can apply (docs/versions.md): the shapes of commands, results and snapshots up to that level. The one
in force is replicated state; `raise_feature_level` puts another one in force."""

FEATURE_LEVELS = LevelRange(FEATURE_LEVEL_MIN, FEATURE_LEVEL_MAX)

FEATURE_LEVEL_INITIAL = 1
"""Where every new store begins, whatever its first members' builds know: these may differ, and their first states must
not. A constant for ever."""

RECORD_OVERHEAD_BYTES = 64
"""What a record costs in the quota besides its key and value."""

ITEM_OVERHEAD_BYTES = 64
"""What a record, or a result, counts in the bounds on responses and kept results, besides its keys and values."""

RESPONSE_BYTES_MAX = 3 * MIB
"""A constant of the protocol: the results of one command. A client frame of 4 MiB holds them with all their numbers.

Replicated state depends on it (kept results, and transactions that are refused for it), so it is no setting.
"""

PAGE_BYTES_MAX = MIB
"""A constant of the protocol: what one `range` answers at most, unless its first item alone is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """Replicated bounds. On the wire an array of these numbers in this order; it grows only at its end."""

    quota_bytes: int = 2 * 1024 * MIB  # All of it is in memory on every member.
    sessions_max: int = 10_000  # Each costs memory until it expires.
    results_per_session_max: int = 4_096  # Requests that a client has open, or has not acknowledged.
    results_bytes_per_session_max: int = 8 * MIB  # So that one client cannot use up the bound of all.
    results_bytes_max: int = (
        256 * MIB
    )  # Kept results of all sessions. Each bytes bound is passed by one result at most.
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
    session_ttl_ns_min: int = SECOND_NS  # Below it a client on a busy machine loses its session all the time.
    session_ttl_ns_max: int = 300 * SECOND_NS  # So long a client that is gone holds a place of `sessions_max`, and its
    # results. Five times what the clients of this package ask for; `hwm serve --session-ttl-max` for those that sleep.

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if self.key_bytes_max + self.value_bytes_max + 2 * ITEM_OVERHEAD_BYTES > RESPONSE_BYTES_MAX:
            raise ValueError(f"a record must fit in a response of {RESPONSE_BYTES_MAX} bytes: lower value_bytes_max")
        if self.session_ttl_ns_min > self.session_ttl_ns_max or self.session_ttl_ns_max > TIME_NS_MAX:
            raise ValueError("session_ttl_ns_min must not exceed session_ttl_ns_max")
