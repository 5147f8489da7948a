"""Settings and bounds of the engine. Every bound has a name and a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raft.errors import InvalidConfiguration
from raft.types import ENTRY_PAYLOAD_BYTES_MAX

MILLISECOND_NS = 1_000_000
MILLION = 1_000_000
PRIORITY_MAX = 100
_MAY_BE_NOTHING = ("lease_reads", "election_priority", "leader_loss_hint")
MIB = 1024 * 1024


def fast_paths_wanted(environment: Mapping[str, str]) -> bool:
    """Return False if `environment` turns the fast paths off by `HWM_FAST_PATHS=0` (docs/internals/fast-paths.md).

    The caller passes its own `os.environ`, because the engine does not read the environment.
    """
    return environment.get("HWM_FAST_PATHS", "1") != "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """The settings of one member: timers in integer nanoseconds, bounds in bytes. The defaults suit a LAN and a busy
    two-core machine."""

    heartbeat_interval_ns: int = 50 * MILLISECOND_NS
    # Six heartbeats, so that one lost heartbeat starts no election.
    election_timeout_min_ns: int = 300 * MILLISECOND_NS
    # Twice the minimum, because a wide range makes split votes rare.
    election_timeout_max_ns: int = 600 * MILLISECOND_NS

    batch_bytes_max: int = MIB  # The size of the commands of one entry. A larger command gets its own entry.
    pending_bytes_max: int = 32 * MIB  # Commands that wait to be proposed.
    uncommitted_bytes_max: int = 64 * MIB  # A leader's entries above the high-water mark.
    unapplied_bytes_max: int = 64 * MIB  # A follower's entries above last_applied. Further entries are refused.
    log_cache_bytes_max: int = 64 * MIB  # Recent entries kept in memory; older entries are read from the disk.
    append_bytes_max: int = MIB  # The size of one append request. A larger entry is sent alone.
    append_entries_max: int = 128  # The number of entries in one append request. A peer appends 128 entries in 1 ms.
    window_messages_max: int = 64  # Unanswered append requests per peer.
    window_bytes_max: int = 8 * MIB  # The size of the unanswered append requests, per peer.
    # The number of entries in unanswered append requests, per peer. A leader encodes 1,024 entries in 1 ms, and a peer
    # writes 1,024 entries in 1 ms.
    window_entries_max: int = 1_024
    # The size of the entries applied in one slice. Other events are handled between slices.
    apply_bytes_max: int = MIB // 4
    # The commands applied in one slice, which takes 1 ms. Each entry counts as 8 further commands.
    apply_commands_max: int = 1_024
    reads_pending_max: int = 100_000  # Reads that were requested and are not served yet.
    proposals_pending_max: int = 100_000  # Commands that were accepted from clients and have no outcome yet.

    # A member builds a snapshot once its log has grown by this many bytes since the last snapshot, or earlier if the
    # state is small.
    snapshot_log_bytes: int = 256 * MIB
    snapshot_chunk_bytes: int = 256 * 1024  # The greatest size of a snapshot part in one InstallSnapshot message.
    # This value limits three rates separately: building snapshots, sending them (to all peers together), and installing
    # them.
    snapshot_bytes_per_second: int = 32 * MIB
    # The greatest size of the log that is kept for a slow member (docs/reference/specification.md#65-compaction).
    retention_bytes_max: int = 512 * MIB
    room_search_ns: int = 2_000 * MILLISECOND_NS  # The pause between checks of a full disk; a check writes 1 MiB.
    lease_reads: bool = False  # True if a leader may answer reads by its lease, without a round.
    # The greatest drift of any clock from true time. NTP keeps the drift below 600 ppm.
    clock_drift_ppm_max: int = 10_000
    leader_loss_hint: bool = True  # A follower campaigns soon after the connections with its leader have ended.
    # 0 to PRIORITY_MAX. A leader transfers the leadership to a fit member with a higher priority.
    election_priority: int = 0

    # The greatest lag of a voter that is still in sync with its leader.
    in_sync_lag_ns_max: int = 1_000 * MILLISECOND_NS

    outcome_wait_ns: int = 600 * MILLISECOND_NS  # The time for which open proposals may wait after a step-down.

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name not in _MAY_BE_NOTHING and getattr(self, name) <= 0:
                raise InvalidConfiguration(f"{name} must be positive, not {getattr(self, name)}")
        if not 2 * self.heartbeat_interval_ns <= self.election_timeout_min_ns:
            raise InvalidConfiguration("election_timeout_min_ns must be at least twice heartbeat_interval_ns")
        if not 4 * self.heartbeat_interval_ns <= self.in_sync_lag_ns_max:
            raise InvalidConfiguration("in_sync_lag_ns_max must be at least four times heartbeat_interval_ns")
        if not self.election_timeout_min_ns < self.election_timeout_max_ns:
            raise InvalidConfiguration("election_timeout_max_ns must be above election_timeout_min_ns")
        if not 0 <= self.election_priority <= PRIORITY_MAX:
            raise InvalidConfiguration(f"election_priority is 0 to {PRIORITY_MAX}, not {self.election_priority}")
        if self.clock_drift_ppm_max >= MILLION // 2:
            raise InvalidConfiguration("clock_drift_ppm_max must be below 500000: a clock that drifts more is useless")
        # These sizes must fit in a frame.
        for name in ("batch_bytes_max", "append_bytes_max", "snapshot_chunk_bytes"):
            if getattr(self, name) > ENTRY_PAYLOAD_BYTES_MAX:
                raise InvalidConfiguration(f"{name} must not exceed {ENTRY_PAYLOAD_BYTES_MAX}")

    def lease_of(self, promise_ns: int) -> int:
        """Return the time (ns, by this member's clock) for which a peer's promise of `promise_ns` certainly lasts. The
        time begins when this member sent the message that the peer answered.

        The peer's promise begins later, namely when the message arrives. The result assumes the worst drift: this
        member's clock is slow by `clock_drift_ppm_max`, and the peer's clock is fast by as much.
        """
        return promise_ns * (MILLION - self.clock_drift_ppm_max) // (MILLION + self.clock_drift_ppm_max)

    def true_time_max(self, elapsed_ns: int) -> int:
        """Return the longest true time (ns) that can pass while this member's clock advances by `elapsed_ns`."""
        return -(-elapsed_ns * MILLION // (MILLION - self.clock_drift_ppm_max))

    @property
    def campaign_latest_ns(self) -> int:
        """Return the upper end (ns) of the range from which election time-outs are drawn. A higher `election_priority`
        makes the range shorter. The highest priority leaves a quarter of the range."""
        spread_ns = self.election_timeout_max_ns - self.election_timeout_min_ns
        return self.election_timeout_max_ns - (spread_ns - 1) * 3 * self.election_priority // (4 * PRIORITY_MAX)
