"""The time for which the owner of a lease can rely on the lease: arithmetic on the owner's clock, without I/O."""

from __future__ import annotations

DRIFT_SHARE_MAX = 0.02
"""The fraction by which the owner's clock may run slower than the leader's clock: each clock drifts by 1 % at most
(`RaftConfig.clock_drift_ppm_max`). The owner subtracts this fraction from the time to live."""

RENEWALS_PER_TERM = 3
"""A lease is renewed after a third of its time to live, so that there is time to repeat a lost renewal."""


class LeaseTerm:
    """The term of one lease. All times are seconds on the owner's monotonic clock.

    `sent_at`: the time at which the last answered grant or renewal was sent. The store carried out the command later
    than `sent_at`, so the lease lives at least until `expires_at`.
    """

    __slots__ = ("expires_at", "renew_at", "ttl_seconds")

    def __init__(self, ttl_seconds: float, sent_at: float) -> None:
        self.ttl_seconds = ttl_seconds
        self.expires_at = sent_at + ttl_seconds * (1 - DRIFT_SHARE_MAX)
        self.renew_at = sent_at + ttl_seconds / RENEWALS_PER_TERM

    def renewed(self, ttl_seconds: float, sent_at: float) -> None:
        """Record that the renewal sent at `sent_at` was answered. `expires_at` never becomes earlier."""
        term = LeaseTerm(ttl_seconds, sent_at)
        self.ttl_seconds = ttl_seconds
        self.expires_at, self.renew_at = max(self.expires_at, term.expires_at), max(self.renew_at, term.renew_at)

    def failed(self, now: float) -> None:
        """Record that a renewal failed. The next renewal is due after a tenth of the time to live."""
        self.renew_at = now + self.ttl_seconds / 10

    def is_over(self, now: float) -> bool:
        """True if the lease may have ended."""
        return now >= self.expires_at
