"""The times and the bounds of a client."""

from __future__ import annotations

from dataclasses import dataclass

MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The times (in ns) and the bounds of a client."""

    attempt_timeout_ns: int = 1_000 * MILLISECOND_NS  # The time for which a member with open requests may be silent.
    pause_min_ns: int = 20 * MILLISECOND_NS  # After the first failure; doubled by each further failure, with jitter.
    pause_max_ns: int = 500 * MILLISECOND_NS
    search_pause_max_ns: int = 100 * MILLISECOND_NS  # The greatest pause while no leader is known.
    members_refresh_ns: int = 30_000 * MILLISECOND_NS  # The interval of requests for the current members.
    calls_max: int = 8192  # Open operations of one client; further operations have to wait.
    in_flight_max: int = 1024  # Unanswered requests on one connection; a member accepts 4,096.
    open_numbers_max: int = 1024  # Open request numbers of a session; each may have a kept result.
    keep_alive_ns: int = 10_000 * MILLISECOND_NS  # An idle session is kept alive at this interval.

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            assert getattr(self, name) > 0, name
        assert self.pause_min_ns <= self.pause_max_ns, self
