"""The end of a load: all watches have received everything, and the leases that nobody renews have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.sim.checks.context import CheckedWorld
from harness.sim.checks.store.replay import HISTORY_LEVEL, StoreReplay
from harness.sim.engine.errors import require
from harness.sim.plan.plan import SECOND_NS

EXPIRY_LOOKS, EXPIRY_ELECTION_TIMEOUTS = 4, 40
"""The wait for the end of all leases includes the seconds by which leaders may be late, and the time of an election, in
multiples of the longest election time-out.
"""


class Watcher(Protocol):
    """A program that watches. `next_revision`: the first revision whose events it may lack; 0 until its watch has
    begun."""

    @property
    def next_revision(self) -> int: ...

    def words(self) -> str:
        """Describe the watch, for the message of a failed run."""


def have_received_all(replay: StoreReplay, watchers: Sequence[Watcher]) -> bool:
    """True when every watch has received all events up to the newest revision, or if no watch has begun."""
    has_begun = replay.level >= HISTORY_LEVEL and any(each.next_revision for each in watchers)
    return not has_begun or all(each.next_revision > replay.revision for each in watchers)


def late_words(replay: StoreReplay, watchers: Sequence[Watcher]) -> str:
    """The watches that have not received all events, as text."""
    late = [each.words() for each in watchers if each.next_revision <= replay.revision]
    return f"at {replay.revision}: {'; '.join(late)}"


def see_leases_end(world: CheckedWorld, replay: StoreReplay, ttl_ns: int) -> None:
    """Let an idle cluster run on, and check that it ends all leases. No program may renew a lease any more.

    See docs/concepts/leases.md#what-a-lease-promises.
    """
    queue, plan = world.queue, world.plan
    patience_ns = ttl_ns + replay.limits["lease_grace_ns"] + EXPIRY_LOOKS * SECOND_NS
    patience_ns += EXPIRY_ELECTION_TIMEOUTS * plan.election_timeout_max_ns
    end = queue.now + int(patience_ns * plan.clocks.spread)
    while replay.leases and (due := queue.next_time()) is not None and due <= end:
        queue.step()
    words = f"after {patience_ns / 1e9:.1f} s: {replay.leases}"
    require(not replay.leases, "a lease that nobody renews ends", words)
